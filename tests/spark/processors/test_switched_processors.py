"""Processors in streaming queries whose state is switched between two runs: it goes on, and its timers fire."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from riffle_spark import switch_dispatch, transform_with_state
from tests.kit.processors.visit_processors import Idle, Visits
from tests.kit.streams.newest_rows import assert_newest
from tests.kit.streams.streaming import Feed, Kept, records, run_to_end, settings_in

pytestmark = pytest.mark.spark

OUTPUT = "user string, visits long, total long"
PARTITIONS = 3


def partition_of(keys: pa.Table) -> pa.Table:
    """Name the partition of each user: it is the number in it."""
    numbers = [int(user[1:]) % PARTITIONS for user in keys["user"].to_pylist()]
    return pa.table({"topic": ["visits"] * len(numbers), "partition": numbers})


def visits(batch: int) -> list[dict[str, object]]:
    """Return a batch's rows; a user's come from one partition."""
    users = [number for number in range(20) if (number + batch) % 3]
    return [{"user": f"u{n}", "amount": n + batch, "topic": "visits", "partition": n % PARTITIONS} for n in users]


@pytest.mark.long
def test_a_processor_goes_on_over_switches(spark: SparkSession, tmp_path: Path) -> None:
    """From keys to partitions, to hashes, and back to keys in fewer key-groups, with one checkpoint throughout."""
    feed, sink = Feed(tmp_path / "in", "user string, amount long, topic string, partition int"), Kept()
    root = f"file://{tmp_path}/state"
    for batch, (dispatch, number) in enumerate([("key_group", 8), ("partition", 8), ("hashed", 8), ("key_group", 3)]):
        if batch:
            switch_dispatch(root, dispatch, partition_of=partition_of, key_groups=number, execute=True)
        feed.add(visits(batch))
        settings = settings_in(tmp_path, dispatch=dispatch, key_groups=number)
        job = transform_with_state(Visits(), key="user", output=OUTPUT, settings=settings).into(sink)
        run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
        totals = feed.table(spark).groupBy("user").agg(F.count("*").alias("visits"), F.sum("amount").alias("total"))
        assert_newest(sink, totals, key="user")
    assert [record.total for record in records(root) if record.kind == "dispatch"] == [8, 8, 3]


@pytest.mark.long
def test_timers_fire_after_a_switch(spark: SparkSession, tmp_path: Path) -> None:
    """A timer that was registered before fires by the watermark of after, in a key-group without rows."""
    feed, sink = Feed(tmp_path / "in", "user string, amount long, at timestamp"), Kept()
    for number, second in ((8, 1), (3, 50)):
        if second > 1:
            switch_dispatch(f"file://{tmp_path}/state", "key_group", key_groups=number, execute=True)
        feed.add([{"user": f"u{second}", "amount": 1, "at": f"2026-01-01T00:00:{second:02d}.000Z"}])
        settings = settings_in(tmp_path, key_groups=number)
        operator = transform_with_state(Idle(), key="user", output=OUTPUT, time_mode="EventTime", settings=settings)
        job = operator.into(sink)
        run_to_end(feed.stream(spark).withWatermark("at", "5 seconds"), job, tmp_path / "checkpoint")
        assert [report.timers_fired for report in job.reports] == [int(second > 1)]
    told = [row.user for rows in sink.deliveries.values() for row in rows]
    assert told == ["u1"]
