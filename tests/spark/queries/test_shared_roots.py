"""A root belongs to one query: the second one is refused with that cause, whatever its stores are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import Feed, records, settings_in

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
    with pytest.raises(StreamingQueryException, match="RIFFLE-0210") as caught:
        query.awaitTermination()
    assert first.id in str(caught.value)
    assert query.id in str(caught.value)
    assert records(f"file://{tmp_path}/state") == before


def test_a_running_query_continues_when_a_second_one_is_refused(events: DataFrame, tmp_path: Path) -> None:
    """The refusal comes before the claim, so the first query is not fenced, and its next batch is exact."""
    totals: list[list[tuple[int, ...]]] = []
    counts = events.groupBy("k").count()
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "c1"))
    first = writer.foreachBatch(lambda rows, _: totals.append(sorted(map(tuple, rows.collect())))).start()
    try:
        first.processAllAvailable()
        second = writer_of(counts, tmp_path / "c2").start()
        with pytest.raises(StreamingQueryException, match="RIFFLE-0210"):
            second.awaitTermination()
        Feed(tmp_path / "in", "k long, v long").add([{"k": 1, "v": 1}])
        first.processAllAvailable()
    finally:
        first.stop()
    assert [rows for rows in totals if rows] == [[(k, 1) for k in range(5)], [(1, 2)]]


def test_the_same_query_started_again_is_compared_with_its_stores(events: DataFrame, tmp_path: Path) -> None:
    """With its own checkpoint a query is refused for its stores, as before."""
    first = writer_of(events.groupBy("k").count(), tmp_path / "c").trigger(availableNow=True).start()
    first.awaitTermination()
    with pytest.raises(ConfigError, match="RIFFLE-0330"):
        writer_of(events.groupBy("v").count(), tmp_path / "c").start()
    again = writer_of(events.groupBy("k").count(), tmp_path / "c").trigger(availableNow=True).start()
    again.awaitTermination()
    assert again.id == first.id
