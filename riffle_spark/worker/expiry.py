"""Process the due keys of stores of columns: pass each to the computation once, and delete it unless it is kept."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array, valid_mask
from riffle_spark.messages.slot_orders import Order
from riffle_spark.process.blocks.block import BlockComputation, BoolArray, PlainExpiry, StateRows
from riffle_spark.state.copies.run import (
    Indices,
    Run,
    RunsOfKeyGroup,
    find_due_rows,
    find_first_due_ms,
    find_first_ms_by_hash,
    find_newest_by_group,
)
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.due_times import NEVER_MS, compute_due_times, first_ms_of, in_milliseconds
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.worker import run_computation
from riffle_spark.worker.input import TouchedKeys, spans_of
from riffle_spark.worker.seal import SlotResult, StateChanges


def with_expired(
    order: Order,
    schema: PlainColumns,
    compute: BlockComputation,
    stacks: Mapping[int, OpenStack],
    entries: Mapping[int, Entry],
    result: SlotResult,
    timed: run_computation.Timed,
) -> SlotResult:
    """Return a slot's ``result`` after its due keys were processed.

    The computation gets each due key once; the key is deleted unless the computation keeps it. Timers of the result are
    the next due times of the changed key-groups. ``stacks`` and ``entries`` are of the touched key-groups and of
    key-groups with due keys.
    """
    first_ms = {key_group: first_ms_of(entry.timer_ms) for key_group, entry in entries.items()}
    changes = result.changes
    outputs = [result.output]
    count = 0
    state_rows = result.state_rows
    for until_ms, watermark_ms in order.times.passes:
        if isinstance(compute, PlainExpiry) and compute.ignores_expiry:
            forgotten, first_ms = _count_forgotten(changes, stacks, first_ms, until_ms)
            count += forgotten
            state_rows = state_rows.plus(StateRows(removed=forgotten))
        changes = _with_due_rows(schema, changes, stacks, first_ms, until_ms)
        is_due = _due_ms(schema, changes) <= until_ms
        first_ms = {key_group: max(ms, until_ms + 1) for key_group, ms in first_ms.items()}
        if is_due.any():
            touched, state = _find_due_keys(schema, changes, is_due)
            result_on_due = run_computation.run_on_due(order, compute, touched, state, watermark_ms, timed)
            changes = _replace_rows(changes, is_due, run_computation.to_state_changes(schema, touched, result_on_due))
            outputs.append(result_on_due.output)
            count += len(touched.hashes)
            state_rows = state_rows.plus(result_on_due.rows)
    changes = replace(changes, timers=_next_due_times(schema, changes, stacks, first_ms))
    output = pa.concat_tables(outputs)
    return result._replace(output=output, changes=changes, expired=count, state_rows=state_rows)


def _count_forgotten(
    changes: StateChanges, stacks: Mapping[int, OpenStack], first_ms: Mapping[int, int], until_ms: int
) -> tuple[int, dict[int, int]]:
    """Return how many keys are due by ``until_ms`` in changed key-groups, and by key-group the start of its next
    search.

    The computation needs no call for due keys. ``first_ms`` has by key-group the start of this search.
    """
    changed = {key_group for key_group, _, _ in spans_of(changes.key_groups)}
    due = [
        run.due.find_due_between(first_ms[key_group], until_ms)
        for key_group in changed & stacks.keys()
        for run in stacks[key_group].runs
        if run.due is not None
    ]
    later = {key_group: max(ms, until_ms + 1) if key_group in changed else ms for key_group, ms in first_ms.items()}
    return sum(map(len, due)), later


def _with_due_rows(
    schema: PlainColumns,
    changes: StateChanges,
    stacks: Mapping[int, OpenStack],
    first_ms: Mapping[int, int],
    until_ms: int,
) -> StateChanges:
    """Return a batch's changes with the stored rows that are due by ``until_ms`` and that the batch did not change.

    ``first_ms`` has the time from which to search the stack of each key-group.
    """
    below = [
        RunsOfKeyGroup(kg, stacks[kg].runs, ms)
        for kg, ms in sorted(first_ms.items())
        if ms <= until_ms and kg in stacks
    ]
    due = find_due_rows(schema, below, until_ms)
    if not due.rows.num_rows:
        return changes
    not_deleted = pa.array(np.zeros(len(due.hashes), dtype=np.bool_))
    rows = pa.table([pa.array(due.hashes), *due.rows.columns, not_deleted], schema=changes.table.schema)
    table = pa.concat_tables([changes.table, rows]).combine_chunks()
    key_groups = np.concatenate([changes.key_groups, due.key_groups])
    once = find_newest_by_group(table.column(part_codec.HASH).to_numpy(), table.select(schema.key.names), key_groups)
    return StateChanges(table.take(pa.array(once)), key_groups[once])


def _due_ms(schema: PlainColumns, changes: StateChanges) -> Indices:
    """Return the time (ms) at which each changed row is due, ``NEVER_MS`` for never."""
    column = one_array(changes.table.column(str(schema.due)))
    deleted = changes.table.column(part_codec.DELETED).to_numpy()
    has_time = valid_mask(column)
    return np.where(deleted if has_time is None else deleted | ~has_time, NEVER_MS, in_milliseconds(column))


def _find_due_keys(schema: PlainColumns, changes: StateChanges, is_due: BoolArray) -> tuple[TouchedKeys, pa.Table]:
    """Return the due keys without input rows, and their state."""
    rows = changes.table.filter(pa.array(is_due)).combine_chunks()
    key_groups = changes.key_groups[is_due]
    hashes = rows.column(part_codec.HASH).to_numpy()
    nothing = np.empty(0, np.int64)
    touched = TouchedKeys(rows.select(schema.key.names), hashes, key_groups, nothing, spans_of(key_groups))
    return touched, rows.select(schema.state.names)


def _replace_rows(changes: StateChanges, replaced_rows: BoolArray, replacement: StateChanges) -> StateChanges:
    """Return the changes with the rows of a mask replaced, in order, by those of ``replacement``."""
    rows = changes.table.num_rows
    new_rows = replacement.table.num_rows
    assert new_rows == np.count_nonzero(replaced_rows), "each due key is deleted or kept"
    places = np.arange(rows)
    places[replaced_rows] = rows + np.arange(new_rows)
    table = pa.concat_tables([changes.table, replacement.table]).combine_chunks()
    return StateChanges(table.take(pa.array(places)), changes.key_groups)


def _next_due_times(
    schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack], first_ms: Mapping[int, int]
) -> dict[int, int | None]:
    """Return the time (ms) at which each changed key-group is due next, ``None`` for never.

    No stored rows are read if no older row is due before the changed rows. Otherwise the batch, or an earlier one, may
    have moved or deleted that row, so the rows are read.
    """
    spans = spans_of(changes.key_groups)
    hashes = changes.table.column(part_codec.HASH).to_numpy()
    if not spans:
        return {}
    least = np.minimum.reduceat(_due_ms(schema, changes), [start for _, start, _ in spans]).tolist()
    timers = dict[int, int | None]()
    unsure = list[RunsOfKeyGroup]()
    for (key_group, start, end), ms in zip(spans, least, strict=True):
        runs = stacks[key_group].runs if key_group in stacks else ()
        below = RunsOfKeyGroup(key_group, runs, first_ms[key_group])
        known_ms = find_first_ms_by_hash(hashes[start:end], ms, below)
        if known_ms is None:
            of_batch = _changes_as_run(schema, changes.table.slice(start, end - start))
            unsure.append(RunsOfKeyGroup(key_group, (of_batch, *runs), min(below.first_ms, ms)))
        else:
            timers[key_group] = None if known_ms == NEVER_MS else known_ms
    return {**timers, **find_first_due_ms(schema, unsure)}


def _changes_as_run(schema: PlainColumns, table: pa.Table) -> Run:
    """Return the changes of a key-group as a run, as a stack has them."""
    rows = cast_table(table.select(schema.row_schema.names), schema.row_schema).combine_chunks().to_batches()[0]
    deleted = table.column(part_codec.DELETED).to_numpy()
    due = compute_due_times(rows.column(schema.due), deleted)
    return Run(table.column(part_codec.HASH).to_numpy(), rows, deleted if deleted.any() else None, due)
