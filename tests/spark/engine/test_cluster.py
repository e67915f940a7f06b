"""Upkeep jobs run one task on each executor, in their own scheduler pool, and end with the query."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import CensusOrder, UpkeepOrder
from riffle_spark.spark.configure import warm_up
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.background import BackgroundThread
from riffle_spark.spark.engine.cluster import UPKEEP_POOL, SparkCluster
from riffle_spark.spark.engine.tagged_jobs import Deadline, TaggedJobs
from riffle_spark.state.objects.options import StoreOptions
from tests.kit.streams.sleeping_job import LONG_SECONDS, sleeping
from tests.kit.streams.streaming import settings_in, wait_for

pytestmark = pytest.mark.cluster

MASTER = "local-cluster[2,1,600]"


@pytest.fixture(autouse=True)
def two_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Wait for both executors."""
    settings = settings_in(tmp_path)
    assert len(inventory.await_executors(spark, settings, expected=2)) == 2


@pytest.fixture
def home(spark: SparkSession, tmp_path: Path) -> Home:
    """A root in the test's folder, with the executors of this application."""
    application = inventory.application_id(spark)
    live = frozenset(f"{application}/{executor.id}" for executor in inventory.executors(spark))
    return Home(f"file://{tmp_path}/state", StoreOptions(), f"{tmp_path}/local", application, live, "0" * 32)


def test_every_executor_answers_the_census_for_itself(spark: SparkSession, home: Home) -> None:
    """Each executor answers the census with its own folder, and a second census finds the same member."""
    cluster, executors = SparkCluster(spark), inventory.executors(spark)
    found = cluster.census(executors, CensusOrder(home))
    assert sorted(census.executor for census in found) == [executor.id for executor in executors]
    assert len({census.member for census in found}) == 2
    assert [census.error for census in found] == [None, None]
    again = cluster.census(executors[:1], CensusOrder(home))
    assert [(census.executor, census.member) for census in again] == [
        (census.executor, census.member) for census in found if census.executor == executors[0].id
    ]


def test_only_live_executors_get_upkeep(spark: SparkSession, home: Home) -> None:
    """Each live executor does its own upkeep order. An order for a lost executor is skipped."""
    cluster, live = SparkCluster(spark), [executor.id for executor in inventory.executors(spark)]
    order = UpkeepOrder(home, "", 1, 0, {})
    receipts = cluster.upkeep(dict.fromkeys((*live, "77"), order))
    assert sorted(receipt.executor for receipt in receipts) == live
    assert [receipt.errors for receipt in receipts] == [(), ()]
    assert cluster.upkeep({"77": order}) == []


def test_an_upkeep_job_sets_its_own_pool_and_restores_the_thread(spark: SparkSession, home: Home) -> None:
    """An upkeep job sets its pool and tag while it runs, and keeps the caller's job group. Afterwards the thread has
    its former properties.
    """
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "mine")
    context.setJobGroup("batch", "the batch's own")
    jobs = TaggedJobs(spark, UPKEEP_POOL)
    names = ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.tags")
    during = jobs.run(lambda: [str(context.getLocalProperty(name)) for name in names], list[str]())
    assert during[:2] == [UPKEEP_POOL, "batch"]
    assert during[2].startswith(UPKEEP_POOL)
    assert [context.getLocalProperty(name) or None for name in names] == ["mine", "batch", None]
    for name in names:
        context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_time_without_a_core_does_not_count(spark: SparkSession, tmp_path: Path) -> None:
    """The time that a job waits for a core does not count towards its deadline."""
    worker, deadline = BackgroundThread(), Deadline(spark, 5.0)
    worker.submit(sleeping(spark, tmp_path / "busy", 7.0, tasks=2))
    wait_for((tmp_path / "busy").exists, "the cores are taken")
    with deadline.watched():
        assert spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").count() == 2
    assert (deadline.passed, deadline.overdue) == (False, ())
    wait_for(lambda: not worker.is_busy(), "the cores are free")
    worker.stop()


def test_a_stop_cancels_a_job_that_is_about_to_start(spark: SparkSession, tmp_path: Path) -> None:
    """A stop waits for a job that is about to start, because Spark cannot cancel it earlier, and then cancels it."""
    jobs, worker = TaggedJobs(spark, UPKEEP_POOL), BackgroundThread()
    about, stop_requested = threading.Event(), threading.Event()

    def late() -> list[str]:
        about.set()
        stop_requested.wait(LONG_SECONDS)
        time.sleep(0.5)
        return sleeping(spark, tmp_path / "started")()

    worker.submit(lambda: jobs.run(late, ["stopped"]))
    assert about.wait(LONG_SECONDS)
    stopping = threading.Thread(target=jobs.stop, args=(30,))
    stopping.start()
    stop_requested.set()
    stopping.join(LONG_SECONDS / 2)
    assert not stopping.is_alive()
    wait_for(lambda: not worker.is_busy(), "the job has ended")
    assert worker.collect() == [["stopped"]]
    worker.stop()


def test_executors_are_ready_before_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    """After a warm-up, the Python workers of all executors hold a client of the query's object store."""
    settings = settings_in(tmp_path).but(expected_executors=2)
    root = settings.root

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from riffle_spark.worker import member_folders

        for _ in batches:
            time.sleep(0.1)
            holds = any(name == root for name, _ in member_folders._stores)  # private: what a worker keeps
            yield pa.record_batch({"executor": [member_folders.executor_id()], "holds": [holds]})

    def seen() -> set[tuple[str, bool]]:
        return {
            tuple(row) for row in spark.range(0, 8, 1, 8).mapInArrow(look, "executor string, holds boolean").collect()
        }

    names = {executor.id for executor in inventory.executors(spark)}
    assert not any(holds for _, holds in seen())
    thread = warm_up(spark, settings)
    thread.join(60)
    assert not thread.is_alive()
    wait_for(lambda: names <= {name for name, holds in seen() if holds}, "workers of all executors are ready")
