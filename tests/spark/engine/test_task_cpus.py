"""An executor has as many slots as it runs tasks at once, which may be fewer than its cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count
from riffle_spark.spark.engine import inventory
from tests.kit.streams.streaming import CollectingSink, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.newer_spark]

MASTER = "local-cluster[1,4,600]"
CONF = {"spark.task.cpus": "2"}


def test_task_cpus_limit_the_number_of_slots(spark: SparkSession, tmp_path: Path) -> None:
    """Four cores and ``spark.task.cpus=2`` make two slots; each of them gets a task."""
    settings = settings_in(tmp_path)
    (executor,) = inventory.await_executors(spark, settings, expected=1)
    assert executor.cores == 2
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    job(spark.range(100).selectExpr("id % 10 k"), 0)
    (report,) = job.reports
    assert (report.slots, report.rows, report.misses) == (2, 100, 0)
    assert dict(report.ran_on) == {executor.id: 2}
    assert [member.cores for member in job.members()] == [2]
