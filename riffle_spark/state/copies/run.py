"""Rows sorted by the hash of their key: what stacks of them hold of some keys, and all of them as one. Knows NumPy and
Arrow. Does not know files.

Theory of operation. Keys are found by their 64-bit hash: one binary search for all of a key-group's in each run, the
newest first. That two keys have one hash is never assumed away: each row that was found is compared with the key that
was asked for, column by column, and where one differs its key is looked for among all rows of that hash.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.state.formats.due_times import DueTimes
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.part_codec import DELETED, HASH

__all__ = ["Hashes", "Indices", "Run", "WantedKeys", "differing", "look_up", "merged", "newest_by_group"]

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """One or more rows, key columns first, with their hashes, ascending; ``deleted`` says which only remove their
    key, ``due`` when rows are due, in stores with a due column.
    """

    hashes: Hashes
    rows: pa.RecordBatch
    deleted: Mask | None = None
    due: DueTimes | None = None


class WantedKeys(NamedTuple):
    """Keys of a key-group, ``start`` to ``end`` of those asked for, and the runs it may be in, the newest first."""

    start: int
    end: int
    runs: Sequence[Run]


def differing(one: pa.Table, other: pa.Table) -> Indices:
    """Return the rows in which two tables of keys differ: null is equal to null, NaN to NaN, -0.0 to 0.0."""
    same = np.ones(one.num_rows, dtype=np.bool_)
    for left, right in zip(map(one_array, one.columns), map(one_array, other.columns), strict=True):
        if pa.types.is_floating(left.type):
            left, right = encode_keys([left]), encode_keys([right])  # noqa: PLW2901 - the same values
        equal = pc.equal(left, right)
        if equal.null_count:
            equal = pc.if_else(equal.is_valid(), equal, pc.and_(left.is_null(), right.is_null()))
        same &= equal.to_numpy(zero_copy_only=False)
    return np.flatnonzero(~same)


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
            gone.append(_deleted(run, at))
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


def _deleted(run: Run, at: Indices) -> Mask:
    return np.zeros(len(at), dtype=np.bool_) if run.deleted is None else run.deleted[at]


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
                return row, bool(run.deleted is not None and run.deleted[side])
    nothing = [pa.nulls(1, field.type) for field in rows]
    return pa.RecordBatch.from_arrays(nothing, names=rows.names), True


def merged(runs: Sequence[Run], keys: Sequence[str], rows: pa.Schema, *, bottom: bool) -> pa.Table:
    """Return the newest row of each key in runs of columns ``rows``, the newest run first, as a part has them.

    At the ``bottom`` of a stack there is nothing that a deleted row could hide: such rows are left out.
    """
    hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(run.hashes for run in runs)])
    table = pa.Table.from_batches([run.rows for run in runs], rows).combine_chunks()
    deleted = np.concatenate(
        [np.empty(0, dtype=np.bool_), *(_deleted(run, np.arange(len(run.hashes))) for run in runs)]
    )
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
    once = _newest(hashes, keys.append_column("", pa.array(key_groups)))
    return once[np.argsort(key_groups[once], kind="stable")]


def _newest(hashes: Hashes, keys: pa.Table) -> Indices:
    """Return the first row of each key, by hash and, where keys share one, by stored key."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    again = np.flatnonzero(~is_first)
    if not len(again):
        return order
    first = order[is_first][np.cumsum(is_first)[again] - 1]
    if not len(differing(keys.take(pa.array(order[again])), keys.take(pa.array(first)))):
        return order[is_first]
    ranks = pc.rank(encode_keys(keys.columns), tiebreaker="dense").to_numpy().astype(np.int64)
    order = np.lexsort((ranks, hashes))
    is_first[1:] = (hashes[order][1:] != hashes[order][:-1]) | (ranks[order][1:] != ranks[order][:-1])
    return order[is_first]
