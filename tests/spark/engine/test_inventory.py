"""The inventory of executors: which get tasks, why others were removed, and whether a query is stopping."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from apps.demo.servers.guard import descendants
from riffle_spark.protocol.ports import Executor
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.worker.member_folders import executor_id
from tests.kit.streams.live_query import executor_ids
from tests.kit.streams.streaming import PATIENCE_SECONDS, settings_in, wait_for

pytestmark = pytest.mark.cluster

MASTER = "local-cluster[2,1,600]"
CONF = {
    "spark.decommission.enabled": "true",
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.timeout": "20s",
}


@pytest.fixture
def two(spark: SparkSession, tmp_path: Path) -> tuple[Executor, ...]:
    """Two executors. Spark starts new ones if an earlier test removed some."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    context._jsc.sc().requestTotalExecutors(2, 0, jvm.PythonUtils.toScalaMap({}))
    return inventory.await_executors(spark, settings_in(tmp_path), expected=2)


def pid_of(spark: SparkSession, executor: Executor) -> int:
    """Return the process id of an executor, which is a child process of this test."""
    words = [b"--executor-id", executor.id.encode(), spark.sparkContext.applicationId.encode()]
    for pid in descendants(os.getpid()):
        line = _command(pid)
        if all(word in line for word in words) and line[line.index(words[0]) + 1] == words[1]:
            return pid
    raise AssertionError(executor)


def _command(pid: int) -> list[bytes]:
    """Return the command line of a process, or an empty list if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_an_executor_that_is_decommissioned_is_left_out_at_once(spark: SparkSession, two: tuple[Executor, ...]) -> None:
    """A decommissioned executor gets no tasks from the notice on. Its removal counts as planned, before and after it
    ends.
    """
    leaving, staying = two
    os.kill(pid_of(spark, leaving), signal.SIGPWR)
    wait_for(lambda: leaving.id not in executor_ids(spark), "Spark lists the executor as decommissioned")
    assert SparkCluster(spark).find_planned_removals([leaving.id, staying.id, "77"]) == {leaving.id}
    executor_summary = spark.sparkContext._jsc.sc().statusStore().executorSummary
    wait_for(lambda: executor_summary(leaving.id).removeReason().isDefined(), "the executor is removed")
    assert "decommission" in str(executor_summary(leaving.id).removeReason().get())
    assert SparkCluster(spark).find_planned_removals([leaving.id]) == {leaving.id}


def test_an_executor_that_the_driver_kills_is_left_out_at_once(spark: SparkSession, two: tuple[Executor, ...]) -> None:
    """An executor that the driver kills, as dynamic allocation does, gets no tasks. Its removal counts as planned."""
    leaving = two[0]
    assert spark.sparkContext._jsc.sc().killExecutor(leaving.id)
    assert leaving.id not in executor_ids(spark)
    assert inventory.find_planned_removals(spark, [leaving.id]) == {leaving.id}


def test_an_executor_that_dies_is_lost(spark: SparkSession, two: tuple[Executor, ...]) -> None:
    """A killed executor disappears from the list, and its removal does not count as planned."""
    os.kill(pid_of(spark, two[1]), signal.SIGKILL)
    wait_for(lambda: two[1].id not in executor_ids(spark), "Spark has removed the executor")
    assert inventory.find_planned_removals(spark, [two[1].id]) == frozenset()
    assert "137" in inventory.reason_of(spark, two[1].id, time.monotonic() + PATIENCE_SECONDS)


@pytest.mark.long
def test_an_excluded_executor_is_left_out_until_it_may_be_used_again(
    spark: SparkSession, two: tuple[Executor, ...]
) -> None:
    """An executor that Spark excludes because its tasks fail is not listed until Spark uses it again."""
    bad = two[0].id

    def fail_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if executor_id() == bad:
            raise RuntimeError("this executor's disk is bad")
        time.sleep(0.2)
        yield from batches

    assert len(spark.range(0, 4, 1, 4).mapInArrow(fail_there, "id long").collect()) == 4
    wait_for(lambda: executor_ids(spark) == {two[1].id}, "the executor is excluded")
    wait_for(lambda: executor_ids(spark) == {bad, two[1].id}, "the executor may be used again")


def test_executors_are_described_by_host_and_cores(two: tuple[Executor, ...]) -> None:
    """Each executor has its number of cores, and the host name that Spark uses for locality."""
    assert [executor.cores for executor in two] == [1, 1]
    assert {executor.host for executor in two} < {"127.0.0.1", "localhost"}


def test_a_waiting_batch_sees_that_its_query_is_stopping(spark: SparkSession, tmp_path: Path) -> None:
    """A waiting batch sees that its query is stopping, and ``query.stop()`` returns soon."""
    waiting, ended = threading.Event(), threading.Event()

    def wait(batch: DataFrame, _: int) -> None:
        assert not inventory.is_stopping(batch)
        waiting.set()
        deadline = time.monotonic() + 60
        while not inventory.is_stopping(batch) and time.monotonic() < deadline:
            time.sleep(0.02)
        ended.set()
        raise InterruptedError("java.lang.InterruptedException: the query was stopped")

    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = rows.writeStream.foreachBatch(wait).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert waiting.wait(60)
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30
    assert ended.is_set()


def test_a_batch_without_a_query_is_never_stopping(spark: SparkSession) -> None:
    """A batch of a job that is called without a query is never stopping."""
    assert not inventory.is_stopping(spark.range(1))
