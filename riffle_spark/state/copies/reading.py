"""What a key-group's copy holds of some keys, as of one head. Knows runs of variables. Does not know a user, or files.

Keys are numbered, and asked for by number. Where their rows lie is looked up for all keys at once, once a variable.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Mask, Offsets, fixed_values
from riffle_spark.state.copies.elements import ElementRows, ElementRun, Ranges, located, ranges_of, structs_of
from riffle_spark.state.copies.run import Hashes, Indices, Run
from riffle_spark.state.formats.due_times import NEVER_MS, DueTimes, first_ms_of
from riffle_spark.state.formats.key_codec import with_one_zero
from riffle_spark.state.schemas.variable_kinds import NO_DUE, NO_ELEMENT, TIMER, Ids, Variable, encoded_keys, id_of_key
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["CopyRuns", "Found", "FoundDue", "Reading"]

_BY_NAME: Final = [("owner", "ascending"), ("name", "ascending")]
_NO_ROWS: Final[Indices] = np.empty(0, np.int64)
_NUMBERS: Final = {
    pa.int8(): "i1", pa.int16(): "i2", pa.int32(): "i4", pa.int64(): "i8", pa.float32(): "f4", pa.float64(): "f8",
}  # fmt: skip
_Get: TypeAlias = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class CopyRuns:
    """A key-group's copy: its runs, the newest first; nothing in them is due before ``first_ms``, nothing ever if that
    is ``None``. ``hashes`` are those of the keys that are asked for, if they are known.
    """

    runs: Sequence[Run] = ()
    first_ms: int | None = NO_DUE + 1
    hashes: Hashes | None = None

    def reading(self, schema: VariableColumns, keys: pa.Table) -> "Reading":
        """Return what may be asked of it."""
        return Reading(schema, self, keys)


class Found(NamedTuple):
    """Elements of some keys that follow each other: those of the first key end at ``ends[0]``, and so on. ``names`` are
    the stored keys of a map's.
    """

    ends: list[int]
    rows: ElementRows
    names: pa.Array | None = None


class FoundDue(NamedTuple):
    """Rows of a variable that are due, and their keys. ``structs`` is what they hold; timers hold nothing."""

    variable: str
    due_ms: Indices
    keys: pa.Table
    hashes: Hashes
    ids: Ids
    structs: pa.StructArray | None


class Reading:
    """What may be asked of a copy. ``keys`` are numbered as they come."""

    def __init__(self, schema: VariableColumns, held: CopyRuns, keys: pa.Table) -> None:
        self._schema = schema
        self._runs: dict[str, list[ElementRun]] = {name: [] for name in schema.names}
        for run in held.runs:
            assert isinstance(run, ElementRun), "a store of variables has runs of these"
            self._runs[run.variable].append(run)
        self._keys = keys
        self._hashes = held.hashes
        self._spans: dict[str, list[Ranges]] = {}
        self._entries: dict[str, _Entries] = {}
        self.first_ms = first_ms_of(held.first_ms)

    def add_keys(self, keys: pa.Table, hashes: Hashes) -> None:
        """Number more keys."""
        before = self._schema.hashes(self._keys) if self._hashes is None else self._hashes
        self._hashes = np.concatenate([before, hashes])
        self._keys = pa.concat_tables([self._keys, keys]).combine_chunks()
        self._spans.clear()
        self._entries.clear()

    def elements(self, variable: str, first: int, last: int, now_ms: int, most: int) -> Found:
        """Return the newest elements that are not expired of keys ``first`` to before ``last``; of fewer keys if these
        have more than so many, but of one in any case. Those of a key come by id, those of maps by stored key.
        """
        ranges = [Ranges(starts[first:last], ends[first:last]) for starts, ends in self._spans_of(variable)]
        counts = sum((ends - starts for starts, ends in ranges), np.zeros(last - first, np.int64))
        count = min(last - first, max(1, int(np.searchsorted(np.cumsum(counts), most, side="right"))))
        numbers = np.arange(count)
        some = zip(self._runs[variable], ranges, strict=True)
        own = [(run, starts[:count], ends[:count]) for run, (starts, ends) in some if (ends > starts).any()]
        owners = np.concatenate([numbers[:0], *(np.repeat(numbers, ends - starts) for _, starts, ends in own)])
        runs = [run for run, _, _ in own]
        rows = ElementRows(runs, [ranges_of(starts, ends) for _, starts, ends in own], owners).newest()
        kept = ~rows.deleted()
        if variable != TIMER:  # one that is due has not fired yet
            dues = rows.dues()
            kept &= (dues > now_ms) | (dues == NO_DUE)
        rows = rows.only(kept)
        names = None
        if runs and runs[0].is_map:
            names = encoded_keys(rows.column(structs_of))
            order = pc.sort_indices(pa.table([rows.owners, names], ["owner", "name"]), _BY_NAME)
            rows, names = rows.only(order.to_numpy()), names.take(order)
        return Found(np.searchsorted(rows.owners, numbers, side="right").tolist(), rows, names)

    def entry(self, variable: str, number: int, name: bytes, now_ms: int) -> tuple[object, ...] | None:
        """Return the value of a map's key, given as it is stored, as ``to_pylist`` gives the fields."""
        entries = self._entries.get(variable)
        if entries is None:
            spans = self._spans_of(variable)
            entries = self._entries[variable] = _Entries(self._schema.by_name[variable], self._runs[variable], spans)
        return entries.get(number, name, now_ms)

    def next_indexes(self, variable: str, numbers: Indices) -> Indices:
        """Return, for the lists of some keys, an index above those that are there."""
        above, is_open = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.bool_)
        for run, (starts, ends) in zip(self._runs[variable], self._spans_of(variable), strict=True):
            at = np.flatnonzero(is_open & (ends > starts)[numbers])
            above[at] = np.maximum(above[at], run.ids[ends[numbers[at]] - 1] + 1)
            is_open[at] = run.ids[starts[numbers[at]]] != NO_ELEMENT
        return above

    def due(self, from_ms: int, until_ms: int) -> list[FoundDue]:
        """Return what is due between these times, both included."""
        found = []
        for name, runs in self._runs.items():
            for number, run in enumerate(runs):
                places = _NO_ROWS if run.due is None else run.due.between(from_ms, until_ms).astype(np.int64)
                if len(places):
                    places = places[_are_newest(runs, number, places)]
                if len(places):
                    found.append(_found_due(name, run, places))
        return found

    def due_by(self, from_ms: int, count: int) -> int | None:
        """Return a time by which about so many rows are due from then on, ``None`` if none is."""
        dues = [run.due for runs in self._runs.values() for run in runs if run.due is not None]
        firsts = [(due, due.position(from_ms)) for due in dues]
        begins = min((due.ms_at(at) for due, at in firsts), default=NEVER_MS)
        return None if begins == NEVER_MS else max(begins, min(due.ms_at(at + count) for due, at in firsts) - 1)

    def _spans_of(self, variable: str) -> list[Ranges]:
        """Return where each key's rows lie in each run of a variable."""
        spans = self._spans.get(variable)
        if spans is None:
            if self._hashes is None:
                self._hashes = self._schema.hashes(self._keys)
            spans = self._spans[variable] = located(self._runs[variable], self._hashes, self._keys)
        return spans


def _are_newest(runs: Sequence[ElementRun], number: int, places: Indices) -> Mask:
    """Tell which rows of a run no newer run replaces, deletes or clears."""
    run, are = runs[number], np.ones(len(places), np.bool_)
    keys, hashes, ids = pa.Table.from_batches([run.rows.take(pa.array(places))]), run.hashes[places], run.ids[places]
    for newer, (starts, ends) in zip(runs[:number], located(runs[:number], hashes, keys), strict=True):
        at = np.flatnonzero(ends > starts)
        found = _bisected(newer.ids, starts[at], ends[at], ids[at])
        same = found >= 0
        if newer.is_map and same.any():
            same[same] = _have(newer, found[same], ends[at][same], run, places[at][same])
        are[at[same | (newer.ids[starts[at]] == NO_ELEMENT)]] = False
    return are


def _bisected(ids: Ids, starts: Offsets, ends: Offsets, wanted: Ids) -> Indices:
    """Return the first place of each wanted id in its range, -1 where it is not."""
    low, high = starts.copy(), ends.copy()
    while np.any(low < high):
        middle = (low + high) // 2
        is_less = (low < high) & (ids[np.minimum(middle, len(ids) - 1)] < wanted)
        low, high = np.where(is_less, middle + 1, low), np.where(is_less, high, np.minimum(middle, high))
    is_there = (low < ends) & (ids[np.minimum(low, len(ids) - 1)] == wanted)
    return np.where(is_there, low, -1)


def _have(newer: ElementRun, found: Indices, ends: Offsets, run: ElementRun, places: Indices) -> Mask:
    """Tell which rows of a map are of the same key as those of their id in a newer run."""
    names = encoded_keys(structs_of(run).take(pa.array(places)))
    others = encoded_keys(structs_of(newer).take(pa.array(found)))
    same: Mask = pc.equal(names, others).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(~same).tolist():  # two keys of a map have one hash
        others = encoded_keys(structs_of(newer).slice(found[at], ends[at] - found[at]))
        same[at] = pc.any(pc.equal(others, names[at])).as_py()
    return same


def _found_due(name: str, run: ElementRun, places: Indices) -> FoundDue:
    assert run.due is not None, "what was found is due"
    at = pa.array(places)
    structs = None if run.structs is None else run.structs.take(at)
    keys = with_one_zero(pa.Table.from_batches([run.rows.take(at)]), run.rows.schema.names)
    return FoundDue(name, run.due.values[places], keys, run.hashes[places], run.ids[places], structs)


class _View:
    """One run's entries, place by place. A user who asks for one entry waits for it, so what a column of Arrow takes
    some microseconds to tell is read from its buffers, for common types.
    """

    def __init__(self, variable: Variable, run: ElementRun) -> None:
        structs = structs_of(run)
        self.ids: Sequence[int] = memoryview(run.ids)  # type: ignore[arg-type]  # numpy says so from 3.12 on
        self.deleted: Mask | None = run.deleted
        self.due: DueTimes | None = run.due
        self._keys = [_getter(column.chunk(0)) for column in variable.keys(structs).columns]
        self._values = [_getter(column.chunk(0)) for column in variable.values(structs).columns]
        self._encode = variable.encode_key

    def name(self, place: int) -> bytes:
        """Return an entry's stored key."""
        return self._encode(tuple([get(place) for get in self._keys]))

    def values(self, place: int) -> tuple[object, ...]:
        """Return an entry's value."""
        return tuple([get(place) for get in self._values])


class _Entries:
    """The entries of one map variable. ``spans`` say where keys' rows lie in each of its runs, the newest first."""

    def __init__(self, variable: Variable, runs: Sequence[ElementRun], spans: Sequence[Ranges]) -> None:
        self._variable = variable
        self._runs = runs
        self._views: list[_View | None] = [None] * len(runs)
        count = len(spans[0].starts) if spans else 0
        hits = [np.flatnonzero(ends > starts) for starts, ends in spans]
        of_key = np.concatenate([np.empty(0, np.int64), *hits])
        order = np.argsort(of_key, kind="stable")
        self._first = np.searchsorted(of_key[order], np.arange(count + 1)).tolist()
        self._run = np.repeat(np.arange(len(runs)), [len(at) for at in hits])[order].tolist()
        self._start, self._end = (
            np.concatenate([of_key[:0], *(edges[at] for edges, at in zip(edges_of, hits, strict=True))])[order].tolist()
            for edges_of in ([one.starts for one in spans], [one.ends for one in spans])
        )

    def get(self, number: int, name: bytes, now_ms: int) -> tuple[object, ...] | None:
        """Return the value of a key's entry by its stored key, ``None`` if there is none."""
        if not self._runs:
            return None
        wanted = id_of_key(name)
        for at in range(self._first[number], self._first[number + 1]):
            view = self._views[self._run[at]] or self._view(self._run[at])
            ids, start, end = view.ids, self._start[at], self._end[at]
            place = bisect_left(ids, wanted, start, end)
            while place < end and ids[place] == wanted:
                if view.name(place) == name:
                    return None if _is_gone(view, place, now_ms) else view.values(place)
                place += 1
            if ids[start] == NO_ELEMENT:
                return None
        return None

    def _view(self, number: int) -> _View:
        view = self._views[number] = _View(self._variable, self._runs[number])
        return view


def _is_gone(view: _View, place: int, now_ms: int) -> bool:
    if view.deleted is not None and view.deleted[place]:
        return True
    return view.due is not None and NO_DUE < view.due.values[place] <= now_ms


def _getter(column: pa.Array) -> _Get:
    """Return what gives the values of a column as ``to_pylist`` does."""
    if not column.null_count:
        if column.type in _NUMBERS:
            numbers = np.ascontiguousarray(fixed_values(column))
            viewed: Sequence[object] = memoryview(numbers.view(_NUMBERS[column.type]))  # type: ignore[arg-type]  # as above
            return viewed.__getitem__
        if column.type in {pa.string(), pa.binary()} and len(column):
            return _of_text(column)
    return lambda place: column[place].as_py()


def _of_text(column: pa.Array) -> _Get:
    _, ends, buffer = column.buffers()
    edges = memoryview(ends).cast("B").cast("i")[column.offset :]
    data = memoryview(buffer or b"").cast("B")
    if column.type == pa.binary():
        return lambda place: bytes(data[edges[place] : edges[place + 1]])
    return lambda place: str(data[edges[place] : edges[place + 1]], "utf-8")
