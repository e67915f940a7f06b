"""Watermarks of real queries: set by ``withWatermark`` or by an operator, and compared with Spark's own."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark import Stateful, StatefulJob, aggregate, count
from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.block import Batch, BlockComputation, Declared, Update
from riffle_spark.spark.heartbeat import interval_ms
from riffle_spark.state.log.record import Record
from tests.kit.streams.newest_rows import assert_newest
from tests.kit.streams.streaming import (
    QUERY_TIMEOUT_SECONDS,
    CollectingSink,
    Feed,
    records,
    run_to_end,
    settings_in,
    start,
)

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

CONF = {
    # Spark's own operator then has the same batches: one per file, and none without rows.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Event times are instants, whatever the session's time zone is.
    "spark.sql.session.timeZone": "America/New_York",
}
BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
BEGIN_MS = round(BEGIN.timestamp() * 1000)
DELAY = "10 seconds"


class ByEventTime:
    """A count per key that declares the event-time mode but sets no timers."""

    def __init__(self) -> None:
        self._count: BlockComputation = aggregate(rows=count())

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the state of a count, with the event-time mode."""
        return replace(self._count.declare(key, rows), time_mode="EventTime")

    def __call__(self, batch: Batch) -> Update:
        """Count the rows."""
        return self._count(batch)


def event(key: str, seconds: float) -> Mapping[str, object]:
    """Return an event that is ``seconds`` after the beginning."""
    return {"k": key, "ts": (BEGIN + timedelta(seconds=seconds)).isoformat()}


def after_begin(record: Record) -> tuple[float, float]:
    """Return the late watermark and the watermark of a record, in seconds after the beginning."""
    assert record.late_watermark_ms is not None
    assert record.watermark_ms is not None
    return (record.late_watermark_ms - BEGIN_MS) / 1000, (record.watermark_ms - BEGIN_MS) / 1000


def batches(folder: Path) -> list[Record]:
    """Return the records of the batches, in order."""
    return [record for record in records(f"file://{folder}/state") if record.kind == "batch"]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Five batches of events. Event times advance by five seconds per batch, and some events are up to 30
    seconds late.
    """
    chance = random.Random(7)
    made = Feed(tmp_path / "in", "k string, ts timestamp")
    for batch in range(5):
        times = {round(5 * batch + chance.uniform(-30, 5), 6) for _ in range(12)}
        made.add(event(chance.choice("abc"), time) for time in sorted(times))
    return made


def counting(
    folder: Path, compute: BlockComputation | None = None, watermark: tuple[str, str] | None = None
) -> StatefulJob:
    """Return a job that counts the rows of each key."""
    operator = Stateful(
        "seen", "k", compute or aggregate(rows=count()), settings=settings_in(folder), watermark=watermark
    )
    return operator.into(CollectingSink())


def sparks_own(stream: DataFrame, folder: Path) -> tuple[list[int], list[int], DataFrame]:
    """Count the rows with Spark alone. Return the dropped rows and the watermark (ms) of each batch, and the counts by
    key.

    With the event time in the key, Spark's aggregation drops late rows by the same rule as its other operators.
    """
    kept: dict[str, int] = {}

    def sink(frame: DataFrame, _: int) -> None:
        for key, rows in frame.groupBy("k").agg(F.count(F.lit(1))).collect():
            kept[key] = kept.get(key, 0) + rows

    counted = stream.withWatermark("ts", DELAY).groupBy("k", "ts").count()
    writer = counted.writeStream.outputMode("update").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    dropped = [progress["stateOperators"][0]["numRowsDroppedByWatermark"] for progress in query.recentProgress]
    marks = [datetime.fromisoformat(p["eventTime"]["watermark"].replace("Z", "+00:00")) for p in query.recentProgress]
    stayed = stream.sparkSession.createDataFrame(list(kept.items()), "k string, rows long")
    return dropped, [round(mark.timestamp() * 1000) for mark in marks], stayed


def test_late_rows_and_watermarks_are_sparks_own(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """Per batch, riffle drops as many late rows as Spark and has the same watermark. The counts by key are equal."""
    dropped, marks, stayed = sparks_own(feed.stream(spark), tmp_path / "native")
    job = counting(tmp_path, watermark=("ts", DELAY))
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert sum(dropped) > 5
    assert [report.late_rows for report in job.reports] == dropped
    assert [0, *(report.watermark_ms for report in job.reports)][: len(marks)] == marks
    ((_, kept),) = job.parts
    assert isinstance(kept, CollectingSink)
    assert_newest(kept, stayed)


@pytest.mark.long
def test_an_operator_uses_the_column_and_delay_of_with_watermark(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    """An event-time operator uses the column and delay of ``withWatermark``, and its watermark is Spark's."""
    job = counting(tmp_path, ByEventTime())
    stream = feed.stream(spark).withWatermark("ts", "7 seconds").select(F.col("ts").alias("at"), "k")
    query = start(stream, job, tmp_path / "checkpoint", processingTime="0 seconds")
    query.processAllAvailable()
    query.stop()
    figures = batches(tmp_path)
    assert len(figures) == 5
    sparks = [int(record.offsets.split('"batchWatermarkMs":')[1].split(",")[0]) for record in figures if record.offsets]
    assert [0, *(record.watermark_ms for record in figures)][:5] == sparks
    assert sum(report.late_rows for report in job.reports) > 0


@pytest.mark.long
def test_available_now_applies_the_last_watermark_with_its_commit(spark: SparkSession, tmp_path: Path) -> None:
    """With availableNow the watermark of the last batch takes effect with its own commit, so it applies to the next
    run.
    """
    feed = Feed(tmp_path / "in", "k string, ts timestamp")
    job = counting(tmp_path, ByEventTime())
    for seconds in (100, 200):
        feed.add([event("a", seconds)])
        run_to_end(feed.stream(spark).withWatermark("ts", DELAY), job, tmp_path / "checkpoint")
    assert [after_begin(record) for record in batches(tmp_path)] == [(90, 90), (190, 190)]
    feed.add([event("a", 190), event("a", 190.001)])
    query = start(
        feed.stream(spark).withWatermark("ts", DELAY), job, tmp_path / "checkpoint", processingTime="0 seconds"
    )
    query.processAllAvailable()
    query.stop()
    assert after_begin(batches(tmp_path)[-1]) == (190, 190)
    assert job.reports[-1].late_rows == 1


@pytest.mark.long
def test_a_timestamp_ntz_column_is_an_event_time_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    """A ``timestamp_ntz`` column is an event time in UTC, whatever the session's time zone is."""
    feed = Feed(tmp_path / "in", "k string, ts timestamp_ntz")
    for seconds in (0, 100, 89):
        feed.add([{"k": "a", "ts": (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")}])
    job = counting(tmp_path, ByEventTime(), watermark=("ts", "10 s"))
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert [after_begin(record) for record in batches(tmp_path)] == [(-10, -10), (90, 90), (90, 90)]
    assert [report.late_rows for report in job.reports] == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 minutes", 600_000), ("1 hour", 3_600_000), ("1 hour 30 minutes", 5_400_000), ("0 seconds", 0),
        ("1.5 seconds", 1_500), ("250 milliseconds", 250), ("interval 2 DAYS", 172_800_000), ("5s", 5_000),
        ("2 weeks", 1_209_600_000),
    ],
)  # fmt: skip
def test_intervals_are_parsed_as_in_spark(text: str, milliseconds: int) -> None:
    """Intervals are parsed as in Spark, in any case, and also in the short form of riffle's settings."""
    assert interval_ms(text, "watermark") == milliseconds


@pytest.mark.parametrize(
    "text", ["", "ten minutes", "10", "minutes", "-1 second", "1 month", "10 minutes ago", "1 2 s"]
)
def test_an_invalid_watermark_delay_is_refused(text: str) -> None:
    """An interval that is negative, in months or malformed is refused as a watermark delay."""
    with pytest.raises(ConfigError, match="RIFFLE-0307"):
        Stateful("seen", "k", aggregate(rows=count()), watermark=("ts", text))
