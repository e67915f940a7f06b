"""Dead letters of a wrapped query are delivered to a side output, with the guarantees of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import StatefulProcessor
from riffle_spark.errors import ConfigError
from riffle_spark.spark.queries.stream_query import StreamQuery
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

BATCHES = (
    (("ann", "1"), ("bob", "2"), ("ann", "3")),
    (("ann", "four"), ("bob", "5"), ("ann", "6"), ("eve", "seven")),
    (("ann", "8"), ("eve", "9")),
)
"""Users, and numbers as text. In batch 1, the texts of ann and eve include one that is not a number."""
RESULTS = {0: [("ann", 4), ("bob", 2)], 1: [("bob", 7)], 2: [("ann", 12), ("eve", 9)]}
LETTERS = [(1, "ann", "four", 100), (1, "ann", "6", 102), (1, "eve", "seven", 103)]
OUTPUT = "user string, total long"


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """A feed with one file of events per batch, with offsets."""
    new_feed = Feed(tmp_path_factory.mktemp("events"), "user string, n string, offset long")
    for number, batch in enumerate(BATCHES):
        new_feed.add([{"user": user, "n": n, "offset": 100 * number + at} for at, (user, n) in enumerate(batch)])
    return new_feed


def summed(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Sum the numbers of a user. Text that is not a number raises an error."""
    total = (state.getOption or (0,))[0]
    for frame in frames:
        for n in frame["n"]:
            total += int(n)
            state.update((total,))
    yield pd.DataFrame({"user": [key[0]], "total": [total]})


class SumProcessor(StatefulProcessor):
    """The same sum as a processor."""

    def init(self, handle: Any) -> None:
        """Declare the total."""
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Sum the numbers."""
        for frame in rows:
            for n in frame["n"]:
                self.total.update(((self.total.get() or (0,))[0] + int(n),))
        yield pd.DataFrame({"user": [key[0]], "total": [self.total.get()[0]]})

    def close(self) -> None:
        """Do nothing."""


def of_groups(events: DataFrame) -> DataFrame:
    """Return the sums by ``applyInPandasWithState``."""
    return events.groupBy("user").applyInPandasWithState(summed, OUTPUT, "total long", "append", "NoTimeout")


def in_the_middle(events: DataFrame) -> DataFrame:
    """Return the distinct sums of a processor, so that a second operator follows."""
    sums = events.groupBy(F.col("user")).transformWithStateInPandas(SumProcessor(), OUTPUT, "append", "None")
    return sums.dropDuplicates(["user", "total"])


class Sinks:
    """Sinks that keep the results and dead letters of each delivery. The sink of results may fail in batch 1."""

    def __init__(self) -> None:
        self.results: dict[int, list[tuple[object, ...]]] = {}
        self.letters: list[tuple[int, str, list[Row]]] = []
        self.order: list[tuple[int, str]] = []
        self.fails = True

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Keep the results, or fail."""
        self.order.append((batch_id, "results"))
        self.results[batch_id] = sorted(map(tuple, rows.collect()))
        if batch_id == 1 and self.fails:
            self.fails = False
            raise RuntimeError("the sink is not there")

    def take_letters(self, rows: DataFrame, batch_id: int, delivery_id: str) -> None:
        """Keep the dead letters."""
        self.order.append((batch_id, "letters"))
        self.letters.append((batch_id, delivery_id, sorted(rows.collect(), key=lambda row: row.row.offset)))


def run(
    query: Callable[[DataFrame], DataFrame], feed: Feed, spark: SparkSession, folder: Path, sinks: Sinks,
    dead_letters: str | Callable[..., object], **settings: object,
) -> StreamQuery:  # fmt: skip
    """Run a query until its sink fails, and then run it again over all files."""
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(folder, **settings), dead_letters=dead_letters)
    writer = query(events).writeStream.foreachBatch(sinks.take).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    with pytest.raises(StreamingQueryException, match="the sink is not there"):
        writer.start().awaitTermination()
    started = writer.start()
    started.awaitTermination()
    assert isinstance(started, StreamQuery)
    return started


@pytest.mark.long
def test_dead_letters_go_to_a_folder(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """The folder has each dead letter once, also of a repeated batch, and can be read as a table. State continues
    without their rows.
    """
    sinks, folder = Sinks(), f"{tmp_path}/dead"

    query = run(of_groups, feed, spark, tmp_path, sinks, folder)

    assert sinks.results == RESULTS
    letters = spark.read.parquet(folder)
    assert letters.columns == ["error", "message", "traceback", "store", "key_group", "row", "batch_id"]
    letter_rows = letters.select("batch_id", "row.user", "row.n", "row.offset").collect()
    assert sorted(map(tuple, letter_rows), key=lambda one: one[-1]) == LETTERS
    (error_and_store,) = {(row.error, row.store) for row in letters.collect()}
    assert error_and_store == ("ValueError", "groups.user")
    assert "'four'" in letters.where("row.user = 'ann'").first().message  # type: ignore[union-attr] # there are some
    counts = {one["batchId"]: one["stateOperators"][0]["customMetrics"]["deadRows"] for one in query.recentProgress}
    assert counts == {1: 3, 2: 0}
    assert [report.dead_rows for report in query.reports] == [3, 0]


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
def test_dead_letters_of_an_inner_stage_go_to_a_function(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """The function gets the dead letters of a stage that is not the last one, before the results of the batch.

    If a committed batch is delivered again, it gets them again with the same delivery id.
    """
    sinks = Sinks()

    run(in_the_middle, feed, spark, tmp_path, sinks, sinks.take_letters, deliver_after_commit=True)

    assert sinks.results == RESULTS
    again_both = [(1, "letters"), (1, "results")] * 2
    assert sinks.order == [(0, "results"), *again_both, (2, "results")]
    first, again = sinks.letters
    assert first == again
    batch_id, _, rows = first
    assert [(batch_id, row.row.user, row.row.n, row.row.offset) for row in rows] == LETTERS


def in_a_chain(events: DataFrame) -> DataFrame:
    """Apply one user's function to the results of another."""
    once = in_the_middle(events).selectExpr("user", "CAST(total AS STRING) AS n")
    return once.groupBy("user").transformWithStateInPandas(SumProcessor(), OUTPUT, "append", "None")


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "no operator": (lambda events: events.where("n > 1"), "RIFFLE-0346"),
    "aggregate": (lambda events: events.groupBy("user").count(), "RIFFLE-0346"),
    "two functions": (in_a_chain, "RIFFLE-0347"),
}


@pytest.mark.parametrize(
    "name",
    [
        "no operator",
        "aggregate",
        pytest.param("two functions", marks=pytest.mark.needs_spark4("transformWithState")),
    ],
)
def test_a_dead_letter_output_is_refused_without_a_users_function(
    name: str, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:  # fmt: skip
    """A side output of dead letters is refused if the query has no user's function or more than one."""
    query, error_id = REFUSED[name]
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path), dead_letters=f"{tmp_path}/dead")

    with pytest.raises(ConfigError, match=error_id):
        query(events).writeStream.outputMode("append" if name != "aggregate" else "update").format("noop").start()


def test_two_side_outputs_of_dead_letters_are_refused(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Two side outputs of dead letters in one query are refused. A function with too few parameters is
    refused at once.
    """
    with pytest.raises(ConfigError, match="RIFFLE-0288"):
        riffle_spark.on(feed.stream(spark), dead_letters=lambda rows: rows)
    left, right = (riffle_spark.on(feed.stream(spark), dead_letters=f"{tmp_path}/{name}") for name in "ab")
    with pytest.raises(ConfigError, match="RIFFLE-0350"):
        left.union(right).writeStream  # noqa: B018 - it is where options are looked at
