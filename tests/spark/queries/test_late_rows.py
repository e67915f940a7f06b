"""Late rows of a wrapped query are delivered to a side output, with the guarantees of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import Settings
from riffle_spark.errors import ConfigError
from riffle_spark.spark.queries.stream_options import options_in
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
SECONDS = ((44,), (70,), (5, 12, 31, 39, 80), (25, 33, 59, 62))
"""The seconds of each batch's events. The watermarks of the last two batches are at 34 and 60 seconds."""
FIRST_LATE = 2


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """A feed with one file of events per batch."""
    made = Feed(tmp_path_factory.mktemp("events"), "at timestamp, page string, second long")
    for batch in SECONDS:
        events = [((BEGIN + timedelta(seconds=one)).isoformat(), one) for one in batch]
        made.add([{"at": at, "page": "ab"[one % 2], "second": one} for at, one in events])
    return made


class LateRowsSink:
    """A sink of late rows that keeps batch, delivery id and seconds of each delivery. The sink of results may fail."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, list[int]]] = []
        self.failures = 0

    def late(self, rows: DataFrame, batch_id: int, delivery_id: str) -> None:
        """Keep a delivery of late rows."""
        self.told.append((batch_id, delivery_id, sorted(row.second for row in rows.collect())))

    def results(self, rows: DataFrame, batch_id: int) -> None:
        """Read the results, or fail."""
        rows.collect()
        if batch_id == FIRST_LATE and self.failures:
            self.failures -= 1
            raise RuntimeError("the sink is not there")


def by_ten(events: DataFrame) -> DataFrame:
    """Count distinct seconds in windows of ten seconds."""
    return events.groupBy(F.window("at", "10 seconds"), "page").agg(F.count_distinct("second").alias("n"))


def of_users(events: DataFrame) -> DataFrame:
    """Process groups with a user's function, whose rows are late by their own event time."""
    return events.groupBy("page").applyInPandasWithState(counted, "page string", "n long", "append", "EventTimeTimeout")


def counted(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """Output the key."""
    yield pd.DataFrame({"page": [key[0]]})


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], list[list[int]]]] = {
    "sliding windows": (
        lambda events: events.groupBy(F.window("at", "20 seconds", "10 seconds")).agg(F.max(F.current_timestamp())),
        [[5, 5, 12, 12], [25, 25, 33, 33, 59]],
    ),
    "sessions": (
        lambda events: events.groupBy("page", F.session_window("at", "5 seconds")).count(),
        [[5, 12], [25, 33]],
    ),
}


def run(
    query: Callable[[DataFrame], DataFrame], feed: Feed, spark: SparkSession, folder: Path, kept: LateRowsSink,
    late_rows: str | Callable[..., object] | None, **settings: object,
) -> None:  # fmt: skip
    """Run a query over all files."""
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(folder, **settings), late_rows=late_rows)
    writer = query(events.withWatermark("at", "10 seconds")).writeStream.foreachBatch(kept.results)
    started = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    started.awaitTermination()


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.sample(step=2)
def test_late_rows_go_to_a_function(name: str, spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A function gets the late rows of each batch, and is not called for a batch without late rows."""
    query, expected = QUERIES[name]
    kept = LateRowsSink()

    run(query, feed, spark, tmp_path, kept, kept.late)

    assert [(batch, rows) for batch, _, rows in kept.told] == list(enumerate(expected, FIRST_LATE))


@pytest.mark.long
def test_a_repeated_batch_delivers_the_same_late_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """If the sink of results fails after the commit, the late rows are delivered again with the same delivery id."""
    kept = LateRowsSink()
    kept.failures = 1

    with pytest.raises(StreamingQueryException, match="the sink is not there"):
        run(of_users, feed, spark, tmp_path, kept, kept.late, deliver_after_commit=True)
    run(of_users, feed, spark, tmp_path, kept, kept.late, deliver_after_commit=True)

    assert kept.told[0] == kept.told[1]
    assert [rows for _, _, rows in kept.told] == [[5, 12, 31], [5, 12, 31], [25, 33, 59]]


@pytest.mark.long
def test_late_rows_go_to_a_folder(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A folder has each late row once, with its window and batch, also after repeated batches.

    A query that has started without a side output can add one.
    """
    kept, folder = LateRowsSink(), f"{tmp_path}/late"
    kept.failures = 2

    for late_rows in (None, folder):
        with pytest.raises(StreamingQueryException, match="the sink is not there"):
            run(by_ten, feed, spark, tmp_path, kept, late_rows)
    run(by_ten, feed, spark, tmp_path, kept, folder)

    rows = spark.read.parquet(folder).selectExpr("batch_id", "second", "unix_seconds(window.end) AS closed").collect()
    begin = int(BEGIN.timestamp())
    assert sorted((row.batch_id, row.second, row.closed - begin) for row in rows) == [
        (2, 5, 10), (2, 12, 20), (3, 25, 30), (3, 33, 40), (3, 59, 60),
    ]  # fmt: skip


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "no operator": (lambda events: events.where("second > 1"), "append", "RIFFLE-0344"),
    "no watermark": (lambda events: events.groupBy("page").count(), "update", "RIFFLE-0344"),
    "event time not read": (
        lambda events: events.dropDuplicates(["page"]).select("page"), "append", "RIFFLE-0344",
    ),
    "complete": (by_ten, "complete", "RIFFLE-0344"),
    "join": (
        lambda events: events.alias("a").join(events.alias("b"), F.expr("a.page = b.page AND a.at = b.at")),
        "append", "RIFFLE-0343",
    ),
    "a column that the folder adds": (
        lambda events: by_ten(events.withColumn("Batch_ID", F.lit(1))).groupBy("window").agg(F.max("n")),
        "append", "RIFFLE-0345",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_late_row_output_is_refused_if_no_row_can_be_late(
    name: str, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """A side output of late rows is refused if the query has no late rows, or joins two streams."""
    query, mode, error_id = REFUSED[name]
    timed = feed.stream(spark) if name == "no watermark" else feed.stream(spark).withWatermark("at", "10 seconds")
    events = riffle_spark.on(timed, settings=settings_in(tmp_path), late_rows=f"{tmp_path}/late")

    with pytest.raises(ConfigError, match=error_id):
        query(events).writeStream.outputMode(mode).format("noop").start()


def test_two_side_outputs_of_late_rows_are_refused(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A query has one side output for late rows: two different ones are refused, and one stream's holds for all.

    A function with too few parameters is refused at once.
    """
    with pytest.raises(ConfigError, match="RIFFLE-0288"):
        riffle_spark.on(feed.stream(spark), late_rows=lambda rows: rows)
    left, right = (riffle_spark.on(feed.stream(spark), late_rows=f"{tmp_path}/{name}") for name in "ab")
    with pytest.raises(ConfigError, match="RIFFLE-0350"):
        left.union(right).writeStream  # noqa: B018 - it is where options are looked at
    both = riffle_spark.on(feed.stream(spark), settings=Settings(key_groups=4)).union(left)
    options = options_in(both)
    assert (options.late_rows, options.settings) == (f"{tmp_path}/a", Settings(key_groups=4))
    with pytest.raises(ConfigError, match="RIFFLE-0349"):
        riffle_spark.on(left, dead_letters=f"{tmp_path}/a").writeStream  # noqa: B018 - the same
    others = riffle_spark.on(feed.stream(spark), root="file:///state", settings=Settings(key_groups=8))
    with pytest.raises(ConfigError, match="RIFFLE-0350"):
        both.union(others).writeStream  # noqa: B018 - the same
