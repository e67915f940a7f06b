"""Rows that an executor's JVM can hand over and its Python worker may not take, on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count, max_
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import Kept, committed, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[1,1,1400]"
CONF = {"spark.executor.memory": "1400m", "spark.executor.pyspark.memory": "900m"}


def test_rows_beyond_a_python_workers_memory_are_refused_by_it(spark: SparkSession, tmp_path: Path) -> None:
    """With what to change; nobody is lost, nothing is committed, and with fewer rows the query goes on at once."""
    kept = Kept()
    longest = aggregate(rows=count(), longest=max_("v"))
    job = Stateful("much", "k", longest, settings=settings_in(tmp_path)).into(kept)
    few, many = "cast(id as string) v", "repeat(cast(id % 10 as string), 2000) v"
    job(spark.range(100).selectExpr("id % 10 k", few), 0)
    with pytest.raises(ConfigError, match="rows do not fit into its Python worker") as refused:
        job(spark.range(200_000).selectExpr("id % 10 k", many), 1)
    assert "maxOffsetsPerTrigger" in refused.value.remedy
    assert "spark.executor.pyspark.memory" in refused.value.remedy
    assert committed(f"file://{tmp_path}/state") == [0]
    job(spark.range(100).selectExpr("id % 10 k", few), 1)
    assert kept.latest("k") == {k: {"rows": 20, "longest": f"{90 + k}"} for k in range(10)}
    assert [list(report.ran_on) for report in job.reports] == [["0"], ["0"]]
