"""Several state variables of one key as one store.

State is a table of *wide rows*. Their columns are the key's, the variable, the element's index, the due time, and one
struct column per variable, which is null in rows of other variables. A deleted row without an element clears the whole
variable before the part's other rows apply. A part is sorted by variable, key hash and element id, so that a key's rows
of a variable are a range. Columns without values are omitted.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import ClassVar, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import key_hashes
from riffle_spark.state.formats.arrow_schemas import describe_schema, schema_from_text, schema_to_text
from riffle_spark.state.formats.due_times import DUE_ORDER
from riffle_spark.state.formats.key_codec import encode_keys, find_differing_rows
from riffle_spark.state.formats.part_codec import DELETED, HASH, VARIABLE, fit_columns
from riffle_spark.state.schemas.history import NEVER_CHANGED, History, Name
from riffle_spark.state.schemas.variable_kinds import (
    DUE,
    ELEMENT,
    INDEX,
    NO_DUE,
    NO_ELEMENT,
    TIMER,
    Ids,
    Variable,
    encoded_keys,
    ids_of_keys,
)

Result = TypeVar("Result")
Numbers: TypeAlias = npt.NDArray[np.int64]

OURS: Final = (VARIABLE, INDEX, DUE, DELETED, HASH, ELEMENT, DUE_ORDER)
"""The reserved column names of wide rows and parts."""
NAMES = pa.dictionary(pa.int8(), pa.string())
"""The type of the variable column."""
VARIABLES_MAX: Final = 126
"""The variable column has a dictionary of 8 bits."""
_SORTED_BYTES = 1 << 30


@dataclass(frozen=True)
class VariableColumns:
    """The key and the variables of a store. Their order is part of the stored format.

    ``indexed``: elements may have due times, and parts also have their order by due time.
    """

    one_row_a_key: ClassVar[bool] = False
    due: ClassVar[None] = None

    store: str
    key: pa.Schema
    variables: tuple[Variable, ...]
    indexed: bool = False
    history: History = NEVER_CHANGED

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for repeated column names, too many variables, and variables that cannot be stored."""
        names = [*self.key.names, *OURS, *(variable.column for variable in self.variables)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"Two columns of the state are named {', '.join(repeated)}.",
                remedy="Use unique names for state variables, and no key column that starts with two underscores.",
                where=self.store,
                id="RIFFLE-0472",
            )
        if len(self.variables) > VARIABLES_MAX:
            raise ConfigError(
                f"{len(self.variables)} state variables are too many.",
                remedy=f"Declare at most {VARIABLES_MAX}.",
                where=self.store,
                id="RIFFLE-0473",
            )
        for variable in self.variables:
            variable.check()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the declaration without its cached properties."""
        return VariableColumns, (self.store, self.key, self.variables, self.indexed, self.history)

    @staticmethod
    def of_text(store: str, text: Mapping[str, str]) -> "VariableColumns":
        """Return the schema that ``to_text`` wrote. Equal texts give the same object, because it caches codecs."""
        return _of_text(store, text["key"], text["variables"], text["indexed"], text.get("history"))

    def either(self, columns: object, variables: "Callable[[VariableColumns], Result]") -> Result:  # noqa: ARG002 - a StoreSchema
        """Return the result of ``variables``, the function for schemas of this kind. ``columns`` is ignored."""
        return variables(self)

    def to_text(self) -> dict[str, str]:
        """Return the schema as a record stores it."""
        variables = ", ".join(variable.describe() for variable in self.variables)
        return {
            "key": schema_to_text(self.key),
            "variables": json.dumps([variable.to_json() for variable in self.variables]),
            "indexed": json.dumps(self.indexed),
            "text": f"{describe_schema(self.key)} | {variables or 'no variable'}",
        }

    def can_read(self, text: Mapping[str, str]) -> bool:
        """Return whether state with the schema of this text can be read with this schema.

        Variables may be added and removed, and due times added. Fields change like columns.
        """
        if "variables" not in text:
            return False
        stored = self.of_text(self.store, text)
        can_read = all(
            variable.can_read(stored.by_name[variable.name])
            for variable in self.variables
            if variable.name in stored.by_name
        )
        return stored.key == self.key and stored.indexed <= self.indexed and can_read

    @cached_property
    def by_name(self) -> Mapping[str, Variable]:
        """The variables by their names."""
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the variables and of timers. A variable's number is its index."""
        return (*self.by_name, TIMER)

    @property
    def column_and_field_names(self) -> frozenset[Name]:
        """The names of the variables, as (variable,), and of their fields, as (variable, field)."""
        fields = ((variable.name, field) for variable in self.variables for field in variable.value.names)
        return frozenset([*fields, *((variable.name,) for variable in self.variables)])

    def without_later_names(self, table: pa.Table, epoch: int) -> pa.Table:
        """Return a part's rows without values under names that were declared after ``epoch``."""
        if not self.history.since:
            return table
        later_names = self.history.names_declared_after(epoch)
        later_variables = [variable for variable in self.variables if (variable.name,) in later_names]
        if later_variables:
            is_later = number_variables(table.column(VARIABLE), [variable.name for variable in later_variables]) >= 0
            columns = {variable.column for variable in later_variables} & set(table.column_names)
            table = table.filter(pa.array(~is_later)).drop_columns(list(columns))
        for name, paths in groupby(sorted(later_names), key=lambda path: path[0]):
            variable = self.by_name[name]
            fields = {field for _, *rest in paths for field in rest}
            if fields and variable.column in table.column_names:
                column = variable.hide_fields(one_array(table.column(variable.column)), fields)
                table = _with_column(table, variable.column, column)
        return table

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the columns of *wide* rows, which have a column for each variable, in a snapshot or a delta."""
        fields = [pa.field(VARIABLE, NAMES), pa.field(INDEX, pa.int64()), pa.field(DUE, pa.int64())]
        fields += [pa.field(variable.column, variable.type) for variable in self.variables]
        return pa.schema([*self.key, *fields, *([pa.field(DELETED, pa.bool_())] if delta else [])])

    def fit(self, table: pa.Table) -> pa.Table:
        """Return wide rows of an earlier declaration with the current columns, without removed variables."""
        schema = self.part_schema(delta=DELETED in table.column_names)
        if table.schema.equals(schema):
            return table
        is_declared = number_variables(table.column(VARIABLE), self.names) >= 0
        return fit_columns(table if is_declared.all() else table.filter(pa.array(is_declared)), schema)

    @property
    def routing(self) -> tuple[str, ...]:
        """The key columns that rows are routed by."""
        return tuple(self.key.names)

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of a table's rows (binary, order-preserving)."""
        return encode_keys([one_array(table.column(name)) for name in self.key.names])

    def hashes(self, table: pa.Table) -> npt.NDArray[np.uint64]:
        """Return the 64-bit hashes of a table's keys. Rows are routed by them."""
        return key_hashes([table.column(name) for name in self.key.names])

    def sealed(self, table: pa.Table) -> pa.Table:
        """Return a snapshot's rows in the order of snapshots."""
        return self.sort_by_group(self.fit(table))

    def sort_by_group(self, table: pa.Table, key_groups: npt.NDArray[np.int32] | None = None) -> pa.Table:
        """Return wide rows sorted like parts, within each key-group. ``key_groups`` has that of each row, ascending.

        Many bytes are sorted some key-groups at a time, because Arrow accepts at most 2 GiB of text at once.
        """
        pieces = [self._sort_rows(rows, groups) for rows, groups in _split_for_sorting(table, key_groups)]
        rows, sections = zip(*pieces, strict=True)
        return self.make_part(pa.concat_tables(rows), np.concatenate(sections))

    def _sort_rows(self, table: pa.Table, key_groups: npt.NDArray[np.int32] | None) -> tuple[pa.Table, Numbers]:
        """Return the rows in the order of parts, and the number of each row's section (key-group and variable)."""
        for variable in self.variables:
            if variable.key is not None:
                column = one_array(table.column(variable.column))
                ordered = variable.sort_map_keys(column)
                if ordered is not column:
                    table = _with_column(table, variable.column, ordered)
        numbers = number_variables(table.column(VARIABLE), self.names)
        sections = numbers if key_groups is None else key_groups * np.int64(len(self.names)) + numbers
        ids = self._compute_ids(table, numbers)
        hashes = self.hashes(table)
        order = np.lexsort((ids, hashes, sections))
        if self._has_shared_hashes(table, order, hashes, sections):
            ranks = pc.rank(self.encoded(table), tiebreaker="dense").to_numpy()
            order = np.lexsort((ids, ranks, hashes, sections))
        dues = table.column(DUE)
        is_timer = numbers == len(self.variables)
        if is_timer.any():  # their due times are their ids
            dues = pa.array(dues.fill_null(0).to_numpy(), mask=is_timer | dues.is_null().to_numpy())
        names = [name for name in table.column_names if name not in {VARIABLE, INDEX, DUE}]
        columns = [pa.array(hashes), self.name_variables(numbers), *table.select(names).columns, pa.array(ids), dues]
        return pa.table(columns, names=[HASH, VARIABLE, *names, ELEMENT, DUE]).take(pa.array(order)), sections[order]

    def name_variables(self, numbers: Numbers) -> pa.DictionaryArray:
        """Return the names of the variables with these numbers."""
        return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int8)), list(self.names))

    def _has_shared_hashes(
        self, table: pa.Table, order: Numbers, hashes: npt.NDArray[np.uint64], sections: Numbers
    ) -> bool:
        """Return whether two neighbours in ``order`` have the same hash and section but different keys."""
        left = order[:-1]
        right = order[1:]
        pairs = np.flatnonzero((hashes[left] == hashes[right]) & (sections[left] == sections[right]))
        keys = table.select(self.key.names)
        return bool(len(find_differing_rows(keys.take(pa.array(left[pairs])), keys.take(pa.array(right[pairs])))))

    def _compute_ids(self, table: pa.Table, numbers: Numbers) -> Ids:
        """Return the element ids of wide rows. ``numbers`` are the rows' variables."""
        ids = np.zeros(table.num_rows, np.int64)
        for number, name in enumerate(self.names):
            is_variable = numbers == number
            kind = self.by_name[name].kind if name != TIMER else "timer"
            if kind == "value" or not is_variable.any():
                continue
            column = {"list": INDEX, "timer": DUE}.get(kind) or self.by_name[name].column
            values = one_array(table.column(column).filter(pa.array(is_variable)))
            ids[is_variable] = ids_of_keys(values) if kind == "map" else values.fill_null(NO_ELEMENT).to_numpy()
        return ids

    def make_part(self, rows: pa.Table, sections: Numbers) -> pa.Table:
        """Return sorted rows as the rows of a part: with their order by due time, without empty columns.

        ``sections`` ascend. Rows of another variable or key-group have another section.
        """
        dues = self.due_ms(rows)
        is_due = dues != NO_DUE
        if is_due.any():
            starts = np.flatnonzero(np.diff(sections, prepend=sections[:1] - 1))
            first = np.repeat(starts, np.diff(starts, append=len(sections)))
            order = np.lexsort((dues, ~is_due, sections)) - first
            rows = rows.append_column(DUE_ORDER, pa.array(order.astype(np.uint32)))
        columns = [DUE, *(variable.column for variable in self.variables)]
        empty = [name for name in columns if rows.column(name).null_count == rows.num_rows]
        if not read_ids(rows).any():
            empty.append(ELEMENT)
        return rows.drop_columns(empty)

    def due_ms(self, rows: pa.Table) -> Numbers:
        """Return the due times of a part's rows, ``NO_DUE`` for never."""
        dues = np.full(rows.num_rows, NO_DUE)
        if DUE in rows.column_names:
            dues = rows.column(DUE).fill_null(NO_DUE).to_numpy()
        is_timer = number_variables(rows.column(VARIABLE), self.names) == len(self.variables)
        if is_timer.any():
            dues = np.where(is_timer, read_ids(rows), dues)
        if DELETED in rows.column_names:
            dues = np.where(rows.column(DELETED).to_numpy(), NO_DUE, dues)
        return dues

    def earliest_ms(self, table: pa.Table) -> int | None:
        """Return the earliest due time in a snapshot's rows (ms), or ``None`` if no row is due."""
        dues = self.due_ms(table)
        return int(dues[dues != NO_DUE].min()) if (dues != NO_DUE).any() else None

    def to_wide_rows(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a part without deletions as wide rows, sorted by key, variable and element."""
        rows = rows.take(self._order_by_key(rows))
        numbers = number_variables(rows.column(VARIABLE), self.names)
        list_numbers = [number for number, variable in enumerate(self.variables) if variable.kind == "list"]
        is_list = np.isin(numbers, list_numbers)
        dues = self.due_ms(rows)
        schema = self.part_schema()
        if is_list.any():
            rows = rows.append_column(INDEX, pa.array(read_ids(rows), mask=~is_list))
        rows = rows.drop_columns([DUE]) if DUE in rows.column_names else rows
        rows = rows.append_column(DUE, pa.array(dues, mask=dues == NO_DUE))
        return fit_columns(rows.select([name for name in schema.names if name in rows.column_names]), schema)

    def _order_by_key(self, rows: pa.Table) -> pa.Array:
        """Return the order of rows by stored key, variable and element.

        Map entries are ordered by their encoded map keys.
        """
        numbers = number_variables(rows.column(VARIABLE), self.names)
        ids = read_ids(rows)
        map_keys = np.full(rows.num_rows, b"", dtype=object)
        for number, variable in enumerate(self.variables):
            is_variable = numbers == number
            if variable.key is not None and is_variable.any():
                values = one_array(rows.column(variable.column).filter(pa.array(is_variable)))
                map_keys[is_variable] = encoded_keys(values).to_pylist()
                ids = np.where(is_variable, 0, ids)
        sort_columns = {
            "key": self.encoded(rows),
            "number": numbers,
            "id": ids,
            "map_key": pa.array(map_keys, pa.large_binary()),
        }
        return pc.sort_indices(pa.table(sort_columns), [(name, "ascending") for name in sort_columns])


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return the table with other values in a column."""
    return table.set_column(table.column_names.index(name), name, values)


def _split_for_sorting(
    table: pa.Table, key_groups: npt.NDArray[np.int32] | None
) -> Iterator[tuple[pa.Table, npt.NDArray[np.int32] | None]]:
    """Yield rows of whole key-groups, as many as can be sorted at once, with their key-groups."""
    if key_groups is None or table.nbytes <= _SORTED_BYTES:
        yield table, key_groups
        return
    edges = [0, *(np.flatnonzero(np.diff(key_groups)) + 1).tolist(), len(key_groups)]
    start = 0
    for end, after in zip(edges[1:], [*edges[2:], None], strict=True):
        if after is None or table.slice(start, after - start).nbytes > _SORTED_BYTES:
            yield table.slice(start, end - start), key_groups[start:end]
            start = end


def read_ids(rows: pa.Table) -> Ids:
    """Return the element ids of a part's rows, 0 if the part omits the column."""
    if ELEMENT in rows.column_names:
        ids: Ids = one_array(rows.column(ELEMENT)).to_numpy()
        return ids
    return np.zeros(rows.num_rows, np.int64)


def number_variables(column: pa.ChunkedArray, names: Sequence[str]) -> Numbers:
    """Return the index in ``names`` of each row's variable, -1 for other names.

    Chunks may have different dictionaries.
    """
    indexes = {name: index for index, name in enumerate(names)}
    pieces = [np.empty(0, np.int64)]
    for chunk in column.chunks:
        numbers = np.array([*(indexes.get(name, -1) for name in chunk.dictionary.to_pylist()), -1])
        pieces.append(numbers[chunk.indices.fill_null(-1).to_numpy()])
    return np.concatenate(pieces)


@lru_cache(maxsize=64)
def _of_text(store: str, key: str, variables: str, indexed: str, history: str | None) -> VariableColumns:
    """Return the schema of its stored texts. Raises Python's errors for texts that cannot be read."""
    declared = tuple(Variable.from_json(row) for row in json.loads(variables))
    return VariableColumns(store, schema_from_text(key), declared, json.loads(indexed), History.of_text(history))
