"""A batch has more rows than the memory limit of the Python worker allows, and no more than the JVM can send."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit.streams.streaming import refused_between

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[1,1,1400]"
CONF = {"spark.executor.memory": "1400m", "spark.executor.pyspark.memory": "900m"}


def test_a_batch_that_exceeds_a_python_workers_memory_fails_with_a_remedy(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that exceeds a Python worker's memory fails with the settings to change. No executor is lost, nothing is
    committed, and the query continues with fewer rows per batch.
    """
    refused, job = refused_between(spark, tmp_path, 200_000, "rows do not fit into its Python worker")
    assert "maxOffsetsPerTrigger" in refused.remedy
    assert "spark.executor.pyspark.memory" in refused.remedy
    assert [list(report.ran_on) for report in job.reports] == [["0"], ["0"]]
