"""A key with most of a query's rows, on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count, sum_
from tests.kit.streams.streaming import Kept, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[1,1,1000]"
CONF = {"spark.executor.memory": "1000m", "spark.executor.pyspark.memory": "3g"}


def test_a_key_with_most_rows_is_counted_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    """One slot takes nine rows of ten, batch after batch, and no slot runs twice."""
    rows, kept = 1_000_000, Kept()
    job = Stateful("hot", "k", aggregate(rows=count(), total=sum_("v")), settings=settings_in(tmp_path)).into(kept)
    for batch in range(2):
        job(spark.range(rows).selectExpr("if(id % 10 > 0, 0, id) k", "1L v"), batch)
    latest = kept.latest("k")
    assert latest[0] == {"rows": 2 * (rows // 10 * 9 + 1), "total": 2 * (rows // 10 * 9 + 1)}
    assert len(latest) == rows // 10
    assert {row["rows"] for key, row in latest.items() if key} == {2}
    assert [report.runs for report in job.reports] == [1, 1]
