"""In local mode, too, slots are the tasks that run at once; the number of partitions that Spark makes has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count
from tests.kit.streams.streaming import Kept, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.long]

MASTER = "local[4]"
CONF = {"spark.task.cpus": "2", "spark.default.parallelism": "7"}


def test_slots_of_local_mode_are_the_tasks_that_run_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Four threads and ``spark.task.cpus=2`` make two slots."""
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(Kept())
    job(spark.range(100).selectExpr("id % 10 k"), 0)
    assert (job.reports[-1].slots, job.reports[-1].rows) == (2, 100)
