"""Several state variables of one key as one store. Knows their columns. Does not know a processor, nor files.

State is a table of *wide rows*: the key's columns, which variable the row is of, which element of it, when it is due,
and one struct column a variable, null in rows of the others. A delta's row that is deleted and of no element clears the
whole variable before the part's other rows apply. In a part rows lie by variable, hash of key and element's id, so that
what a key holds of a variable is a range; columns that hold nothing are left out.
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
from riffle_spark.state.formats.arrow_schemas import listed, packed, unpacked
from riffle_spark.state.formats.due_times import DUE_ORDER
from riffle_spark.state.formats.key_codec import differing, encode_keys
from riffle_spark.state.formats.part_codec import DELETED, HASH, VARIABLE, fitted
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
)  # fmt: skip

__all__ = ["NAMES", "OURS", "VariableColumns", "numbers_of"]

Result = TypeVar("Result")
Numbers: TypeAlias = npt.NDArray[np.int64]

OURS: Final = (VARIABLE, INDEX, DUE, DELETED, HASH, ELEMENT, DUE_ORDER)
"""The names of columns that rows have beside those of the key and the variables."""
NAMES = pa.dictionary(pa.int8(), pa.string())
"""The type of the column that names each row's variable."""
VARIABLES_MAX: Final = 126
"""Their names are a dictionary of 8 bits."""
_SORTED_BYTES = 1 << 30


@dataclass(frozen=True)
class VariableColumns:
    """The key and the variables of one store. ``indexed``: elements may be due, and are kept in order of time too.

    The order of ``variables`` is part of what is stored.
    """

    one_row_a_key: ClassVar[bool] = False
    due: ClassVar[None] = None

    store: str
    key: pa.Schema
    variables: tuple[Variable, ...]
    indexed: bool = False
    history: History = NEVER_CHANGED

    def __post_init__(self) -> None:
        names = [*self.key.names, *OURS, *(variable.column for variable in self.variables)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"two columns of the state are named {', '.join(repeated)}",
                remedy="give each state variable a name of its own; no key column's may begin with two underscores",
                where=self.store,
                id="RIFFLE-0472",
            )
        if len(self.variables) > VARIABLES_MAX:
            raise ConfigError(
                f"{len(self.variables)} state variables are too many",
                remedy=f"declare at most {VARIABLES_MAX}",
                where=self.store,
                id="RIFFLE-0473",
            )
        for variable in self.variables:
            variable.check()

    def __reduce__(self) -> tuple[object, ...]:
        return VariableColumns, (self.store, self.key, self.variables, self.indexed, self.history)

    @staticmethod
    def of_text(store: str, text: Mapping[str, str]) -> "VariableColumns":
        """Return the schema that ``to_text`` gave: the same each time, as a process keeps it with its codecs."""
        return _of_text(store, text["key"], text["variables"], text["indexed"], text.get("history"))

    def either(self, columns: object, variables: "Callable[[VariableColumns], Result]") -> Result:  # noqa: ARG002 - a kind
        """See ``StoreSchema``."""
        return variables(self)

    def to_text(self) -> dict[str, str]:
        """See ``StoreSchema``."""
        variables = ", ".join(variable.described() for variable in self.variables)
        return {
            "key": packed(self.key),
            "variables": json.dumps([variable.to_json() for variable in self.variables]),
            "indexed": json.dumps(self.indexed),
            "text": f"{listed(self.key)} | {variables or 'no variable'}",
        }

    def can_read(self, text: Mapping[str, str]) -> bool:
        """See ``StoreSchema``. Variables come and go, their fields change as columns do; times to be due only come."""
        if "variables" not in text:
            return False
        before = self.of_text(self.store, text)
        known = {variable.name: variable for variable in before.variables}
        can_read = all(one.can_read(known[one.name]) for one in self.variables if one.name in known)
        return before.key == self.key and before.indexed <= self.indexed and can_read

    @cached_property
    def by_name(self) -> Mapping[str, Variable]:
        """The variables by their names."""
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The variables' names, that of timers last: a variable's number is its place."""
        return (*self.by_name, TIMER)

    @property
    def names_read(self) -> frozenset[Name]:
        """See ``StoreSchema``."""
        fields = ((one.name, field) for one in self.variables for field in one.value.names)
        return frozenset([*fields, *((one.name,) for one in self.variables)])

    def without_later_names(self, table: pa.Table, epoch: int) -> pa.Table:
        """See ``StoreSchema``."""
        if not self.history.since:
            return table
        unknown = self.history.later_than(epoch)
        others = [variable for variable in self.variables if (variable.name,) in unknown]
        if others:
            is_one = numbers_of(table.column(VARIABLE), [variable.name for variable in others]) >= 0
            columns = {variable.column for variable in others} & set(table.column_names)
            table = table.filter(pa.array(~is_one)).drop_columns(list(columns))
        for name, of_variable in groupby(sorted(unknown), key=lambda path: path[0]):
            variable, fields = self.by_name[name], {field for _, *rest in of_variable for field in rest}
            if fields and variable.column in table.column_names:
                at = table.column_names.index(variable.column)
                table = table.set_column(at, variable.column, variable.without(one_array(table.column(at)), fields))
        return table

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the columns of wide rows, of a whole state or of a delta."""
        fields = [pa.field(VARIABLE, NAMES), pa.field(INDEX, pa.int64()), pa.field(DUE, pa.int64())]
        fields += [pa.field(variable.column, variable.type) for variable in self.variables]
        return pa.schema([*self.key, *fields, *([pa.field(DELETED, pa.bool_())] if delta else [])])

    def fit(self, table: pa.Table) -> pa.Table:
        """Return rows of earlier variables as rows of today's; those of variables that are gone are left out."""
        wanted = self.part_schema(delta=DELETED in table.column_names)
        if table.schema.equals(wanted):
            return table
        known = numbers_of(table.column(VARIABLE), self.names) >= 0
        return fitted(table if known.all() else table.filter(pa.array(known)), wanted)

    @property
    def routing(self) -> tuple[str, ...]:
        """See ``StoreSchema``."""
        return tuple(self.key.names)

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the keys of a table's rows (binary, order-preserving, whole), of key columns alone."""
        return encode_keys([one_array(table.column(name)) for name in self.key.names])

    def hashes(self, table: pa.Table) -> npt.NDArray[np.uint64]:
        """Return the 64-bit hashes of a table's keys: those that rows are routed by."""
        return key_hashes([table.column(name) for name in self.key.names])

    def sealed(self, table: pa.Table) -> pa.Table:
        """See ``StoreSchema``: wide rows as a part has them."""
        return self.sealed_by_group(self.fit(table))

    def sealed_by_group(self, table: pa.Table, key_groups: npt.NDArray[np.int32] | None = None) -> pa.Table:
        """Return wide rows of several key-groups, which ascend, each group's as a part has them. Many bytes are sorted
        some key-groups at a time: Arrow takes no more than 2 GiB of text at once.
        """
        sorted_, sections = zip(*(self._sorted(*some) for some in _pieces(table, key_groups)), strict=True)
        return self.as_part(pa.concat_tables(sorted_), np.concatenate(sections))

    def _sorted(self, table: pa.Table, key_groups: npt.NDArray[np.int32] | None) -> tuple[pa.Table, Numbers]:
        """Return rows as they lie in parts, and the section of each."""
        for variable in self.variables:
            if variable.key is not None:
                column = one_array(table.column(variable.column))
                ordered = variable.canonical(column)
                if ordered is not column:
                    table = table.set_column(table.column_names.index(variable.column), variable.column, ordered)
        numbers = numbers_of(table.column(VARIABLE), self.names)
        sections = numbers if key_groups is None else key_groups * np.int64(len(self.names)) + numbers
        ids, hashes = self._ids(table, numbers), self.hashes(table)
        order = np.lexsort((ids, hashes, sections))
        if self._are_shared(table, order, hashes, sections):
            ranks = pc.rank(self.encoded(table), tiebreaker="dense").to_numpy()
            order = np.lexsort((ids, ranks, hashes, sections))
        dues = table.column(DUE)
        of_timers = numbers == len(self.variables)
        if of_timers.any():  # their ids say it
            dues = pa.array(dues.fill_null(0).to_numpy(), mask=of_timers | dues.is_null().to_numpy())
        kept = [name for name in table.column_names if name not in {VARIABLE, INDEX, DUE}]
        columns = [pa.array(hashes), self.named(numbers), *table.select(kept).columns, pa.array(ids), dues]
        return pa.table(columns, names=[HASH, VARIABLE, *kept, ELEMENT, DUE]).take(pa.array(order)), sections[order]

    def named(self, numbers: Numbers) -> pa.DictionaryArray:
        """Return the names of variables of these numbers."""
        return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int8)), list(self.names))

    def _are_shared(self, table: pa.Table, order: Numbers, hashes: npt.NDArray[np.uint64], sections: Numbers) -> bool:
        """Tell whether some hash is that of two keys, in rows of one section."""
        before, after = order[:-1], order[1:]
        again = np.flatnonzero((hashes[before] == hashes[after]) & (sections[before] == sections[after]))
        keys = table.select(self.key.names)
        first, second = (keys.take(pa.array(rows[again])) for rows in (before, after))
        return bool(len(differing(first, second)))

    def _ids(self, table: pa.Table, numbers: Numbers) -> Ids:
        """Return the ids of wide rows' elements."""
        ids = np.zeros(table.num_rows, np.int64)
        for number, name in enumerate(self.names):
            at = numbers == number
            kind = self.by_name[name].kind if name != TIMER else "timer"
            if kind == "value" or not at.any():
                continue
            column = {"list": INDEX, "timer": DUE}.get(kind) or self.by_name[name].column
            those = one_array(table.column(column).filter(pa.array(at)))
            ids[at] = ids_of_keys(those) if kind == "map" else those.fill_null(NO_ELEMENT).to_numpy()
        return ids

    def as_part(self, rows: pa.Table, sections: Numbers) -> pa.Table:
        """Return sorted rows with their order by due time, and without columns that hold nothing. ``sections`` ascend:
        rows of another variable or key-group have another number.
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
        if not ids_in(rows).any():
            empty.append(ELEMENT)
        return rows.drop_columns(empty)

    def due_ms(self, rows: pa.Table) -> Numbers:
        """Return when rows of a part are due (``NO_DUE`` for never)."""
        dues = np.full(rows.num_rows, NO_DUE)
        if DUE in rows.column_names:
            dues = rows.column(DUE).fill_null(NO_DUE).to_numpy()
        of_timers = numbers_of(rows.column(VARIABLE), self.names) == len(self.variables)
        if of_timers.any():
            dues = np.where(of_timers, ids_in(rows), dues)
        if DELETED in rows.column_names:
            dues = np.where(rows.column(DELETED).to_numpy(), NO_DUE, dues)
        return dues

    def earliest_ms(self, table: pa.Table) -> int | None:
        """See ``StoreSchema``."""
        dues = self.due_ms(table)
        return int(dues[dues != NO_DUE].min()) if (dues != NO_DUE).any() else None

    def wide(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a part that deletes nothing as wide rows, by key, variable and element."""
        rows = rows.take(self._by_key(rows))
        numbers = numbers_of(rows.column(VARIABLE), self.names)
        of_lists = np.isin(numbers, [at for at, one in enumerate(self.variables) if one.kind == "list"])
        dues, wanted = self.due_ms(rows), self.part_schema()
        if of_lists.any():
            rows = rows.append_column(INDEX, pa.array(ids_in(rows), mask=~of_lists))
        rows = rows.drop_columns([DUE]) if DUE in rows.column_names else rows
        rows = rows.append_column(DUE, pa.array(dues, mask=dues == NO_DUE))
        return fitted(rows.select([name for name in wanted.names if name in rows.column_names]), wanted)

    def _by_key(self, rows: pa.Table) -> pa.Array:
        """Return the rows' numbers by stored key, variable and element, keys of maps by their stored bytes."""
        numbers, ids = numbers_of(rows.column(VARIABLE), self.names), ids_in(rows)
        names = np.full(rows.num_rows, b"", dtype=object)
        for number, variable in enumerate(self.variables):
            at = numbers == number
            if variable.key is not None and at.any():
                names[at] = encoded_keys(one_array(rows.column(variable.column).filter(pa.array(at)))).to_pylist()
                ids = np.where(at, 0, ids)
        by = {"key": self.encoded(rows), "number": numbers, "id": ids, "name": pa.array(names, pa.large_binary())}
        return pc.sort_indices(pa.table(by), [(name, "ascending") for name in by])


def _pieces(
    table: pa.Table, key_groups: npt.NDArray[np.int32] | None
) -> Iterator[tuple[pa.Table, npt.NDArray[np.int32] | None]]:
    """Yield rows of whole key-groups, so many that they can be sorted at once."""
    if key_groups is None or table.nbytes <= _SORTED_BYTES:
        yield table, key_groups
        return
    edges = [0, *(np.flatnonzero(np.diff(key_groups)) + 1).tolist(), len(key_groups)]
    start = 0
    for end, after in zip(edges[1:], [*edges[2:], None], strict=True):
        if after is None or table.slice(start, after - start).nbytes > _SORTED_BYTES:
            yield table.slice(start, end - start), key_groups[start:end]
            start = end


def ids_in(rows: pa.Table) -> Ids:
    """Return the elements' ids that a part's rows have; where it has none, all are 0."""
    if ELEMENT in rows.column_names:
        ids: Ids = one_array(rows.column(ELEMENT)).to_numpy()
        return ids
    return np.zeros(rows.num_rows, np.int64)


def numbers_of(names: pa.ChunkedArray, known: Sequence[str]) -> Numbers:
    """Return the number of each row's variable, -1 for one that is not known. Every chunk may have names of its own."""
    places = {name: place for place, name in enumerate(known)}
    pieces = [np.empty(0, np.int64)]
    for chunk in names.chunks:
        of_chunk = np.array([*(places.get(name, -1) for name in chunk.dictionary.to_pylist()), -1])
        pieces.append(of_chunk[chunk.indices.fill_null(-1).to_numpy()])
    return np.concatenate(pieces)


@lru_cache(maxsize=64)
def _of_text(store: str, key: str, variables: str, indexed: str, history: str | None) -> VariableColumns:
    declared = tuple(Variable.from_json(row) for row in json.loads(variables))
    return VariableColumns(store, unpacked(key), declared, json.loads(indexed), History.of_text(history))
