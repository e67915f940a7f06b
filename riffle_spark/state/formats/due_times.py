"""Due times of rows, and the order that finds due rows.

Theory of operation. A part of a store with a due column stores the numbers of its rows by due time. The rows that are
due between two times are a slice of these numbers. Two binary searches find it, whatever else the part holds.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import fixed_values, one_array, positions_of, valid_mask

NEVER_MS = 2**63 - 1

DUE_ORDER = "__due_order"
"""The column with the numbers of a part's rows by due time. Rows that are never due come last."""
DUE_SPAN = b"riffle.due"
"""Metadata of a part: its least and greatest due time (ms)."""
DUE_COLUMN = b"riffle.due_column"
"""Metadata of a part: the name of the due column."""
_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_Numbers = npt.NDArray[np.uint32]


class DueTimes(NamedTuple):
    """When the rows of a part are due.

    ``values`` holds a time per row, in units of 1/``per_ms`` ms. ``order`` holds the numbers of the rows that are ever
    due, by time. ``are_due`` marks these rows; ``None`` means all.
    """

    values: npt.NDArray[np.int64]
    per_ms: int
    order: _Numbers
    are_due: npt.NDArray[np.bool_] | None = None

    def find_position(self, ms: int) -> int:
        """Return the place in ``order`` of the first row that is due at ``ms`` or later."""
        limit = (ms - 1) * self.per_ms  # a row that is due within a millisecond is due at its end
        values = self.values
        order = self.order
        return bisect_left(range(len(order)), limit + 1, key=lambda place: int(values[order[place]]))

    def last_value_before(self, first_ms: int) -> int:
        """Return the greatest of ``values`` that is due before ``first_ms``."""
        return max(-NEVER_MS, min((first_ms - 1) * self.per_ms, NEVER_MS))

    def mask_due_by(
        self, last_values: int | npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of these rows that are due and have at most the value ``last_values``, one for all or one
        each.
        """
        earlier: npt.NDArray[np.bool_] = self.values[rows] <= last_values
        return earlier if self.are_due is None else earlier & self.are_due[rows]

    def find_due_between(self, first_ms: int, last_ms: int) -> _Numbers:
        """Return the numbers of the rows that are due between two times, both inclusive."""
        return self.order[self.find_position(first_ms) : self.find_position(last_ms + 1)]

    def ms_at(self, place: int) -> int:
        """Return when the row at a place of the order is due (ms), or ``NEVER_MS`` after the last place."""
        if place >= len(self.order):
            return NEVER_MS
        return -(-int(self.values[self.order[place]]) // self.per_ms)


def first_ms_of(timer_ms: int | None) -> int:
    """Return the time from which rows of a key-group can be due; earlier rows are expired.

    ``timer_ms`` is its timer in the log, ``None`` without one.
    """
    return NEVER_MS if timer_ms is None else timer_ms


def can_be_due(kind: pa.DataType) -> bool:
    """Return whether a type can be that of a due column: 64-bit integers (ms) or timestamps."""
    return bool(pa.types.is_int64(kind)) or (pa.types.is_timestamp(kind) and kind.unit in _PER_MS)


def in_milliseconds(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return due times in ms, rounded up. The values of nulls are undefined."""
    per_ms = _per_ms(column.type)
    values = _raw_values(column)
    return values if per_ms == 1 else values // per_ms + (values % per_ms != 0)


def compute_due_times(
    column: pa.Array, deleted: npt.NDArray[np.bool_] | None, order: _Numbers | None = None
) -> DueTimes:
    """Return the due times of rows from their due column.

    Deleted rows are never due. Without a stored ``order`` the rows are sorted.
    """
    is_due = _are_due(column, deleted)
    return _make_due_times(column, is_due, _sort_by_time(_raw_values(column), is_due) if order is None else order)


def add_due_order(table: pa.Table, name: str, deleted: str) -> pa.Table:
    """Return a part's rows with their order by due time, and its metadata, added.

    ``name`` is the due column. ``deleted`` names the column that marks deleted rows. That column may be absent.
    """
    column = one_array(table.column(name))
    has_deleted = deleted in table.column_names
    is_deleted = one_array(table.column(deleted)).to_numpy(zero_copy_only=False) if has_deleted else None
    is_due = _are_due(column, is_deleted)
    order = _sort_by_time(_raw_values(column), is_due)
    due = _make_due_times(column, is_due, order)
    count = len(due.order)
    span = {DUE_SPAN: f"{due.ms_at(0)},{due.ms_at(count - 1)}"} if count else {}
    return table.append_column(DUE_ORDER, pa.array(order)).replace_schema_metadata({DUE_COLUMN: name, **span})


def add_due_orders(
    table: pa.Table, name: str, deleted: str, starts: npt.NDArray[np.int64]
) -> tuple[pa.Table, list[tuple[int, int] | None]]:
    """Return the rows of several parts with each part's order by due time, and the least and greatest due time (ms) of
    each part, ``None`` if nothing in it is due.

    The rows of part ``i`` are ``starts[i]`` up to ``starts[i + 1]``. Other arguments are those of ``add_due_order``.
    """
    column = one_array(table.column(name))
    is_deleted = None
    if deleted in table.column_names:
        is_deleted = one_array(table.column(deleted)).to_numpy(zero_copy_only=False)
    is_due = _are_due(column, is_deleted)
    values = _raw_values(column)
    counts = np.diff(starts)
    order = np.argsort(values, kind="stable") if is_due is None else _sort_by_time(values, is_due).astype(np.int64)
    part_of_row = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
    order = order[np.argsort(part_of_row[order], kind="stable")]
    due_before = starts if is_due is None else positions_of(is_due.astype(np.int64))[starts]
    due_counts = due_before[1:] - due_before[:-1]
    per_ms = _per_ms(column.type)
    spans = [
        (-(-int(values[order[start]]) // per_ms), -(-int(values[order[start + count - 1]]) // per_ms))
        if count
        else None
        for start, count in zip(starts.tolist(), due_counts.tolist(), strict=False)
    ]
    local_order = (order - np.repeat(starts[:-1], counts)).astype(np.uint32)
    rows = table.append_column(DUE_ORDER, pa.array(local_order)).replace_schema_metadata({DUE_COLUMN: name})
    return rows, spans


def read_stored_order(table: pa.Table, due: str | None) -> _Numbers | None:
    """Return the order of a part's rows by the column ``due`` that is stored in the part, or ``None`` if there
    is none.
    """
    column = (table.schema.metadata or {}).get(DUE_COLUMN)
    if due is None or column != due.encode() or table.column(DUE_ORDER).num_chunks != 1:
        return None
    order: _Numbers = table.column(DUE_ORDER).chunk(0).to_numpy()
    return order


def _make_due_times(column: pa.Array, is_due: npt.NDArray[np.bool_] | None, order: _Numbers) -> DueTimes:
    """Return the due times of rows, given the order of all rows, never-due rows last."""
    count = len(column) if is_due is None else int(np.count_nonzero(is_due))
    return DueTimes(_raw_values(column), _per_ms(column.type), order[:count], is_due)


def _per_ms(kind: pa.DataType) -> int:
    """Return how many units of a time type make one millisecond."""
    return _PER_MS[kind.unit] if pa.types.is_timestamp(kind) else 1


def _raw_values(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a due column's values as int64. The values of nulls are undefined."""
    return fixed_values(column).view(np.int64)


def _are_due(column: pa.Array, deleted: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows that are ever due, or ``None`` for all."""
    mask = valid_mask(column)
    if deleted is None:
        return mask
    return ~deleted if mask is None else mask & ~deleted


def _sort_by_time(values: npt.NDArray[np.int64], is_due: npt.NDArray[np.bool_] | None) -> _Numbers:
    """Return the numbers of all rows by due time, rows that are never due last."""
    if is_due is None:
        return np.argsort(values, kind="stable").astype(np.uint32)
    due_rows = np.flatnonzero(is_due)
    order = due_rows[np.argsort(values[due_rows], kind="stable")]
    return np.concatenate([order, np.flatnonzero(~is_due)]).astype(np.uint32)
