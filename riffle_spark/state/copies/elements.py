"""Rows of variables in parts: find the current rows, and merge parts.

Theory of operation.

1. A *run* is the rows of one variable in a part, sorted by the hash of the key and the id of the element. The rows of a
   key are a range of the run, which is found by the key's hash.
2. The newest row of each element is current.
3. A row with the id ``NO_ELEMENT`` clears its key. Then rows of the key in older runs are not current. ``NO_ELEMENT``
   is the least id, so this row is the first one of the key's range.
4. Two keys of a store or of a map may have the same hash. So rows with a matching hash are compared with the key.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Mask, Offsets, one_array, positions_of
from riffle_spark.state.copies.run import Hashes, Indices, Run
from riffle_spark.state.formats.due_times import DUE_ORDER, DueTimes
from riffle_spark.state.formats.key_codec import encode_keys, find_differing_rows
from riffle_spark.state.formats.part_codec import DELETED, HASH, VARIABLE
from riffle_spark.state.schemas.variable_kinds import DUE, ELEMENT, NO_DUE, NO_ELEMENT, TIMER, Ids, encoded_keys
from riffle_spark.state.schemas.variables import NAMES, VariableColumns, number_variables

_NO_IDS: Final[Ids] = np.empty(0, np.int64)
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class ElementRun(Run):
    """A part's rows of one variable: key columns in ``rows``, values in ``structs``, and the id of each element."""

    variable: str = ""
    ids: Ids = field(default_factory=lambda: _NO_IDS)
    structs: pa.StructArray | None = None
    is_map: bool = False


def element_runs(table: pa.Table, schema: VariableColumns) -> tuple[ElementRun, ...]:
    """Return the rows of a part as one run per variable, with the current schema's fields."""
    if HASH not in table.column_names:
        table = schema.sealed(table)
    if not table.num_rows:
        return ()
    numbers = number_variables(table.column(VARIABLE), schema.names)
    edges = np.flatnonzero(np.diff(numbers, prepend=-2, append=-2)).tolist()
    columns = {name: one_array(table.column(name)) for name in table.column_names if name != VARIABLE}
    return tuple(
        _element_run(schema, columns, schema.names[numbers[start]], start, end)
        for start, end in pairwise(edges)
        if numbers[start] >= 0
    )


def _element_run(schema: VariableColumns, columns: dict[str, pa.Array], name: str, start: int, end: int) -> ElementRun:
    """Return the rows ``start`` to ``end`` of a part as the run of variable ``name``, with the current fields."""
    count = end - start
    slices = {column_name: column.slice(start, count) for column_name, column in columns.items()}
    keys = pa.RecordBatch.from_arrays([slices[key] for key in schema.key.names], schema=schema.key)
    deleted = slices[DELETED].to_numpy(zero_copy_only=False) if DELETED in slices else None
    if deleted is not None and not deleted.any():
        deleted = None
    ids = slices[ELEMENT].to_numpy() if ELEMENT in slices else np.zeros(count, np.int64)
    structs = None
    is_map = False
    if name != TIMER:
        variable = schema.by_name[name]
        stored = slices.get(variable.column)
        structs = pa.nulls(count, variable.type) if stored is None else variable.fit_to_fields(stored)
        is_map = variable.key is not None
    due = _due_times(slices, ids if name == TIMER else None, deleted)
    return ElementRun(slices[HASH].to_numpy(), keys, deleted, due, name, ids, structs, is_map)


def _due_times(slices: dict[str, pa.Array], timer_ids: Ids | None, deleted: Mask | None) -> DueTimes | None:
    """Return the due times of rows, or ``None`` if no row has one. The ids of timers are their due times."""
    if DUE_ORDER not in slices:
        return None
    if timer_ids is None and DUE not in slices:
        return None
    values = slices[DUE].fill_null(NO_DUE).to_numpy() if timer_ids is None else timer_ids
    is_due = values != NO_DUE if deleted is None else (values != NO_DUE) & ~deleted
    return DueTimes(values, 1, slices[DUE_ORDER].to_numpy()[: np.count_nonzero(is_due)])


def expand_ranges(starts: Offsets, ends: Offsets) -> Indices:
    """Return the numbers from each start up to its end, one range after the other."""
    counts = ends - starts
    positions = positions_of(counts)
    return np.arange(positions[-1]) + np.repeat(starts - positions[:-1], counts)


class ElementRows:
    """Selected rows of several runs of one variable, newest run first. Rows with the same owner belong to one key.

    ``places`` has row numbers within each run. ``picked`` has the selected rows, as indices into all ``places``.
    """

    def __init__(
        self,
        runs: Sequence[ElementRun],
        places: Sequence[Indices],
        owners: npt.NDArray[np.int64] | Hashes,
        ids: Ids | None = None,
        picked: Indices | None = None,
    ) -> None:
        self._runs = runs
        self._places = places
        self._starts = positions_of(np.array([len(rows) for rows in places], np.int64))
        self._all_owners = owners
        ids_by_run = (run.ids[rows] for run, rows in zip(runs, places, strict=True))
        self._all_ids = np.concatenate([_NO_IDS, *ids_by_run]) if ids is None else ids
        self.picked = np.arange(self._starts[-1]) if picked is None else picked

    @property
    def owners(self) -> npt.NDArray[np.int64] | Hashes:
        """The owner of each row."""
        return self._all_owners[self.picked]

    @property
    def ids(self) -> Ids:
        """The id of each row's element."""
        return self._all_ids[self.picked]

    def select(self, which: Mask | Indices | slice) -> "ElementRows":
        """Return a selection of these rows."""
        return ElementRows(self._runs, self._places, self._all_owners, self._all_ids, self.picked[which])

    def take_column(self, column_of: Callable[[ElementRun], pa.Array]) -> pa.Array:
        """Return the values of these rows in a column.

        ``column_of`` returns the column of a run. There must be at least one run.
        """
        return self._gather(column_of, self.picked)

    def take_numbers(
        self, numbers_of_run: Callable[[ElementRun], npt.NDArray[_Number] | None], default: _Number
    ) -> npt.NDArray[_Number]:
        """Return the number of each row.

        ``numbers_of_run`` returns the numbers of a run, or ``None`` for the default.
        """
        numbers = np.full(len(self.picked), default)
        arrays = [numbers_of_run(run) for run in self._runs]
        for number, rows in self._split_by_run(self.picked) if any(array is not None for array in arrays) else ():
            array = arrays[number]
            if array is not None:
                numbers[rows] = array[self._places[number][self.picked[rows] - self._starts[number]]]
        return numbers

    def deleted_mask(self) -> Mask:
        """Return a mask of the rows that delete their element."""
        return self.take_numbers(lambda run: run.deleted, np.bool_(False))

    def due_times_ms(self) -> Indices:
        """Return the due time of each row (ms), ``NO_DUE`` for rows without one."""
        return self.take_numbers(lambda run: None if run.due is None else run.due.values, np.int64(NO_DUE))

    def select_newest(self) -> "ElementRows":
        """Return the newest row of each element, by owner and id, without elements that a newer row cleared."""
        if len(self._runs) < 2:
            return self
        order = np.lexsort((self._all_ids, self._all_owners))
        repeated = self._find_repeated(order)
        if len(repeated) and self._runs[0].is_map:
            same = pc.equal(*(self._map_keys(order[rows]) for rows in (repeated, repeated - 1)))
            if not pc.all(same).as_py():  # two keys of a map have the same hash
                ranks = pc.rank(self._map_keys(np.arange(len(order))), tiebreaker="dense").to_numpy()
                order = np.lexsort((ranks, self._all_ids, self._all_owners))
                repeated = self._find_repeated(order)
                repeated = repeated[ranks[order[repeated]] == ranks[order[repeated - 1]]]
        is_current = np.ones(len(order), dtype=np.bool_)
        is_current[repeated] = False
        return self.select(order[is_current & ~self._mask_cleared(order)])

    def _map_keys(self, rows: Indices) -> pa.Array:
        """Return the encoded map keys of the rows with these numbers."""
        return encoded_keys(self._gather(structs_of, rows))

    def _find_repeated(self, order: Indices) -> Indices:
        """Return the positions in ``order`` whose row has the same element as the row before it."""
        owners = self._all_owners[order]
        ids = self._all_ids[order]
        return np.flatnonzero((owners[1:] == owners[:-1]) & (ids[1:] == ids[:-1])) + 1

    def _mask_cleared(self, order: Indices) -> Mask:
        """Return a mask of the rows, in this order, that are older than the newest row that clears their key."""
        owners = self._all_owners[order]
        ids = self._all_ids[order]
        heads = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])) if len(owners) else order
        clears = ids[heads] == NO_ELEMENT
        if not clears.any():
            return np.zeros(len(order), dtype=np.bool_)
        run_numbers = np.searchsorted(self._starts, order, side="right") - 1
        clearing_runs = np.where(clears, run_numbers[heads], len(self._runs))
        is_older: Mask = run_numbers > np.repeat(clearing_runs, np.diff(np.append(heads, len(order))))
        return is_older

    def _gather(self, column_of: Callable[[ElementRun], pa.Array], rows: Indices) -> pa.Array:
        """Return a column of the rows with these numbers, collected from all runs.

        ``column_of`` returns the column of a run.
        """
        if len(self._runs) == 1:
            return column_of(self._runs[0]).take(pa.array(self._places[0][rows]))
        pieces: list[pa.Array] = []
        back = np.empty(len(rows), np.int64)
        start = 0
        for number, some_rows in self._split_by_run(rows):
            places = self._places[number][rows[some_rows] - self._starts[number]]
            pieces.append(column_of(self._runs[number]).take(pa.array(places)))
            back[some_rows] = np.arange(start, start + len(some_rows))
            start += len(some_rows)
        return pa.concat_arrays(pieces or [column_of(self._runs[0]).slice(0, 0)]).take(pa.array(back))

    def _split_by_run(self, rows: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield the number of each run that holds some of the rows, with their positions in ``rows``."""
        run_numbers = (np.searchsorted(self._starts, rows, side="right") - 1).astype(np.uint16)
        order = np.argsort(run_numbers, kind="stable")
        edges = np.searchsorted(run_numbers[order], np.arange(len(self._runs) + 1))
        for number, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            if start < end:
                yield number, order[start:end]


def merge_elements(schema: VariableColumns, runs: Sequence[Run], *, bottom: bool) -> pa.Table:
    """Return the current rows of runs, newest run first, with the columns of a part.

    At the ``bottom`` of a stack no older rows exist, so deleted rows are left out.
    """
    tables = [_empty_table(schema, bottom=bottom)]
    sections = [np.empty(0, np.int64)]
    for number, name in enumerate(schema.names):
        runs_of_variable = [run for run in runs if isinstance(run, ElementRun) and run.variable == name]
        if runs_of_variable:
            tables.append(_merge_variable(schema, number, runs_of_variable, bottom=bottom))
            sections.append(np.full(tables[-1].num_rows, number))
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return schema.make_part(rows, np.concatenate(sections))


def _merge_variable(schema: VariableColumns, number: int, runs: Sequence[ElementRun], *, bottom: bool) -> pa.Table:
    """Return the current rows of the variable with this number, from its runs, newest run first.

    At the ``bottom`` of a stack deleted rows are left out.
    """
    name = schema.names[number]
    hashes = np.concatenate([run.hashes for run in runs])
    keys = pa.Table.from_batches([run.rows for run in runs])
    owners = number_keys(hashes, keys.combine_chunks())
    rows = ElementRows(runs, [np.arange(len(run.hashes)) for run in runs], owners).select_newest()
    deleted = rows.deleted_mask()
    if bottom:
        rows = rows.select(~deleted)
    columns = {HASH: pa.array(hashes[rows.picked])}
    columns |= dict(zip(schema.key.names, keys.take(pa.array(rows.picked)).columns, strict=True))
    columns |= {VARIABLE: schema.name_variables(np.full(len(rows.picked), number)), ELEMENT: pa.array(rows.ids)}
    if name != TIMER:
        dues = rows.due_times_ms()
        columns |= {
            schema.by_name[name].column: rows.take_column(structs_of),
            DUE: pa.array(dues, mask=dues == NO_DUE),
        }
    return pa.table(columns if bottom else {**columns, DELETED: pa.array(deleted)})


def number_keys(hashes: Hashes, keys: pa.Table) -> Hashes:
    """Return a number for each row that is equal for equal keys, ordered by hash and, if hashes collide, stored key."""
    order = np.argsort(hashes, kind="stable")
    repeated = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    if not len(find_differing_rows(keys.take(pa.array(order[repeated])), keys.take(pa.array(order[repeated - 1])))):
        return hashes
    ranks = pc.rank(encode_keys(keys.columns), tiebreaker="dense").to_numpy()
    order = np.lexsort((ranks, hashes))
    is_new = np.append(True, (np.diff(hashes[order]) != 0) | (np.diff(ranks[order]) != 0))
    owners = np.empty(len(order), np.uint64)
    owners[order] = np.cumsum(is_new)
    return owners


def structs_of(run: ElementRun) -> pa.StructArray:
    """Return the values of a run of a variable. Runs of timers have none and must not be passed."""
    assert run.structs is not None, "timers have no values"
    return run.structs


def _empty_table(schema: VariableColumns, *, bottom: bool) -> pa.Table:
    """Return an empty table with all columns that rows of a part may have."""
    types = {HASH: pa.uint64(), **{field.name: field.type for field in schema.key}, VARIABLE: NAMES}
    types |= {variable.column: variable.type for variable in schema.variables}
    types |= {ELEMENT: pa.int64(), DUE: pa.int64()} | ({} if bottom else {DELETED: pa.bool_()})
    return pa.schema(list(types.items())).empty_table()


class Ranges(NamedTuple):
    """The start and end of each key's rows in one run."""

    starts: Offsets
    ends: Offsets


def find_key_ranges(runs: Sequence[ElementRun], hashes: Hashes, keys: pa.Table) -> list[Ranges]:
    """Return the ranges of the keys' rows in each run.

    All rows with a key's hash are its rows, unless the first or the last one has another key: rows with one hash are
    sorted by stored key.
    """
    ranges = [_find_hash_ranges(run.hashes, hashes) for run in runs]
    hits = [np.flatnonzero(ends > starts) for starts, ends in ranges]
    edges = [
        run.rows.take(pa.array(np.concatenate([starts[numbers], ends[numbers] - 1])))
        for run, (starts, ends), numbers in zip(runs, ranges, hits, strict=True)
        if len(numbers)
    ]
    if edges:
        key_numbers = np.concatenate([np.concatenate([numbers, numbers]) for numbers in hits])
        run_numbers = np.repeat(np.arange(len(runs)), [2 * len(numbers) for numbers in hits])
        wrong = find_differing_rows(pa.Table.from_batches(edges), keys.take(pa.array(key_numbers)))
        for run_number, key_number in {(int(run_numbers[row]), int(key_numbers[row])) for row in wrong}:
            starts, ends = ranges[run_number]
            key = encode_keys(keys.slice(key_number, 1).columns)[0]
            start, end = _narrow_to_key(runs[run_number], int(starts[key_number]), int(ends[key_number]), key)
            starts[key_number] = start
            ends[key_number] = end
    return ranges


def _find_hash_ranges(sorted_hashes: Hashes, hashes: Hashes) -> Ranges:
    """Return the range of each hash in ``sorted_hashes``. It is fast for hashes that are not in it, as most are."""
    starts = np.searchsorted(sorted_hashes, hashes)
    ends = starts.copy()
    if len(sorted_hashes):
        hits = np.flatnonzero(sorted_hashes[np.minimum(starts, len(sorted_hashes) - 1)] == hashes)
        ends[hits] = np.searchsorted(sorted_hashes, hashes[hits], side="right")
    return Ranges(starts, ends)


def _narrow_to_key(run: ElementRun, start: int, end: int, key: pa.Scalar) -> tuple[int, int]:
    """Return the range of a key's rows within ``start`` to ``end``, the range of rows with the key's hash."""
    same = pc.equal(encode_keys(run.rows.slice(start, end - start).columns), key).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(same)
    return (start + int(rows[0]), start + int(rows[-1]) + 1) if len(rows) else (start, start)
