"""Call the user's computation in a slot: on blocks of rows, key-group by key-group, key by key, or on elements."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.batch_times import Times
from riffle_spark.columns import one_array, positions_of
from riffle_spark.garbage import collect_garbage_rarely
from riffle_spark.messages.slot_orders import HASH, INITIAL, KEY_GROUP, SLOT, Order, without_letters
from riffle_spark.process.blocks import block
from riffle_spark.process.blocks.block import (
    NO_STATE_ROWS,
    Batch,
    BlockComputation,
    BoolArray,
    ExpiringComputation,
    StateRows,
    Update,
)
from riffle_spark.process.processors.processing import Outcome, Processing
from riffle_spark.process.processors.processor import InputByKey
from riffle_spark.state.copies.element_columns import ElementColumns, ElementKeys
from riffle_spark.state.copies.reading import CopyRuns
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.arrow_values import offset_overflow_error
from riffle_spark.state.formats.due_times import NEVER_MS
from riffle_spark.state.log.manifest import EMPTY, Entry
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas import variable_kinds
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.worker.dead_letters import collects_for
from riffle_spark.worker.input import TouchedKeys
from riffle_spark.worker.seal import SlotResult, StateChanges

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


class Timed(Protocol):
    """A function that wraps a call of the computation, so that its time is measured as a separate step."""

    def __call__(self, call: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
        """Return a function that makes the same call and measures its time."""
        ...


@dataclass(frozen=True, slots=True)
class CallResult:
    """The joined results of a slot's calls. Keys are given as indices of the slot's touched keys.

    ``busy`` has the key-groups that were called one by one, and how long each call took (µs). ``rows`` counts the
    changed state rows.
    """

    output: pa.Table
    changed: npt.NDArray[np.int64]
    state: pa.Table
    deleted: npt.NDArray[np.int64]
    busy: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    rows: StateRows = NO_STATE_ROWS


def cast_to_declared(order: Order, rows: pa.Table) -> pa.Table:
    """Return a slot's rows cast to the declared types.

    Spark adds the session's time zone to timestamps, and may widen strings.
    """
    routing = [rows.schema.field(name) for name in (SLOT, KEY_GROUP, HASH)]
    initial = [] if order.initial is None else [pa.field(INITIAL, pa.struct(list(order.initial)))]
    declared = pa.schema([*routing, *order.rows, *initial])
    return cast_table(rows, declared)


def sort_by_declared_order(order: Order, rows: pa.Table) -> pa.Table:
    """Return the rows sorted by the order's ``order_by`` columns, if there are any. The sort is stable."""
    if not order.order_by or rows.num_rows == 0:
        return rows
    sort_keys = [(name, "ascending") for name in order.order_by]
    return rows.sort_by(sort_keys)


def run_on_blocks(
    order: Order,
    call: Callable[[Batch], Update],
    rows: pa.Table,
    touched: TouchedKeys,
    state: pa.Table,
    has_state: BoolArray,
) -> CallResult:
    """Call the computation once, or once per key-group if it declares that, and return the joined results.

    ``state`` has a row for each touched key, ``has_state`` whether the key has stored state.
    """
    rows = rows.drop_columns([SLOT, KEY_GROUP, HASH])
    calls: Iterable[tuple[int, Batch]] = ()
    if order.per_key_group:
        calls = _by_key_group(order, rows, touched, state, has_state)
    elif touched.keys.num_rows:
        calls = [(0, _batch(order, rows, touched.codes, touched.keys, state, has_state, None))]
    updates = []
    micros = []
    for start, batch in calls:
        started = time.perf_counter()
        updates.append((start, call(batch)))
        micros.append(int((time.perf_counter() - started) * 1e6))
    busy = (tuple(key_group for key_group, _, _ in touched.spans), tuple(micros)) if order.per_key_group else ((), ())
    return replace(_join(order, state.schema, updates, has_state), busy=busy)


def _by_key_group(
    order: Order, rows: pa.Table, touched: TouchedKeys, state: pa.Table, has_state: BoolArray
) -> Iterator[tuple[int, Batch]]:
    """Yield a batch per touched key-group, with the index of its first key among the touched keys."""
    by_group = np.argsort(touched.key_groups[touched.codes], kind="stable")
    rows = rows.take(by_group)
    codes = touched.codes[by_group]
    key_group_of_row = touched.key_groups[codes]
    for group, start, end in touched.spans:
        first, last = np.searchsorted(key_group_of_row, [group, group + 1]).tolist()
        part = rows.slice(first, last - first)
        keys = touched.keys.slice(start, end - start)
        group_state = state.slice(start, end - start)
        yield start, _batch(order, part, codes[first:last] - start, keys, group_state, has_state[start:end], group)


def _batch(
    order: Order,
    rows: pa.Table,
    codes: npt.NDArray[np.int64],
    keys: pa.Table,
    state: pa.Table,
    has_state: BoolArray,
    key_group: int | None,
) -> Batch:
    """Return the argument of a call of the computation: rows, keys and state of one call."""
    return Batch(
        rows,
        codes,
        keys,
        state,
        has_state,
        order.version,
        order.time_ms,
        order.watermark_ms,
        key_group,
        order.store,
        collects_for(order) if rows.num_rows else None,
    )


def run_on_due(
    order: Order,
    compute: BlockComputation,
    touched: TouchedKeys,
    state: pa.Table,
    watermark_ms: int | None,
    timed: Timed,
) -> CallResult:
    """Call the computation with the due keys, once or per key-group as for rows. Delete the keys that it does not keep.

    ``state`` has the state of each due key. ``timed`` wraps each call.
    """
    order = replace(order, watermark_ms=watermark_ms)
    count = touched.keys.num_rows
    everything = np.arange(count, dtype=np.int64)
    updates: list[tuple[int, Update]] = []
    if isinstance(compute, ExpiringComputation):
        rows = order.rows.empty_table()
        has_state = np.ones(count, dtype=np.bool_)
        for key_group, start, end in touched.spans if order.per_key_group else [(None, 0, count)]:
            keys = touched.keys.slice(start, end - start)
            group_state = state.slice(start, end - start)
            batch = _batch(order, rows, everything[:0], keys, group_state, has_state[start:end], key_group)
            updates.append((start, timed(compute.expire_keys)(batch)))
    result = _join(order, state.schema, updates, np.ones(count, dtype=np.bool_))
    deleted = np.delete(everything, result.changed)
    counts_keys = all(update.rows is None for _, update in updates)
    rows = StateRows(0, len(result.changed), len(deleted)) if counts_keys else result.rows
    return replace(result, deleted=deleted, rows=rows)


def _join(order: Order, state_schema: pa.Schema, updates: list[tuple[int, Update]], has_state: BoolArray) -> CallResult:
    """Return the joined updates of several calls. Each update has the index of its first key.

    Results have the columns of the order's output, and states those of ``state_schema``. ``has_state`` marks the keys
    with stored state.
    """
    nothing = np.empty(0, dtype=np.int64)
    output_schema = without_letters(order.output)
    if not updates:
        return CallResult(output_schema.empty_table(), nothing, state_schema.empty_table(), nothing)
    outputs = [update.output.select(output_schema.names) for _, update in updates]
    output = cast_table(pa.concat_tables(outputs), output_schema)
    changed = np.concatenate([update.changed + start for start, update in updates]).astype(np.int64)
    state = pa.concat_tables([update.state.select(state_schema.names) for _, update in updates])
    deleted = np.concatenate([update.deleted + start for start, update in updates]).astype(np.int64)
    rows = NO_STATE_ROWS
    for start, update in updates:
        rows = rows.plus(update.rows or _count_keys(update, has_state[start:]))
    return CallResult(output, changed, state, deleted, rows=rows)


def _count_keys(update: Update, has_state: BoolArray) -> StateRows:
    """Return the numbers of changed keys of an update. ``has_state`` marks those of its keys with stored state."""
    stored = int(np.count_nonzero(has_state[update.changed]))
    removed = int(np.count_nonzero(has_state[update.deleted]))
    return StateRows(len(update.changed) - stored, len(update.changed), removed)


def to_state_changes(schema: PlainColumns, touched: TouchedKeys, result: CallResult) -> StateChanges:
    """Return key columns, new state and the deleted mark of every changed key, ordered by key-group."""
    indices = np.concatenate([result.changed, result.deleted])
    state = result.state
    if len(result.deleted):
        nullable = pa.schema([field.with_nullable(True) for field in state.schema])
        nulls = [pa.nulls(len(result.deleted), field.type) for field in nullable]
        state = pa.concat_tables([cast_table(state, nullable), pa.table(nulls, schema=nullable)])
    mark = np.arange(len(indices)) >= len(result.changed)
    sort = np.argsort(indices, kind="stable")
    ordered = not len(result.deleted) and bool(np.all(np.diff(indices) > 0))
    if not ordered:
        indices = indices[sort]
        mark = mark[sort]
        state = state.take(sort)
    keys = touched.keys if len(indices) == touched.keys.num_rows else touched.keys.take(indices)
    columns = [pa.array(touched.hashes[indices]), *keys.columns, *state.columns, pa.array(mark)]
    sealed = pa.schema([pa.field(part_codec.HASH, pa.uint64()), *schema.part_schema(delta=True)])
    table = pa.table(columns, schema=sealed).combine_chunks()
    if any(column.num_chunks > 1 for column in table.columns):
        raise offset_overflow_error("what a batch changed of the state")
    return StateChanges(table, touched.key_groups[indices])


def run_by_key(
    order: Order,
    schema: VariableColumns,
    start_processing: Callable[[Times, str], Processing],
    rows: pa.Table,
    touched: TouchedKeys,
    stacks: Mapping[int, OpenStack],
    entries: Mapping[int, Entry],
    timed: Timed,
) -> SlotResult:
    """Run a processor key by key over the key-groups of ``entries``, and return its output and changes.

    These are the touched key-groups and key-groups with due timers or elements. ``start_processing`` returns the
    running processor, given the batch's times and a name for errors. Raises ``UserFunctionError`` with the processor's
    error.
    """
    with collect_garbage_rarely():
        processing = start_processing(order.times, f"store {order.store!r}")
        processing.collects = collects_for(order)
        processing.begin(_grouped(order, rows, touched))
        hashes = schema.hashes(touched.keys)
        outcomes, micros = timed(_by_copy)(processing, touched, hashes, stacks, entries)
        output = processing.output()
        processing.end()
    fired = sum(outcome.timers_fired for outcome in outcomes.values())
    expired = sum(outcome.expired for outcome in outcomes.values())
    state_rows = NO_STATE_ROWS
    for outcome in outcomes.values():
        state_rows = state_rows.plus(outcome.rows)
    busy = (tuple(outcomes), tuple(micros))
    return SlotResult(output, _changes(schema, outcomes), fired, expired, busy=busy, state_rows=state_rows)


def _by_copy(
    processing: Processing,
    touched: TouchedKeys,
    hashes: npt.NDArray[np.uint64],
    stacks: Mapping[int, OpenStack],
    entries: Mapping[int, Entry],
) -> tuple[dict[int, Outcome], list[int]]:
    """Process key-group by key-group; return the outcomes and the time of each (µs).

    ``hashes`` are the hashes in sealed parts.
    """
    spans = {key_group: (start, end) for key_group, start, end in touched.spans}
    outcomes: dict[int, Outcome] = {}
    micros: list[int] = []
    for key_group, entry in sorted(entries.items()):
        start, end = spans.get(key_group, (0, 0))
        runs = stacks[key_group].runs if key_group in stacks else ()
        copy_runs = CopyRuns(runs, entry.timer_ms, hashes[start:end])
        started = time.perf_counter()
        outcomes[key_group] = processing.process_key_group(end - start, copy_runs)
        micros.append(int((time.perf_counter() - started) * 1e6))
    return outcomes, micros


def _grouped(order: Order, rows: pa.Table, touched: TouchedKeys) -> InputByKey:
    """Return the rows of the input, and those of initial state, by key."""
    shown = order.shown or {name: name for name in order.rows.names}
    data = rows.select(list(shown)).rename_columns(list(shown.values()))
    codes = touched.codes
    if order.initial is None:
        return InputByKey.of(touched.keys, data, codes)
    initial = rows.column(INITIAL).combine_chunks()
    is_initial = initial.is_valid().to_numpy(zero_copy_only=False)
    states = pa.Table.from_batches([pa.RecordBatch.from_struct_array(initial.filter(pa.array(is_initial)))])
    grouped = InputByKey.of(touched.keys, data.filter(pa.array(~is_initial)), codes[~is_initial])
    return grouped.with_states(states, codes[is_initial])


def _changes(schema: VariableColumns, outcomes: Mapping[int, Outcome]) -> StateChanges:
    """Return the changes of all key-groups, with their next due times."""
    tables: Sequence[pa.Table] = [outcome.changes for outcome in outcomes.values()]
    table = pa.concat_tables([schema.part_schema(delta=True).empty_table(), *tables])
    key_groups = np.repeat(np.array(list(outcomes), np.int32), [changes.num_rows for changes in tables])
    timers = {key_group: outcome.timer_ms for key_group, outcome in outcomes.items()}
    return StateChanges(schema.sort_by_group(table, key_groups), key_groups, timers)


def run_on_elements(
    order: Order,
    schema: VariableColumns,
    compute: block.ElementComputation,
    rows: pa.Table,
    touched: TouchedKeys,
    stacks: Mapping[int, OpenStack],
    entries: Mapping[int, Entry],
    timed: Timed,
) -> SlotResult:
    """Call the computation once with the elements of touched keys and the due elements of ``entries``.

    Due elements are always deleted, so that nothing in a key-group is due before its recorded time.
    """
    passes = order.times.passes
    until_ms = passes[-1][0] if passes else variable_kinds.NO_DUE
    element_keys = ElementKeys(touched.keys, schema.hashes(touched.keys), touched.key_groups, touched.spans)
    copies = {kg: CopyRuns(stacks[kg].runs, entry.timer_ms) for kg, entry in entries.items() if kg in stacks}
    columns = ElementColumns.read(schema, element_keys, copies, until_ms)
    elements = {name: block.Elements(f.owners, f.values, f.due_ms) for name, f in columns.variables.items()}
    data = rows.drop_columns([SLOT, KEY_GROUP, HASH])
    update = timed(compute.over_elements)(
        block.ElementBatch(data, touched.codes, columns.keys, elements, until_ms, order.store)
    )
    is_due = {
        name: (of_name.due_ms != variable_kinds.NO_DUE) & (of_name.due_ms <= until_ms)
        for name, of_name in elements.items()
    }
    pieces = [
        piece
        for name, removed in is_due.items()
        for piece in _element_rows(schema, name, columns, update, removed.copy())
    ]
    table = pa.concat_tables([schema.part_schema(delta=True).empty_table(), *(table for table, _ in pieces)])
    key_groups = columns.key_groups[np.concatenate([touched.codes[:0], *(owners for _, owners in pieces)])]
    by_group = np.argsort(key_groups, kind="stable")
    table = table.combine_chunks().take(pa.array(by_group))
    key_groups = key_groups[by_group]
    changes = StateChanges(schema.sort_by_group(table, key_groups), key_groups, _element_timers(columns, update))
    output = cast_table(update.output.select(order.output.names), order.output)
    expired = sum(int(removed.sum()) for removed in is_due.values())
    added = sum(len(new.owners) for new in update.added.values())
    removed = sum(
        len(np.union1d(np.flatnonzero(mask), update.removed.get(name, np.empty(0, np.int64))))
        for name, mask in is_due.items()
    )
    return SlotResult(output, changes, expired=expired, state_rows=StateRows(added, added, removed))


def _element_rows(
    schema: VariableColumns, name: str, columns: ElementColumns, update: block.ElementUpdate, is_removed: BoolArray
) -> Iterator[tuple[pa.Table, block.IndexArray]]:
    """Yield rows of a delta and the key index of each: new elements, changed elements, removed elements."""
    stored = columns.variables[name]
    is_removed[update.removed.get(name, np.empty(0, np.int64))] = True
    if name in update.added:
        new = update.added[name]
        ids = stored.next_ids[new.owners] + _ranks(new.owners)
        yield _wide_rows(schema, name, columns, new.owners, ids, new.due_ms, new.values), new.owners
    if name in update.changed:
        indices, values = update.changed[name]
        assert not is_removed[indices].any(), "a removed element does not change"
        owners = stored.owners[indices]
        yield _wide_rows(schema, name, columns, owners, stored.ids[indices], stored.due_ms[indices], values), owners
    owners = stored.owners[is_removed]
    yield _wide_rows(schema, name, columns, owners, stored.ids[is_removed], None, None), owners


def _wide_rows(
    schema: VariableColumns,
    name: str,
    stored_columns: ElementColumns,
    owners: block.IndexArray,
    ids: npt.NDArray[np.int64],
    due_ms: npt.NDArray[np.int64] | None,
    values: pa.Table | None,
) -> pa.Table:
    """Return rows of a delta for elements of variable ``name``; without ``values`` they delete the elements.

    ``owners`` has the index of each element's key in ``stored_columns``.
    """
    count = len(owners)
    variable = schema.by_name[name]
    part_schema = schema.part_schema(delta=True)
    columns = dict(
        zip(stored_columns.keys.column_names, stored_columns.keys.take(pa.array(owners)).columns, strict=True)
    )
    columns[variable_kinds.VARIABLE] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), [name])
    columns[variable_kinds.INDEX] = pa.array(ids)
    columns[part_codec.DELETED] = pa.array(np.full(count, values is None))
    if due_ms is not None:
        columns[variable_kinds.DUE] = pa.array(due_ms, mask=due_ms == variable_kinds.NO_DUE)
    if values is not None:
        fields = [one_array(values.column(field)) for field in variable.value.names]
        columns[variable.column] = pa.StructArray.from_arrays(fields, fields=list(variable.value))
    columns |= {field.name: pa.nulls(count, field.type) for field in part_schema if field.name not in columns}
    return pa.table([columns[field.name] for field in part_schema], schema=part_schema)


def _ranks(owners: block.IndexArray) -> npt.NDArray[np.int64]:
    """Return the index of each element among the elements of its owner."""
    by_owner = np.argsort(owners, kind="stable")
    ranks = np.empty(len(owners), np.int64)
    ranks[by_owner] = np.arange(len(owners)) - positions_of(np.bincount(owners))[owners[by_owner]]
    return ranks


def _element_timers(columns: ElementColumns, update: block.ElementUpdate) -> dict[int, int | None]:
    """Return the due time of the first remaining element of each key-group, ``None`` for never."""
    first = {int(key_group): NEVER_MS for key_group in np.unique(columns.key_groups)} | dict(columns.next_ms)
    for new in update.added.values():
        key_groups, codes = np.unique(columns.key_groups[new.owners], return_inverse=True)
        dues = np.full(len(key_groups), NEVER_MS)
        np.minimum.at(dues, codes, np.where(new.due_ms == variable_kinds.NO_DUE, NEVER_MS, new.due_ms))
        first |= {kg: min(first[kg], ms) for kg, ms in zip(key_groups.tolist(), dues.tolist(), strict=True)}
    return {key_group: None if ms == NEVER_MS else ms for key_group, ms in first.items()}


def due_key_groups(order: Order, slot: int) -> tuple[int, ...]:
    """Return the slot's key-groups with a due timer, element or key, ascending, including those of a last pass.

    A computation on the whole store gets all its key-groups.
    """
    if order.whole:
        return tuple(key_group for key_group in sorted(order.slots[slot]) if key_group in order.entries)
    passes = order.times.passes
    if not passes:
        return ()
    until, _ = passes[-1]
    timers = ((key_group, order.entries.get(key_group, EMPTY).timer_ms) for key_group in sorted(order.slots[slot]))
    return tuple(key_group for key_group, timer in timers if timer is not None and timer <= until)
