"""The watermark of a query is computed from receipts, kept in the log and sent to slots."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.batch_times import TimeMode
from riffle_spark.messages.slot_orders import Order, Part, Receipt, Watermark
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.process.blocks.block import Batch, BlockComputation, Declared, Update
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.batch.orders import CacheEntries
from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from riffle_spark.protocol.receipts import changes_of
from riffle_spark.state.log.manifest import Entry, Head, Link, Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.testing import Attempt
from tests.kit.simulated.world import Crash, World

EVENTS = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("other", pa.timestamp("ms"))]
)
DELAY_MS = 1_000


class ByEventTime:
    """A count per key in a time mode, without timers."""

    def __init__(self, mode: TimeMode = "EventTime") -> None:
        self._count: BlockComputation = aggregate(rows=count())
        self._mode = mode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the columns of a count with the time mode."""
        return replace(self._count.declare(key, rows), time_mode=self._mode)

    def __call__(self, batch: Batch) -> Update:
        """Count the rows of each key."""
        return self._count(batch)


def counted(
    store: str = "seen", column: str = "ts", delay_ms: int = DELAY_MS, mode: TimeMode = "None"
) -> Operator:  # fmt: skip
    """Return a count per key with a watermark."""
    operator = operator_of(store, ["k"], ByEventTime(mode), (), EVENTS)
    return with_watermark(operator, Watermark(column, delay_ms))


def events(*times: int | None, key: str = "a", other: int | None = None) -> pa.Table:
    """Return a row of one key for each time in ms."""
    rows = [[key] * len(times), [1] * len(times), [t and t * 1000 for t in times], [other] * len(times)]
    return pa.table([pa.array(column, f.type) for column, f in zip(rows, EVENTS, strict=True)], schema=EVENTS)


def tail(world: World) -> Record:
    """Return the newest record."""
    record = world.log().tail
    assert record is not None
    return record


def orders_of_batch(world: World, version: int, rows: pa.Table, **changes: Any) -> list[Order]:
    """Run a batch and return the order of each operator."""
    seen: dict[str, Order] = {}

    def perform(attempt: Attempt) -> pa.Table:
        seen[attempt.order.store] = attempt.order
        return attempt.run()

    world.batch(version, rows, perform, **changes)
    return [seen[store] for store in sorted(seen)]


def times_of(order: Order) -> tuple[int | None, int | None, int | None]:
    """Return the three times of an order."""
    return order.late_watermark_ms, order.watermark_ms, order.last_pass_ms


def test_late_rows_use_a_watermark_of_one_batch_less_than_timers(tmp_path: Path) -> None:
    """Timers use the watermark of all earlier batches, and late rows that of one batch less, as in Spark."""
    world = World(tmp_path, operators=[counted()])
    watermarks = [times_of(orders_of_batch(world, version, events(5_000 * (version + 1)))[0]) for version in range(4)]
    assert watermarks == [(None, None, None), (0, 4_000, None), (4_000, 9_000, None), (9_000, 14_000, None)]
    record = tail(world)
    assert (record.late_watermark_ms, record.watermark_ms, record.event_times) == (14_000, 19_000, {"seen": 20_000})


def test_a_watermark_never_decreases(tmp_path: Path) -> None:
    """Older rows, rows without a time and empty batches do not change the watermark. The watermark for late rows
    catches up.
    """
    world = World(tmp_path, operators=[counted()])
    watermarks = []
    for version, rows in enumerate([events(9_000), events(3_000), events(), events(None)]):
        world.batch(version, rows)
        watermarks.append((tail(world).late_watermark_ms, tail(world).watermark_ms))
    assert watermarks == [(0, 8_000), (8_000, 8_000), (8_000, 8_000), (8_000, 8_000)]


@pytest.mark.parametrize("seed", range(2))
def test_late_rows_equal_those_of_sparks_rule(tmp_path: Path, seed: int) -> None:
    """The late rows equal those of a model of Spark's rule, over batches, restarts and several slots."""
    chance = random.Random(seed)
    world = World(tmp_path, operators=[counted()], seed=seed)
    newest, watermark, late, kept = None, 0, 0, dict.fromkeys("abcdef", 0)
    for version in range(12):
        times = [(chance.choice("abcdef"), 20_000 + version * 700 + chance.randrange(-4_000, 1_000)) for _ in range(9)]
        tables = [events(time, key=key) for key, time in times]
        report = world.batch(version, pa.concat_tables(tables) if chance.random() > 0.2 else events())
        rows = times if report.rows else []
        assert report.late_rows == sum(time <= late for _, time in rows)
        for key, time in rows:
            kept[key] += time > late
            newest = max(newest or 0, time)
        late, watermark = watermark, max(watermark, (newest or 0) - DELAY_MS)
        assert report.watermark_ms == watermark
        if chance.random() < 0.3:
            world.start()
    assert {key: rows for key, (rows,) in world.state("seen").items()} == {k: n for k, n in kept.items() if n}


def test_the_minimum_watermark_of_several_operators_applies(tmp_path: Path) -> None:
    """With several operators the minimum watermark applies, as in Spark's default policy."""
    world = World(tmp_path, operators=[counted("quick", delay_ms=100), counted("slow", delay_ms=4_000)])
    world.batch(0, events(10_000))
    assert tail(world).watermark_ms == 6_000
    assert tail(world).event_times == {"quick": 10_000, "slow": 10_000}


def test_older_rows_do_not_lower_the_event_time_of_an_operator(tmp_path: Path) -> None:
    """Each operator keeps its latest event time, and older rows do not lower it."""
    world = World(tmp_path, operators=[counted("a"), counted("b", column="other")])
    world.batch(0, events(20_000, other=5_000))
    world.batch(1, events(3_000, other=30_000))
    assert tail(world).event_times == {"a": 20_000, "b": 30_000}
    assert tail(world).watermark_ms == 19_000


def test_an_operator_without_event_times_holds_the_watermark_back(tmp_path: Path) -> None:
    """An operator without any event time holds the watermark back. One with old event times holds it at its latest one,
    as in Spark.
    """
    world = World(tmp_path, operators=[counted("a"), counted("b", column="other")])
    reached = []
    for version, (time, other) in enumerate([(5_000, None), (5_000, 9_000), (20_000, None), (20_000, 30_000)]):
        world.batch(version, events(time, other=other))
        reached.append(tail(world).watermark_ms)
    assert reached == [0, 4_000, 8_000, 19_000]


def test_policy_max_uses_the_maximum_watermark(tmp_path: Path) -> None:
    """With policy `max` the maximum watermark applies to all operators, also in the last pass."""
    world = World(tmp_path, operators=[counted("a", mode="EventTime"), counted("b", column="other")])
    reached = []
    for version, (time, other) in enumerate([(5_000, None), (5_000, 9_000), (20_000, None), (2_000, 3_000)]):
        world.batch(version, events(time, other=other), watermark_policy="max")
        reached.append(tail(world).watermark_ms)
    assert reached == [4_000, 8_000, 19_000, 19_000]
    assert world.state("a") == {"a": (3,)}
    orders = orders_of_batch(world, 4, events(1_000, other=40_000), watermark_policy="max", available_now=True)
    assert [order.last_pass_ms for order in orders] == [39_000, None]
    world.batch(5, events(50_000, other=30_000), watermark_policy="min")
    assert tail(world).watermark_ms == 39_000


def test_a_changed_delay_never_decreases_the_watermark(tmp_path: Path) -> None:
    """With a longer delay the watermark stays until event times catch up. A shorter delay applies at once."""
    world = World(tmp_path, operators=[counted()])
    reached = []
    for version, delay_ms in enumerate([1_000, 5_000, 100]):
        world.operators = [counted(delay_ms=delay_ms)]
        world.start()
        world.batch(version, events(10_000))
        reached.append(tail(world).watermark_ms)
    assert reached == [9_000, 9_000, 9_900]


def test_an_operator_without_a_watermark_drops_no_rows(tmp_path: Path) -> None:
    """An operator without a watermark column drops no rows, and gets the watermark of the query."""
    plain = operator_of("all", ["k"], aggregate(rows=count()), (), EVENTS)
    world = World(tmp_path, operators=[plain, counted()])
    for version, time in enumerate([50_000, 50_000, 1_000]):
        orders = orders_of_batch(world, version, events(time))
    assert [order.watermark_ms for order in orders] == [49_000, 49_000]
    assert world.state("all") == {"a": (3,)}
    assert world.state("seen") == {"a": (2,)}


def test_records_have_sparks_watermark_without_a_watermark_column(tmp_path: Path) -> None:
    """Without a watermark column, records have Spark's watermark. It applies one batch later and never decreases."""
    plain = operator_of("all", ["k"], aggregate(rows=count()), (), EVENTS)
    world = World(tmp_path, operators=[plain])
    assert orders_of_batch(world, 0, events(1), watermark_ms=None)[0].watermark_ms is None
    assert orders_of_batch(world, 1, events(1), watermark_ms=700)[0].watermark_ms is None
    assert orders_of_batch(world, 2, events(1), watermark_ms=600)[0].watermark_ms == 700
    assert (tail(world).watermark_ms, tail(world).late_watermark_ms, tail(world).event_times) == (700, None, {})


def test_the_last_pass_of_available_now_uses_its_own_watermark(tmp_path: Path) -> None:
    """With AvailableNow the last pass uses the watermark of the batch itself. Rows of a later run are late by it."""
    world = World(tmp_path, operators=[counted(mode="EventTime")])
    world.batch(0, events(10_000))
    assert times_of(orders_of_batch(world, 1, events(20_000), available_now=True)[0]) == (0, 9_000, 19_000)
    assert (tail(world).late_watermark_ms, tail(world).watermark_ms) == (19_000, 19_000)
    assert times_of(orders_of_batch(world, 2, events(), available_now=True)[0]) == (19_000, 19_000, 19_000)
    assert times_of(orders_of_batch(world, 3, events(30_000))[0]) == (19_000, 19_000, None)
    assert (tail(world).late_watermark_ms, tail(world).watermark_ms) == (19_000, 29_000)


def test_only_event_time_timers_cause_a_last_pass(tmp_path: Path) -> None:
    """Only operators with event-time timers have a last pass. Without any, the input is not read for it."""
    world = World(tmp_path, operators=[counted("a", mode="EventTime"), counted("b", delay_ms=3_000)])
    orders = orders_of_batch(world, 0, events(10_000), available_now=True)
    assert [order.last_pass_ms for order in orders] == [7_000, None]
    quiet = World(tmp_path / "quiet", operators=[counted(mode="ProcessingTime")])
    assert orders_of_batch(quiet, 0, events(10_000), available_now=True)[0].last_pass_ms is None
    assert tail(quiet).late_watermark_ms == 0


@pytest.mark.parametrize("step", ["after seal", "after sink", "after record"])
def test_a_repeated_batch_has_the_same_late_rows_and_watermark(tmp_path: Path, step: str) -> None:
    """A repeated batch has the same late rows and watermark, because the last record decides."""
    world = World(tmp_path, operators=[counted(mode="EventTime")])
    for version in range(2):
        world.batch(version, events(10_000 * (version + 1)))
    world.crash_at = step
    with pytest.raises(Crash):
        world.batch(2, events(9_000, 30_000), available_now=True)
    world.start()
    world.batch(2, events(9_000, 30_000), available_now=True)
    assert world.state("seen") == {"a": (3,)}
    assert (tail(world).late_watermark_ms, tail(world).watermark_ms) == (29_000, 29_000)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a Spark checkpoint of the query with three committed batches and another watermark."""
    folder = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"query"}')
    for batch in range(3):
        (folder / "offsets" / str(batch)).write_text("")
        (folder / "commits" / str(batch)).write_text("")
    return folder


def test_a_rollback_takes_the_watermark_back(tmp_path: Path, checkpoint: Path) -> None:
    """A rollback also takes the watermark back. The commit file that it adds to Spark's checkpoint has Spark's
    watermark.
    """
    world = World(tmp_path, operators=[counted()])
    offsets = 'v1\n{"batchWatermarkMs":77}\n{"logOffset":1}'
    for version in range(3):
        world.batch(version, events(10_000 * (version + 1)), offsets=offsets)
    (checkpoint / "commits" / "1").unlink()
    rollback(world.home.root, 1, str(checkpoint), execute=True)
    assert (tail(world).late_watermark_ms, tail(world).watermark_ms) == (9_000, 19_000)
    assert '"nextBatchWatermarkMs":77' in (checkpoint / "commits" / "1").read_text()


def test_adopted_state_has_no_watermark(tmp_path: Path, checkpoint: Path) -> None:
    """Adopted state has no watermark, so that no row of the new query's input is late."""
    world = World(tmp_path, operators=[counted()])
    (checkpoint / "offsets" / "2").write_text('v1\n{"batchWatermarkMs":77}\n{"logOffset":1}')
    for version in range(3):
        world.batch(version, events(10_000 * (version + 1)))
    (checkpoint / "metadata").write_text('{"id": "another"}')
    adopt(world.home.root, str(checkpoint), execute=True)
    assert (tail(world).late_watermark_ms, tail(world).watermark_ms, tail(world).event_times) == (None, None, {})


@pytest.mark.parametrize(("spark_ms", "adopted_ms"), [(77, 77), (0, None)])
def test_an_adopting_query_continues_sparks_watermark(
    tmp_path: Path, checkpoint: Path, spark_ms: int, adopted_ms: int | None
) -> None:
    """A query with Spark's watermark continues with the watermark of the adopted checkpoint, as Spark does. 0 means
    none.
    """
    world = World(tmp_path, operators=[operator_of("seen", ["k"], aggregate(rows=count()), (), EVENTS)])
    world.batch(0, events(10_000), watermark_source="spark", watermark_ms=50)
    (checkpoint / "metadata").write_text('{"id": "another"}')
    (checkpoint / "offsets" / "2").write_text(f'v1\n{{"batchWatermarkMs":{spark_ms}}}\n{{"logOffset":1}}')
    adopt(world.home.root, str(checkpoint), execute=True)
    assert (tail(world).late_watermark_ms, tail(world).watermark_ms) == (adopted_ms, adopted_ms)


def test_only_parts_of_a_key_group_change_its_next_timer() -> None:
    """A part sets or removes the next timer of its key-group. Other key-groups keep theirs."""
    before = Manifest({("seen", 1): Entry(timer_ms=10), ("seen", 2): Entry(timer_ms=20), ("seen", 3): Entry()})
    parts = (Part(1, 0, 5, 7, 1, timer_ms=None), Part(3, 5, 5, 7, 1, timer_ms=30), Part(4, 9, 5, 7, 1, timer_ms=40))
    receipt = Receipt("seen", 0, "1-aa", 6, "m", "1", parts=parts)
    after = before.with_entries(changes_of(before, [receipt]))
    assert {kg: after.entry("seen", kg).timer_ms for kg in (1, 2, 3, 4)} == {1: None, 2: 20, 3: 30, 4: 40}
    assert after.entry("seen", 3).chain == (Link(Head(6, "1-aa"), 5, 5, 7, 1),)


def test_the_driver_keeps_the_next_timers_of_a_cache() -> None:
    """The entries of a cache are in the driver and have the next timer of its key-groups."""
    caches = CacheEntries()
    caches.replace_entries([Receipt("seen", 0, "1-aa", 6, "m", "1", parts=(Part(3, 0, 5, 7, 1, timer_ms=30),))])
    assert caches.entries["seen", 3].timer_ms == 30


def test_the_event_time_column_is_sent_to_the_slots(tmp_path: Path) -> None:
    """The event-time column is sent to the slots, although the function does not use it."""
    assert counted().rows.names == ["k", "ts"]
    assert operator_of("seen", ["k"], ByEventTime(), (), EVENTS).rows.names == ["k"]
