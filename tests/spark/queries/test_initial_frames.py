"""Wrapped queries that start from frames: ``initial_state`` of ``riffle_spark.on``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark.errors import ConfigError
from riffle_spark.spark.seeds import seeding
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with a batch."""
    feed = Feed(tmp_path / "in", "at timestamp, page string, n long")
    feed.add([{"at": "2026-01-01T00:00:10Z", "page": "a", "n": 1}, {"at": "2026-01-01T00:00:11Z", "page": "c", "n": 5}])
    return feed


def run(
    spark: SparkSession,
    feed: Feed,
    folder: Path,
    build: Callable[[DataFrame], DataFrame],
    initial: dict[str, DataFrame],
    mode: str = "update",
) -> list[dict[str, Any]]:
    """Run a query to the end of its input and return its output, sorted."""
    rows = list[dict[str, Any]]()

    def take(frame: DataFrame, _: int) -> None:
        rows.extend(row.asDict(recursive=True) for row in frame.collect())

    events = riffle_spark.on(feed.stream(spark), settings=settings_in(folder), initial_state=initial)
    writer = build(events).writeStream.outputMode(mode).foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return sorted(rows, key=str)


def by_page(events: DataFrame) -> DataFrame:
    """Count and sum by page."""
    return events.groupBy("page").agg(F.count("*").alias("visits"), F.sum("n").alias("total"))


def test_an_aggregate_starts_from_its_initial_frame_once(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """An aggregate starts from its initial frame once. A restart with another frame continues the stored state."""
    frame = spark.createDataFrame([("a", 10, 100), ("b", 20, 200)], "page string, visits long, total long")
    assert run(spark, feed, tmp_path, by_page, {"aggregate.page": frame.select("total", "page", "visits")}) == [
        {"page": "a", "visits": 11, "total": 101},
        {"page": "c", "visits": 1, "total": 5},
    ]
    feed.add([{"at": None, "page": page, "n": 1} for page in "ab"])
    assert run(spark, feed, tmp_path, by_page, {"aggregate.page": frame.limit(0)}) == [
        {"page": "a", "visits": 12, "total": 102},
        {"page": "b", "visits": 21, "total": 201},
    ]


def test_a_start_that_died_while_it_wrote_the_initial_state_is_repeated(
    spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver dies before the record of the initial state. The next start writes the initial state again."""
    frame = spark.createDataFrame([("a", 10, 100)], "page string, visits long, total long")

    def die(*_: object) -> None:
        raise RuntimeError("the driver is killed")

    monkeypatch.setattr(seeding, "commit_first_version", die)
    with pytest.raises(StreamingQueryException, match="killed"):
        run(spark, feed, tmp_path, by_page, {"aggregate.page": frame})
    monkeypatch.undo()
    assert run(spark, feed, tmp_path, by_page, {"aggregate.page": frame}) == [
        {"page": "a", "visits": 11, "total": 101},
        {"page": "c", "visits": 1, "total": 5},
    ]


@pytest.mark.long
def test_a_deduplication_drops_keys_of_its_initial_frame(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A de-duplication drops rows whose keys are in the initial frame."""
    frame = spark.createDataFrame([("a",)], "page string")
    assert [
        row["page"]
        for row in run(
            spark, feed, tmp_path, lambda e: e.dropDuplicates(["page"]), {"distinct.page": frame}, mode="append"
        )
    ] == ["c"]


@pytest.mark.long
def test_open_sessions_of_the_initial_frame_continue(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Rows extend an open session of the initial frame, and other sessions of it end by the watermark."""
    feed.add([{"at": "2026-01-01T01:00:00Z", "page": "z", "n": 0}])
    frame = spark.createDataFrame(
        [
            ("a", "2026-01-01 00:00:05", "2026-01-01 00:00:12", 3),
            ("b", "2026-01-01 00:00:05", "2026-01-01 00:00:08", 4),
        ],
        "page string, start string, end string, visits long",
    ).select(
        "page",
        F.expr("timestamp(start) AS session_window_start"),
        F.expr("timestamp(end) AS session_window_end"),
        "visits",
    )
    build = lambda e: (  # noqa: E731 - a query
        e.withWatermark("at", "0 seconds")
        .groupBy(F.session_window("at", "5 seconds"), "page")
        .agg(F.count("*").alias("visits"))
        .select("page", F.col("session_window.start").cast("string").alias("start"), "visits")
    )
    store = "aggregate.session_window-page"
    assert run(spark, feed, tmp_path, build, {store: frame}, mode="append") == [
        {"page": "a", "start": "2026-01-01 00:00:05", "visits": 4},
        {"page": "b", "start": "2026-01-01 00:00:05", "visits": 4},
        {"page": "c", "start": "2026-01-01 00:00:11", "visits": 1},
    ]


def test_an_initial_frame_of_an_operator_that_is_added_later_is_refused(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """A query that has run refuses the initial frame of an operator that it gets later, which would start empty."""
    assert len(run(spark, feed, tmp_path, by_page, {})) == 2
    frame = spark.createDataFrame([("a", 7)], "page string, n long")
    feed.add([{"at": None, "page": "a", "n": 7}])
    build = lambda e: by_page(e.dropDuplicates(["page", "n"]))  # noqa: E731 - a query
    with pytest.raises(StreamingQueryException, match=r"RIFFLE-1831.*distinct\.page-n"):
        run(spark, feed, tmp_path, build, {"distinct.page-n": frame})


@pytest.mark.parametrize(
    ("store", "columns", "error"),
    [
        ("aggregate.user", "page string, visits long, total long", None),
        ("aggregate.page", "page string, visits long", "RIFFLE-1632"),
        ("aggregate.page", "page string, visits long, total long, more long", "RIFFLE-1632"),
        ("aggregate.page", "page string, visits int, total long", "RIFFLE-1633"),
    ],
)
def test_an_initial_frame_with_a_wrong_store_or_columns_is_refused(
    spark: SparkSession, feed: Feed, tmp_path: Path, store: str, columns: str, error: str | None
) -> None:
    """A frame for an unknown store, or with wrong columns, is refused before anything is written."""
    frame = spark.createDataFrame([], columns)
    with pytest.raises(ConfigError) as caught:
        run(spark, feed, tmp_path, by_page, {store: frame})
    assert error in (None, caught.value.id)
    assert not (tmp_path / "state").exists() or not list((tmp_path / "state").rglob("log"))


def test_an_initial_frame_is_refused_if_it_is_a_stream_or_rows_have_partitions(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """An initial frame must be static. With dispatch by partition it is refused, because its rows have no partition."""
    with pytest.raises(ConfigError, match=r"RIFFLE-1631.*streaming frame"):
        run(spark, feed, tmp_path, by_page, {"aggregate.page": feed.stream(spark)})
    frame = spark.createDataFrame([], "topic string, partition int, visits long")

    def by_partition(events: DataFrame) -> DataFrame:
        rows = events.selectExpr("page AS topic", "cast(n AS int) AS partition")
        return rows.groupBy("topic", "partition").agg(F.count("*").alias("visits"))

    spark.conf.set("spark.riffle.dispatch", "hashed")
    try:
        with pytest.raises(ConfigError, match=r"RIFFLE-1630.*dispatch = hashed"):
            run(spark, feed, tmp_path, by_partition, {"aggregate.topic-partition": frame})
    finally:
        spark.conf.unset("spark.riffle.dispatch")
