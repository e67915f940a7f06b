"""A job with Spark's triggers: it is stopped, restarted, repeated, and called from other threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle, inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, arrow_function, count, sum_, together
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.spark.job_calls import JobCalls
from tests.kit.streams.streaming import (
    CollectingSink,
    Feed,
    committed,
    job_group,
    records,
    run_to_end,
    settings_in,
    start,
    wait_for,
)

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

TOTALS = aggregate(rows=count(), total=sum_("v"))


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Three micro-batches of ten rows, two keys each."""
    new_feed = Feed(tmp_path / "in", "k long, v long")
    for batch in range(3):
        new_feed.add({"k": n % 2, "v": batch} for n in range(10))
    return new_feed


ALL_THREE = {k: {"rows": 15, "total": 15} for k in range(2)}


def totals(folder: Path, sink: Callable[..., object], **settings: object) -> StatefulJob:
    """Return a new job, as a new process would."""
    return Stateful("totals", "k", TOTALS, settings=settings_in(folder, **settings)).into(sink)


@pytest.mark.long
def test_available_now_runs_all_batches_and_ends(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """With availableNow all batches run, with one record each that has Spark's offsets."""
    sink = CollectingSink()
    query = run_to_end(feed.stream(spark), totals(tmp_path, sink), tmp_path / "checkpoint")
    assert sink.latest("k") == ALL_THREE
    batches = [record for record in records(f"file://{tmp_path}/state") if record.kind == "batch"]
    assert [record.version for record in batches] == [0, 1, 2]
    assert {record.query_id for record in batches} == {str(query.id)}
    offsets = [(tmp_path / "checkpoint" / "offsets" / str(n)).read_text() for n in range(3)]
    assert [record.offsets for record in batches] == offsets
    assert sink.calls == [(n, f"{query.id}/0/{n}") for n in range(3)]


@pytest.mark.long
def test_a_restarted_job_continues_its_state(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """A new job on the same checkpoint and root continues the state, with or without local copies."""
    sink = CollectingSink()
    run_to_end(feed.stream(spark), totals(tmp_path, sink), tmp_path / "checkpoint")
    for number, local in enumerate(("local", "elsewhere")):
        feed.add([{"k": 0, "v": 1}])
        job = totals(tmp_path, sink, local_dir=f"{tmp_path}/{local}")
        run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
        assert sink.latest("k")[0] == {"rows": 16 + number, "total": 16 + number}
        assert [report.restores for report in job.reports] == [number]


@pytest.mark.long
def test_deliver_after_commit_delivers_again_on_a_repeat(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """With ``deliver_after_commit`` the sink runs after the commit, and a repeated batch delivers the same
    rows again.
    """
    kept, logged = CollectingSink(), []

    def sink(frame: DataFrame, batch: int, delivery: str) -> None:
        logged.append(committed(f"file://{tmp_path}/state")[-1])
        kept(frame, batch, delivery)

    run_to_end(feed.stream(spark), totals(tmp_path, sink, deliver_after_commit=True), tmp_path / "checkpoint")
    assert logged == [0, 1, 2]
    assert kept.latest("k") == ALL_THREE
    before = kept.deliveries
    for lost in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        lost.unlink()
    second_sink = CollectingSink()
    run_to_end(feed.stream(spark), totals(tmp_path, second_sink, deliver_after_commit=True), tmp_path / "checkpoint")
    assert {name: sorted(rows) for name, rows in second_sink.deliveries.items()} == {
        name: sorted(rows) for name, rows in before.items() if name.endswith("/2")
    }


SLOW_SECONDS = 60


def slow(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Take so long that the query is stopped first."""
    time.sleep(SLOW_SECONDS)
    return state, state


def test_a_stop_in_mid_batch_commits_nothing(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """A stop while slots compute commits nothing, and a restart runs the batch."""
    state = pa.schema([("rows", pa.int64())])
    output = pa.schema([("k", pa.int64()), ("rows", pa.int64())])
    sink = CollectingSink()
    job = Stateful("totals", "k", arrow_function(slow, state=state, output=output), settings=settings_in(tmp_path))
    reached: list[str] = []
    running = job.into(sink)
    running._reached = reached.append
    query = start(feed.stream(spark), running, tmp_path / "checkpoint", processingTime="0 seconds")
    wait_for(lambda: reached and spark.sparkContext.statusTracker().getActiveStageIds(), "slots run")
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < SLOW_SECONDS / 2
    assert reached == ["before run"]
    assert sink.calls == []
    assert committed(f"file://{tmp_path}/state") == []

    def quick(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        keys = rows.group_by("k").aggregate([([], "count_all")]).rename_columns(["k", "rows"])
        return keys, keys

    mended = Stateful("totals", "k", arrow_function(quick, state=state, output=output), settings=job.settings)
    run_to_end(feed.stream(spark), mended.into(sink), tmp_path / "checkpoint")
    assert committed(f"file://{tmp_path}/state") == [0, 1, 2]


def test_a_job_that_is_called_with_two_parts_of_a_batch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A job that is called with two different parts of a batch is refused. The same frame may be passed again."""
    feed, sink = Feed(tmp_path / "in", "k long"), CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(sink)
    feed.add([{"k": 1}, {"k": 2}])

    def halves(rows: DataFrame, batch: int) -> None:
        job(rows.where("k = 1"), batch)
        job(rows.where("k = 1"), batch)
        job(rows.where("k = 2"), batch)

    with pytest.raises(StreamingQueryException, match="RIFFLE-0650"):
        run_to_end(feed.stream(spark), halves, tmp_path / "checkpoint")
    other = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path / "other")).into(sink)

    def whole(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            other(rows, batch)

    feed.add([{"k": 2}])
    run_to_end(feed.stream(spark), whole, tmp_path / "checkpoint2")
    assert [report.decision for report in other.reports] == ["run", "repeat"] * 2
    assert sink.latest("k") == {1: {"rows": 1}, 2: {"rows": 2}}


def test_two_jobs_on_one_root_at_the_same_time_are_refused(spark: SparkSession) -> None:
    """If two jobs on one root process the same batch at the same time, the second one is refused."""
    rows, batch = spark.range(1), IncomingBatch(0, "query", "run", "offsets", None, 0, None)
    both = [JobCalls("memory://two_jobs") for _ in range(2)]
    for calls in both:
        calls.check(rows, batch)
    both[0].done(rows, batch)
    with pytest.raises(ConfigError, match="RIFFLE-0311"):
        both[1].done(rows, batch)


@pytest.mark.long
def test_job_groups_of_the_user_do_not_affect_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """The user's job groups do not matter: neither does another name start a new run, nor does the same name join two
    runs.

    A cache keeps its state over batches, and a restarted query claims the log again.
    """
    feed, sink, names = Feed(tmp_path / "in", "k long"), CollectingSink(), ["a", "b", "c", "c"]
    job = Stateful("totals", "k", aggregate(rows=count()), durable=False, settings=settings_in(tmp_path)).into(sink)

    def grouped(rows: DataFrame, batch: int) -> None:
        rows.sparkSession.sparkContext.setJobGroup(names[batch], "mine")
        job(rows, batch)

    for _ in range(3):
        feed.add([{"k": 1}])
    run_to_end(feed.stream(spark), grouped, tmp_path / "checkpoint")
    assert sink.latest("k") == {1: {"rows": 3}}
    feed.add([{"k": 1}])
    run_to_end(feed.stream(spark), grouped, tmp_path / "checkpoint")
    epochs = [report.epoch for report in job.reports]
    assert epochs[0] == epochs[1] == epochs[2] < epochs[3]


@pytest.mark.long
def test_a_job_in_a_thread_without_its_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A job in a thread without the query's local properties is refused. A thread that inherits them processes the
    batch.
    """
    feed, sink = Feed(tmp_path / "in", "k long"), CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(sink)
    feed.add([{"k": 1}])

    def run_in_plain_thread(rows: DataFrame, batch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(job, rows, batch).result()

    def run_in_inheritable_thread(rows: DataFrame, batch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(inheritable_thread_target(rows.sparkSession)(job), rows, batch).result()

    with pytest.raises(StreamingQueryException, match="RIFFLE-0651"):
        run_to_end(feed.stream(spark), run_in_plain_thread, tmp_path / "checkpoint")
    run_to_end(feed.stream(spark), run_in_inheritable_thread, tmp_path / "checkpoint")
    assert sink.latest("k") == {1: {"rows": 1}}


@pytest.mark.long
def test_a_job_may_be_created_for_each_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A job may be created for each batch. Without a query, jobs with the same root are distinguished by the batch's
    rows.
    """
    feed, sink = Feed(tmp_path / "in", "k long"), CollectingSink()

    def anew(rows: DataFrame, batch: int) -> None:
        Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(sink)(rows, batch)

    for _ in range(2):
        feed.add([{"k": 1}])
    run_to_end(feed.stream(spark), anew, tmp_path / "checkpoint")
    assert sink.latest("k") == {1: {"rows": 2}}
    with job_group(spark, "mine"):
        for _ in range(2):
            by_hand = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path / "hand")).into(
                sink
            )
            by_hand(spark.range(1).selectExpr("id as k"), 0)


@pytest.mark.long
def test_two_jobs_on_one_root_in_one_query_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Two jobs with the same root in one query are refused, because the second one would take the first one's commit
    for its own.
    """
    feed, kept = Feed(tmp_path / "in", "k long"), [CollectingSink(), CollectingSink()]
    settings = settings_in(tmp_path)
    otherwise = replace(settings, root=f"{settings.root}/")
    jobs = [
        Stateful(store, "k", aggregate(rows=count()), settings=mine).into(sink)
        for store, mine, sink in zip(("a", "b"), (settings, otherwise), kept, strict=True)
    ]
    feed.add([{"k": 1}])

    def both(rows: DataFrame, batch: int) -> None:
        for job in jobs:
            job(rows, batch)

    with pytest.raises(StreamingQueryException, match="RIFFLE-0311"):
        run_to_end(feed.stream(spark), both, tmp_path / "checkpoint")
    alike = [
        Stateful(store, "k", aggregate(rows=count()), settings=settings).into(sink)
        for store, sink in zip(("a", "b"), kept, strict=True)
    ]
    run_to_end(feed.stream(spark), together(*alike), tmp_path / "checkpoint")
    feed.add([{"k": 1}])
    run_to_end(feed.stream(spark), together(*alike), tmp_path / "checkpoint")
    assert [one.latest("k") for one in kept] == [{1: {"rows": 2}}, {1: {"rows": 1}}]
