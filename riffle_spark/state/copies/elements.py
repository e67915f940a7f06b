"""Rows of variables, sorted by variable, hash of key and element: which of them count, and all of them as one. Knows
NumPy and Arrow. Does not know files.

Theory of operation. A part holds each variable's rows next to each other: a *run* of them. In a run what a key holds
is a range, found by the key's hash, sorted by the elements' ids. Of each element the newest row counts, and nothing
below the newest row that clears its key: such a row has the least id, and so comes first in its range. That two keys,
or two keys of a map, have one hash is never assumed away: rows are compared wherever they might be of another one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Mask, Offsets, one_array, positions_of
from riffle_spark.state.copies.run import Hashes, Indices, Run
from riffle_spark.state.formats.due_times import DUE_ORDER, DueTimes
from riffle_spark.state.formats.key_codec import differing, encode_keys
from riffle_spark.state.formats.part_codec import DELETED, HASH, VARIABLE
from riffle_spark.state.schemas.variable_kinds import DUE, ELEMENT, NO_DUE, NO_ELEMENT, TIMER, Ids, encoded_keys
from riffle_spark.state.schemas.variables import NAMES, VariableColumns, numbers_of

__all__ = [
    "ElementRows", "ElementRun", "Ranges", "element_runs", "located", "merged_elements", "ranges_of", "structs_of",
]  # fmt: skip

_NO_IDS: Final[Ids] = np.empty(0, np.int64)
_TAKEN_BYTES = 1 << 30
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class ElementRun(Run):
    """A part's rows of one variable: ``rows`` are the keys, ``structs`` what rows hold of the variable, ``ids`` which
    element each is. ``deleted`` and ``due`` as of any run.
    """

    variable: str = ""
    ids: Ids = field(default_factory=lambda: _NO_IDS)
    structs: pa.StructArray | None = None
    is_map: bool = False


def element_runs(table: pa.Table, schema: VariableColumns) -> tuple[ElementRun, ...]:
    """Return the rows of a part, with today's fields, variable by variable."""
    if HASH not in table.column_names:
        table = schema.sealed(table)
    if not table.num_rows:
        return ()
    numbers = numbers_of(table.column(VARIABLE), schema.names)
    edges = np.flatnonzero(np.diff(numbers, prepend=-2, append=-2))
    columns = {name: one_array(table.column(name)) for name in table.column_names if name != VARIABLE}
    sections = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return tuple(_run(schema, columns, schema.names[numbers[at]], at, end) for at, end in sections if numbers[at] >= 0)


def _run(schema: VariableColumns, columns: dict[str, pa.Array], name: str, start: int, end: int) -> ElementRun:
    count = end - start
    of_run = {key: column.slice(start, count) for key, column in columns.items()}
    keys = pa.RecordBatch.from_arrays([of_run[key] for key in schema.key.names], schema=schema.key)
    deleted = of_run[DELETED].to_numpy(zero_copy_only=False) if DELETED in of_run else None
    if deleted is not None and not deleted.any():
        deleted = None
    ids = of_run[ELEMENT].to_numpy() if ELEMENT in of_run else np.zeros(count, np.int64)
    structs, is_map = None, False
    if name != TIMER:
        variable = schema.by_name[name]
        held, is_map = of_run.get(variable.column), variable.key is not None
        structs = pa.nulls(count, variable.type) if held is None else variable.fitted(held)
    due = _due_times(of_run, ids if name == TIMER else None, deleted)
    return ElementRun(of_run[HASH].to_numpy(), keys, deleted, due, name, ids, structs, is_map)


def _due_times(of_run: dict[str, pa.Array], ids: Ids | None, deleted: Mask | None) -> DueTimes | None:
    """Return when rows are due, ``None`` if none ever is; those of timers at the times that their ids are."""
    if DUE_ORDER not in of_run:
        return None
    if ids is None and DUE not in of_run:
        return None
    values = of_run[DUE].fill_null(NO_DUE).to_numpy() if ids is None else ids
    is_due = values != NO_DUE if deleted is None else (values != NO_DUE) & ~deleted
    return DueTimes(values, 1, of_run[DUE_ORDER].to_numpy()[: np.count_nonzero(is_due)])


def ranges_of(starts: Offsets, ends: Offsets) -> Indices:
    """Return the numbers from each start to its end, one range after the other."""
    counts = ends - starts
    at = positions_of(counts)
    return np.arange(at[-1]) + np.repeat(starts - at[:-1], counts)


class ElementRows:
    """Rows of several runs of one variable, the newest run first; ``owners`` say which belong to one key.

    ``picked`` are those that count, numbered in the order of runs.
    """

    def __init__(
        self, runs: Sequence[ElementRun], places: Sequence[Indices], owners: npt.NDArray[np.int64] | Hashes,
        ids: Ids | None = None, picked: Indices | None = None,
    ) -> None:  # fmt: skip
        self._runs = runs
        self._places = places
        self._starts = positions_of(np.array([len(rows) for rows in places], np.int64))
        self._all_owners = owners
        of_runs = (run.ids[at] for run, at in zip(runs, places, strict=True))
        self._all_ids = np.concatenate([_NO_IDS, *of_runs]) if ids is None else ids
        self.picked = np.arange(self._starts[-1]) if picked is None else picked

    @property
    def owners(self) -> npt.NDArray[np.int64] | Hashes:
        """The owner of each row."""
        return self._all_owners[self.picked]

    @property
    def ids(self) -> Ids:
        """The id of each row's element."""
        return self._all_ids[self.picked]

    def only(self, which: Mask | Indices | slice) -> "ElementRows":
        """Return some of these rows."""
        return ElementRows(self._runs, self._places, self._all_owners, self._all_ids, self.picked[which])

    def column(self, of_run: Callable[[ElementRun], pa.Array]) -> pa.Array:
        """Return what the rows, of a run at least, have in a column."""
        return self._taken(of_run, self.picked)

    def numbers(
        self, of_run: Callable[[ElementRun], npt.NDArray[_Number] | None], default: _Number
    ) -> npt.NDArray[_Number]:
        """Return the rows' numbers out of arrays of their runs, a default where a run has none."""
        found = np.full(len(self.picked), default)
        of_runs = [of_run(run) for run in self._runs]
        for number, at in self._by_run(self.picked) if any(values is not None for values in of_runs) else ():
            values = of_runs[number]
            if values is not None:
                found[at] = values[self._places[number][self.picked[at] - self._starts[number]]]
        return found

    def deleted(self) -> Mask:
        """Tell which rows only remove their element."""
        return self.numbers(lambda run: run.deleted, np.bool_(False))

    def dues(self) -> Indices:
        """Return when the rows are due."""
        return self.numbers(lambda run: None if run.due is None else run.due.values, np.int64(NO_DUE))

    def newest(self) -> "ElementRows":
        """Return the newest row of each element, by owner and id, without those that are cleared."""
        if len(self._runs) < 2:
            return self
        order = self._going_on()
        if order is not None:
            return self.only(order)
        order = np.lexsort((self._all_ids, self._all_owners))
        again = self._repeated(order)
        if len(again) and self._runs[0].is_map:
            same = pc.equal(*(self._keys_of_map(order[at]) for at in (again, again - 1)))
            if not pc.all(same).as_py():  # two keys of a map have one hash
                ranks = pc.rank(self._keys_of_map(np.arange(len(order))), tiebreaker="dense").to_numpy()
                order = np.lexsort((ranks, self._all_ids, self._all_owners))
                again = self._repeated(order)
                again = again[ranks[order[again]] == ranks[order[again - 1]]]
        counts = np.ones(len(order), dtype=np.bool_)
        counts[again] = False
        return self.only(order[counts & ~self._cleared(order)])

    def _going_on(self) -> Indices | None:
        """Return the rows by owner and id if newer runs only go on where older ones end, as lists that are appended to
        do: then all of them count, and nothing need be sorted by its id.
        """
        if self._runs[0].is_map or not self._all_ids.any():
            return None
        edges = self._starts.tolist()
        oldest_first = np.concatenate([np.arange(*edge) for edge in zip(edges[-2::-1], edges[:0:-1], strict=True)])
        order = oldest_first[np.argsort(self._all_owners[oldest_first], kind="stable")]
        owners, ids = self._all_owners[order], self._all_ids[order]
        goes_on = (ids[1:] > ids[:-1]) | (owners[1:] != owners[:-1])
        return order if goes_on.all() else None

    def _keys_of_map(self, rows: Indices) -> pa.Array:
        return encoded_keys(self._taken(structs_of, rows))

    def _repeated(self, order: Indices) -> Indices:
        """Return the places in the order at which the element is that of the row before."""
        owners, ids = self._all_owners[order], self._all_ids[order]
        return np.flatnonzero((owners[1:] == owners[:-1]) & (ids[1:] == ids[:-1])) + 1

    def _cleared(self, order: Indices) -> Mask:
        """Tell which rows, in this order, lie below the newest one that clears their owner."""
        owners, ids = self._all_owners[order], self._all_ids[order]
        heads = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])) if len(owners) else order
        clears = ids[heads] == NO_ELEMENT
        if not clears.any():
            return np.zeros(len(order), dtype=np.bool_)
        run_of = np.searchsorted(self._starts, order, side="right") - 1
        last = np.where(clears, run_of[heads], len(self._runs))
        below: Mask = run_of > np.repeat(last, np.diff(np.append(heads, len(order))))
        return below

    def _taken(self, of_run: Callable[[ElementRun], pa.Array], rows: Indices) -> pa.Array:
        if len(self._runs) == 1:
            return of_run(self._runs[0]).take(pa.array(self._places[0][rows]))
        pieces, back, start = [], np.empty(len(rows), np.int64), 0
        for number, at in self._by_run(rows):
            pieces.append(
                of_run(self._runs[number]).take(pa.array(self._places[number][rows[at] - self._starts[number]]))
            )
            back[at] = np.arange(start, start + len(at))
            start += len(at)
        return pa.concat_arrays(pieces or [of_run(self._runs[0]).slice(0, 0)]).take(pa.array(back))

    def _by_run(self, rows: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield each run that has some of the rows, with their places among these."""
        run_of = (np.searchsorted(self._starts, rows, side="right") - 1).astype(np.uint16)
        order = np.argsort(run_of, kind="stable")
        edges = np.searchsorted(run_of[order], np.arange(len(self._runs) + 1))
        for number, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            if start < end:
                yield number, order[start:end]


def merged_elements(schema: VariableColumns, runs: Sequence[Run], *, bottom: bool) -> pa.Table:
    """Return the newest rows of runs, the newest first, as a part has them.

    At the ``bottom`` of a stack there is nothing that a deleted row could hide: such rows are left out.
    """
    tables, sections = [_nothing(schema, bottom=bottom)], [np.empty(0, np.int64)]
    for number, name in enumerate(schema.names):
        of_variable = [run for run in runs if isinstance(run, ElementRun) and run.variable == name]
        if of_variable:
            tables.append(_merged(schema, number, of_variable, bottom=bottom))
            sections.append(np.full(tables[-1].num_rows, number))
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return schema.as_part(rows, np.concatenate(sections))


def _merged(schema: VariableColumns, number: int, runs: Sequence[ElementRun], *, bottom: bool) -> pa.Table:
    name = schema.names[number]
    hashes, keys = np.concatenate([run.hashes for run in runs]), pa.Table.from_batches([run.rows for run in runs])
    rows = ElementRows(runs, [np.arange(len(run.hashes)) for run in runs], owners_of(hashes, keys.combine_chunks()))
    rows = rows.newest()
    deleted = rows.deleted()
    if bottom:
        rows, deleted = rows.only(~deleted), deleted[:0]
    columns = {HASH: pa.array(hashes[rows.picked])}
    columns |= dict(zip(schema.key.names, keys.take(pa.array(rows.picked)).columns, strict=True))
    columns |= {VARIABLE: schema.named(np.full(len(rows.picked), number)), ELEMENT: pa.array(rows.ids)}
    if name != TIMER:
        dues = rows.dues()
        columns |= {schema.by_name[name].column: _structs(runs, rows), DUE: pa.array(dues, mask=dues == NO_DUE)}
    return pa.table(columns if bottom else {**columns, DELETED: pa.array(deleted)})


def _structs(runs: Sequence[ElementRun], rows: ElementRows) -> pa.StructArray:
    """Return what rows hold, of whole runs: most of them count, so they are put together and taken at once."""
    pieces = [structs_of(run) for run in runs]
    if sum(piece.nbytes for piece in pieces) > _TAKEN_BYTES:
        return rows.column(structs_of)
    return pa.concat_arrays(pieces).take(pa.array(rows.picked))


def owners_of(hashes: Hashes, keys: pa.Table) -> Hashes:
    """Return one number a key, in the order of hashes and, where keys share one, of stored keys."""
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    if not len(differing(keys.take(pa.array(order[again])), keys.take(pa.array(order[again - 1])))):
        return hashes
    ranks = pc.rank(encode_keys(keys.columns), tiebreaker="dense").to_numpy()
    order = np.lexsort((ranks, hashes))
    is_new = np.append(True, (np.diff(hashes[order]) != 0) | (np.diff(ranks[order]) != 0))
    owners = np.empty(len(order), np.uint64)
    owners[order] = np.cumsum(is_new)
    return owners


def structs_of(run: ElementRun) -> pa.StructArray:
    """Return what a run's rows hold; timers hold nothing."""
    assert run.structs is not None, "timers hold nothing"
    return run.structs


def _nothing(schema: VariableColumns, *, bottom: bool) -> pa.Table:
    """Return the columns that rows of a part may have, without any."""
    kinds = {HASH: pa.uint64(), **{field.name: field.type for field in schema.key}, VARIABLE: NAMES}
    kinds |= {variable.column: variable.type for variable in schema.variables}
    kinds |= {ELEMENT: pa.int64(), DUE: pa.int64()} | ({} if bottom else {DELETED: pa.bool_()})
    return pa.schema(list(kinds.items())).empty_table()


class Ranges(NamedTuple):
    """Where keys' rows begin and end in one run."""

    starts: Offsets
    ends: Offsets


def located(runs: Sequence[ElementRun], hashes: Hashes, keys: pa.Table) -> list[Ranges]:
    """Return where the rows of keys lie in each run. All that has the hash is a key's, unless its first row or its last
    is of another one: rows of one hash are sorted by stored key.
    """
    spans = [_hash_ranges(run.hashes, hashes) for run in runs]
    hits = [np.flatnonzero(ends > starts) for starts, ends in spans]
    edges = [
        run.rows.take(pa.array(np.concatenate([starts[at], ends[at] - 1])))
        for run, (starts, ends), at in zip(runs, spans, hits, strict=True)
        if len(at)
    ]
    if edges:
        asked = np.concatenate([np.concatenate([at, at]) for at in hits])
        run_of = np.repeat(np.arange(len(runs)), [2 * len(at) for at in hits])
        wrong = differing(pa.Table.from_batches(edges), keys.take(pa.array(asked)))
        for number, at in {(int(run_of[row]), int(asked[row])) for row in wrong}:
            starts, ends = spans[number]
            key = encode_keys(keys.slice(at, 1).columns)[0]
            starts[at], ends[at] = _exactly(runs[number], int(starts[at]), int(ends[at]), key)
    return spans


def _hash_ranges(held: Hashes, wanted: Hashes) -> Ranges:
    """Return where hashes lie among sorted ones; most of those of a batch lie nowhere in most runs."""
    starts = np.searchsorted(held, wanted)
    ends = starts.copy()
    if len(held):
        at = np.flatnonzero(held[np.minimum(starts, len(held) - 1)] == wanted)
        ends[at] = np.searchsorted(held, wanted[at], side="right")
    return Ranges(starts, ends)


def _exactly(run: ElementRun, start: int, end: int, key: pa.Scalar) -> tuple[int, int]:
    """Return where the rows of a key lie among those of its hash."""
    same = pc.equal(encode_keys(run.rows.slice(start, end - start).columns), key).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(same)
    return (start + int(at[0]), start + int(at[-1]) + 1) if len(at) else (start, start)
