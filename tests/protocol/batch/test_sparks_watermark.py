"""With Spark's watermark, the late and the due rows of each batch are those of Spark's aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from riffle_spark import Stateful, arrow_function
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule, Order
from riffle_spark.process.blocks.arrow_function import Context
from riffle_spark.protocol.operator import Operator, operator_of, with_late
from riffle_spark.testing import Attempt, Crashed, Harness
from tests.kit.process.counted_windows import ENDS, KEY, CountedWindows, Mode, rows_of, window_counts
from tests.kit.simulated.world import World


class Step(NamedTuple):
    """A recorded batch of Spark: its watermark, its input rows (second, key), its output (end, key, count) and the
    number of late keys.
    """

    watermark: int
    rows: Sequence[tuple[int, str]]
    out: Sequence[tuple[int, str, int]]
    late: int = 0


UPDATE = (
    Step(0, [(0, "a"), (40, "a")], [(10, "a", 1), (50, "a", 1)]),
    Step(30, [(1, "a"), (2, "a"), (3, "b"), (41, "a")], [(10, "a", 3), (10, "b", 1), (50, "a", 2)]),
    Step(31, [(50, "a")], [(60, "a", 1)]),
    Step(40, [], []),
)
APPEND = (
    Step(0, [(0, "a"), (40, "a")], []),
    Step(30, [(1, "a"), (2, "a"), (3, "b"), (41, "a")], [(10, "a", 3), (10, "b", 1)]),
    Step(31, [(80, "a")], []),
    Step(70, [], [(50, "a", 2)]),
)
AT_ONCE = (  # AvailableNow with windows of five seconds; the last batch has no rows
    Step(0, [(15, "x")], []),
    Step(5, [(0, "x")], [(5, "x", 1)]),
    Step(5, [(30, "x")], []),
    Step(20, [(58, "x")], [(20, "x", 1)]),
    Step(48, [], [(35, "x", 1)]),
)
LATE = (
    Step(0, [(40, "a")], []),
    Step(30, [(1, "a")], [(10, "a", 1)]),
    Step(31, [(1, "a"), (2, "a"), (19, "b"), (29, "a"), (30, "a")], [], late=3),
    Step(31, [(20, "c"), (21, "c")], [], late=1),
)


def windows(mode: Mode, *, per_key_group: bool = False) -> Stateful:
    """Return a count per window and key."""
    return Stateful("windows", ("end", "k"), CountedWindows(mode, per_key_group))


@pytest.mark.parametrize(
    ("mode", "steps", "restarts"),
    [("update", UPDATE, True), ("append", APPEND, False), ("append", AT_ONCE, False), ("append", LATE, True)],
)
def test_windows_close_and_accept_rows_as_in_sparks_aggregate(
    mode: Mode, steps: Sequence[Step], restarts: bool
) -> None:
    """A window closes by the watermark of the batch, and takes rows by the watermark of the previous batch, as in
    Spark.
    """
    with Harness(windows(mode), KEY, late=ENDS) as query:
        for number, step in enumerate(steps):
            query.advance_watermark(step.watermark * 1000)
            query.available_now = steps is AT_ONCE
            rows = rows_of(*step.rows, length=5 if steps is AT_ONCE else 10)
            assert window_counts(query.feed(rows)) == sorted(step.out), f"batch {number}"
            assert query.reports[-1].late_rows == step.late, f"batch {number}"
            assert query.reports[-1].rows == len(step.rows)
            if restarts:
                query.crash(lose_copies=number == 1)


@pytest.mark.parametrize("step", ["after seal", "after sink", "after record"])
def test_a_repeated_batch_has_the_same_late_and_due_rows(step: str) -> None:
    """After a crash the repeated batch has the same late and due rows, because the last record and Spark's offset log
    decide.
    """
    with Harness(windows("append"), KEY, late=ENDS) as query:
        query.feed(rows_of((0, "a"), (40, "a")))
        query.advance_watermark(30_000)
        query.feed(rows_of((45, "a")))
        query.advance_watermark(50_000)
        query.crash_at(step)  # type: ignore[arg-type]
        with pytest.raises(Crashed):
            query.feed(rows_of((1, "late"), (60, "b")))
        query.feed(rows_of((1, "late"), (60, "b")))
        assert window_counts(query.delivered()) == [(10, "a", 1), (50, "a", 2)]
        assert [key[1] for key in query.state()] == ["b"]


def counted(late: LateRule | None = ENDS, shift_ms: int = 0, mode: Mode = "append") -> Operator:
    """Return the window count as an operator."""
    return with_late(operator_of("windows", ("end", "k"), CountedWindows(mode), (), KEY), late, shift_ms)


def order_of(world: World, version: int, watermark_ms: int | None, rows: pa.Table) -> Order:
    """Run a batch with Spark's watermark, and return the order of its slots."""
    seen: list[Order] = []

    def perform(attempt: Attempt) -> pa.Table:
        seen.append(attempt.order)
        return attempt.run()

    world.batch(version, rows, perform, watermark_ms=watermark_ms, watermark_source="spark", available_now=version == 1)
    return seen[0]


def test_a_record_keeps_the_watermark_of_its_batch(tmp_path: Path) -> None:
    """A record keeps the watermark of its batch. No event times are reported, and there is no last pass."""
    world = World(tmp_path, operators=[counted()])
    orders = [order_of(world, number, ms, rows_of((99, "a"))) for number, ms in enumerate([None, 7_000, 7_000, 9_000])]
    watermarks = [(order.late_watermark_ms, order.watermark_ms, order.last_pass_ms) for order in orders]
    assert watermarks == [(None, None, None), (0, 7_000, None), (7_000, 7_000, None), (7_000, 9_000, None)]
    tail = world.log().tail
    assert tail is not None
    assert (tail.watermark_ms, tail.late_watermark_ms, tail.event_times) == (9_000, 9_000, {})


def test_watermarks_behind_a_join_are_earlier(tmp_path: Path) -> None:
    """Behind a join, the watermarks for late and due rows are earlier by the same time, and not before 1970."""
    world = World(tmp_path, operators=[counted(shift_ms=-5_000)])
    orders = [order_of(world, number, ms, rows_of((99, "a"))) for number, ms in enumerate([2_000, 20_000, 30_000])]
    assert [(order.late_watermark_ms, order.watermark_ms) for order in orders] == [
        (None, 0),
        (0, 15_000),
        (15_000, 25_000),
    ]


def test_the_driver_returns_the_earliest_due_time(tmp_path: Path) -> None:
    """The driver returns the earliest due time of processing-time expiry at the last commit. Event-time expiry is not
    included.
    """
    output = pa.schema([("k", pa.string())])

    def kept(rows: pa.Table, _state: pa.Table, _context: Context) -> tuple[pa.Table, pa.Table]:
        return output.empty_table(), rows.select(["k", "end"])

    compute = arrow_function(
        kept, state=pa.schema([KEY.field("end")]), output=output, due="end", time_mode="ProcessingTime",
        expired=lambda state: state.select(["k"]),
    )  # fmt: skip
    briefly, by_watermark = operator_of("briefly", ("k",), compute, (), KEY), counted()
    world = World(tmp_path, operators=[briefly])
    assert world.driver.first_due_ms([briefly, by_watermark]) is None
    world.batch(0, rows_of((13, "a"), (40, "b")))
    assert world.driver.first_due_ms([briefly, by_watermark]) == 20_000
    assert world.driver.first_due_ms([by_watermark]) is None


@pytest.mark.parametrize(
    ("rule", "expected_message"),
    [
        (LateRule("k", "keys"), "late keys is of type string"),
        (LateRule("at", "keys"), "late keys is missing"),
        (LateRule("n"), "late rows is missing"),
    ],
)
def test_a_late_rule_requires_a_timestamp_column(rule: LateRule, expected_message: str) -> None:
    """A late rule names a timestamp column: of the key for late keys, of the input for late rows."""
    rows = pa.schema([*KEY, ("at", pa.timestamp("ms"))])
    operator = operator_of("windows", ("end", "k"), CountedWindows(), (), rows)
    assert with_late(operator, LateRule("at")).rows.names == [*KEY.names, "at"]
    with pytest.raises(ConfigError, match=expected_message):
        with_late(operator, rule)


@pytest.mark.parametrize(("per_key_group", "executors"), [(False, 1), (True, 3)])
def test_complete_mode_outputs_all_keys_in_each_batch(per_key_group: bool, executors: int) -> None:
    """In complete mode each batch outputs all keys once with their newest state, also without rows and after the loss
    of copies.
    """
    query = windows("complete", per_key_group=per_key_group)
    model: dict[tuple[int, str], int] = {}
    with Harness(query, KEY, executors=executors) as complete:
        complete.watermark_source = "spark"
        batches = [[(0, "a"), (11, "b")], [(1, "a")], [], [(55, key) for key in "abcdefgh"], [(1, "a"), (56, "c")], []]
        for number, times in enumerate(batches):
            complete.advance_watermark(number * 20_000)
            for time, key in times:
                end = time - time % 10 + 10
                model[end, key] = model.get((end, key), 0) + 1
            rows = window_counts(complete.feed(rows_of(*times)))
            assert rows == sorted((*key, count) for key, count in model.items())
            assert complete.reports[-1].keys == len({(time // 10, key) for time, key in times})
            complete.crash(lose_copies=number % 2 == 1)
