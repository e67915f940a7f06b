"""Read variables of some keys from a key-group's copy, as of one head.

Keys are numbered and requested by number. The ranges of their rows are searched once per variable, for all keys.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Mask, Offsets, fixed_values
from riffle_spark.state.copies.elements import (
    ElementRows,
    ElementRun,
    Ranges,
    expand_ranges,
    find_key_ranges,
    structs_of,
)
from riffle_spark.state.copies.run import Hashes, Indices, Run
from riffle_spark.state.formats.due_times import NEVER_MS, DueTimes, first_ms_of
from riffle_spark.state.formats.key_codec import normalise_zeros
from riffle_spark.state.schemas.variable_kinds import NO_DUE, NO_ELEMENT, TIMER, Ids, Variable, encoded_keys, id_of_key
from riffle_spark.state.schemas.variables import VariableColumns

_BY_NAME: Final = [("owner", "ascending"), ("name", "ascending")]
_NO_ROWS: Final[Indices] = np.empty(0, np.int64)
_NUMBERS: Final = {
    pa.int8(): "i1",
    pa.int16(): "i2",
    pa.int32(): "i4",
    pa.int64(): "i8",
    pa.float32(): "f4",
    pa.float64(): "f8",
}
_Get: TypeAlias = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class CopyRuns:
    """A key-group's copy: its runs, newest first.

    Nothing in them is due before ``first_ms``; ``None`` means never. ``hashes`` are the hashes of the requested keys,
    if they are known.
    """

    runs: Sequence[Run] = ()
    first_ms: int | None = NO_DUE + 1
    hashes: Hashes | None = None

    def open_reading(self, schema: VariableColumns, keys: pa.Table) -> "Reading":
        """Return an object that reads these keys from the copy."""
        return Reading(schema, self, keys)


class FoundElements(NamedTuple):
    """Elements of consecutive keys.

    The elements of the first key end at ``ends[0]``, and so on. ``names`` are the stored keys of a map's entries.
    """

    ends: list[int]
    rows: ElementRows
    names: pa.Array | None = None


class DueElements(NamedTuple):
    """Due rows of a variable, and their keys. ``structs`` are their values; timers have none."""

    variable: str
    due_ms: Indices
    keys: pa.Table
    hashes: Hashes
    ids: Ids
    structs: pa.StructArray | None


class Reading:
    """Reads keys of a key-group's copy. Keys are numbered in the order of ``keys``."""

    def __init__(self, schema: VariableColumns, copy: CopyRuns, keys: pa.Table) -> None:
        """Sort the runs of a copy by variable. No element is read yet."""
        self._schema = schema
        self._runs: dict[str, list[ElementRun]] = {name: [] for name in schema.names}
        for run in copy.runs:
            assert isinstance(run, ElementRun)
            self._runs[run.variable].append(run)
        self._keys = keys
        self._hashes = copy.hashes
        self._spans: dict[str, list[Ranges]] = {}
        self._entries: dict[str, _MapEntries] = {}
        self.first_ms = first_ms_of(copy.first_ms)

    def add_keys(self, keys: pa.Table, hashes: Hashes) -> None:
        """Add keys, numbered after the present ones."""
        hashes_before = self._schema.hashes(self._keys) if self._hashes is None else self._hashes
        self._hashes = np.concatenate([hashes_before, hashes])
        self._keys = pa.concat_tables([self._keys, keys]).combine_chunks()
        self._spans.clear()
        self._entries.clear()

    def read_elements(self, variable: str, first: int, last: int, now_ms: int, elements_max: int) -> FoundElements:
        """Return the current elements of a variable that are not expired, of the keys numbered ``first`` up to
        ``last``.

        Return fewer keys, but at least one, if they have more than ``elements_max`` rows. Elements of a key are sorted
        by id, elements of a map by encoded map key.
        """
        ranges = [Ranges(starts[first:last], ends[first:last]) for starts, ends in self._spans_of(variable)]
        counts = sum((ends - starts for starts, ends in ranges), np.zeros(last - first, np.int64))
        count = min(last - first, max(1, int(np.searchsorted(np.cumsum(counts), elements_max, side="right"))))
        numbers = np.arange(count)
        hits = [
            (run, starts[:count], ends[:count])
            for run, (starts, ends) in zip(self._runs[variable], ranges, strict=True)
            if (ends > starts).any()
        ]
        owners = np.concatenate([numbers[:0], *(np.repeat(numbers, ends - starts) for _, starts, ends in hits)])
        runs = [run for run, _, _ in hits]
        rows = ElementRows(runs, [expand_ranges(starts, ends) for _, starts, ends in hits], owners).select_newest()
        is_live = ~rows.deleted_mask()
        if variable != TIMER:  # a due timer has not fired yet
            dues = rows.due_times_ms()
            is_live &= (dues > now_ms) | (dues == NO_DUE)
        rows = rows.select(is_live)
        names = None
        if runs and runs[0].is_map:
            names = encoded_keys(rows.take_column(structs_of))
            order = pc.sort_indices(pa.table([rows.owners, names], ["owner", "name"]), _BY_NAME)
            rows = rows.select(order.to_numpy())
            names = names.take(order)
        return FoundElements(np.searchsorted(rows.owners, numbers, side="right").tolist(), rows, names)

    def read_entry(self, variable: str, number: int, name: bytes, now_ms: int) -> tuple[object, ...] | None:
        """Return the fields of a map entry as Python values; ``None`` if absent or expired.

        ``number`` is that of the key, ``name`` the encoded map key.
        """
        entries = self._entries.get(variable)
        if entries is None:
            spans = self._spans_of(variable)
            entries = self._entries[variable] = _MapEntries(self._schema.by_name[variable], self._runs[variable], spans)
        return entries.get(number, name, now_ms)

    def are_stored(self, variable: str, numbers: Indices, ids: Ids) -> Mask:
        """Return a mask of the elements that are stored, given key numbers and element ids. Expired ones are stored."""
        stored = np.zeros(len(numbers), np.bool_)
        is_open = np.ones(len(numbers), np.bool_)
        for run, (all_starts, all_ends) in zip(self._runs[variable], self._spans_of(variable), strict=True):
            starts = all_starts[numbers]
            ends = all_ends[numbers]
            hits = np.flatnonzero(is_open & (ends > starts))
            places = _bisect_ranges(run.ids, starts[hits], ends[hits], ids[hits])
            has_row = places >= 0
            if run.deleted is None:
                stored[hits[has_row]] = True
            else:
                stored[hits[has_row]] = ~run.deleted[places[has_row]]
            is_open[hits[has_row | (run.ids[starts[hits]] == NO_ELEMENT)]] = False
        return stored

    def count_stored(self, variable: str, numbers: Indices) -> int:
        """Return how many elements of a variable are stored for these keys. Expired ones are stored."""
        spans = [(starts[numbers], ends[numbers]) for starts, ends in self._spans_of(variable)]
        owners = [np.repeat(numbers, ends - starts) for starts, ends in spans]
        places = [expand_ranges(starts, ends) for starts, ends in spans]
        rows = ElementRows(self._runs[variable], places, np.concatenate([_NO_ROWS, *owners])).select_newest()
        return int(np.count_nonzero(~rows.deleted_mask()))

    def next_indexes(self, variable: str, numbers: Indices) -> Indices:
        """Return for each of the keys with these numbers a list index greater than all present ones."""
        indexes = np.zeros(len(numbers), np.int64)
        is_open = np.ones(len(numbers), np.bool_)
        for run, (starts, ends) in zip(self._runs[variable], self._spans_of(variable), strict=True):
            hits = np.flatnonzero(is_open & (ends > starts)[numbers])
            indexes[hits] = np.maximum(indexes[hits], run.ids[ends[numbers[hits]] - 1] + 1)
            is_open[hits] = run.ids[starts[numbers[hits]]] != NO_ELEMENT
        return indexes

    def find_due_elements(self, from_ms: int, until_ms: int) -> list[DueElements]:
        """Return the current elements of all keys that are due between two times (ms), both inclusive."""
        due = []
        for name, runs in self._runs.items():
            for number, run in enumerate(runs):
                places = _NO_ROWS if run.due is None else run.due.find_due_between(from_ms, until_ms).astype(np.int64)
                if len(places):
                    places = places[_are_newest(runs, number, places)]
                if len(places):
                    due.append(_take_due_elements(name, run, places))
        return due

    def find_due_time(self, from_ms: int, count: int) -> int | None:
        """Return a time by which about ``count`` rows are due, counted from ``from_ms``; ``None`` if no row is due."""
        dues = [run.due for runs in self._runs.values() for run in runs if run.due is not None]
        positions = [(due, due.find_position(from_ms)) for due in dues]
        first_ms = min((due.ms_at(position) for due, position in positions), default=NEVER_MS)
        if first_ms == NEVER_MS:
            return None
        return max(first_ms, min(due.ms_at(position + count) for due, position in positions) - 1)

    def _spans_of(self, variable: str) -> list[Ranges]:
        """Return the ranges of each key's rows in each run of a variable."""
        spans = self._spans.get(variable)
        if spans is None:
            if self._hashes is None:
                self._hashes = self._schema.hashes(self._keys)
            spans = self._spans[variable] = find_key_ranges(self._runs[variable], self._hashes, self._keys)
        return spans


def _are_newest(runs: Sequence[ElementRun], number: int, places: Indices) -> Mask:
    """Return a mask of the rows of a run that are not replaced, deleted or cleared in a newer run."""
    run = runs[number]
    are_newest = np.ones(len(places), np.bool_)
    keys = pa.Table.from_batches([run.rows.take(pa.array(places))])
    hashes = run.hashes[places]
    ids = run.ids[places]
    for newer, (starts, ends) in zip(runs[:number], find_key_ranges(runs[:number], hashes, keys), strict=True):
        hits = np.flatnonzero(ends > starts)
        rows = _bisect_ranges(newer.ids, starts[hits], ends[hits], ids[hits])
        same = rows >= 0
        if newer.is_map and same.any():
            same[same] = _have_same_entry(newer, rows[same], ends[hits][same], run, places[hits][same])
        are_newest[hits[same | (newer.ids[starts[hits]] == NO_ELEMENT)]] = False
    return are_newest


def _bisect_ranges(ids: Ids, starts: Offsets, ends: Offsets, targets: Ids) -> Indices:
    """Return the first place of each target in its range of ``ids``, or -1 if it is not there."""
    low = starts.copy()
    high = ends.copy()
    while np.any(low < high):
        middle = (low + high) // 2
        is_less = (low < high) & (ids[np.minimum(middle, len(ids) - 1)] < targets)
        low, high = np.where(is_less, middle + 1, low), np.where(is_less, high, np.minimum(middle, high))
    is_there = (low < ends) & (ids[np.minimum(low, len(ids) - 1)] == targets)
    return np.where(is_there, low, -1)


def _have_same_entry(newer: ElementRun, rows: Indices, ends: Offsets, run: ElementRun, places: Indices) -> Mask:
    """Return a mask of the rows of a map whose map key equals that of the row with their id in a newer run."""
    names = encoded_keys(structs_of(run).take(pa.array(places)))
    newer_names = encoded_keys(structs_of(newer).take(pa.array(rows)))
    same: Mask = pc.equal(names, newer_names).to_numpy(zero_copy_only=False)
    for number in np.flatnonzero(~same).tolist():  # two keys of a map have one hash
        candidates = encoded_keys(structs_of(newer).slice(rows[number], ends[number] - rows[number]))
        same[number] = pc.any(pc.equal(candidates, names[number])).as_py()
    return same


def _take_due_elements(name: str, run: ElementRun, places: Indices) -> DueElements:
    """Return the rows of a run at these places as due elements of variable ``name``."""
    assert run.due is not None
    indices = pa.array(places)
    structs = None if run.structs is None else run.structs.take(indices)
    keys = normalise_zeros(pa.Table.from_batches([run.rows.take(indices)]), run.rows.schema.names)
    return DueElements(name, run.due.values[places], keys, run.hashes[places], run.ids[places], structs)


class _View:
    """Single entries of one run of a map.

    Values of common types are read from Arrow's buffers, because reading one value of a column takes microseconds.
    """

    def __init__(self, variable: Variable, run: ElementRun) -> None:
        """Prepare to read single entries of a run of this map variable."""
        structs = structs_of(run)
        self.ids: Sequence[int] = memoryview(run.ids)  # type: ignore[arg-type]  # numpy arrays are buffers from Python 3.12 on
        self.deleted: Mask | None = run.deleted
        self.due: DueTimes | None = run.due
        self._keys = [_make_getter(column.chunk(0)) for column in variable.keys(structs).columns]
        self._values = [_make_getter(column.chunk(0)) for column in variable.values(structs).columns]
        self._encode = variable.encode_key

    def name(self, place: int) -> bytes:
        """Return the encoded map key of the entry at a place."""
        return self._encode(tuple([get(place) for get in self._keys]))

    def values(self, place: int) -> tuple[object, ...]:
        """Return the fields of the entry at a place as Python values."""
        return tuple([get(place) for get in self._values])


class _MapEntries:
    """Index the entries of one map variable for lookups by key number and map key.

    ``key_ranges`` has the ranges of the keys' rows in each run, newest run first.
    """

    def __init__(self, variable: Variable, runs: Sequence[ElementRun], key_ranges: Sequence[Ranges]) -> None:
        """Build the index: by key number, the runs that have rows of the key, with the range of these rows."""
        self._variable = variable
        self._runs = runs
        self._views: list[_View | None] = [None] * len(runs)
        count = len(key_ranges[0].starts) if key_ranges else 0
        hits = [np.flatnonzero(ends > starts) for starts, ends in key_ranges]
        key_numbers = np.concatenate([np.empty(0, np.int64), *hits])
        order = np.argsort(key_numbers, kind="stable")
        self._first = np.searchsorted(key_numbers[order], np.arange(count + 1)).tolist()
        self._run = np.repeat(np.arange(len(runs)), [len(numbers) for numbers in hits])[order].tolist()
        starts = [ranges.starts[numbers] for ranges, numbers in zip(key_ranges, hits, strict=True)]
        ends = [ranges.ends[numbers] for ranges, numbers in zip(key_ranges, hits, strict=True)]
        self._start = np.concatenate([key_numbers[:0], *starts])[order].tolist()
        self._end = np.concatenate([key_numbers[:0], *ends])[order].tolist()

    def get(self, number: int, name: bytes, now_ms: int) -> tuple[object, ...] | None:
        """Return the fields of the entry with the encoded map key ``name`` of the key with this number; ``None`` if
        absent or expired.
        """
        if not self._runs:
            return None
        element_id = id_of_key(name)
        for hit in range(self._first[number], self._first[number + 1]):
            view = self._views[self._run[hit]] or self._view(self._run[hit])
            ids = view.ids
            start = self._start[hit]
            end = self._end[hit]
            place = bisect_left(ids, element_id, start, end)
            while place < end and ids[place] == element_id:
                if view.name(place) == name:
                    return None if _is_gone(view, place, now_ms) else view.values(place)
                place += 1
            if ids[start] == NO_ELEMENT:
                return None
        return None

    def _view(self, number: int) -> _View:
        """Return a new view of the run with this number, and cache it."""
        view = self._views[number] = _View(self._variable, self._runs[number])
        return view


def _is_gone(view: _View, place: int, now_ms: int) -> bool:
    """Return whether the entry at a place is deleted or expired."""
    if view.deleted is not None and view.deleted[place]:
        return True
    return view.due is not None and NO_DUE < view.due.values[place] <= now_ms


def _make_getter(column: pa.Array) -> _Get:
    """Return a function from a row number to the column's value, as ``to_pylist`` returns it."""
    if not column.null_count:
        if column.type in _NUMBERS:
            numbers = np.ascontiguousarray(fixed_values(column))
            viewed: Sequence[object] = memoryview(numbers.view(_NUMBERS[column.type]))  # type: ignore[arg-type]  # as above
            return viewed.__getitem__
        if column.type in {pa.string(), pa.binary()} and len(column):
            return _make_text_getter(column)
    return lambda place: column[place].as_py()


def _make_text_getter(column: pa.Array) -> _Get:
    """Return a function from a row number to a string or binary column's value, without nulls."""
    _, ends, buffer = column.buffers()
    edges = memoryview(ends).cast("B").cast("i")[column.offset :]
    data = memoryview(buffer or b"").cast("B")
    if column.type == pa.binary():
        return lambda place: bytes(data[edges[place] : edges[place + 1]])
    return lambda place: str(data[edges[place] : edges[place + 1]], "utf-8")
