"""Executors die between batches and inside them, and each row still counts once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, StatefulJob, arrow_function, together
from riffle_spark.errors import ConfigError, Misplaced
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.jvm import running_seconds
from riffle_spark.spark.engine.tagged_jobs import Losses, _Watch  # private: looked at while nobody dies
from tests.kit.streams.placed_frames import built_frames
from tests.kit.streams.streaming import CollectingSink, executor_processes, running, settings_in, wait_for

pytestmark = pytest.mark.cluster
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

MASTER = "local-cluster[2,1,600]"
KEYS = 40
WAITS = ["spark.locality.wait.process", "spark.locality.wait.node", "spark.locality.wait.rack"]
TAGS = "spark.job.tags"
NOBODY = frozenset({"nobody"})
"""Executors that a batch started with and that are not live, so they count as lost."""
COUNTED = pa.schema([("k", pa.int64()), ("rows", pa.int64())])


def counting(folder: Path) -> Callable[..., object]:
    """Return a function that counts the rows of each key. While the file ``hold`` exists, it creates ``computing`` and
    waits.
    """

    def run(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        while (folder / "hold").exists():
            (folder / "computing").touch()
            time.sleep(0.02)
        added = rows.select(["k"]).append_column("rows", pa.repeat(1, rows.num_rows))
        both = pa.concat_tables([state.cast(COUNTED), added.cast(COUNTED)])
        totals = both.group_by("k").aggregate([("rows", "sum")]).rename_columns(["k", "rows"]).cast(COUNTED)
        return totals, totals

    return run


@pytest.fixture
def collected() -> CollectingSink:
    """A sink that keeps its deliveries."""
    return CollectingSink()


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, collected: CollectingSink) -> StatefulJob:
    """A job on two live executors, after one batch."""
    settings = settings_in(tmp_path, expected_executors=2)
    inventory.await_executors(spark, settings, expected=2)
    compute = arrow_function(counting(tmp_path), state=pa.schema([("rows", pa.int64())]), output=COUNTED)
    stateful_job = Stateful("totals", "k", compute, settings=settings).into(collected)
    stateful_job(batch(spark), 0)
    report = stateful_job.reports[0]
    assert len(report.ran_on) == 2, (report.owners, report.runs, inventory.executors(spark), executor_processes())
    return stateful_job


def batch(spark: SparkSession) -> DataFrame:
    """Return one row per key."""
    return spark.range(KEYS).selectExpr("id k")


def kill(spark: SparkSession) -> str:
    """Kill the first live executor with SIGKILL and return its id."""
    victim = inventory.executors(spark)[0].id
    os.kill(executor_processes()[victim], signal.SIGKILL)
    return victim


def wait_until_gone(spark: SparkSession, victim: str) -> None:
    """Wait until Spark has removed the executor."""
    wait_for(
        lambda: victim not in {executor.id for executor in inventory.executors(spark)}, "Spark has removed the executor"
    )


def test_key_groups_of_a_dead_executor_move_in_the_next_batch(
    spark: SparkSession, job: StatefulJob, collected: CollectingSink
) -> None:
    """After an executor dies, the next batch restores its key-groups on the other one. The report lists the moves and
    no miss.
    """
    victim = kill(spark)
    wait_until_gone(spark, victim)
    job(batch(spark), 1)
    report = job.reports[-1]
    assert victim not in report.owners
    assert {move["from_executor"] for move in report.moves} == {victim}
    assert len(report.moves) > 0
    assert (report.misses, report.runs) == (0, 1)
    assert collected.latest("k") == {k: {"rows": 2} for k in range(KEYS)}


@pytest.mark.long
def test_stores_in_two_groups_have_separate_owners_and_survive_a_death(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores in two co-location groups have different owners, and the death of an executor loses no state.

    There are five key-groups on two executors, so some key-groups have another owner in each group. The plan of slots
    is built once for both groups.
    """
    settings = settings_in(tmp_path, expected_executors=2, key_groups=5, store_groups={"models": "heavy"})
    inventory.await_executors(spark, settings, expected=2)
    compute = arrow_function(counting(tmp_path), state=pa.schema([("rows", pa.int64())]), output=COUNTED)
    sinks, built = {"totals": CollectingSink(), "models": CollectingSink()}, built_frames(monkeypatch)
    jobs = [Stateful(store, "k", compute).into(sink) for store, sink in sinks.items()]
    job = together(*jobs, settings=settings)
    for version in range(3):
        before = len(built)
        job(batch(spark), version)
    with pytest.raises(ConfigError, match="RIFFLE-0236"):
        job.where(0)
    places = [(job.where(k, "totals"), job.where(k, "models")) for k in range(KEYS)]
    assert all(one.key_group == other.key_group for one, other in places)
    assert [one.key_group for one, other in places if one.executor != other.executor]
    assert sorted(state.owned for state in job.members()) == [5, 5]
    assert (len(built) - before, job.reports[-1].misses, job.reports[-1].restores) == (0, 0, 0)
    wait_until_gone(spark, kill(spark))
    job(batch(spark), 3)
    assert job.reports[-1].restores == 5
    assert [sink.latest("k") for sink in sinks.values()] == [{k: {"rows": 4} for k in range(KEYS)}] * 2


def kill_in_slots(spark: SparkSession, folder: Path, killed: list[str]) -> None:
    """Kill an executor as soon as slots compute. The slots wait until it is dead."""

    def killing() -> None:
        try:
            wait_for((folder / "computing").exists, "slots compute")
            killed.append(kill(spark))
        finally:
            (folder / "hold").unlink()

    (folder / "hold").touch()
    threading.Thread(target=killing).start()


@pytest.mark.parametrize("step", ["run", "after seal"])
def test_each_row_counts_once_if_an_executor_dies_inside_a_batch(
    spark: SparkSession, job: StatefulJob, collected: CollectingSink, step: str, tmp_path: Path
) -> None:
    """If an executor dies while slots compute or after they have reported, the batch is delivered whole and each row
    counts once.
    """
    killed: list[str] = []

    def reached(at: str) -> None:
        if at == step and not killed:
            killed.append(kill(spark))

    if step == "run":
        kill_in_slots(spark, tmp_path, killed)
    else:
        running(job).driver._reached = reached  # private: made to be listened to
    job(batch(spark), 1)
    assert len(killed) == 1
    wait_until_gone(spark, killed[0])
    job(batch(spark), 2)
    assert collected.latest("k") == {k: {"rows": 3} for k in range(KEYS)}
    assert [len(rows) for rows in collected.deliveries.values()] == [KEYS] * 3
    assert killed[0] not in job.reports[-1].owners


def test_no_batch_waits_for_a_dead_executor(
    spark: SparkSession, job: StatefulJob, collected: CollectingSink, tmp_path: Path
) -> None:
    """A batch does not wait for a dead executor if Spark would hold its slots for minutes: the run is cancelled and
    repeated. The application's locality waits stay as they are.
    """
    conf = spark.sparkContext._jsc.sc().conf()
    killed: list[str] = []
    try:
        for name in WAITS:
            conf.set(name, "200s")
        kill_in_slots(spark, tmp_path, killed)
        job(batch(spark), 1)
    finally:
        for name in WAITS:
            conf.remove(name)
    report = job.reports[-1]
    assert (report.runs, killed[0] in report.owners) == (2, False)
    assert collected.latest("k") == {k: {"rows": 2} for k in range(KEYS)}
    assert [len(rows) for rows in collected.deliveries.values()] == [KEYS] * 2


@pytest.mark.parametrize("runs", [1, 2])
def test_a_batch_with_only_one_run_raises_its_own_error(spark: SparkSession, runs: int) -> None:
    """If a batch has only one run, its own error is raised, not the loss of an executor."""

    def failing() -> None:
        with Losses(spark, runs).watched(NOBODY):
            time.sleep(1)
            raise ArithmeticError("the batch's own")

    with pytest.raises(Misplaced if runs > 1 else ArithmeticError):
        failing()


def compute(spark: SparkSession, seconds: float) -> None:
    """Run a Spark task that takes ``seconds`` seconds."""
    spark.range(0, 1, 1, 1).selectExpr(f"java_method('java.lang.Thread', 'sleep', {int(seconds * 1000)}L)").collect()


def test_the_loss_of_an_executor_does_not_cancel_slots_on_others(spark: SparkSession, tmp_path: Path) -> None:
    """The loss of an executor does not cancel a slot that computes on another executor.

    A later failure of that job is not a loss, and later jobs do not carry the tag.
    """
    inventory.await_executors(spark, settings_in(tmp_path), expected=2)
    compute(spark, 0)  # The first task of a new executor takes longer to start.
    watch = _Watch(spark, frozenset())
    watch._cancelled = True  # private: as if jobs that waited had run on, whatever was cancelled

    def is_computing() -> bool:
        with suppress(Py4JError):  # A job that has just started may have no stages yet.
            return bool(running_seconds(spark, watch._tag))  # private: as above
        return False

    def lose_while_computing() -> None:
        wait_for(is_computing, "a task runs with the watch's tag")
        watch._executors = NOBODY  # private: as above

    losing = threading.Thread(target=lose_while_computing)
    with watch.watched():
        assert spark.sparkContext.getLocalProperty(TAGS) == watch._tag  # private: as above
        losing.start()
        compute(spark, 4)
        assert watch.lost == NOBODY
        assert not watch._cancelled  # private: what it noted
    losing.join()
    assert not spark.sparkContext.getLocalProperty(TAGS)


def test_a_run_that_is_cancelled_for_a_lost_executor_is_repeated(spark: SparkSession) -> None:
    """A run that is cancelled because of a lost executor is repeated, even if one of its slots has started to compute
    on a new executor meanwhile.
    """
    context = spark.sparkContext

    def cancelled_late() -> None:
        with Losses(spark, 2).watched(NOBODY):
            tag = context.getLocalProperty(TAGS)
            assert tag is not None
            cancelling = threading.Timer(1, context.cancelJobsWithTag, [tag])
            cancelling.start()
            compute(spark, 20)

    with pytest.raises(Misplaced, match="RIFFLE-0291"):
        cancelled_late()


def test_the_watch_for_lost_executors_continues_after_an_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a call of the JVM fails, the watch asks again and finds the lost executor."""
    connected, sessions = inventory.connected, list[SparkSession]()

    def failing_once(session: SparkSession) -> frozenset[str]:
        sessions.append(session)
        if len(sessions) == 1:
            raise RuntimeError("no answer")
        return connected(session)

    monkeypatch.setattr(inventory, "connected", failing_once)
    watch = _Watch(spark, NOBODY)
    with watch.watched():
        wait_for(lambda: watch._cancelled, "the watch cancels, because an executor was lost")  # private: what it noted
