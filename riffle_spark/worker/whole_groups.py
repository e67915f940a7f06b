"""Seal the whole state of key-groups of which a batch changed most rows.

Theory of operation. A delta with the whole state of a key-group needs nothing before it. So the chain of the key-group
starts again with this delta, and the key-group needs no snapshot and no merge. A snapshot would be due each time the
changes have as many rows as the state. So if a batch changes half of the rows or more, whole deltas write no more rows
than deltas and their snapshots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from riffle_spark.columns import positions_of
from riffle_spark.state.copies.run import Run, RunBlock, RunsOfKeyGroup, merge_groups
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.due_times import NEVER_MS, compute_due_times, first_ms_of
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.worker.input import spans_of
from riffle_spark.worker.seal import StateChanges

__all__ = ["with_whole_groups"]

_ROWS_MIN: Final = 128
"""Key-groups with fewer changed rows keep their deltas: their chains need few snapshots."""
_CHANGED_SHARE: Final = 0.5

Spans = Sequence[tuple[int, int, int]]


def with_whole_groups(schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack]) -> StateChanges:
    """Return the changes with the whole state of each key-group that changed in most rows.

    ``stacks`` holds the state before the changes. Key-groups with few changed rows stay as they are.
    """
    spans = spans_of(changes.key_groups)
    if not spans:
        return changes
    is_live = ~changes.table.column(part_codec.DELETED).to_numpy()
    live_counts = np.add.reduceat(is_live, [start for _, start, _ in spans], dtype=np.int64).tolist()
    whole_spans = [
        span
        for span, count in zip(spans, live_counts, strict=True)
        if count >= _ROWS_MIN and span[0] in stacks and count >= _CHANGED_SHARE * _count_rows(stacks[span[0]].runs)
    ]
    if not whole_spans:
        return changes
    groups = _stack_groups(schema, changes, stacks, spans, whole_spans)
    rows, key_groups = merge_groups(groups, schema.key.names, schema.row_schema, bottom=True)
    rows = rows.append_column(part_codec.DELETED, pa.array(np.zeros(len(key_groups), np.bool_)))
    table = cast_table(rows, changes.table.schema)
    whole = frozenset(key_group for key_group, _, _ in whole_spans)
    if len(whole) < len(spans):
        is_delta = ~np.isin(changes.key_groups, list(whole))
        table = pa.concat_tables([changes.table.filter(pa.array(is_delta)), table])
        key_groups = np.concatenate([changes.key_groups[is_delta], key_groups])
        by_group = np.argsort(key_groups, kind="stable")
        table = table.combine_chunks().take(pa.array(by_group))
        key_groups = key_groups[by_group]
    return replace(changes, table=table.combine_chunks(), key_groups=key_groups, whole=whole)


def _count_rows(runs: Sequence[Run]) -> int:
    """Return the number of rows of all runs."""
    return sum(len(run.hashes) for run in runs)


def _stack_groups(
    schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack], spans: Spans, whole_spans: Spans
) -> list[RunsOfKeyGroup]:
    """Return the runs of the key-groups of ``whole_spans``, with the changes as the newest run.

    Rows that are due before the next due time of their key-group have expired. ``spans`` are those of all key-groups.
    """
    rows = cast_table(changes.table.select(schema.row_schema.names), schema.row_schema).combine_chunks().to_batches()[0]
    hashes = changes.table.column(part_codec.HASH).to_numpy()
    deleted = changes.table.column(part_codec.DELETED).to_numpy()
    no_order = np.empty(0, np.uint32)
    due = None if schema.due is None else compute_due_times(rows.column(schema.due), deleted, no_order)
    block = RunBlock(Run(hashes, rows, deleted, due), positions_of(np.array([end - start for _, start, end in spans])))
    numbers = {key_group: number for number, (key_group, _, _) in enumerate(spans)}
    groups: list[RunsOfKeyGroup] = []
    for key_group, start, end in whole_spans:
        number = numbers[key_group]
        newest = Run(hashes[start:end], rows, deleted[start:end], due, block=block, number=number)
        first_ms = first_ms_of(changes.timers.get(key_group)) if schema.due is not None else -NEVER_MS
        runs = [replace(run, first_ms=first_ms) for run in (newest, *stacks[key_group].runs)]
        groups.append(RunsOfKeyGroup(key_group, runs))
    return groups
