"""A query whose checkpoint and state do not match is refused with a remedy, and runs after that remedy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Stateful, aggregate, count, sum_
from tests.kit.streams.streaming import CollectingSink, Feed, records, run_to_end, settings_in

pytestmark = pytest.mark.spark

BATCHES = 4
OLDER = 2
"""The number of batches in the older copies of checkpoint and state."""


@dataclass(frozen=True)
class Query:
    """A streaming query over a feed, with its folders."""

    spark: SparkSession
    folder: Path
    feed: Feed

    @property
    def root(self) -> str:
        """Return the root."""
        return f"file://{self.folder}/state"

    @property
    def checkpoint(self) -> Path:
        """Return the folder of Spark's checkpoint."""
        return self.folder / "checkpoint"

    def run(self) -> dict[object, dict[str, int]]:
        """Run the query with a new job until the feed is read. Return the newest delivered row of each key."""
        sink = CollectingSink()
        compute = aggregate(rows=count(), total=sum_("v"))
        job = Stateful("totals", "k", compute, settings=settings_in(self.folder)).into(sink)
        run_to_end(self.feed.stream(self.spark), job, self.checkpoint)
        return cast("dict[object, dict[str, int]]", sink.latest("k"))

    def refusal(self) -> str:
        """Run the query and return the error that refuses it."""
        with pytest.raises(StreamingQueryException) as caught:
            self.run()
        return str(caught.value)


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """A query that ran all its batches, with copies of its checkpoint and state from after batch 1."""
    folder = tmp_path_factory.mktemp("original")
    query = Query(spark, folder, Feed(folder / "in", "k long, v long"))
    for number in range(BATCHES):
        if number == OLDER:
            query.run()
            shutil.copytree(query.checkpoint, folder / "older-checkpoint")
            shutil.copytree(folder / "state", folder / "older-state")
        query.feed.add(rows(number))
    query.run()
    return query


@pytest.fixture
def query(original: Query, tmp_path: Path) -> Iterator[Query]:
    """A copy of the original query for one test. It shares the input, and removes the rows that the test adds."""
    for name in ("checkpoint", "state", "local"):
        shutil.copytree(original.folder / name, tmp_path / name, symlinks=True)
    before = set(original.feed.folder.iterdir())
    yield Query(original.spark, tmp_path, original.feed)
    for added in set(original.feed.folder.iterdir()) - before:
        added.unlink()


def rows(number: int) -> list[dict[str, int]]:
    """Return the rows of a batch: key 0 and one of two others."""
    return [{"k": 0, "v": number}, {"k": 1 + number % 2, "v": number}]


def after(batches: int) -> dict[object, dict[str, int]]:
    """Return the state after the first ``batches`` batches."""
    state: dict[object, dict[str, int]] = {}
    for row in [row for number in range(batches) for row in rows(number)]:
        before = state.get(row["k"], {"rows": 0, "total": 0})
        state[row["k"]] = {"rows": before["rows"] + 1, "total": before["total"] + row["v"]}
    return state


def put_back(query: Query, original: Query, name: str) -> None:
    """Restore an older copy of the checkpoint or the state."""
    shutil.rmtree(query.folder / name)
    shutil.copytree(original.folder / f"older-{name}", query.folder / name)


@pytest.mark.long
def test_an_older_checkpoint_is_refused_until_a_rollback(query: Query, original: Query) -> None:
    """An older checkpoint is refused with ``riffle rollback`` as the remedy. After it, the batches run again to the
    same result.
    """
    put_back(query, original, "checkpoint")
    message = query.refusal()
    assert "RIFFLE-0215" in message
    assert f"riffle rollback {query.root} --checkpoint CHECKPOINT --to {OLDER - 1} --execute" in message
    plan = riffle_spark.rollback(query.root, OLDER - 1, str(query.checkpoint))
    assert not plan.executed
    assert "RIFFLE-0215" in query.refusal()
    assert riffle_spark.rollback(query.root, OLDER - 1, str(query.checkpoint), execute=True).executed
    assert {0: after(BATCHES)[0], **query.run()} == after(BATCHES)
    assert {record.rollbacks for record in records(query.root)} == {0, 1}


@pytest.mark.long
def test_a_new_checkpoint_is_refused_until_the_state_is_adopted(query: Query, tmp_path: Path) -> None:
    """A new checkpoint is refused until the state is adopted. New rows are then added to the existing state."""
    shutil.rmtree(query.checkpoint)
    fresh = Query(query.spark, query.folder, Feed(tmp_path / "new-in", "k long, v long"))
    fresh.feed.add([{"k": k, "v": 100} for k in range(4)])
    message = fresh.refusal()
    assert "RIFFLE-0210" in message
    assert f"riffle adopt {query.root} --checkpoint CHECKPOINT --execute" in message
    riffle_spark.adopt(query.root, str(fresh.checkpoint), execute=True)
    before = after(BATCHES)
    expected = {k: {"rows": row["rows"] + 1, "total": row["total"] + 100} for k, row in before.items()}
    assert fresh.run() == {**expected, 3: {"rows": 1, "total": 100}}


def test_a_root_without_its_last_batches_is_refused_until_a_rollback(query: Query, original: Query) -> None:
    """A root that lost its last batches is refused. A rollback resets Spark's offsets too, and the lost batches run
    again.
    """
    put_back(query, original, "state")
    query.feed.add([{"k": 9, "v": 9}])
    message = query.refusal()
    assert "RIFFLE-0212" in message
    riffle_spark.rollback(query.root, OLDER - 1, str(query.checkpoint), execute=True)
    assert query.run() == {**after(BATCHES), 9: {"rows": 1, "total": 9}}


@pytest.mark.long
def test_a_checkpoint_with_other_offsets_is_refused_until_a_rollback(query: Query) -> None:
    """A checkpoint whose last batch ended at other offsets than the state's is refused, because rows in between would
    be lost. A rollback to that batch restores the offsets.
    """
    entry = query.checkpoint / "offsets" / str(BATCHES - 1)
    original_text = entry.read_text()
    entry.write_text(original_text.replace(f'"logOffset":{BATCHES - 1}', f'"logOffset":{BATCHES - 2}'))
    (entry.parent / f".{entry.name}.crc").unlink()
    assert entry.read_text() != original_text
    query.feed.add([{"k": 9, "v": 9}])
    assert "RIFFLE-0211" in query.refusal()
    riffle_spark.rollback(query.root, BATCHES - 1, str(query.checkpoint), execute=True)
    assert entry.read_text() == original_text
    assert query.run() == {9: {"rows": 1, "total": 9}}
