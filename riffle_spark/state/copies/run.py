"""Rows sorted by the hash of their key: key lookup, merges and due rows.

Theory of operation.

1. A run holds the rows of one part, sorted by the 64-bit hash of their key. Runs are searched newest first. One binary
   search finds all requested keys in a block, for all key-groups of the block. It searches for words: the number of the
   key-group in the block, followed by the upper bits of the hash.
2. Two keys may have the same hash. So each row is compared with the requested key, column by column. If they differ,
   all rows with this hash are searched for the key.
3. A run has an order of its due rows, so finding them takes time only for due rows. Some of them are not current,
   because a newer run changed the due time or deleted the key. So the newest row of each due key is looked up.
4. Rows that are due before a key-group's ``first_ms`` are expired and count as deleted. So no row has to delete expired
   keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Offsets, one_array, positions_of
from riffle_spark.state.formats.due_times import NEVER_MS, DueTimes, in_milliseconds
from riffle_spark.state.formats.key_codec import encode_keys, find_differing_rows, normalise_zeros
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.plain_columns import PlainColumns

_GROWTH: Final = 8
_GROUP_BITS: Final = 15
"""There are at most 32 768 key-groups."""

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows with the key columns first, in ascending order of their ``hashes``.

    ``deleted`` marks rows that delete their key. ``due`` has the due times in stores with a due column. Rows that are
    due before ``first_ms`` are expired. If the run is a slice of a block, ``block`` is the block, and ``number`` is the
    number of the key-group in it.
    """

    hashes: Hashes
    rows: pa.RecordBatch
    deleted: Mask | None = None
    due: DueTimes | None = None
    first_ms: int = field(default=-NEVER_MS, kw_only=True)
    block: "RunBlock | None" = field(default=None, kw_only=True)
    number: int = field(default=0, kw_only=True)

    def are_gone(self, rows: Indices) -> Mask:
        """Return a mask of ``rows``: which are deleted or expired."""
        return self.are_gone_by(None if self.due is None else self.due.last_value_before(self.first_ms), rows)

    def are_gone_by(self, last_values: int | Indices | None, rows: Indices) -> Mask:
        """Return a mask of ``rows``: which are deleted, or expired because they are due by ``last_values``."""
        deleted = np.zeros(len(rows), dtype=np.bool_) if self.deleted is None else self.deleted[rows]
        if self.due is None or last_values is None:
            return deleted
        return deleted | self.due.mask_due_by(last_values, rows)


@dataclass(frozen=True)
class RunBlock:
    """The rows of several key-groups as one run ``whole``.

    The rows of the key-group with number ``i`` are ``starts[i]`` up to ``starts[i + 1]``, sorted by hash.
    """

    whole: Run
    starts: Offsets

    @cached_property
    def words(self) -> Hashes:
        """The word of each row, in ascending order: the number of its key-group, then the upper bits of its hash."""
        if not self._number_bits:
            return self.whole.hashes
        return self._make_words(np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)), self.whole.hashes)

    @property
    def _number_bits(self) -> int:
        """The number of bits of a key-group's number."""
        return (len(self.starts) - 2).bit_length()

    def _make_words(self, numbers: Indices, hashes: Hashes) -> Hashes:
        """Return the words of rows, given the numbers of their key-groups and their hashes."""
        bits = self._number_bits
        if not bits:
            return hashes
        return (numbers.astype(np.uint64) << np.uint64(64 - bits)) | (hashes >> np.uint64(bits))

    def find_hashes(self, numbers: Indices, hashes: Hashes) -> tuple[Indices, Mask]:
        """Return the first row of each hash in its key-group, and a mask of the hashes that exist.

        ``numbers`` has the number of the key-group of each hash.
        """
        requested_words = self._make_words(numbers, hashes)
        rows = np.searchsorted(self.words, requested_words)
        np.minimum(rows, len(self.words) - 1, out=rows)
        is_hit = self.whole.hashes[rows] == hashes
        has_word = self.words[rows] == requested_words
        for place in np.flatnonzero(has_word & ~is_hit).tolist():  # the lower bits of the hashes differ
            start = int(self.starts[numbers[place]])
            of_group = self.whole.hashes[start : self.starts[numbers[place] + 1]]
            rows[place] = start + int(of_group.searchsorted(hashes[place]))
            rows[place] = min(rows[place], len(self.words) - 1)
            is_hit[place] = self.whole.hashes[rows[place]] == hashes[place]
        return rows, is_hit & has_word


class RequestedKeys(NamedTuple):
    """The requested keys of a key-group, as a range of all requested keys, and its runs, newest first."""

    start: int
    end: int
    runs: Sequence[Run]


def look_up_keys(
    groups: Sequence[RequestedKeys], hashes: Hashes, keys: pa.Table, rows: pa.Schema
) -> tuple[pa.Table, Mask]:
    """Return the newest row of each key, and a mask of the keys that exist. Rows of absent keys are null.

    ``hashes`` are the hashes of ``keys``. ``rows`` are the columns of the runs.
    """
    places: list[Indices] = [np.empty(0, dtype=np.int64)]
    batches: list[pa.RecordBatch] = []
    gone_masks: list[Mask] = [np.empty(0, dtype=np.bool_)]
    for run, run_rows, place, is_gone in _find_hashes(groups, hashes):
        places.append(place)
        batches.append(run.rows.take(pa.array(run_rows)))
        gone_masks.append(is_gone)
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


class _Level:
    """The runs of several key-groups at one depth of their stacks, by the block that holds them."""

    def __init__(self, stacks: Sequence[Sequence[Run]], depth: int) -> None:
        """Collect the run at ``depth`` of each stack that has one. The newest run has depth 0."""
        self.blocks: list[RunBlock] = []
        self.block_of = np.full(len(stacks), -1, np.int64)
        """The index of each stack's block, -1 if the stack has fewer runs."""
        self.number_of = np.zeros(len(stacks), np.int64)
        """The number of each stack's key-group in its block."""
        self._last_values: list[int] | None = None
        indexes: dict[int, int] = {}
        for place, runs in enumerate(stacks):
            if depth >= len(runs):
                continue
            run = runs[depth]
            block = run.block or RunBlock(run, np.array([0, len(run.hashes)]))
            index = indexes.setdefault(id(run.block or run), len(self.blocks))
            if index == len(self.blocks):
                self.blocks.append(block)
            self.block_of[place] = index
            self.number_of[place] = run.number
            if run.due is not None:
                self._last_values = self._last_values or [-NEVER_MS] * len(stacks)
                self._last_values[place] = run.due.last_value_before(run.first_ms)

    def split_by_block(self, stacks: Indices) -> Iterator[tuple[RunBlock, Indices]]:
        """Yield each block, and the indices in ``stacks`` of the stacks with a run in this block."""
        indexes = self.block_of[stacks]
        order = np.argsort((indexes + 1).astype(np.uint16), kind="stable")
        edges = np.searchsorted(indexes[order], np.arange(len(self.blocks) + 1)).tolist()
        for block, start, end in zip(self.blocks, edges[:-1], edges[1:], strict=True):
            if start < end:
                yield block, order[start:end]

    def mask_gone(self, block: RunBlock, rows: Indices, stacks: Indices) -> Mask:
        """Return a mask of rows of a block: which are deleted or expired. ``stacks`` has the stack of each row."""
        last_values = None if self._last_values is None else np.array(self._last_values)[stacks]
        return block.whole.are_gone_by(last_values, rows)


def _find_hashes(groups: Sequence[RequestedKeys], hashes: Hashes) -> Iterator[tuple[Run, Indices, Indices, Mask]]:
    """Find the newest row of each hash.

    Yield for each run: the run, the numbers of the found rows, the numbers of their keys, and a mask of the rows that
    are deleted or expired.
    """
    counts = [group.end - group.start for group in groups]
    stack = np.repeat(np.arange(len(groups)), counts)
    place = _expand_counts([group.start for group in groups], counts)
    stacks = [group.runs for group in groups]
    for depth in range(max(map(len, stacks), default=0)):
        level = _Level(stacks, depth)
        is_open = level.block_of[stack] >= 0
        for block, chosen in level.split_by_block(stack):
            numbers = level.number_of[stack[chosen]]
            rows, is_hit = block.find_hashes(numbers, hashes[place[chosen]])
            hits = chosen[is_hit]
            if len(hits):
                rows = rows[is_hit]
                is_open[hits] = False
                yield block.whole, rows, place[hits], level.mask_gone(block, rows, stack[hits])
        stack = stack[is_open]
        place = place[is_open]
        if not len(place):
            return


def _expand_counts(starts: Sequence[int] | Offsets, counts: Sequence[int] | Offsets) -> Indices:
    """Return ``counts[i]`` numbers from ``starts[i]`` on, one range after the other."""
    positions = positions_of(np.asarray(counts, np.int64))
    return np.arange(positions[-1]) + np.repeat(np.asarray(starts, np.int64) - positions[:-1], counts)


def _find_colliding_key(
    groups: Sequence[RequestedKeys], place: int, hashes: Hashes, keys: pa.Table, rows: pa.Schema
) -> tuple[pa.RecordBatch, bool]:
    """Return the newest row of a key that has the hash of another key, and whether the row is deleted or absent."""
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
    """Merge the runs of a key-group, newest first; return the newest row of each key, with the columns of a part.

    ``rows`` are the columns of the runs. At the ``bottom`` of a stack deleted rows are left out, because there are no
    older rows.
    """
    return merge_groups([RunsOfKeyGroup(0, runs)], keys, rows, bottom=bottom)[0]


def merge_groups(
    groups: "Sequence[RunsOfKeyGroup]", keys: Sequence[str], rows: pa.Schema, *, bottom: bool
) -> tuple[pa.Table, npt.NDArray[np.int32]]:
    """Merge the runs of each key-group as ``merge_runs`` does; return the rows in key-group order.

    The second result has the key-group of each row.
    """
    hashes = [np.empty(0, np.uint64)]
    batches: list[pa.RecordBatch] = []
    gone_masks = [np.empty(0, np.bool_)]
    key_groups = [np.empty(0, np.int32)]
    numbers = np.array([group.key_group for group in groups], np.int32)
    stacks = [group.runs for group in groups]
    for depth in range(max(map(len, stacks), default=0)):
        level = _Level(stacks, depth)
        for block, chosen in level.split_by_block(np.arange(len(groups))):
            starts = block.starts[level.number_of[chosen]]
            counts = block.starts[level.number_of[chosen] + 1] - starts
            places = _expand_counts(starts, counts)
            is_slice = bool(np.all(starts[1:] == starts[:-1] + counts[:-1]))
            run = block.whole
            batches.append(run.rows.slice(starts[0], len(places)) if is_slice else run.rows.take(pa.array(places)))
            hashes.append(run.hashes[places])
            gone_masks.append(level.mask_gone(block, places, np.repeat(chosen, counts)))
            key_groups.append(np.repeat(numbers[chosen], counts))
    all_hashes = np.concatenate(hashes)
    all_key_groups = np.concatenate(key_groups)
    is_gone = np.concatenate(gone_masks)
    table = pa.Table.from_batches(batches, rows).combine_chunks()
    picked = find_newest_by_group(all_hashes, table.select(keys), all_key_groups)
    if bottom:
        picked = picked[~is_gone[picked]]
    columns = [pa.array(all_hashes[picked]), *table.take(pa.array(picked)).columns]
    schema = pa.schema([pa.field(HASH, pa.uint64()), *rows])
    if not bottom:
        columns.append(pa.array(is_gone[picked]))
        schema = schema.append(pa.field(DELETED, pa.bool_()))
    return pa.Table.from_arrays(columns, schema=schema), all_key_groups[picked]


def find_newest_by_group(hashes: Hashes, keys: pa.Table, key_groups: npt.NDArray[np.int32]) -> Indices:
    """Return the number of the newest row of each key of each key-group, in the order of key-group and hash.

    The newest rows are first in the arguments.
    """
    # A stable sort is fast if rows are nearly in this order, as those of two concatenated parts are.
    words = (key_groups.astype(np.uint64) << np.uint64(64 - _GROUP_BITS)) | (hashes >> np.uint64(_GROUP_BITS))
    order = np.argsort(words, kind="stable")
    ordered = hashes[order]
    words = words[order]
    if np.any((words[1:] == words[:-1]) & (ordered[1:] != ordered[:-1])):
        order = np.lexsort((hashes, key_groups))
    return _first_rows(order, hashes, keys, key_groups)


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
    first_ms: int = -NEVER_MS


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
    """Return the due time of the first due row of each key-group, ``None`` without one. Key-groups must ascend."""
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
    """Return the due time of the first due row of a key-group, or ``None`` if only comparing keys can show it.

    ``hashes`` are the hashes of the key-group's changed keys, whose earliest due time is ``least_ms``. The first due
    row of the older runs ``below`` is current if no newer row has its hash.
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
    """Return the least due time of the runs from ``positions`` on, which are positions in their due orders."""
    return min(
        (_due_times_of(run).ms_at(position) for run, position in zip(group.runs, positions, strict=True)),
        default=NEVER_MS,
    )


def _newest_rows(
    schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], numbers: Sequence[Sequence[npt.NDArray[np.uint32]]]
) -> DueRows:
    """Return the newest row of each key of some rows, unless the newest row is deleted.

    ``numbers`` has the numbers of these rows, by group and run.
    """
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
