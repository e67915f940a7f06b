"""A root belongs to one query: the second one is refused with that cause, whatever its stores are called."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import riffle_spark
from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.spark.queries.shared_roots import reserved_root
from tests.kit.streams.streaming import Feed, committed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A wrapped frame with rows."""
    feed = Feed(tmp_path / "in", "k long, v long")
    feed.add([{"k": k, "v": k} for k in range(5)])
    return riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))


def writer_of(frame: DataFrame, checkpoint: Path) -> DataStreamWriter:
    """Return a writer that keeps nothing."""

    def noop(rows: DataFrame, _: int) -> None:
        rows.write.format("noop").mode("append").save()

    writer = frame.writeStream.outputMode("update").foreachBatch(noop)
    return writer.option("checkpointLocation", str(checkpoint))


def test_a_second_query_of_this_process_is_refused_as_it_starts(events: DataFrame, tmp_path: Path) -> None:
    """Before the first one has committed anything and after that, with other stores and with the same."""
    query = writer_of(events.groupBy("k").count(), tmp_path / "c1").start()
    try:
        for second in (events.dropDuplicates(["v"]), events.groupBy("k").count()):
            with pytest.raises(ConflictError, match="RIFFLE-0342") as caught:
                writer_of(second, tmp_path / "c2").start()
            assert "riffle_spark.on(frame, root=...)" in caught.value.remedy
            assert "riffle.accept" not in str(caught.value)
            query.processAllAvailable()
    finally:
        query.stop()
    assert committed(f"file://{tmp_path}/state") == [0]


def test_of_two_queries_that_start_at_once_one_is_refused(events: DataFrame, tmp_path: Path) -> None:
    """Two threads with new checkpoints: the check of the root and its reservation are one step."""
    together = Barrier(2)

    def start(number: int) -> StreamingQuery | ConflictError:
        writer = writer_of(events.groupBy("k").count(), tmp_path / f"c{number}")
        together.wait(60)
        try:
            return writer.start()
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(start, range(2)))
    started = [outcome for outcome in outcomes if not isinstance(outcome, ConflictError)]
    for query in started:
        query.processAllAvailable()
        query.stop()
    assert len(started) == 1
    (refused,) = [str(outcome) for outcome in outcomes if isinstance(outcome, ConflictError)]
    assert "two queries share the root" in refused


def try_to_reserve(root: str, query_id: str | None) -> None:
    """Reserve a root for a moment."""
    with reserved_root(root, query_id):
        pass


def test_a_reservation_ends_with_its_start() -> None:
    """A start that fails frees the root; a start with the same checkpoint is left to Spark, which knows both."""
    root = "file:///reserved"
    with reserved_root(root, None):
        for query_id in (None, "one"):
            with pytest.raises(ConflictError, match="RIFFLE-0342"):
                try_to_reserve(root, query_id)
        try_to_reserve("file:///other", None)
    with suppress(ValueError), reserved_root(f"{root}/", "one"):
        try_to_reserve(root, "one")
        raise ValueError("the start fails")
    try_to_reserve(root, None)


def test_each_query_with_a_root_of_its_own_runs(spark: SparkSession, tmp_path: Path) -> None:
    """What the remedy says."""
    feed = Feed(tmp_path / "in", "k long, v long")
    feed.add([{"k": k, "v": k} for k in range(5)])
    for number in range(2):
        own = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path / f"{number}"))
        query = writer_of(own.groupBy("k").count(), tmp_path / f"c{number}").start()
        query.processAllAvailable()
    for query in spark.streams.active:
        query.stop()
    assert [committed(f"file://{tmp_path}/{number}/state") for number in range(2)] == [[0], [0]]


@pytest.mark.parametrize("same_stores", [False, True])
def test_a_root_of_a_query_that_has_ended_is_refused_with_both_ids(
    events: DataFrame, tmp_path: Path, *, same_stores: bool
) -> None:
    """As one of another process, which only the record tells of. Nothing is written."""
    first = writer_of(events.groupBy("k").count(), tmp_path / "c1").trigger(availableNow=True).start()
    first.awaitTermination()
    before = records(f"file://{tmp_path}/state")
    second = events.groupBy("k").count() if same_stores else events.dropDuplicates(["v"])
    query = writer_of(second, tmp_path / "c2").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=f"belongs to query {first.id}, this is {query.id}") as caught:
        query.awaitTermination()
    assert "RIFFLE-0210" in str(caught.value)
    assert "riffle_spark.on(frame, root=...)" in str(caught.value)
    assert "riffle.accept" not in str(caught.value)
    assert records(f"file://{tmp_path}/state") == before


def test_the_same_query_started_again_is_compared_with_its_stores(events: DataFrame, tmp_path: Path) -> None:
    """With its own checkpoint a query is refused for its stores, as before."""
    first = writer_of(events.groupBy("k").count(), tmp_path / "c").trigger(availableNow=True).start()
    first.awaitTermination()
    with pytest.raises(ConfigError, match="RIFFLE-0330"):
        writer_of(events.groupBy("v").count(), tmp_path / "c").start()
    again = writer_of(events.groupBy("k").count(), tmp_path / "c").trigger(availableNow=True).start()
    again.awaitTermination()
    assert again.id == first.id
