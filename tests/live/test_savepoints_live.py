"""Savepoints of real queries: created while the query runs, used for a rollback much later, and forked to another
query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Stateful, aggregate, count, sum_
from riffle_spark.offline.fork import fork
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.offline.verify import verify
from tests.kit.root_commands import run_command
from tests.kit.streams.streaming import (
    CollectingSink,
    Feed,
    committed,
    records,
    run_to_end,
    settings_in,
    start,
    wait_for,
)

pytestmark = [pytest.mark.spark, pytest.mark.long]
BATCHES = 150
Totals = dict[object, dict[str, int]]


def rows(number: int) -> list[dict[str, int]]:
    """Return the rows of a batch: key 0 and one of five others."""
    return [{"k": 0, "v": number}, {"k": 1 + number % 5, "v": number}]


def after(*numbers: range) -> Totals:
    """Return the state after the batches of these ranges."""
    state: Totals = {}
    for row in [row for of_range in numbers for number in of_range for row in rows(number)]:
        before = state.get(row["k"], {"rows": 0, "total": 0})
        state[row["k"]] = {"rows": before["rows"] + 1, "total": before["total"] + row["v"]}
    return state


@pytest.fixture
def spark_that_forgets(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose checkpoints keep three batches, so that a rollback has to write entries that Spark has purged."""
    name = "spark.sql.streaming.minBatchesToRetain"
    spark.conf.set(name, 3)
    yield spark
    spark.conf.unset(name)


class Query:
    """A query over a feed that keeps few records and reads requests."""

    def __init__(self, spark: SparkSession, folder: Path, feed: Feed, root: str = "") -> None:
        self.spark = spark
        self.folder = folder
        self.feed = feed
        place: Mapping[str, str] = {"root": root} if root else {}
        self.settings = settings_in(folder, control="on", retained_versions=2, retained_for=0, **place)
        self.kept = CollectingSink()
        self.checkpoint = folder / "checkpoint"

    @property
    def root(self) -> str:
        """Return the root."""
        assert self.settings.root is not None
        return self.settings.root

    def job(self) -> riffle_spark.StatefulJob:
        """Return a new job."""
        compute = aggregate(rows=count(), total=sum_("v"))
        return Stateful("totals", "k", compute, settings=self.settings).into(self.kept)

    def run(self) -> None:
        """Run the query until the feed is read."""
        run_to_end(self.feed.stream(self.spark), self.job(), self.checkpoint)

    def state(self) -> Totals:
        """Return the state of the newest batch."""
        table = riffle_spark.read_state(self.root, "totals").read_all()
        return {row.pop("k"): {"rows": row["rows"], "total": row["total"]} for row in table.to_pylist()}


@pytest.mark.usefixtures("nothing_is_young")
def test_a_query_is_rolled_back_to_and_forked_from_a_savepoint(
    spark_that_forgets: SparkSession, tmp_path: Path
) -> None:
    """A rollback to a savepoint restores state and offsets exactly, and Spark reads the later rows again. A fork of the
    savepoint continues with its own rows.
    """
    spark = spark_that_forgets
    feed = Feed(tmp_path / "in", "k long, v long")
    query = Query(spark, tmp_path / "query", feed)
    job = query.job()
    feed.add(rows(0))
    running = start(feed.stream(spark), job, query.checkpoint, processingTime="100 milliseconds")
    for number in range(1, 4):
        feed.add(rows(number))
    wait_for(lambda: len(job.reports) >= 4, "four batches")
    created = run_command("savepoint", "create", query.root, "--name", "before-release", "--wait", "60 s")
    assert (created.exit_code, "keeps batch" in created.output) == (0, True), created.output
    (savepoint,) = Savepoints(query.root).tail.savepoints
    kept_batches = savepoint.version + 1
    for number in range(4, BATCHES):
        feed.add(rows(number))
    wait_for(lambda: len(job.reports) >= BATCHES, f"{BATCHES} batches")
    running.stop()
    assert query.state() == after(range(BATCHES))
    assert not (query.checkpoint / "offsets" / str(savepoint.version)).exists(), "Spark has purged its entry"
    assert min(record.sequence for record in records(query.root)) > savepoint.sequence
    assert verify(query.root, str(query.checkpoint)).findings == ()

    new_root = f"file://{tmp_path}/fork"
    fork(query.root, new_root, "savepoint:before-release", execute=True)
    riffle_spark.rollback(query.root, "savepoint:before-release", str(query.checkpoint), execute=True)
    assert query.state() == after(range(kept_batches))
    rolled_back = Query(spark, query.folder, feed)
    rolled_back.run()
    assert rolled_back.state() == after(range(BATCHES))
    assert committed(query.root)[-1] >= kept_batches, "Spark reads the rows again, perhaps in fewer batches"

    forked = Query(spark, tmp_path / "other", Feed(tmp_path / "other-in", "k long, v long"), new_root)
    forked.feed.add(rows(1000))
    with pytest.raises(Exception, match="RIFFLE-1784"):
        forked.run()
    riffle_spark.adopt(new_root, str(forked.checkpoint), execute=True)
    forked.run()
    assert forked.state() == after(range(kept_batches), range(1000, 1001))
    assert rolled_back.state() == after(range(BATCHES))
    assert [savepoint.name for savepoint in Savepoints(query.root).tail.savepoints] == ["before-release"]
    assert cast("Totals", forked.kept.latest("k"))[0] == after(range(kept_batches), range(1000, 1001))[0]
