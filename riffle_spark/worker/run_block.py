"""Calling what the user computes, and what that changed. Knows how rows are cut for a call and results are joined. Does
not know copies or objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.messages.slot_orders import INITIAL, KEY_GROUP, SLOT, Order
from riffle_spark.process.blocks.block import Batch, BoolArray, Update
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.worker.input import TouchedKeys, spans_of

__all__ = ["CallResult", "SlotResult", "StateChanges", "as_declared", "changes_of", "in_declared_order", "run"]


@dataclass(frozen=True, slots=True)
class CallResult:
    """What the calls of one slot gave: output rows, and the new state of keys by their index in the slot's touched
    keys.
    """

    output: pa.Table
    changed: npt.NDArray[np.int64]
    state: pa.Table
    deleted: npt.NDArray[np.int64]


def as_declared(order: Order, rows: pa.Table) -> pa.Table:
    """Return the rows with the declared types: Spark names a time zone of the session and may widen strings."""
    routing = [rows.schema.field(SLOT), rows.schema.field(KEY_GROUP)]
    initial = [] if order.initial is None else [pa.field(INITIAL, pa.struct(list(order.initial)))]
    wanted = pa.schema([*routing, *order.rows, *initial])
    return rows if rows.schema.equals(wanted) else rows.cast(wanted)


def in_declared_order(order: Order, rows: pa.Table) -> pa.Table:
    """Return the rows sorted by the declared order columns, if there are any. Ties stay as they came."""
    if not order.order_by or rows.num_rows == 0:
        return rows
    by = [(name, "ascending") for name in order.order_by]
    return rows.sort_by(by)


def run(
    order: Order, call: Callable[[Batch], Update], rows: pa.Table, touched: TouchedKeys, state: pa.Table,
    found: BoolArray,
) -> CallResult:  # fmt: skip
    """Call what the user computes once, or once a key-group if it asks for that, and join what it returns."""
    rows = rows.drop_columns([SLOT, KEY_GROUP])
    calls = (
        _by_key_group(order, rows, touched, state, found)
        if order.per_key_group
        else _at_once(order, rows, touched, state, found)
    )
    updates = [(start, call(batch)) for start, batch in calls]
    return _join(order, state.schema, updates)


def _at_once(
    order: Order, rows: pa.Table, touched: TouchedKeys, state: pa.Table, found: BoolArray
) -> Iterator[tuple[int, Batch]]:
    if rows.num_rows:
        yield 0, _batch(order, rows, touched.codes, touched.keys, state, found, None)


def _by_key_group(
    order: Order, rows: pa.Table, touched: TouchedKeys, state: pa.Table, found: BoolArray
) -> Iterator[tuple[int, Batch]]:
    by_group = np.argsort(touched.key_groups[touched.codes], kind="stable")
    rows, codes = rows.take(by_group), touched.codes[by_group]
    spans = zip(touched.spans, spans_of(touched.key_groups[codes]), strict=True)
    for (group, start, end), (_, first, last) in spans:
        part = rows.slice(first, last - first)
        keys, old = touched.keys.slice(start, end - start), state.slice(start, end - start)
        yield start, _batch(order, part, codes[first:last] - start, keys, old, found[start:end], group)


def _batch(
    order: Order, rows: pa.Table, codes: npt.NDArray[np.int64], keys: pa.Table, state: pa.Table,
    found: BoolArray, key_group: int | None,
) -> Batch:  # fmt: skip
    return Batch(
        rows, codes, keys, state, found, order.version, order.time_ms, order.watermark_ms, key_group, order.store
    )


def _join(order: Order, state_schema: pa.Schema, updates: list[tuple[int, Update]]) -> CallResult:
    nothing = np.empty(0, dtype=np.int64)
    if not updates:
        return CallResult(order.output.empty_table(), nothing, state_schema.empty_table(), nothing)
    output = pa.concat_tables([update.output.select(order.output.names) for _, update in updates])
    changed = np.concatenate([update.changed + start for start, update in updates]).astype(np.int64)
    state = pa.concat_tables([update.state.select(state_schema.names) for _, update in updates])
    deleted = np.concatenate([update.deleted + start for start, update in updates]).astype(np.int64)
    return CallResult(output, changed, state, deleted)


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Rows of a delta in key-group order, and the key-group of each; ``timers`` says when a key-group's earliest timer
    is due from now on (ms).
    """

    table: pa.Table
    key_groups: npt.NDArray[np.int32]
    timers: Mapping[int, int | None] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield each key-group that changed, with its rows."""
        for key_group, start, end in spans_of(self.key_groups):
            yield key_group, self.table.slice(start, end - start)


class SlotResult(NamedTuple):
    """What became of a slot's rows: output, changes, how many timers fired and how many elements expired."""

    output: pa.Table
    changes: StateChanges
    timers_fired: int = 0
    expired: int = 0


def changes_of(schema: PlainColumns, touched: TouchedKeys, result: CallResult) -> StateChanges:
    """Return key columns, new state and the deleted mark of every changed key, by key-group."""
    indices = np.concatenate([result.changed, result.deleted])
    state = result.state
    if len(result.deleted):
        nullable = pa.schema([field.with_nullable(True) for field in state.schema])
        gone = [pa.nulls(len(result.deleted), field.type) for field in nullable]
        state = pa.concat_tables([state.cast(nullable), pa.table(gone, schema=nullable)])
    mark = np.arange(len(indices)) >= len(result.changed)
    sort = np.argsort(indices, kind="stable")
    ordered = not len(result.deleted) and bool(np.all(np.diff(indices) > 0))
    if not ordered:
        indices, mark = indices[sort], mark[sort]
        state = state.take(sort)
    keys = touched.keys if len(indices) == touched.keys.num_rows else touched.keys.take(indices)
    columns = [*keys.columns, *state.columns, pa.array(mark)]
    table = pa.table(columns, schema=schema.part_schema(delta=True)).combine_chunks()
    return StateChanges(table, touched.key_groups[indices])
