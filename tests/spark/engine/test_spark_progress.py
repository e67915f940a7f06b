"""Spark's progress shows each stage of a batch as a state operator, in one event per batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark
from riffle_spark import Stateful, aggregate, count
from riffle_spark.spark.engine import spark_progress
from tests.kit.folders import APPS
from tests.kit.queries.operator_figures import FIELDS, EventList, registered
from tests.kit.streams.streaming import Feed, run_app, run_to_end, settings_in, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

APP_SECONDS = 300
BATCHES = 3
SPARK_35 = pyspark.__version__.startswith("3.5")
Progress = Mapping[str, Any]


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[EventList]:
    """A listener that is registered with Spark."""
    with registered(spark) as events:
        yield events


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Three micro-batches of ten rows. The third closes all windows and has late rows."""
    made = Feed(tmp_path / "in", "page string, at timestamp")
    for minutes in (0, 20, 40):
        rows = [{"page": f"p{n % 5}", "at": f"2026-01-01 10:{minutes:02d}:{n:02d}"} for n in range(10)]
        late = [{"page": "p0", "at": "2026-01-01 09:00:00"}] if minutes else []
        made.add([*rows, *late])
    return made


def in_windows(events: DataFrame) -> DataFrame:
    """Count pages in windows."""
    return events.withWatermark("at", "1 minute").groupBy(F.window("at", "5 minutes"), "page").count()


def distinct(events: DataFrame) -> DataFrame:
    """Drop duplicates within the watermark."""
    return events.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["page"])


def chain(events: DataFrame) -> DataFrame:
    """Count the windows of pages in a second stage."""
    return in_windows(events).groupBy(F.window(F.window_time("window"), "1 hour")).count()


def to_noop(frame: DataFrame, checkpoint: Path) -> DataStreamWriter:
    """Return a writer that discards the results."""
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def played(writer: DataStreamWriter, listener: EventList) -> list[Progress]:
    """Run a query to its end and return its events, one per batch."""
    listener.progress.clear()
    ended = listener.ended
    writer.start().awaitTermination()
    wait_for(lambda: listener.ended > ended, "the end of the query reaches the listener")
    return list(listener.progress)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param(in_windows, ["stateStoreSave"], marks=pytest.mark.smoke),
        pytest.param(distinct, ["dedupeWithinWatermark"], marks=pytest.mark.long),
        pytest.param(chain, ["stateStoreSave", "stateStoreSave"], marks=pytest.mark.long),
    ],
)
def test_a_listener_gets_the_state_operators_of_a_wrapped_query(
    query: Any, names: list[str], spark: SparkSession, feed: Feed, listener: EventList, tmp_path: Path
) -> None:
    """Each batch is one event, with the input rows, watermark and state operators of Spark's own run."""
    theirs = played(to_noop(query(feed.stream(spark)), tmp_path / "spark"), listener)
    wrapped = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    ours = played(to_noop(query(wrapped), tmp_path / "ours"), listener)
    assert [event["batchId"] for event in ours] == [event["batchId"] for event in theirs]
    for event, expected in zip(ours, theirs, strict=True):
        if not SPARK_35:  # Spark 3.5 counts no rows of files before the other source has an offset.
            assert event["numInputRows"] == expected["numInputRows"]
        assert event["eventTime"] == expected["eventTime"]
        assert [operator["operatorName"] for operator in event["stateOperators"]] == names
        for operator, spark_operator in zip(event["stateOperators"], expected["stateOperators"], strict=True):
            assert {name: operator[name] for name in FIELDS} == {name: spark_operator[name] for name in FIELDS}
            assert operator["numShufflePartitions"] > 0
        assert event["observedMetrics"]["riffle_spark"]["metrics"]["total_seconds"] > 0
    assert sum(event["stateOperators"][0]["numRowsUpdated"] for event in ours) > 0


@pytest.mark.long
def test_a_listener_gets_the_state_operators_of_a_job(
    spark: SparkSession, feed: Feed, listener: EventList, tmp_path: Path
) -> None:
    """A ``foreachBatch`` job has one state operator per store, with the key counts of its batches."""
    compute = aggregate(rows=count())
    job = Stateful("visits", "page", compute, settings=settings_in(tmp_path)).into(lambda rows, batch_id: None)  # noqa: ARG005
    query = run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    wait_for(lambda: listener.ended, "the end of the query reaches the listener")
    events = listener.progress
    assert [event["numInputRows"] for event in events] == [10, 11, 11]
    figures = [[[operator[field] for field in FIELDS] for operator in event["stateOperators"]] for event in events]
    assert figures == [[[5, 5, 0, 0]], [[5, 5, 0, 0]], [[5, 5, 0, 0]]]
    (progress,) = {event["batchId"]: event for event in events if event["batchId"] == BATCHES - 1}.values()
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] == progress["batchId"]
    assert [len(each["stateOperators"]) for each in query.recentProgress] == [1] * BATCHES
    assert [event["observedMetrics"]["riffle_spark"]["metrics"]["output_rows"] for event in events] == [5.0] * BATCHES


@pytest.mark.parametrize("threads_from", [0, 1])
@pytest.mark.sample("1")
def test_a_job_in_a_users_thread_has_its_state_operator(
    spark: SparkSession, feed: Feed, tmp_path: Path, threads_from: int
) -> None:
    """A job in a user's thread, which has no active session, has its state operator."""
    job = Stateful("visits", "page", aggregate(rows=count()), settings=settings_in(tmp_path)).into(
        lambda rows, batch_id: None  # noqa: ARG005
    )

    def called(batch: DataFrame, batch_id: int) -> None:
        thread = InheritableThread(target=job, args=(batch, batch_id))
        thread.start()
        thread.join()

    query = run_to_end(
        feed.stream(spark),
        lambda batch, batch_id: (job if batch_id < threads_from else called)(batch, batch_id),
        tmp_path / "checkpoint",
    )
    assert [report.version for report in job.reports] == [0, 1, 2]
    assert [len(each["stateOperators"]) for each in query.recentProgress] == [1] * BATCHES
    assert [[*each["observedMetrics"]] for each in query.recentProgress] == [["riffle_spark"]] * BATCHES


@pytest.mark.long
def test_a_query_over_the_rate_source_runs(spark: SparkSession, tmp_path: Path) -> None:
    """A query over the rate source, whose newest offsets Spark does not know, commits batches without a source lag."""
    rows = riffle_spark.on(spark.readStream.format("rate").load(), settings=settings_in(tmp_path))
    counts = rows.groupBy(F.expr("value % 3").alias("page")).count()
    writer = counts.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    try:
        wait_for(lambda: query.exception() is not None or query.recentProgress[2:], "three batches")
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.long
def test_ui_and_history_show_the_state_operators_of_each_batch_once(tmp_path: Path) -> None:
    """The UI's store, the event log of the history server and Spark's recent progress have one entry per batch."""
    batches = [[[2, 2]], [[3, 2]]]
    for shown in run_app(APPS / "ui_app.py", str(tmp_path), seconds=APP_SECONDS):
        assert shown["ui"] == shown["log"] == shown["recent"] == batches
        assert SPARK_35 or shown["rows"] == [3, 2]


def test_a_spark_with_moved_classes_causes_one_warning(
    spark: SparkSession,
    feed: Feed,
    listener: EventList,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If Spark has moved its classes, every batch is committed, and one warning says what listeners lack."""
    monkeypatch.setattr(spark_progress, "_PLACES", ("org.apache.spark.nowhere",))
    job = Stateful("visits", "page", aggregate(rows=count()), settings=settings_in(tmp_path)).into(
        lambda rows, batch_id: None  # noqa: ARG005
    )
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    wait_for(lambda: listener.ended, "the end of the query reaches the listener")
    assert len(job.reports) == BATCHES
    assert [event["stateOperators"] for event in listener.progress] == [[]] * BATCHES
    assert sum("RIFFLE-1250" in record.getMessage() for record in caplog.records) == 1
