"""Rows sorted by the hash of their key: key lookup, merges and due rows.

Theory of operation.

1. A run holds the rows of one part, sorted by the 64-bit hash of their key. One binary search finds all requested keys
   of a key-group in a run. Runs are searched newest first.
2. Two keys may have the same hash. So each row is compared with the requested key, column by column. If they differ,
   all rows with that hash are searched for the key.
3. A run finds its due rows by their order, so the cost depends on the due rows alone. Some of them are not current,
   because a newer run moved the time or deleted the key. So the newest row of each such key is looked up, and its time
   counts.
4. Rows that are due before a key-group's ``first_ms`` are expired and count as deleted. Expired keys need no row that
   deletes them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.state.formats.due_times import NEVER_MS, DueTimes, in_milliseconds
from riffle_spark.state.formats.key_codec import encode_keys, find_differing_rows, normalise_zeros
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = [
    "DueRows",
    "Hashes",
    "Indices",
    "RequestedKeys",
    "Run",
    "RunsOfKeyGroup",
    "find_due_rows",
    "find_first_due_ms",
    "find_first_ms_by_hash",
    "find_newest_by_group",
    "look_up_keys",
    "merge_runs",
]

_GROWTH: Final = 8
_GROUP_BITS: Final = 15
"""There are at most 32 768 key-groups."""

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows with the key columns first, and their hashes in ascending order.

    ``deleted`` marks rows that only remove their key. ``due`` holds due times, in stores with a due column. Rows that
    are due before ``first_ms`` are expired.
    """

    hashes: Hashes
    rows: pa.RecordBatch
    deleted: Mask | None = None
    due: DueTimes | None = None
    first_ms: int = field(default=-NEVER_MS, kw_only=True)

    def are_gone(self, rows: Indices) -> Mask:
        """Return a mask of these rows that are deleted or expired."""
        deleted = np.zeros(len(rows), dtype=np.bool_) if self.deleted is None else self.deleted[rows]
        return deleted if self.due is None else deleted | self.due.mask_due_before(self.first_ms, rows)


class RequestedKeys(NamedTuple):
    """A key-group's requested keys, ``start`` up to ``end`` of all requested keys, and its runs, newest first."""

    start: int
    end: int
    runs: Sequence[Run]


def look_up_keys(
    groups: Sequence[RequestedKeys], hashes: Hashes, keys: pa.Table, rows: pa.Schema
) -> tuple[pa.Table, Mask]:
    """Return the newest row of each of ``keys``, in their order with nulls for absent keys, and a mask of the keys that
    exist.

    ``hashes`` are the hashes of ``keys``. ``rows`` are the columns of the runs.
    """
    places: list[Indices] = [np.empty(0, dtype=np.int64)]
    batches: list[pa.RecordBatch] = []
    gone_masks: list[Mask] = [np.empty(0, dtype=np.bool_)]
    for group in groups:
        for run, run_rows, place in _find_hashes(group, hashes):
            places.append(place)
            batches.append(run.rows.take(pa.array(run_rows)))
            gone_masks.append(run.are_gone(run_rows))
    place = np.concatenate(places)
    is_gone = np.concatenate(gone_masks)
    table = pa.Table.from_batches(batches, rows).combine_chunks()
    wrong = find_differing_rows(table.select(keys.column_names), keys.take(pa.array(place)))
    for row in wrong.tolist():
        batch, is_gone[row] = _find_colliding_key(groups, int(place[row]), hashes, keys, rows)
        table = pa.concat_tables([table.slice(0, row), pa.Table.from_batches([batch]), table.slice(row + 1)])
    row_numbers = np.full(len(hashes), -1, dtype=np.int64)
    row_numbers[place] = np.where(is_gone, -1, np.arange(len(place)))
    exists = row_numbers >= 0
    return table.combine_chunks().take(pa.array(row_numbers, mask=~exists)), exists


def _find_hashes(group: RequestedKeys, hashes: Hashes) -> Iterable[tuple[Run, Indices, Indices]]:
    """Yield each run that is the newest with some of the hashes, with its rows and the numbers of their keys."""
    place = np.arange(group.start, group.end)
    missing = hashes[group.start : group.end]
    for run in group.runs:
        rows = np.searchsorted(run.hashes, missing)
        np.minimum(rows, len(run.hashes) - 1, out=rows)
        hit = run.hashes[rows] == missing
        if hit.all():
            yield run, rows, place
            return
        if hit.any():
            yield run, rows[hit], place[hit]
            place = place[~hit]
            missing = missing[~hit]


def _find_colliding_key(
    groups: Sequence[RequestedKeys], place: int, hashes: Hashes, keys: pa.Table, rows: pa.Schema
) -> tuple[pa.RecordBatch, bool]:
    """Return the newest row of a key that shares its hash with another key, and whether it is deleted or absent."""
    (runs,) = (group.runs for group in groups if group.start <= place < group.end)
    key = encode_keys(keys.slice(place, 1).columns)[0]
    for run in runs:
        start = int(np.searchsorted(run.hashes, hashes[place], side="left"))
        end = int(np.searchsorted(run.hashes, hashes[place], side="right"))
        for number in range(start, end):
            row = run.rows.slice(number, 1)
            if encode_keys(row.select(keys.column_names).columns)[0] == key:
                return row, bool(run.are_gone(np.array([number]))[0])
    nulls = [pa.nulls(1, field.type) for field in rows]
    return pa.RecordBatch.from_arrays(nulls, names=rows.names), True


def merge_runs(runs: Sequence[Run], keys: Sequence[str], rows: pa.Schema, *, bottom: bool) -> pa.Table:
    """Return the newest row of each key in runs of columns ``rows``, newest run first, with the columns of a part.

    At the ``bottom`` of a stack no older rows exist, so deleted rows are left out.
    """
    hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(run.hashes for run in runs)])
    table = pa.Table.from_batches([run.rows for run in runs], rows).combine_chunks()
    gone_masks = [run.are_gone(np.arange(len(run.hashes))) for run in runs]
    is_gone = np.concatenate([np.empty(0, dtype=np.bool_), *gone_masks])
    picked = _find_newest(hashes, table.select(keys))
    if bottom:
        picked = picked[~is_gone[picked]]
    columns = [pa.array(hashes[picked]), *table.take(pa.array(picked)).columns]
    schema = pa.schema([pa.field(HASH, pa.uint64()), *rows])
    if not bottom:
        columns.append(pa.array(is_gone[picked]))
        schema = schema.append(pa.field(DELETED, pa.bool_()))
    return pa.Table.from_arrays(columns, schema=schema)


def find_newest_by_group(hashes: Hashes, keys: pa.Table, key_groups: npt.NDArray[np.int32]) -> Indices:
    """Return the number of the first row of each key of each key-group, by key-group and hash.

    Rows are given newest first.
    """
    # A stable sort is fast if rows are nearly in this order, as those of two concatenated parts are.
    words = (key_groups.astype(np.uint64) << np.uint64(64 - _GROUP_BITS)) | (hashes >> np.uint64(_GROUP_BITS))
    order = np.argsort(words, kind="stable")
    ordered = hashes[order]
    words = words[order]
    if np.any((words[1:] == words[:-1]) & (ordered[1:] != ordered[:-1])):
        order = np.lexsort((hashes, key_groups))
    return _first_rows(order, hashes, keys, key_groups)


def _find_newest(hashes: Hashes, keys: pa.Table) -> Indices:
    """Return the number of the first row of each key, by hash and, if hashes collide, by stored key."""
    return _first_rows(np.argsort(hashes, kind="stable"), hashes, keys, np.zeros(len(hashes), dtype=np.int32))


def _first_rows(order: Indices, hashes: Hashes, keys: pa.Table, key_groups: npt.NDArray[np.int32]) -> Indices:
    """Return the first row of each key, in an order by key-group and hash."""
    is_first = _differ_from_previous(hashes[order], key_groups[order])
    repeated = np.flatnonzero(~is_first)
    if not len(repeated):
        return order
    first = order[is_first][np.cumsum(is_first)[repeated] - 1]
    if not len(find_differing_rows(keys.take(pa.array(order[repeated])), keys.take(pa.array(first)))):
        return order[is_first]
    ranks = pc.rank(encode_keys(keys.columns), tiebreaker="dense").to_numpy().astype(np.int64)
    order = np.lexsort((ranks, hashes, key_groups))
    return order[_differ_from_previous(hashes[order], key_groups[order], ranks[order])]


def _differ_from_previous(*columns: npt.NDArray[np.generic]) -> Mask:
    """Return a mask of the rows that differ from the row before. The first row counts as different."""
    differ = np.ones(len(columns[0]), dtype=np.bool_)
    differ[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differ


class RunsOfKeyGroup(NamedTuple):
    """A key-group's runs, newest first. Nothing in them is due before ``first_ms``."""

    key_group: int
    runs: Sequence[Run]
    first_ms: int


class DueRows(NamedTuple):
    """The newest rows of keys, by key-group and hash, and their due times (ms)."""

    rows: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    due_ms: Indices


def find_due_rows(schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], until_ms: int) -> DueRows:
    """Return the newest rows that are due until ``until_ms``.

    Key-groups must ascend. Rows that are replaced or deleted are left out.
    """
    candidates = [
        [_due_times_of(run).find_due_between(group.first_ms, until_ms) for run in group.runs] for group in groups
    ]
    rows, hashes, key_groups, due_ms = _newest_rows(schema, groups, candidates)
    is_due = due_ms <= until_ms
    return DueRows(rows.filter(pa.array(is_due)), hashes[is_due], key_groups[is_due], due_ms[is_due])


def find_first_due_ms(schema: PlainColumns, groups: Sequence[RunsOfKeyGroup]) -> dict[int, int | None]:
    """Return when the first row of each key-group is due, ``None`` if none ever is. Key-groups must ascend."""
    key_groups = np.array([group.key_group for group in groups], np.int32)
    least = np.full(len(groups), NEVER_MS)
    positions = [[_due_times_of(run).find_position(group.first_ms) for run in group.runs] for group in groups]
    open_groups = list(range(len(groups)))
    count = 1
    while open_groups:
        candidates = [
            [
                _due_times_of(run).order[position : position + count]
                for run, position in zip(groups[n].runs, positions[n], strict=True)
            ]
            for n in open_groups
        ]
        newest = _newest_rows(schema, [groups[n] for n in open_groups], candidates)
        np.minimum.at(least, np.searchsorted(key_groups, newest.key_groups), newest.due_ms)
        for n in open_groups:
            positions[n] = [position + count for position in positions[n]]
        open_groups = [n for n in open_groups if least[n] > _next_candidate_ms(groups[n], positions[n])]
        count *= _GROWTH
    return {group.key_group: None if ms == NEVER_MS else int(ms) for group, ms in zip(groups, least, strict=True)}


def find_first_ms_by_hash(hashes: Hashes, least_ms: int, below: RunsOfKeyGroup) -> int | None:
    """Return when the first row of a key-group is due, or ``None`` if that cannot be known without comparing keys.

    ``hashes`` are the hashes of the key-group's changed keys, which are due from ``least_ms`` on. The first due row of
    the older runs ``below`` is current if no newer row has its hash.
    """
    positions = [_due_times_of(run).find_position(below.first_ms) for run in below.runs]
    first_ms = _next_candidate_ms(below, positions)
    if least_ms <= first_ms:
        return least_ms
    newer = [hashes]
    for run, position in zip(below.runs, positions, strict=True):
        due = _due_times_of(run)
        if due.ms_at(position) == first_ms:
            hash_ = run.hashes[due.order[position]]
            if not any(_contains_hash(hashes_of_newer, hash_) for hashes_of_newer in newer):
                return first_ms
        newer.append(run.hashes)
    return None


def _contains_hash(hashes: Hashes, hash_: np.uint64) -> bool:
    """Return whether sorted hashes contain a hash."""
    place = hashes.searchsorted(hash_)
    return bool(place < len(hashes) and hashes[place] == hash_)


def _due_times_of(run: Run) -> DueTimes:
    """Return the due times of a run of a store with a due column."""
    assert run.due is not None, "runs of a store with a due column have due times"
    return run.due


def _next_candidate_ms(group: RunsOfKeyGroup, positions: Sequence[int]) -> int:
    """Return the least due time from these positions of the runs' orders on."""
    return min(
        (_due_times_of(run).ms_at(position) for run, position in zip(group.runs, positions, strict=True)),
        default=NEVER_MS,
    )


def _newest_rows(
    schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], numbers: Sequence[Sequence[npt.NDArray[np.uint32]]]
) -> DueRows:
    """Return the newest row of each key that the numbered rows of each run of each group have, if it is not deleted."""
    names = schema.key.names
    candidates = [
        (group.key_group, run, rows)
        for group, numbers_by_run in zip(groups, numbers, strict=True)
        for run, rows in zip(group.runs, numbers_by_run, strict=True)
        if len(rows)
    ]
    batches = [run.rows.select(names).take(pa.array(rows)) for _, run, rows in candidates]
    keys = pa.Table.from_batches(batches, schema.key).combine_chunks()
    hashes = np.concatenate([np.empty(0, np.uint64), *(run.hashes[rows] for _, run, rows in candidates)])
    counts = [len(rows) for _, _, rows in candidates]
    key_groups = np.repeat(np.array([key_group for key_group, _, _ in candidates], np.int32), counts)
    unique = find_newest_by_group(hashes, keys, key_groups)
    keys = keys.take(pa.array(unique))
    hashes = hashes[unique]
    key_groups = key_groups[unique]
    ends = np.searchsorted(key_groups, [group.key_group + 1 for group in groups])
    starts = np.searchsorted(key_groups, [group.key_group for group in groups])
    requested = [
        RequestedKeys(int(start), int(end), group.runs) for group, start, end in zip(groups, starts, ends, strict=True)
    ]
    rows, exists = look_up_keys(requested, hashes, keys, schema.row_schema)
    rows = normalise_zeros(rows.filter(pa.array(exists)), names)  # old parts may hold -0.0 or other NaNs
    column = one_array(rows.column(str(schema.due)))
    due_ms = np.where(column.is_valid().to_numpy(zero_copy_only=False), in_milliseconds(column), NEVER_MS)
    return DueRows(rows, hashes[exists], key_groups[exists], due_ms)
