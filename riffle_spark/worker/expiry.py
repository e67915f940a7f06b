"""Keys whose time has come, in stores of columns: found, given to the computation once, and gone unless it keeps them.
Knows changes and stacks. Does not know objects.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from riffle_spark.messages.slot_orders import Order
from riffle_spark.process.blocks.block import BlockComputation
from riffle_spark.state.copies.run import DueRows, Run, RunsOfKeyGroup, due_rows, first_due_ms, newest_by_group
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.due_times import NEVER_MS, due_times
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.worker import run_computation
from riffle_spark.worker.input import TouchedKeys, spans_of
from riffle_spark.worker.seal import SlotResult, StateChanges

__all__ = ["with_expired"]


def with_expired(
    order: Order, schema: PlainColumns, compute: BlockComputation, stacks: Mapping[int, OpenStack],
    entries: Mapping[int, Entry], result: SlotResult,
) -> SlotResult:  # fmt: skip
    """Return what became of a slot's rows, and of the keys that are due then, and when key-groups that changed are due
    next. ``stacks`` and ``entries`` are those of the touched key-groups and of those with something due.
    """
    first_ms = {kg: NEVER_MS if entry.timer_ms is None else entry.timer_ms for kg, entry in entries.items()}
    changes, outputs, count = result.changes, [result.output], 0
    groups = _groups(schema, changes, stacks, first_ms)
    for until_ms, watermark_ms in order.times.passes:
        due = due_rows(schema, [one for one in groups if one.first_ms <= until_ms], until_ms)
        first_ms = {key_group: max(ms, until_ms + 1) for key_group, ms in first_ms.items()}
        if due.rows.num_rows:
            touched, state = _touched(schema, due), due.rows.select(schema.state.names)
            gone = run_computation.run_on_due(order, compute, touched, state, watermark_ms)
            changes = _laid_over(schema, run_computation.changes_of(schema, touched, gone), changes)
            groups = _groups(schema, changes, stacks, first_ms)
            outputs.append(gone.output)
            count += due.rows.num_rows
    changed = set(changes.key_groups.tolist())
    timers = first_due_ms(schema, [one for one in groups if one.key_group in changed])
    return SlotResult(pa.concat_tables(outputs), replace(changes, timers=timers), expired=count)


def _groups(
    schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack], first_ms: Mapping[int, int]
) -> list[RunsOfKeyGroup]:
    """Return the runs of each key-group, what this batch changed as the newest of them."""
    of_batch = {key_group: _run(schema, table) for key_group, table in changes.parts()}
    groups = []
    for key_group, ms in sorted(first_ms.items()):
        runs = stacks[key_group].runs if key_group in stacks else ()
        run = of_batch.get(key_group)
        if run is not None and run.due is not None:
            runs, ms = (run, *runs), min(ms, run.due.ms_at(0))  # noqa: PLW2901 - what changed may be due before
        groups.append(RunsOfKeyGroup(key_group, runs, ms))
    return groups


def _run(schema: PlainColumns, table: pa.Table) -> Run:
    """Return one key-group's changes as a run."""
    rows = table.select(schema.row_schema.names).cast(schema.row_schema).combine_chunks().to_batches()[0]
    deleted = table.column(part_codec.DELETED).to_numpy()
    due = due_times(rows.column(schema.due), deleted)
    return Run(table.column(part_codec.HASH).to_numpy(), rows, deleted if deleted.any() else None, due)


def _touched(schema: PlainColumns, due: DueRows) -> TouchedKeys:
    nothing = np.empty(0, np.int64)
    return TouchedKeys(due.rows.select(schema.key.names), due.hashes, due.key_groups, nothing, spans_of(due.key_groups))


def _laid_over(schema: PlainColumns, above: StateChanges, below: StateChanges) -> StateChanges:
    """Return the changes of both, those above where a key is in both."""
    table = pa.concat_tables([above.table, below.table]).combine_chunks()
    key_groups = np.concatenate([above.key_groups, below.key_groups])
    once = newest_by_group(table.column(part_codec.HASH).to_numpy(), table.select(schema.key.names), key_groups)
    return StateChanges(table.take(pa.array(once)), key_groups[once])
