"""Keys whose time has come, in stores of columns: found, given to the computation once, and gone unless it keeps them.
Knows changes and stacks. Does not know objects.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array, valid_mask
from riffle_spark.messages.slot_orders import Order
from riffle_spark.process.blocks.block import BlockComputation, BoolArray, PlainExpiry
from riffle_spark.state.copies.run import (
    Indices,
    Run,
    RunsOfKeyGroup,
    find_due_rows,
    first_due_ms,
    known_first_ms,
    newest_by_group,
)
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.due_times import NEVER_MS, due_times, first_ms_of, in_milliseconds
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.worker import run_computation
from riffle_spark.worker.input import TouchedKeys, spans_of
from riffle_spark.worker.seal import SlotResult, StateChanges

__all__ = ["with_expired"]


def with_expired(
    order: Order, schema: PlainColumns, compute: BlockComputation, stacks: Mapping[int, OpenStack],
    entries: Mapping[int, Entry], result: SlotResult, timed: run_computation.Timed,
) -> SlotResult:  # fmt: skip
    """Return what became of a slot's rows, and of the keys that are due then, and when key-groups that changed are due
    next. ``stacks`` and ``entries`` are those of the touched key-groups and of those with something due.
    """
    first_ms = {key_group: first_ms_of(entry.timer_ms) for key_group, entry in entries.items()}
    changes, outputs, count = result.changes, [result.output], 0
    for until_ms, watermark_ms in order.times.passes:
        if isinstance(compute, PlainExpiry) and compute.forgets:
            forgotten, first_ms = _forgotten(changes, stacks, first_ms, until_ms)
            count += forgotten
        changes = _over_due(schema, changes, stacks, first_ms, until_ms)
        is_due = _due_ms(schema, changes) <= until_ms
        first_ms = {key_group: max(ms, until_ms + 1) for key_group, ms in first_ms.items()}
        if is_due.any():
            touched, state = _touched(schema, changes, is_due)
            gone = run_computation.run_on_due(order, compute, touched, state, watermark_ms, timed)
            changes = _replaced(changes, is_due, run_computation.changes_of(schema, touched, gone))
            outputs.append(gone.output)
            count += len(touched.hashes)
    changes = replace(changes, timers=_first_due(schema, changes, stacks, first_ms))
    return result._replace(output=pa.concat_tables(outputs), changes=changes, expired=count)


def _forgotten(
    changes: StateChanges, stacks: Mapping[int, OpenStack], first_ms: Mapping[int, int], until_ms: int
) -> tuple[int, dict[int, int]]:
    """Return how many keys are due in key-groups that changed anyway, and from when on to look at what is below."""
    changed = {key_group for key_group, _, _ in spans_of(changes.key_groups)}
    due = [
        run.due.between(first_ms[key_group], until_ms)
        for key_group in changed & stacks.keys()
        for run in stacks[key_group].runs
        if run.due is not None
    ]
    later = {key_group: max(ms, until_ms + 1) if key_group in changed else ms for key_group, ms in first_ms.items()}
    return sum(map(len, due)), later


def _over_due(
    schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack], first_ms: Mapping[int, int],
    until_ms: int,
) -> StateChanges:  # fmt: skip
    """Return what a batch changed, and the rows below it that are due as they are."""
    below = [
        RunsOfKeyGroup(kg, stacks[kg].runs, ms)
        for kg, ms in sorted(first_ms.items())
        if ms <= until_ms and kg in stacks
    ]
    due = find_due_rows(schema, below, until_ms)
    if not due.rows.num_rows:
        return changes
    there = pa.array(np.zeros(len(due.hashes), dtype=np.bool_))
    rows = pa.table([pa.array(due.hashes), *due.rows.columns, there], schema=changes.table.schema)
    table = pa.concat_tables([changes.table, rows]).combine_chunks()
    key_groups = np.concatenate([changes.key_groups, due.key_groups])
    once = newest_by_group(table.column(part_codec.HASH).to_numpy(), table.select(schema.key.names), key_groups)
    return StateChanges(table.take(pa.array(once)), key_groups[once])


def _due_ms(schema: PlainColumns, changes: StateChanges) -> Indices:
    """Return when each row is due."""
    column = one_array(changes.table.column(str(schema.due)))
    gone, has_time = changes.table.column(part_codec.DELETED).to_numpy(), valid_mask(column)
    return np.where(gone if has_time is None else gone | ~has_time, NEVER_MS, in_milliseconds(column))


def _touched(schema: PlainColumns, changes: StateChanges, is_due: BoolArray) -> tuple[TouchedKeys, pa.Table]:
    """Return the keys that are due, and their state."""
    rows, key_groups = changes.table.filter(pa.array(is_due)).combine_chunks(), changes.key_groups[is_due]
    hashes, nothing = rows.column(part_codec.HASH).to_numpy(), np.empty(0, np.int64)
    touched = TouchedKeys(rows.select(schema.key.names), hashes, key_groups, nothing, spans_of(key_groups))
    return touched, rows.select(schema.state.names)


def _replaced(changes: StateChanges, some: BoolArray, by: StateChanges) -> StateChanges:
    """Return the changes with others, row for row, in the place of some."""
    rows, others = changes.table.num_rows, by.table.num_rows
    assert others == np.count_nonzero(some), "each key that was due has gone or stays"
    places = np.arange(rows)
    places[some] = rows + np.arange(others)
    table = pa.concat_tables([changes.table, by.table]).combine_chunks()
    return StateChanges(table.take(pa.array(places)), changes.key_groups)


def _first_due(
    schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack], first_ms: Mapping[int, int]
) -> dict[int, int | None]:
    """Return when the key-groups that changed are due next.

    Where nothing below is due before what the batch changed, that is known at once. Else it may be that the batch, or
    another one before it, moved or deleted what is: then rows are looked at.
    """
    spans, hashes = spans_of(changes.key_groups), changes.table.column(part_codec.HASH).to_numpy()
    if not spans:
        return {}
    least = np.minimum.reduceat(_due_ms(schema, changes), [start for _, start, _ in spans]).tolist()
    timers, unsure = dict[int, int | None](), list[RunsOfKeyGroup]()
    for (key_group, start, end), ms in zip(spans, least, strict=True):
        runs = stacks[key_group].runs if key_group in stacks else ()
        below = RunsOfKeyGroup(key_group, runs, first_ms[key_group])
        known = known_first_ms(hashes[start:end], ms, below)
        if known is None:
            of_batch = _run(schema, changes.table.slice(start, end - start))
            unsure.append(RunsOfKeyGroup(key_group, (of_batch, *runs), min(below.first_ms, ms)))
        else:
            timers[key_group] = None if known == NEVER_MS else known
    return {**timers, **first_due_ms(schema, unsure)}


def _run(schema: PlainColumns, table: pa.Table) -> Run:
    """Return one key-group's changes as a run."""
    rows = cast_table(table.select(schema.row_schema.names), schema.row_schema).combine_chunks().to_batches()[0]
    deleted = table.column(part_codec.DELETED).to_numpy()
    due = due_times(rows.column(schema.due), deleted)
    return Run(table.column(part_codec.HASH).to_numpy(), rows, deleted if deleted.any() else None, due)
