"""Dispatch by partition in a real stream gives the results of dispatch by key, also after switches in both
directions.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark import Settings, Stateful, StatefulJob, aggregate, count, last, sum_, switch_dispatch
from tests.kit.streams.newest_rows import assert_newest
from tests.kit.streams.streaming import CollectingSink, Feed, records, run_to_end, settings_in, start

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long, topic string, partition int, at long"
PARTITIONS = 5


def partition_of(keys: pa.Table) -> pa.Table:
    """Return the topic and partition of each key, which follow from the number in the key."""
    numbers = [int(key[1:]) % PARTITIONS for key in keys["k"].to_pylist()]
    return pa.table({"topic": [f"t{n % 2}" for n in numbers], "partition": numbers})


class Events:
    """A feed of random rows in which each key stays in its partition."""

    def __init__(self, folder: Path) -> None:
        self.feed = Feed(folder, SCHEMA)
        self.chance = random.Random(11)
        self.at = 0

    def add(self, batches: int) -> None:
        """Add ``batches`` micro-batches."""
        for _ in range(batches):
            self.feed.add(self.row() for _ in range(60))

    def row(self) -> dict[str, object]:
        """Draw one row."""
        number, self.at = self.chance.randrange(23), self.at + 1
        partition = number % PARTITIONS
        value = self.chance.randint(-9, 9)
        return {"k": f"u{number}", "v": value, "topic": f"t{partition % 2}", "partition": partition, "at": self.at}

    def expected(self, spark: SparkSession) -> DataFrame:
        """Return the result of one groupBy over all rows."""
        columns = (F.count("*").alias("rows"), F.sum("v").alias("total"), F.max_by("v", "at").alias("newest"))
        return self.feed.table(spark).groupBy("k").agg(*columns)


def job_of(settings: Settings, sink: CollectingSink) -> StatefulJob:
    """Return a job that computes running totals by key."""
    compute = aggregate(rows=count(), total=sum_("v"), newest=last("v"))
    return Stateful("totals", "k", compute, settings=settings, order_by="at").into(sink)


@pytest.mark.long
@pytest.mark.parametrize("dispatch", ["partition", "hashed"])
def test_dispatch_by_partition_has_the_results_of_a_groupby(spark: SparkSession, tmp_path: Path, dispatch: str) -> None:
    """With dispatch by partition, each topic partition is a shard, and each key's result is that of a groupBy."""
    events, sink = Events(tmp_path / "in"), CollectingSink()
    events.add(3)
    job = job_of(settings_in(tmp_path, dispatch=dispatch), sink)
    run_to_end(events.feed.stream(spark), job, tmp_path / "checkpoint")
    assert_newest(sink, events.expected(spark))
    newest = records(f"file://{tmp_path}/state")[-1]
    assert sorted(newest.shards) == [(f"t{n % 2}", n) for n in (0, 2, 4, 1, 3)]
    assert newest.dispatch == dispatch
    assert sum(job.reports[-1].owners.values()) == PARTITIONS


@pytest.mark.long
def test_the_dispatch_can_be_switched_in_both_directions(spark: SparkSession, tmp_path: Path) -> None:
    """The procedure to switch the dispatch works in both directions: no local copy is left, and state is fetched from
    the new snapshots.
    """
    events, sink, root = Events(tmp_path / "in"), CollectingSink(), f"file://{tmp_path}/state"
    for dispatch in ("key_group", "partition", "key_group"):
        if events.at:
            switch_dispatch(root, dispatch, partition_of=partition_of, execute=True)
        before = bool(events.at)
        events.add(2)
        job = job_of(settings_in(tmp_path, dispatch=dispatch), sink)
        query = start(events.feed.stream(spark), job, tmp_path / "checkpoint", processingTime="0 seconds")
        query.processAllAvailable()
        assert_newest(sink, events.expected(spark))
        assert (job.reports[0].restores > 0, job.reports[0].fetched_snapshot_bytes > 0) == (before, before)
        assert list((tmp_path / "local").glob("*/*/stacks/*/*"))
        job.pause()
        job.clean_up()
        query.stop()
        assert not list((tmp_path / "local").glob("*/*/stacks/*/*"))


def test_a_query_with_another_dispatch_than_its_state_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A query with another dispatch than its state fails before it runs a batch. The error names both values and the
    command.
    """
    events = Events(tmp_path / "in")
    events.add(1)
    run_to_end(events.feed.stream(spark), job_of(settings_in(tmp_path), CollectingSink()), tmp_path / "checkpoint")
    events.add(1)
    job = job_of(settings_in(tmp_path, dispatch="partition"), CollectingSink())
    with pytest.raises(StreamingQueryException, match=r"dispatch = partition, but .* dispatch = key_group") as caught:
        run_to_end(events.feed.stream(spark), job, tmp_path / "checkpoint")
    assert "riffle dispatch" in str(caught.value)
