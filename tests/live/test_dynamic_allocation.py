"""Spark's dynamic allocation adds and removes executors, down to none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark.errors import UnavailableError
from riffle_spark.spark.engine import inventory
from tests.kit.streams.streaming import settings_in, wait_for

pytestmark = pytest.mark.cluster

MASTER = "local-cluster[1,1,600]"
IDLE_SECONDS = 3
CONF = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": f"{IDLE_SECONDS}s",
    "spark.dynamicAllocation.shuffleTracking.timeout": f"{IDLE_SECONDS}s",
    "spark.dynamicAllocation.maxExecutors": "1",
}


def test_dynamic_allocation_adds_and_removes_an_executor_without_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """The driver gets an executor from dynamic allocation, although no task is pending. The removal of an idle executor
    counts as planned.
    """
    settings = settings_in(tmp_path)
    assert inventory.expected_executors(spark, settings) == 1
    assert inventory.executors(spark) == ()
    first = inventory.await_executors(spark, settings)
    assert len(first) == 1
    assert spark.range(5).count() == 5
    wait_for(lambda: inventory.executors(spark) == (), "the idle executor is removed")
    assert inventory.find_planned_removals(spark, [first[0].id]) == {first[0].id}
    assert len(inventory.await_executors(spark, settings)) == 1


def test_a_cluster_that_starts_no_executor_in_time_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """The job raises UnavailableError, with the setting that limits the wait, if the cluster starts no executor in
    time.
    """
    wait_for(lambda: inventory.executors(spark) == (), "the idle executor is removed")
    with pytest.raises(UnavailableError, match=r"0\.01 s"):
        inventory.await_executors(spark, settings_in(tmp_path, initial_rebalance_delay=0.01))
