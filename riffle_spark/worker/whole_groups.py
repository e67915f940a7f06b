"""Seal the whole state of key-groups in which a batch changed most rows.

Theory of operation. A delta with the whole state of a key-group replaces its snapshot and its earlier links. So the
chain starts again with this delta, and the key-group needs no snapshot and no merge. Otherwise a snapshot is due each
time the changes have as many rows as the state. So if a batch changes at least half of the rows, whole deltas write no
more rows than deltas with snapshots.

Snapshots need the memory of one key-group at a time. The whole deltas of a slot are in memory together, and several
times. So a slot seals whole key-groups only up to ``_BYTES_MAX`` of rows. The others get snapshots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
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

_ROWS_MIN: Final = 128
"""Key-groups with fewer changed rows get normal deltas, because they need few snapshots."""
_CHANGED_SHARE: Final = 0.5
_BYTES_MAX: Final = 64 << 20
"""The limit for the bytes of rows, stored and changed, of the whole key-groups of a slot. They take about five times as
much memory."""

Spans = Sequence[tuple[int, int, int]]
KeyGroups = npt.NDArray[np.int32]


def with_whole_groups(schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack]) -> StateChanges:
    """Return the changes, with the whole state of each key-group in which most rows changed.

    ``stacks`` holds the state before the changes. Key-groups with few changed rows, or with too many bytes, are
    returned unchanged.
    """
    spans = spans_of(changes.key_groups)
    if not spans:
        return changes
    is_live = ~changes.table.column(part_codec.DELETED).to_numpy()
    live_counts = np.add.reduceat(is_live, [start for _, start, _ in spans], dtype=np.int64).tolist()
    stored_counts = {kg: sum(len(run.hashes) for run in stack.runs) for kg, stack in stacks.items()}
    whole_spans = [
        span
        for span, count in zip(spans, live_counts, strict=True)
        if count >= _ROWS_MIN and span[0] in stacks and count >= _CHANGED_SHARE * stored_counts[span[0]]
    ]
    chosen_spans = _limit_bytes(changes.table, whole_spans, stacks)
    if not chosen_spans:
        return changes
    groups = _stack_groups(schema, changes, stacks, spans, chosen_spans)
    rows, key_groups = merge_groups(groups, schema.key.names, schema.row_schema, bottom=True)
    rows = rows.append_column(part_codec.DELETED, pa.array(np.zeros(len(key_groups), np.bool_)))
    table = cast_table(rows, changes.table.schema)
    return _replace_groups(changes, spans, table, key_groups)


def _replace_groups(changes: StateChanges, spans: Spans, table: pa.Table, key_groups: KeyGroups) -> StateChanges:
    """Return the changes, with the rows of some key-groups replaced by their whole state in ``table``.

    ``key_groups`` has the key-group of each row of ``table``. ``spans`` has the rows of each key-group in the changes.
    """
    starts = {key_group: (start, end) for key_group, start, end in spans_of(key_groups)}
    pieces: list[pa.Table] = []
    groups: list[KeyGroups] = []
    for is_whole, adjacent in groupby(spans, lambda span: span[0] in starts):
        members = [*adjacent]
        first, last = members[0], members[-1]
        if is_whole:
            start, end = starts[first[0]][0], starts[last[0]][1]
            pieces.append(table.slice(start, end - start))
            groups.append(key_groups[start:end])
        else:
            pieces.append(changes.table.slice(first[1], last[2] - first[1]))
            groups.append(changes.key_groups[first[1] : last[2]])
    # The rows may be large, so they are copied only once.
    rows = pa.concat_tables(pieces).combine_chunks()
    return replace(changes, table=rows, key_groups=np.concatenate(groups), whole=frozenset(starts))


def _limit_bytes(table: pa.Table, spans: Spans, stacks: Mapping[int, OpenStack]) -> Spans:
    """Return the key-groups of ``spans`` that together have at most ``_BYTES_MAX`` of rows, stored and changed.

    The first key-groups are preferred, so that the same key-groups get whole deltas in each batch. ``table`` has the
    changes.
    """
    changed_bytes = table.nbytes / table.num_rows
    bytes_per_row: dict[int, float] = {}  # keyed by id() of the rows, because many key-groups share the rows of a block
    chosen: list[tuple[int, int, int]] = []
    total = 0.0
    for span in spans:
        key_group, start, end = span
        size = (end - start) * changed_bytes
        for run in stacks[key_group].runs:
            rows = run.rows if run.block is None else run.block.whole.rows
            if id(rows) not in bytes_per_row:
                bytes_per_row[id(rows)] = rows.nbytes / max(rows.num_rows, 1)
            size += len(run.hashes) * bytes_per_row[id(rows)]
        if total + size <= _BYTES_MAX:
            chosen.append(span)
            total += size
    return chosen


def _stack_groups(
    schema: PlainColumns, changes: StateChanges, stacks: Mapping[int, OpenStack], spans: Spans, whole_spans: Spans
) -> list[RunsOfKeyGroup]:
    """Return the runs of the key-groups of ``whole_spans``, with the changes as the newest run.

    ``spans`` has the rows of all key-groups. Rows that are due before the next due time of their key-group have
    expired, so they are left out.
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
        first_ms = -NEVER_MS if due is None else first_ms_of(changes.timers.get(key_group))
        newest = Run(hashes[start:end], rows, deleted[start:end], due, first_ms=first_ms, block=block, number=number)
        older: Sequence[Run] = stacks[key_group].runs
        if due is not None:
            older = [replace(run, first_ms=first_ms) for run in older]
        groups.append(RunsOfKeyGroup(key_group, [newest, *older]))
    return groups
