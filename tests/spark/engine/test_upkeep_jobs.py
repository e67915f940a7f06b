"""Upkeep jobs end by their deadline, with their query and by their own errors. A warm-up prepares Python workers.

One local executor suffices for these tests. ``test_cluster.py`` has those with several executors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import CensusOrder, UpkeepOrder
from riffle_spark.settings import Settings
from riffle_spark.spark.configure import warm_up
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.background import BackgroundThread
from riffle_spark.spark.engine.cluster import UPKEEP_POOL, SparkCluster
from riffle_spark.spark.engine.tagged_jobs import Deadline, TaggedJobs
from riffle_spark.state.objects.options import StoreOptions
from tests.kit.streams.sleeping_job import LONG_SECONDS, sleeping
from tests.kit.streams.streaming import settings_in, wait_for

pytestmark = pytest.mark.spark


def test_a_task_that_runs_too_long_is_cancelled_and_its_executor_named(spark: SparkSession, tmp_path: Path) -> None:
    """A task that exceeds its deadline is cancelled, and the deadline names its executor."""
    deadline, began = Deadline(spark, 1.0), time.monotonic()
    with pytest.raises(Exception, match="cancelled"), deadline.watched():
        sleeping(spark, tmp_path / "started")()
    assert time.monotonic() - began < LONG_SECONDS / 2
    assert deadline.passed
    assert len(deadline.overdue) == 1
    assert deadline.overdue[0] in {executor.id for executor in inventory.executors(spark)}


def test_a_stop_cancels_the_running_job_and_no_further_job_starts(spark: SparkSession, tmp_path: Path) -> None:
    """A stop cancels the running job, which returns its default. Other jobs of the session continue."""
    jobs, worker = TaggedJobs(spark, UPKEEP_POOL), BackgroundThread()
    worker.submit(lambda: jobs.run(sleeping(spark, tmp_path / "started"), ["stopped"]))
    wait_for((tmp_path / "started").exists, "the job runs")
    began = time.monotonic()
    jobs.stop(10)
    jobs.stop(10)
    wait_for(lambda: not worker.is_busy(), "the job has ended")
    assert time.monotonic() - began < LONG_SECONDS / 2
    assert worker.collect() == [["stopped"]]
    assert jobs.run(lambda: ["ran"], ["stopped"]) == ["stopped"]
    assert spark.range(3).count() == 3
    worker.stop()


def test_a_job_that_fails_by_itself_raises_its_error(spark: SparkSession) -> None:
    """A job that fails by itself raises its error, and the next job runs."""
    jobs = TaggedJobs(spark, UPKEEP_POOL)
    with pytest.raises(ZeroDivisionError):
        jobs.run(lambda: [1 / 0], list[float]())
    assert jobs.run(lambda: [1.0], list[float]()) == [1.0]


def test_a_warm_up_without_a_root_logs_no_warning(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """A warm-up without a root logs its failure at level debug only, because the job reports the missing root."""
    with caplog.at_level(logging.DEBUG, logger="riffle_spark"):
        thread = warm_up(spark, Settings())
        thread.join(60)
    assert not thread.is_alive()
    assert [record.levelname for record in caplog.records if "were not warmed up" in record.message] == ["DEBUG"]


def home_in(spark: SparkSession, folder: Path) -> Home:
    """Return the home of a root in a folder, for this application's executor."""
    application = inventory.application_id(spark)
    live = frozenset(f"{application}/{executor.id}" for executor in inventory.executors(spark))
    return Home(f"file://{folder}/state", StoreOptions(), f"{folder}/local", application, live, "0" * 32)


def test_upkeep_and_census_are_done_by_live_executors_of_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    """The live executor does its order. A lost executor gets none, and nothing runs after the end of the query."""
    home, executors, is_active = home_in(spark, tmp_path), inventory.executors(spark), [True]
    cluster = SparkCluster(spark, lambda: is_active[-1])
    order = UpkeepOrder(home, "", 1, 0, {})
    (receipt,) = cluster.upkeep({executors[0].id: order, "77": order})
    assert (receipt.executor, receipt.errors) == (executors[0].id, ())
    (census,) = cluster.census(executors, CensusOrder(home))
    assert (census.executor, census.error) == (executors[0].id, None)
    assert cluster.upkeep({"77": order}) == []
    is_active.append(False)
    assert cluster.upkeep({executors[0].id: order}) == []


def test_a_failed_job_on_an_executor_is_explained(spark: SparkSession, tmp_path: Path) -> None:
    """A job that fails on an executor raises an error that names the job and has Spark's reason in one line."""
    home = replace(home_in(spark, tmp_path), root="nowhere://bucket")
    with pytest.raises(UnavailableError, match=r"RIFFLE-0275.*A job on the executors failed: ") as raised:
        SparkCluster(spark).warm(inventory.executors(spark), home, LONG_SECONDS)
    assert (raised.value.where, "\n" in raised.value.problem) == (UPKEEP_POOL, False)


def test_a_warm_up_starts_python_workers_with_the_client_of_the_root(spark: SparkSession, tmp_path: Path) -> None:
    """After a warm-up, Python workers hold a client of the query's object store."""
    settings = settings_in(tmp_path).but(expected_executors=1)
    root = settings.root

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from riffle_spark.worker import member_folders

        for _ in batches:
            holds = any(name == root for name, _ in member_folders._stores)  # private: what a worker keeps
            yield pa.record_batch({"holds": [holds]})

    thread = warm_up(spark, settings)
    thread.join(LONG_SECONDS)
    assert not thread.is_alive()
    holds = spark.range(0, 4, 1, 4).mapInArrow(look, "holds boolean").collect()
    assert any(row.holds for row in holds)
