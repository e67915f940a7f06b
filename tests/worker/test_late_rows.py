"""Late rows: a slot drops and counts them, and reports the latest event time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.messages.slot_orders import Part, Receipt, Watermark
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.operator import with_watermark
from riffle_spark.worker.input import newest_ms, without_late_rows
from tests.kit.worker.slot_member import Member, rows_of

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
WATERMARK_MS = 1_700_000_000_500


def events(kind: pa.DataType) -> pa.Schema:
    """Return the schema of events with a time column of a type."""
    return pa.schema([("k", pa.string()), ("ts", kind)])


def member(folder: Path, kind: pa.DataType, late_ms: int | None = WATERMARK_MS) -> Member:
    """Return a count per key that drops late rows."""
    watermark = Watermark("ts", 10_000)
    counting_member = Member(
        folder, aggregate(rows=count()), events(kind), watermark=watermark, late_watermark_ms=late_ms
    )
    counting_member.operator = with_watermark(counting_member.operator, watermark)
    return counting_member


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", list(PER_SECOND))
def test_a_row_at_or_before_the_watermark_is_late(tmp_path: Path, unit: str, zone: str | None) -> None:
    """A row at or before the watermark is late, whatever the unit and zone. A row one step after it or without a time
    is not late.
    """
    watermark = WATERMARK_MS * PER_SECOND[unit] // 1000
    steps = [watermark + step for step in (-2, -1, 0, 1, 2)]
    times = pa.chunked_array([pa.array([None, *part], pa.timestamp(unit, zone)) for part in (steps[:2], steps[2:], [])])
    rows = pa.table([pa.array(["a"] * len(times)), times], schema=events(times.type))
    kept, event_time_facts = without_late_rows(member(tmp_path, times.type).order(), rows)
    assert [value for value in kept["ts"].cast(pa.int64()).to_pylist() if value is not None] == steps[3:]
    assert kept["ts"].null_count == 3
    assert event_time_facts == {"late_rows": 3, "event_time_max_ms": steps[-1] * 1000 // PER_SECOND[unit]}


def test_the_latest_event_time_is_rounded_down() -> None:
    """The latest event time is rounded down, also before 1970, so that a watermark is never ahead of its rows."""
    assert newest_ms(pa.chunked_array([pa.array([1_999, -5], pa.timestamp("us"))])) == 1
    assert newest_ms(pa.chunked_array([pa.array([-1], pa.timestamp("us"))])) == -1
    assert newest_ms(pa.chunked_array([pa.array([None], pa.timestamp("us"))])) is None
    assert newest_ms(pa.chunked_array([], pa.timestamp("us"))) is None


def test_a_watermark_beyond_the_time_unit_makes_all_rows_late(tmp_path: Path) -> None:
    """A watermark beyond the range of the time unit makes all rows late."""
    kind = pa.timestamp("ns")
    rows = rows_of(("a", 2**62), schema=events(kind))
    assert without_late_rows(member(tmp_path, kind, 253_402_300_799_999).order(), rows)[1]["late_rows"] == 1


def test_late_rows_change_no_state_and_are_counted(tmp_path: Path) -> None:
    """A key with only late rows gets no state. The receipt counts all received rows."""
    kind = pa.timestamp("ms", "UTC")
    late, fresh = WATERMARK_MS, WATERMARK_MS + 1
    counting_member = member(tmp_path, kind)
    output, receipt = counting_member.answer(
        rows_of(("a", late), ("b", fresh), ("a", late - 5), ("b", late), schema=events(kind))
    )
    assert output.to_pylist() == [{"k": "b", "rows": 1}]
    assert (receipt.rows, receipt.late_rows, receipt.keys, receipt.event_time_max_ms) == (4, 3, 1, fresh)
    assert [change["k"] for change in counting_member.changes_sealed(receipt)] == ["b"]


def test_a_batch_of_only_late_rows_puts_nothing(tmp_path: Path) -> None:
    """A batch of only late rows seals and puts nothing, but reports its rows."""
    kind = pa.timestamp("us")
    output, receipt = member(tmp_path, kind).answer(rows_of(("a", 5), ("b", 6), schema=events(kind)))
    assert (output.num_rows, receipt.parts, receipt.sealed_bytes) == (0, (), 0)
    assert (receipt.rows, receipt.late_rows, receipt.event_time_max_ms) == (2, 2, 0)


def test_before_the_first_watermark_rows_up_to_1970_are_late(tmp_path: Path) -> None:
    """Before the first watermark, rows with a time of at most 0 are late, as in Spark."""
    kind = pa.timestamp("ms")
    _, receipt = member(tmp_path, kind, None).answer(rows_of(("a", 0), ("a", 1), ("b", -1), schema=events(kind)))
    assert (receipt.late_rows, receipt.keys) == (2, 1)


def test_without_a_watermark_no_row_is_late(tmp_path: Path) -> None:
    """Without a watermark column, no row is dropped, and no event time is reported."""
    kind = pa.timestamp("ms")
    counting_member = Member(tmp_path, aggregate(rows=count()), events(kind), late_watermark_ms=WATERMARK_MS)
    _, receipt = counting_member.answer(rows_of(("a", 0), schema=events(kind)))
    assert (receipt.rows, receipt.late_rows, receipt.event_time_max_ms) == (1, 0, None)


def test_a_receipt_keeps_its_times_through_json() -> None:
    """A receipt keeps its times and counts through JSON."""
    part = Part(3, 0, 10, 7, 1, timer_ms=5_000)
    receipt = Receipt(
        "totals", 0, "1-aa", 1, "m", "1", late_rows=2, timers_fired=3, expired=4, event_time_max_ms=-1,
        parts=(part, Part(4, 10, 5, 8, 1)),
    )  # fmt: skip
    assert Receipt.from_json(receipt.to_json()) == receipt
