"""Rows sorted by the hash of their key: what stacks of them hold of some keys, all of them as one, and which are due.
Knows NumPy and Arrow. Does not know files or clocks.

Theory of operation. Keys are found by their 64-bit hash: one binary search for all of a key-group's in each run, the
newest first. That two keys have one hash is never assumed away: each row that was found is compared with the key that
was asked for, column by column, and where one differs its key is looked for among all rows of that hash.

What is due is found at its own cost: each run finds its due rows by their order. Some are not their key's newest: a
newer run may have moved the time, or deleted the key. So the newest row of each key that was found is looked up, and
its time counts. What was due before a key-group's ``first_ms`` needs no look: below that nothing lives, and such rows
count as deleted wherever they are met, since keys that ended need not have left one which says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.state.formats.due_times import NEVER_MS, DueTimes, in_milliseconds
from riffle_spark.state.formats.key_codec import differing, encode_keys, with_one_zero
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = [
    "DueRows", "Hashes", "Indices", "Run", "RunsOfKeyGroup", "WantedKeys", "due_rows", "first_due_ms",
    "known_first_ms", "look_up", "merged", "newest_by_group",
]  # fmt: skip

_MORE = 8
_GROUP_BITS = 15
"""There are at most 32 768 key-groups."""

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """One or more rows, key columns first, with their hashes, ascending; ``deleted`` says which only remove their
    key, ``due`` when rows are due, in stores with a due column. What is due before ``first_ms`` is gone.
    """

    hashes: Hashes
    rows: pa.RecordBatch
    deleted: Mask | None = None
    due: DueTimes | None = None
    first_ms: int = field(default=-NEVER_MS, kw_only=True)

    def gone(self, at: Indices) -> Mask:
        """Tell which of some rows hold nothing of their key."""
        deleted = np.zeros(len(at), dtype=np.bool_) if self.deleted is None else self.deleted[at]
        return deleted if self.due is None else deleted | self.due.before(self.first_ms, at)


class WantedKeys(NamedTuple):
    """Keys of a key-group, ``start`` to ``end`` of those asked for, and the runs it may be in, the newest first."""

    start: int
    end: int
    runs: Sequence[Run]


def look_up(wanted: Sequence[WantedKeys], hashes: Hashes, keys: pa.Table, rows: pa.Schema) -> tuple[pa.Table, Mask]:
    """Return the newest row of each key, row for row (nulls where there is none), and which keys have one.

    ``hashes`` are those of ``keys``, ``rows`` are the columns of the runs.
    """
    places: list[Indices] = [np.empty(0, dtype=np.int64)]
    batches: list[pa.RecordBatch] = []
    gone: list[Mask] = [np.empty(0, dtype=np.bool_)]
    for one in wanted:
        for run, at, place in _found(one, hashes):
            places.append(place)
            batches.append(run.rows.take(pa.array(at)))
            gone.append(run.gone(at))
    place, deleted = np.concatenate(places), np.concatenate(gone)
    table = pa.Table.from_batches(batches, rows).combine_chunks()
    wrong = differing(table.select(keys.column_names), keys.take(pa.array(place)))
    for at in wrong.tolist():
        batch, deleted[at] = _exactly(wanted, int(place[at]), hashes, keys, rows)
        table = pa.concat_tables([table.slice(0, at), pa.Table.from_batches([batch]), table.slice(at + 1)])
    row_of = np.full(len(hashes), -1, dtype=np.int64)
    row_of[place] = np.where(deleted, -1, np.arange(len(place)))
    found = row_of >= 0
    return table.combine_chunks().take(pa.array(row_of, mask=~found)), found


def _found(one: WantedKeys, hashes: Hashes) -> Iterable[tuple[Run, Indices, Indices]]:
    """Yield each run that has some of the hashes and no newer one has, with its rows and the places of the keys."""
    place, left = np.arange(one.start, one.end), hashes[one.start : one.end]
    for run in one.runs:
        at = np.searchsorted(run.hashes, left)
        np.minimum(at, len(run.hashes) - 1, out=at)
        hit = run.hashes[at] == left
        if hit.all():
            yield run, at, place
            return
        if hit.any():
            yield run, at[hit], place[hit]
            place, left = place[~hit], left[~hit]


def _exactly(
    wanted: Sequence[WantedKeys], place: int, hashes: Hashes, keys: pa.Table, rows: pa.Schema
) -> tuple[pa.RecordBatch, bool]:
    """Return the newest row of a key whose hash is that of another one too, and whether it is deleted, or not there."""
    (runs,) = (one.runs for one in wanted if one.start <= place < one.end)
    key = encode_keys(keys.slice(place, 1).columns)[0]
    for run in runs:
        for side in range(*(int(np.searchsorted(run.hashes, hashes[place], side=side)) for side in ("left", "right"))):
            row = run.rows.slice(side, 1)
            if encode_keys(row.select(keys.column_names).columns)[0] == key:
                return row, bool(run.gone(np.array([side]))[0])
    nothing = [pa.nulls(1, field.type) for field in rows]
    return pa.RecordBatch.from_arrays(nothing, names=rows.names), True


def merged(runs: Sequence[Run], keys: Sequence[str], rows: pa.Schema, *, bottom: bool) -> pa.Table:
    """Return the newest row of each key in runs of columns ``rows``, the newest run first, as a part has them.

    At the ``bottom`` of a stack there is nothing that a deleted row could hide: such rows are left out.
    """
    hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(run.hashes for run in runs)])
    table = pa.Table.from_batches([run.rows for run in runs], rows).combine_chunks()
    deleted = np.concatenate([np.empty(0, dtype=np.bool_), *(run.gone(np.arange(len(run.hashes))) for run in runs)])
    picked = _newest(hashes, table.select(keys))
    if bottom:
        picked = picked[~deleted[picked]]
    columns = [pa.array(hashes[picked]), *table.take(pa.array(picked)).columns]
    schema = pa.schema([pa.field(HASH, pa.uint64()), *rows])
    if not bottom:
        columns, schema = [*columns, pa.array(deleted[picked])], schema.append(pa.field(DELETED, pa.bool_()))
    return pa.Table.from_arrays(columns, schema=schema)


def newest_by_group(hashes: Hashes, keys: pa.Table, key_groups: npt.NDArray[np.int32]) -> Indices:
    """Return the first row of each key of each key-group, by key-group and hash."""
    # Rows that lie in this order nearly, as those of two parts do one after the other, are sorted in no time.
    words = (key_groups.astype(np.uint64) << np.uint64(64 - _GROUP_BITS)) | (hashes >> np.uint64(_GROUP_BITS))
    order = np.argsort(words, kind="stable")
    ordered, words = hashes[order], words[order]
    if np.any((words[1:] == words[:-1]) & (ordered[1:] != ordered[:-1])):
        order = np.lexsort((hashes, key_groups))
    return _first_rows(order, hashes, keys, key_groups)


def _newest(hashes: Hashes, keys: pa.Table) -> Indices:
    """Return the first row of each key, by hash and, where keys share one, by stored key."""
    return _first_rows(np.argsort(hashes, kind="stable"), hashes, keys, np.zeros(len(hashes), dtype=np.int32))


def _first_rows(order: Indices, hashes: Hashes, keys: pa.Table, key_groups: npt.NDArray[np.int32]) -> Indices:
    """Return those rows of an order by key-group and hash that are the first of their key."""
    is_first = _begins(hashes[order], key_groups[order])
    again = np.flatnonzero(~is_first)
    if not len(again):
        return order
    first = order[is_first][np.cumsum(is_first)[again] - 1]
    if not len(differing(keys.take(pa.array(order[again])), keys.take(pa.array(first)))):
        return order[is_first]
    ranks = pc.rank(encode_keys(keys.columns), tiebreaker="dense").to_numpy().astype(np.int64)
    order = np.lexsort((ranks, hashes, key_groups))
    return order[_begins(hashes[order], key_groups[order], ranks[order])]


def _begins(*columns: npt.NDArray[np.generic]) -> Mask:
    """Tell which rows differ from the one before them."""
    begins = np.ones(len(columns[0]), dtype=np.bool_)
    begins[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return begins


class RunsOfKeyGroup(NamedTuple):
    """A key-group's runs, the newest first; nothing in them is due before ``first_ms``."""

    key_group: int
    runs: Sequence[Run]
    first_ms: int


class DueRows(NamedTuple):
    """The newest rows of keys, by key-group and hash, and when each is due (ms)."""

    rows: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    due_ms: Indices


def due_rows(schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], until_ms: int) -> DueRows:
    """Return the rows that are due by then. Key-groups ascend."""
    rows, hashes, key_groups, due_ms = _newest_rows(
        schema, groups, [[_due(run).between(one.first_ms, until_ms) for run in one.runs] for one in groups]
    )
    is_due = due_ms <= until_ms
    return DueRows(rows.filter(pa.array(is_due)), hashes[is_due], key_groups[is_due], due_ms[is_due])


def first_due_ms(schema: PlainColumns, groups: Sequence[RunsOfKeyGroup]) -> dict[int, int | None]:
    """Return when the first row of each key-group is due, ``None`` where none ever is. Key-groups ascend."""
    key_groups = np.array([one.key_group for one in groups], np.int32)
    least = np.full(len(groups), NEVER_MS)
    places = [[_due(run).position(one.first_ms) for run in one.runs] for one in groups]
    left, count = list(range(len(groups))), 1
    while left:
        ahead = [
            [_due(run).order[at : at + count] for run, at in zip(groups[n].runs, places[n], strict=True)] for n in left
        ]
        found = _newest_rows(schema, [groups[n] for n in left], ahead)
        np.minimum.at(least, np.searchsorted(key_groups, found.key_groups), found.due_ms)
        for n in left:
            places[n] = [at + count for at in places[n]]
        left = [n for n in left if least[n] > _unseen_ms(groups[n], places[n])]
        count *= _MORE
    return {one.key_group: None if ms == NEVER_MS else int(ms) for one, ms in zip(groups, least, strict=True)}


def known_first_ms(hashes: Hashes, least_ms: int, below: RunsOfKeyGroup) -> int | None:
    """Return when the first row of a key-group is due whose newest rows have these hashes, and are due from
    ``least_ms`` on; ``None`` if that cannot be told without looking at keys.

    Nobody has moved or deleted what is due first if no newer row has its hash.
    """
    places = [_due(run).position(below.first_ms) for run in below.runs]
    first_ms = _unseen_ms(below, places)
    if least_ms <= first_ms:
        return least_ms
    newer = [hashes]
    for run, place in zip(below.runs, places, strict=True):
        due = _due(run)
        if due.ms_at(place) == first_ms and not any(_has(some, run.hashes[due.order[place]]) for some in newer):
            return first_ms
        newer.append(run.hashes)
    return None


def _has(hashes: Hashes, one: np.uint64) -> bool:
    at = hashes.searchsorted(one)
    return bool(at < len(hashes) and hashes[at] == one)


def _due(run: Run) -> DueTimes:
    assert run.due is not None, "runs of a store with a due column have due times"
    return run.due


def _unseen_ms(one: RunsOfKeyGroup, places: Sequence[int]) -> int:
    """Return when the first row is due that was not looked at yet."""
    return min((_due(run).ms_at(at) for run, at in zip(one.runs, places, strict=True)), default=NEVER_MS)


def _newest_rows(
    schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], numbers: Sequence[Sequence[npt.NDArray[np.uint32]]]
) -> DueRows:
    """Return the newest row of each key that some rows of some runs have, of those that are not deleted."""
    names = schema.key.names
    some = [
        (one.key_group, run, rows)
        for one, of_runs in zip(groups, numbers, strict=True)
        for run, rows in zip(one.runs, of_runs, strict=True)
        if len(rows)
    ]
    batches = [run.rows.select(names).take(pa.array(rows)) for _, run, rows in some]
    keys = pa.Table.from_batches(batches, schema.key).combine_chunks()
    hashes = np.concatenate([np.empty(0, np.uint64), *(run.hashes[rows] for _, run, rows in some)])
    of_row = np.repeat(np.array([kg for kg, _, _ in some], np.int32), [len(rows) for _, _, rows in some])
    once = newest_by_group(hashes, keys, of_row)
    keys, hashes, of_row = keys.take(pa.array(once)), hashes[once], of_row[once]
    ends = np.searchsorted(of_row, [one.key_group + 1 for one in groups])
    starts = np.searchsorted(of_row, [one.key_group for one in groups])
    wanted = [WantedKeys(int(start), int(end), one.runs) for one, start, end in zip(groups, starts, ends, strict=True)]
    rows, is_there = look_up(wanted, hashes, keys, schema.row_schema)
    rows = with_one_zero(rows.filter(pa.array(is_there)), names)  # parts of old may have others
    column = one_array(rows.column(str(schema.due)))
    due_ms = np.where(column.is_valid().to_numpy(zero_copy_only=False), in_milliseconds(column), NEVER_MS)
    return DueRows(rows, hashes[is_there], of_row[is_there], due_ms)
