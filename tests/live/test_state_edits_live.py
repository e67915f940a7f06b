"""Keys of wrapped queries are deleted and set, by a request to the running query or between two runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import riffle_spark
from riffle_spark.state.log.query_roots import only_root
from tests.kit.root_commands import read_json, run_command
from tests.kit.streams.streaming import Feed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.newer_spark]

AT = "2024-05-01T00:00:{:02d}Z"


def by_page(events: DataFrame) -> DataFrame:
    """Count and sum the events of each page."""
    return events.groupBy("page").agg(F.count("*").alias("c"), F.sum("n").alias("t"))


def in_sessions(events: DataFrame) -> DataFrame:
    """Count the events of each page in sessions."""
    groups = events.withWatermark("at", "1 hour").groupBy("page", F.session_window("at", "20 seconds"))
    return groups.agg(F.count("*").alias("c")).select("page", "c")


def joined(events: DataFrame) -> DataFrame:
    """Join events that have even numbers with events of the same page that have odd numbers."""
    timed = events.withWatermark("at", "1 hour")
    left = timed.where("n % 2 = 0").select("page", F.col("n").alias("left_n"))
    right = timed.where("n % 2 = 1").select("page", F.col("n").alias("right_n"))
    return left.join(right, "page")


@dataclass
class Wrapped:
    """A wrapped query over a feed that reads requests, with the output of its newest batch."""

    spark: SparkSession
    folder: Path
    make: Callable[[DataFrame], DataFrame]
    mode: str = "update"
    found: list[Row] = field(default_factory=list)
    query: StreamingQuery | None = None

    def __post_init__(self) -> None:
        """Create the feed."""
        self.feed = Feed(self.folder / "in", "at timestamp, page string, n long")
        self.checkpoint = self.folder / "checkpoint"
        self.shared_root = f"file://{self.folder}/state"

    @property
    def root(self) -> str:
        """The root of the query below the shared root."""
        return only_root(self.shared_root)

    def start(self) -> None:
        """Start the query."""
        settings = settings_in(self.folder, control="on", root=self.shared_root)
        frame = self.make(riffle_spark.on(self.feed.stream(self.spark), settings=settings))

        def keep(rows: DataFrame, _: int) -> None:
            self.found += rows.collect()

        writer = frame.writeStream.outputMode(self.mode).foreachBatch(keep).queryName("edited")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(processingTime="50 milliseconds").start()

    def stop(self) -> None:
        """Stop the query, if it runs."""
        if self.query is not None:
            self.query.stop()
            self.query = None

    def batch(self, *rows: tuple[str, int]) -> list[dict[str, object]]:
        """Run a batch of (page, number) events and return its output. The number is also the second of the
        event time.
        """
        assert self.query is not None
        self.found.clear()
        self.feed.add([{"at": AT.format(n), "page": page, "n": n} for page, n in rows])
        self.query.processAllAvailable()
        return sorted((row.asDict() for row in self.found), key=repr)

    def edit(self, *words: str, code: int = 0) -> str:
        """Run ``riffle state`` with ``--execute`` and a reason, and return its output."""
        result = run_command("state", words[0], self.root, *words[1:], "--reason", "ticket 7", "--execute")
        assert result.exit_code == code, result.output
        return result.output

    def store(self) -> str:
        """Return the name of the query's only store."""
        (store,) = records(self.root)[-1].schemas
        return store


@pytest.fixture(params=[True, False], ids=["running", "stopped"])
def running(request: pytest.FixtureRequest) -> bool:
    """Whether the change is a request to the running query, or a command between two runs."""
    return bool(request.param)


@pytest.fixture
def wrapped(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Wrapped]]:
    """Return a function that starts a query. The query is stopped after the test."""
    queries: list[Wrapped] = []

    def make(query: Callable[[DataFrame], DataFrame], mode: str = "update") -> Wrapped:
        queries.append(Wrapped(spark, tmp_path, query, mode))
        queries[-1].start()
        return queries[-1]

    yield make
    for wrapped_query in queries:
        wrapped_query.stop()


def change(query: Wrapped, running: bool, *words: str) -> None:
    """Change a key by a request or between two runs."""
    (action, *options) = words
    if running:
        query.edit(action, *options, "--request")
    else:
        query.stop()
        query.edit(action, *options)
        query.start()


def test_an_aggregate_continues_with_set_values_and_without_deleted_keys(
    running: bool, wrapped: Callable[..., Wrapped]
) -> None:
    """An aggregate continues a set key with its new value and a deleted key from nothing. Other keys are unchanged.

    The log records user and reason, but no key. A rollback to the record before the change undoes it.
    """
    query = wrapped(by_page)
    assert query.batch(("apple", 1), ("berry", 2), ("cherry", 3)) == [
        {"page": "apple", "c": 1, "t": 1}, {"page": "berry", "c": 1, "t": 2}, {"page": "cherry", "c": 1, "t": 3},
    ]  # fmt: skip
    store = query.store()
    columns = {column: role for column, role in read_json("stores", query.root)["stores"][0]["columns"] if column}
    count_column = next(name for name in columns if name.startswith("c"))
    change(query, running, "delete", "--store", store, "--key", "apple")
    before = records(query.root)[-1]
    change(query, running, "set", "--store", store, "--key", "berry", "--value", json.dumps({count_column: 40}))
    edits = [record for record in records(query.root) if record.kind == "state"]
    assert [record.edit["action"] for record in edits] == ["delete", "set"]
    assert all(record.edit["reason"] == "ticket 7" and record.edit["user"] for record in edits)
    assert not any(re.search("apple|berry", json.dumps(dict(record.edit))) for record in records(query.root))
    assert query.batch(("apple", 4), ("berry", 5), ("cherry", 6)) == [
        {"page": "apple", "c": 1, "t": 4}, {"page": "berry", "c": 41, "t": 7}, {"page": "cherry", "c": 2, "t": 9},
    ]  # fmt: skip
    query.stop()
    undo = edits[0].sequence - 1
    assert before.sequence > undo
    logged_records = read_json("log", query.root)["records"]
    assert [entry["edit"]["action"] for entry in logged_records if entry["kind"] == "state"] == ["delete", "set"]
    riffle_spark.rollback(query.root, f"record:{undo}", str(query.checkpoint), execute=True)
    query.start()
    assert query.batch(("apple", 7))[-1]["page"] == "cherry", "Spark reads the rows of the last batch again"
    table = riffle_spark.read_state(query.root, store).read_all()
    counts = {row["page"]: row[count_column] for row in table.to_pylist()}
    assert counts == {"apple": 3, "berry": 2, "cherry": 2}


def test_a_deleted_session_starts_again(running: bool, wrapped: Callable[..., Wrapped]) -> None:
    """A deleted key starts a new session, and the session of another key continues."""
    query = wrapped(in_sessions, "complete")
    query.batch(("apple", 1), ("apple", 2), ("berry", 3))
    change(query, running, "delete", "--store", query.store(), "--key", "apple")
    assert query.batch(("apple", 4), ("berry", 5)) == [{"page": "apple", "c": 1}, {"page": "berry", "c": 2}]
    assert "RIFFLE" in query.edit("set", "--store", query.store(), "--key", "apple", "--value", "{}", code=1)


def test_rows_of_a_deleted_key_are_not_joined(running: bool, wrapped: Callable[..., Wrapped]) -> None:
    """The buffered rows of a deleted key match no later row. Other keys, and later rows of this key, still match."""
    query = wrapped(joined, "append")
    assert query.batch(("apple", 2), ("berry", 4)) == []
    change(query, running, "delete", "--store", query.store(), "--key", "apple")
    assert query.batch(("apple", 5), ("berry", 7)) == [{"page": "berry", "left_n": 4, "right_n": 7}]
    assert query.batch(("apple", 6)) == [{"page": "apple", "left_n": 6, "right_n": 5}]
