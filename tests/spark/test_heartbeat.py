"""A source without rows that lets a query run batches while its topic is idle."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riffle_spark import Stateful, StatefulJob, aggregate, count, heartbeat
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.shards import HEARTBEAT
from tests.kit.streams.streaming import CollectingSink, Feed, committed, run_to_end, settings_in, start, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

EVERY = "1 second"
"""The only interval that Spark 3.5 supports."""


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with one batch of two rows."""
    new_feed = Feed(tmp_path / "in", "k long, ts timestamp")
    new_feed.add({"k": n, "ts": "2024-05-01T00:00:00Z"} for n in range(2))
    return new_feed


def counting(folder: Path) -> StatefulJob:
    """Return a job that counts the rows of each key."""
    return Stateful("seen", "k", aggregate(rows=count()), settings=settings_in(folder)).into(CollectingSink())


def beating(spark: SparkSession, feed: Feed) -> DataFrame:
    """Return the feed united with a heartbeat."""
    events = feed.stream(spark)
    return events.unionByName(heartbeat(spark, events.schema, every=EVERY))


def ran(job: StatefulJob) -> list[int]:
    """Return the batches that were run, without repeated ones that the job skipped."""
    return [report.version for report in job.reports if report.decision == "run"]


def test_an_idle_query_with_a_heartbeat_commits_batches_without_rows(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    """With a heartbeat an idle query commits batch after batch. Only the events add rows."""
    job = counting(tmp_path)
    query = start(beating(spark, feed), job, tmp_path / "checkpoint", processingTime="0 seconds")
    try:
        wait_for(lambda: len(job.reports) >= 3, "three batches while the source is idle")
        feed.add([{"k": 7, "ts": "2024-05-01T00:01:00Z"}])
        wait_for(lambda: any(report.rows == 1 for report in job.reports), "the new row")
        so_far = len(job.reports)
        wait_for(lambda: len(job.reports) > so_far, "a batch after the new row")
    finally:
        query.stop()
    rows = [report.rows for report in job.reports]
    assert [count for count in rows if count] == [2, 1]
    assert rows[0] == 2
    versions = committed(f"file://{tmp_path}/state")
    assert versions[: len(rows)] == list(range(len(rows)))


@pytest.mark.long
def test_a_query_with_a_heartbeat_can_be_started_again(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """A query with a heartbeat continues from its checkpoint, also with another interval and a new job."""
    for every in (EVERY, "1 second", EVERY):
        events, job = feed.stream(spark), counting(tmp_path)
        before = len(committed(f"file://{tmp_path}/state"))
        stream = events.unionByName(heartbeat(spark, events.schema, every=every))
        query = start(stream, job, tmp_path / "checkpoint", processingTime="0 seconds")
        try:
            wait_for(lambda: len(ran(job)) >= 2, "two batches")  # noqa: B023 - called in this turn only
        finally:
            query.stop()
        assert ran(job)[:2] == [before, before + 1]
        assert sum(report.rows for report in job.reports) == (0 if before else 2)
        assert query.exception() is None


@pytest.mark.long
def test_available_now_ends_with_a_heartbeat(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """With availableNow, each run has one heartbeat and ends, also if nothing else is new."""
    for _ in range(2):
        job = counting(tmp_path)
        run_to_end(beating(spark, feed), job, tmp_path / "checkpoint")
        assert len(job.reports) == 1
    assert committed(f"file://{tmp_path}/state") == [0, 1]
    assert job.reports[-1].rows == 0


@pytest.mark.needs_spark4("data sources in Python")
def test_heartbeat_offsets_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of a heartbeat advance by the interval and never go back. There are no rows to read between them."""
    from riffle_spark.spark.compat.heartbeat_source import Beats, Heartbeat

    beats = Beats(60_000)
    first = beats.latestOffset()[HEARTBEAT]
    assert first % 60_000 == 0
    assert 0 <= time.time_ns() // 1_000_000 - first < 120_000
    assert beats.initialOffset() == {HEARTBEAT: 0}
    assert beats.partitions(beats.initialOffset(), beats.latestOffset()) == []
    newest = beats.latestOffset()[HEARTBEAT]
    assert newest >= first
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: (newest - 120_000) * 1_000_000)
        assert beats.latestOffset()[HEARTBEAT] == newest
    assert Heartbeat({}).streamReader(StructType([])).latestOffset()[HEARTBEAT] % 1_000 == 0


@pytest.mark.parametrize("every", ["soon", "0.1 ms"])
def test_a_wrong_heartbeat_interval_is_refused(spark: SparkSession, every: str) -> None:
    """A wrong interval is refused in the call."""
    with pytest.raises(ConfigError):
        heartbeat(spark, "k long", every=every)
