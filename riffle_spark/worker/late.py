"""Event times of a slot's rows: the newest, and which rows come too late. Knows Arrow's timestamps. Does not know how a
watermark is made.

Late is what Spark calls so: an event time at or before the watermark, compared exactly. A row without one is not late,
nor is one of initial state.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.worker.order import INITIAL, Order

__all__ = ["newest_ms", "on_time"]

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LARGEST = 2**63 - 1


def on_time(order: Order, rows: pa.Table) -> tuple[pa.Table, dict[str, object]]:
    """Return the rows that are not late, and what the receipt tells of all of them; where there is no watermark, all
    rows and nothing.
    """
    if order.watermark is None:
        return rows, {}
    times = _of_events(order, rows, rows.column(order.watermark.column))
    late = _are_late(times, order.late_watermark_ms or 0)
    count = pc.sum(late).as_py() or 0
    told: dict[str, object] = {"late_rows": count, "event_time_max_ms": newest_ms(times)}
    return (rows.filter(pc.invert(late)) if count else rows), told


def _of_events(order: Order, rows: pa.Table, times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the times without those of initial state: where the time is of the key, its rows have one too."""
    if order.initial is None:
        return times
    return pc.if_else(rows.column(INITIAL).is_valid(), pa.scalar(None, times.type), times)


def newest_ms(times: pa.ChunkedArray) -> int | None:
    """Return the newest of some timestamps in milliseconds, rounded down; ``None`` if there is none."""
    newest = pc.max(times.cast(pa.int64())).as_py()
    return None if newest is None else newest * 1000 // _PER_SECOND[times.type.unit]


def _are_late(times: pa.ChunkedArray, watermark_ms: int) -> pa.ChunkedArray:
    limit = min(watermark_ms * _PER_SECOND[times.type.unit] // 1000, _LARGEST)
    return pc.fill_null(pc.less_equal(times.cast(pa.int64()), pa.scalar(limit, pa.int64())), False)
