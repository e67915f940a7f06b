"""Several queries from one wrapped frame: each has its own root and continues in it after a restart."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import riffle_spark
from riffle_spark import StreamQuery
from riffle_spark.errors import ConfigError
from riffle_spark.spark.queries import query_roots
from riffle_spark.state.log.query_roots import only_root, query_names
from riffle_spark.state.objects.open import open_store
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]
BATCHES = [[{"k": k, "v": k % 2} for k in range(5)], [{"k": 1, "v": 1}], [{"k": 1, "v": 0}, {"k": 7, "v": 7}]]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with its first batch."""
    feed = Feed(tmp_path / "in", "k long, v long")
    feed.add(BATCHES[0])
    return feed


@pytest.fixture
def events(spark: SparkSession, feed: Feed, tmp_path: Path) -> DataFrame:
    """A wrapped frame over the feed."""
    return riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))


def writer_of(frame: DataFrame, checkpoint: Path) -> DataStreamWriter:
    """Return a writer that discards its rows."""

    def noop(rows: DataFrame, _: int) -> None:
        rows.write.format("noop").mode("append").save()

    writer = frame.writeStream.outputMode("update").foreachBatch(noop)
    return writer.option("checkpointLocation", str(checkpoint))


def end(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query ends and return it."""
    assert query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    return query


def root_of(query: StreamingQuery) -> str:
    """Return the root of a wrapped query."""
    assert isinstance(query, StreamQuery)
    return query.root


class TwoQueries:
    """Two queries of one frame: counts by key and totals by value. Each writes to its own folder."""

    def __init__(self, feed: Feed, folder: Path) -> None:
        self.feed = feed
        self.folder = folder

    def start(self, events: DataFrame) -> list[StreamingQuery]:
        """Start both queries."""
        frames = (events.groupBy("k").count(), events.groupBy("v").agg(F.sum("k").alias("total")))
        return [self.writer(frame, number).start() for number, frame in enumerate(frames)]

    def writer(self, frame: DataFrame, number: int) -> DataStreamWriter:
        """Return the writer of a query. Each batch has its own folder, which a repeated batch overwrites."""
        folder = self.folder / f"out{number}"
        writer = frame.writeStream.outputMode("update").foreachBatch(
            lambda rows, batch_id: rows.coalesce(1).write.mode("overwrite").json(f"{folder}/{batch_id}")
        )
        return writer.option("checkpointLocation", f"{self.folder}/checkpoints/{number}")

    def outputs(self, number: int) -> dict[int, list[dict[str, int]]]:
        """Return the rows of each batch of a query."""
        rows = dict[int, list[dict[str, int]]]()
        for folder in (self.folder / f"out{number}").iterdir():
            lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
            if lines:
                rows[int(folder.name)] = sorted(map(json.loads, lines), key=str)
        return rows


@pytest.mark.long
def test_two_live_queries_of_one_frame_are_exact_after_a_restart(
    spark: SparkSession, events: DataFrame, feed: Feed, tmp_path: Path
) -> None:
    """Two queries that run at the same time have Spark's results after a restart, also if the second one runs first."""
    ours, sparks = TwoQueries(feed, tmp_path / "ours"), TwoQueries(feed, tmp_path / "sparks")
    roots = list[set[str]]()
    for batch in BATCHES[1:]:
        running = [ours.start(events), sparks.start(feed.stream(spark))]
        for query in (query for queries in running for query in reversed(queries)):
            query.processAllAvailable()
        feed.add(batch)
        for query in (query for queries in running for query in queries):
            query.processAllAvailable()
            query.stop()
        roots.append({root_of(query) for query in running[0]})
    assert roots[0] == roots[1]
    assert len(roots[0]) == 2
    for number in range(2):
        expected = sparks.outputs(number)
        assert ours.outputs(number) == expected
        assert len(expected) == len(BATCHES)


@pytest.mark.parametrize("name", [None, pytest.param("counts", marks=pytest.mark.long)])
@pytest.mark.long
def test_a_query_whose_checkpoint_is_gone_is_refused_with_both_ids(
    events: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """A query whose checkpoint is gone is refused with both query ids, and nothing is written. The option
    ``riffle.root`` starts it without state.
    """
    writer = writer_of(events.groupBy("k").count(), tmp_path / "c1").trigger(availableNow=True)
    writer = writer.queryName(name) if name else writer
    first = end(writer.start())
    before = records(root_of(first))
    monkeypatch.setattr(query_roots, "_started", set())
    if name:
        shutil.rmtree(tmp_path / "c1")
    else:
        writer = writer.option("checkpointLocation", str(tmp_path / "c2"))
    query = writer.start()
    with pytest.raises(StreamingQueryException, match="RIFFLE-0210") as caught:
        query.awaitTermination()
    assert first.id in str(caught.value)
    assert query.id in str(caught.value)
    assert "riffle.root" in str(caught.value)
    assert records(root_of(first)) == before
    shutil.rmtree(tmp_path / ("c1" if name else "c2"))
    end(writer.option("riffle.root", f"file://{tmp_path}/own").start())
    assert len(records(f"file://{tmp_path}/own")) == 2


def test_a_query_that_was_refused_is_refused_at_its_next_start_too(
    events: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query is refused with each new checkpoint, also after its changed state was refused with the old one."""
    end(writer_of(events.groupBy("k").count(), tmp_path / "c1").trigger(availableNow=True).start())
    monkeypatch.setattr(query_roots, "_started", set())
    changed = events.groupBy(F.col("k").cast("string").alias("k")).count()
    with pytest.raises(ConfigError, match="RIFFLE-0334"):
        writer_of(changed, tmp_path / "c1").trigger(availableNow=True).start()
    for checkpoint in ("c2", "c2", "c3"):
        query = writer_of(changed, tmp_path / checkpoint).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="RIFFLE-0210"):
            query.awaitTermination()


def test_a_query_without_a_checkpoint_starts_empty_with_a_warning(
    events: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A query without a checkpoint location starts without state, as in Spark, and a warning names the option."""
    writer = events.groupBy("k").count().writeStream.format("memory").queryName("shown").outputMode("complete")
    with caplog.at_level(logging.WARNING, "riffle_spark"):
        roots = [root_of(end(writer.trigger(availableNow=True).start())) for _ in range(2)]
    assert roots[0] != roots[1]
    assert [record.message[:13] for record in caplog.records] == ["[RIFFLE-1123]"] * 2
    assert "checkpointLocation" in caplog.text
    assert len(query_names(open_store(f"file://{tmp_path}/state"))) == 2


def test_a_query_with_changed_operators_is_refused_on_its_checkpoint(events: DataFrame, tmp_path: Path) -> None:
    """A query whose operators changed is refused on its own checkpoint, also in a shared root."""
    first = end(writer_of(events.groupBy("k").count(), tmp_path / "c").trigger(availableNow=True).start())
    with pytest.raises(ConfigError, match="RIFFLE-0330"):
        writer_of(events.groupBy("v").count(), tmp_path / "c").start()
    again = end(writer_of(events.groupBy("k").count(), tmp_path / "c").trigger(availableNow=True).start())
    assert again.id == first.id
    assert only_root(f"file://{tmp_path}/state") == root_of(again)
