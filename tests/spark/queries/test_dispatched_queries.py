"""Wrapped queries with dispatch by partition: a query that drops topic or partition is refused when it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

import riffle_spark
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import Feed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

SCHEMA = "topic string, partition int, k string, v long, at timestamp"
ROWS = [{"topic": "t", "partition": n % 3, "k": "abc"[n % 2], "v": n, "at": "2026-01-01T00:00:00Z"} for n in range(30)]
Query = Callable[[DataFrame], DataFrame]


def counting(key: Any, frames: Iterable[Any], state: GroupState) -> Iterable[Any]:
    """Count rows."""
    before = state.get[0] if state.exists else 0
    count = before + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"k": [key[-1]], "rows": [count]})


def by_function(*keys: str) -> Query:
    """Return a query that counts the rows of groups with a user's function."""
    return lambda events: events.groupBy(*keys).applyInPandasWithState(
        counting, "k string, rows long", "rows long", "update", "NoTimeout"
    )


def counts(*keys: str) -> Query:
    """Return a query that counts rows by key."""
    return lambda events: events.groupBy(*keys).agg(F.count("*").alias("rows"))


def joined(*keys: str) -> Query:
    """Return a query that joins the stream with itself."""

    def query(events: DataFrame) -> DataFrame:
        right = events.select(*keys, "v").where("v < 6")
        return events.select("topic", "partition", "k").join(right, list(keys)).select("k", F.lit(1).alias("rows"))

    return query


def in_windows(events: DataFrame, *keys: str) -> DataFrame:
    """Count rows by window and key."""
    return events.groupBy(F.window("at", "10 seconds"), *keys).agg(F.count("*").alias("rows"))


def chained(events: DataFrame) -> DataFrame:
    """Count in two operators. Only the first one has the columns topic and partition."""
    first = in_windows(events.withWatermark("at", "1 second"), "topic", "partition", "k")
    return first.groupBy("window", "k").agg(F.sum("rows").alias("rows"))


def of_two(events: DataFrame) -> DataFrame:
    """Count the results of two operators, each of which reads a stream."""
    keys = ("topic", "partition", "k")
    timed = events.withWatermark("at", "1 second")
    left, right = (in_windows(timed.where(f"v % 2 = {one}"), *keys) for one in range(2))
    return left.unionByName(right).groupBy("window", *keys).agg(F.sum("rows").alias("rows"))


def started(spark: SparkSession, folder: Path, query: Query, dispatch: str, mode: str = "update") -> list[Row]:
    """Run a query over the feed and return its output rows."""
    feed, found = Feed(folder / "in", SCHEMA), list[Row]()
    feed.add(ROWS)
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(folder, dispatch=dispatch))
    writer = query(events).writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
    writer = writer.outputMode(mode).option("checkpointLocation", str(folder / "c")).trigger(availableNow=True)
    writer.start().awaitTermination()
    return sorted(found)


@pytest.mark.parametrize(
    ("query", "store", "mode", "dispatch"),
    [
        (counts("topic", "k"), "aggregate.topic-k", "update", "partition"),
        (joined("k"), "join.k", "append", "hashed"),
        (chained, "aggregate.window-k", "append", "partition"),
    ],
    ids=["topic alone", "join", "chain"],
)
def test_a_query_that_drops_topic_and_partition_is_refused_as_it_starts(
    spark: SparkSession, tmp_path: Path, query: Query, store: str, mode: str, dispatch: str
) -> None:
    """A query that drops topic or partition is refused when it starts. The error names the operator, and nothing is
    written.
    """
    with pytest.raises(ConfigError, match="RIFFLE-0326") as caught:
        started(spark, tmp_path, query, dispatch, mode)
    assert store in caught.value.problem
    assert records(f"file://{tmp_path}/state") == []


def test_several_streams_are_refused_as_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    """A query over several streams is refused when it starts, because a batch's rows have no common topic column."""
    with pytest.raises(ConfigError, match="RIFFLE-0325"):
        started(spark, tmp_path, of_two, "partition", "append")
    assert records(f"file://{tmp_path}/state") == []


@pytest.mark.parametrize("dispatch", ["partition", pytest.param("hashed", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("make", "mode", "total", "count"),
    [(counts, "update", len(ROWS), 6), (by_function, "update", len(ROWS), 6), (joined, "append", 30, 30)],
    ids=["aggregate", "function", "join"],
)
@pytest.mark.sample("aggregate-partition")
def test_a_query_that_groups_by_topic_and_partition_runs(
    spark: SparkSession, tmp_path: Path, make: Callable[..., Query], mode: str, total: int, count: int, dispatch: str
) -> None:
    """A query whose keys contain topic and partition runs, as the remedy says."""
    rows = started(spark, tmp_path, make("topic", "partition", "k"), dispatch, mode)
    assert (sum(row["rows"] for row in rows), len(rows)) == (total, count)
    assert {record.dispatch for record in records(f"file://{tmp_path}/state")} == {dispatch}
