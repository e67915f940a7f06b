"""Several state variables of one key as one store. Knows their columns and where each lies. Does not know a processor.

A part or snapshot is a table of *wide rows*: the key's columns, which variable the row is of, which element of it, when
it is due, and one struct column a variable, null in rows of the others. A delta's row that is deleted and of no element
clears the whole variable before the part's other rows apply. A local copy keeps each row under the key, the variable's
number and the element, so that a key's state and each variable of it are ranges.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.arrow_schemas import listed, packed, unpacked
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.part_codec import DELETED, fitted
from riffle_spark.state.formats.scalar_codec import KeyEncoder
from riffle_spark.state.schemas import variable_keys, variable_kinds
from riffle_spark.state.schemas.copy_rows import CopyRows, joined
from riffle_spark.state.schemas.variable_rows import NAMES, dues_and_values, encoded_rows, names_of, wide_table

__all__ = ["KeyPlaces", "VariableColumns"]

Result = TypeVar("Result")

PIECE_BYTES_MAX = 1 << 30
"""Tables are built and taken apart in pieces of about this size: Arrow's strings and lists count with 32 bits."""
VARIABLES_MAX = 126
"""Their names are a dictionary of 8 bits."""


class KeyPlaces(NamedTuple):
    """What stored keys are of: row i of ``keys`` (the key's columns) and the rest belong to stored key i.

    ``groups`` are the stored keys' beginnings as ``group_keys`` gives them, ``variables`` names, ``elements`` what
    follows: nothing, an element's number (``index_of``), ``map_key`` or ``due_key``.
    """

    keys: pa.Table
    groups: list[bytes]
    variables: list[str]
    elements: list[bytes]


@dataclass(frozen=True)
class VariableColumns:
    """The key and the variables of one store. ``indexed``: elements may be due, and are kept in order of time too.

    The order of ``variables`` is part of what is stored.
    """

    one_row_a_key: ClassVar[bool] = False
    due: ClassVar[None] = None

    store: str
    key: pa.Schema
    variables: tuple[variable_kinds.Variable, ...]
    indexed: bool = False

    def __post_init__(self) -> None:
        names = [
            *self.key.names,
            variable_kinds.VARIABLE,
            variable_kinds.INDEX,
            variable_kinds.DUE,
            DELETED,
            *(variable.column for variable in self.variables),
        ]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"two columns of the state are named {', '.join(repeated)}",
                remedy="give each state variable a name of its own; no key column's may begin with two underscores",
                where=self.store,
            )
        if len(self.variables) > VARIABLES_MAX:
            raise ConfigError(
                f"{len(self.variables)} state variables are too many",
                remedy=f"declare at most {VARIABLES_MAX}",
                where=self.store,
            )
        self.part_schema()  # raises for types that cannot be stored

    def __reduce__(self) -> tuple[object, ...]:
        return VariableColumns, (self.store, self.key, self.variables, self.indexed)

    @staticmethod
    def of_text(store: str, text: Mapping[str, str]) -> "VariableColumns":
        """Return the schema that ``to_text`` gave: the same each time, as a process keeps it with its codecs."""
        return _of_text(store, text["key"], text["variables"], text["indexed"])

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

    def variable(self, name: str) -> variable_kinds.Variable:
        """Return the variable of this name."""
        return self._declared[name].variable

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        fields = [
            pa.field(variable_kinds.VARIABLE, NAMES),
            pa.field(variable_kinds.INDEX, pa.int64()),
            pa.field(variable_kinds.DUE, pa.int64()),
        ]
        fields += [pa.field(kind.variable.column, kind.type) for kind in self._declared.values()]
        return pa.schema([*self.key, *fields, *([pa.field(DELETED, pa.bool_())] if delta else [])])

    @cached_property
    def copy_layout(self) -> bytes:
        """What names the layout of its rows in a local copy: a digest of names and types, in order."""
        text = "|".join(f"{field.name}: {field.type}" for field in self.part_schema())
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest().encode() + (b"+" if self.indexed else b"")

    def fit(self, table: pa.Table) -> pa.Table:
        """Return rows of earlier variables as rows of today's; those of variables that are gone are left out."""
        wanted = self.part_schema(delta=DELETED in table.column_names)
        if table.schema.equals(wanted):
            return table
        known = pa.array([kind.name for kind in self._kinds], pa.string())
        return fitted(table.filter(pc.is_in(table.column(variable_kinds.VARIABLE).cast(pa.string()), known)), wanted)

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the keys of a table's rows (binary, order-preserving, whole), of key columns alone."""
        return encode_keys([table.column(name) for name in self.key.names])

    def sealed(self, table: pa.Table) -> pa.Table:
        """See ``StoreSchema``: sorted by stored key."""
        return table.take(pc.sort_indices(pa.array(self.encode(table).keys, pa.large_binary())))

    def earliest_ms(self, table: pa.Table) -> int | None:
        """See ``StoreSchema``."""
        earliest: int | None = pc.min(table.column(variable_kinds.DUE)).as_py()
        return earliest

    def encode(self, table: pa.Table) -> CopyRows:
        """Return a part's or snapshot's rows as a local copy takes them."""
        table = self.fit(table)
        if table.nbytes > PIECE_BYTES_MAX:
            return joined([self._encoded(pa.Table.from_batches([batch])) for batch in table.to_batches()])
        return self._encoded(table)

    def _encoded(self, table: pa.Table) -> CopyRows:
        return encoded_rows(self.encoded(table), table, self._kinds, indexed=self.indexed)

    def table(self, pairs: Sequence[tuple[bytes, bytes]], longs: Mapping[bytes, bytes]) -> pa.Table:
        """Return pairs of a local copy as a table of ``part_schema()``."""
        kinds, schema = self._kinds, self.part_schema()
        pieces = (wide_table(piece, longs, kinds, schema, indexed=self.indexed) for piece in _pieces(pairs))
        return pa.concat_tables(pieces)

    def group_keys(self, encoded: pa.Array) -> list[bytes]:
        """Return the beginning of everything a key holds, for keys as ``encoded`` gives them; long ones are cut."""
        keys: list[bytes] = variable_keys.cut_keys(encoded).to_pylist()
        return keys

    def group_key(self, values: tuple[object, ...]) -> bytes:
        """Return the same for one key, given as the Python values of its columns (``to_pylist``)."""
        return variable_keys.cut_key(self._encode_key(values))

    def prefix(self, group_key: bytes, variable: str) -> bytes:
        """Return the beginning of all that one variable (or ``TIMER``) of a key holds; a value's whole stored key."""
        return group_key + self._marks[variable]

    def map_key(self, variable: str, values: tuple[object, ...]) -> bytes:
        """Return what follows the prefix for one key of a map, given as Python values."""
        return variable_keys.cut_key(self._map(variable).encode_one(values))

    def map_keys(self, variable: str, keys: Sequence[bytes], longs: Mapping[bytes, bytes]) -> pa.Table:
        """Return the map's keys, as columns of ``Variable.key``, out of stored keys of that variable."""
        whole = pa.array([longs.get(key, key) for key in keys], pa.large_binary())
        return self._map(variable).keys(variable_keys.parsed(whole, self.key.types).elements)

    def places(self, keys: Sequence[bytes], longs: Mapping[bytes, bytes]) -> KeyPlaces:
        """Return what stored keys are of. ``longs`` are the whole keys of cut ones (``Reading.longs``)."""
        found = variable_keys.parsed(pa.array([longs.get(key, key) for key in keys], pa.large_binary()), self.key.types)
        ends = [variable_keys.cut_length(length) for length in found.lengths.tolist()]
        pairs = list(zip(keys, ends, strict=True))
        return KeyPlaces(
            pa.Table.from_arrays(found.columns, schema=self.key),
            [key[:end] for key, end in pairs],
            names_of(found.numbers, self._kinds).to_pylist(),
            [key[end + 1 :] for key, end in pairs],
        )

    def values(self, variable: str, stored: Sequence[bytes]) -> tuple[variable_keys.Dues, pa.Table]:
        """Return stored values as due times (``NO_DUE`` for none) and a table of ``Variable.value``."""
        dues, values = dues_and_values(pa.array(stored, pa.large_binary()), indexed=self.indexed)
        return dues, self._declared[variable].codec.decode(values)

    def value(self, variable: str, stored: bytes) -> tuple[int, tuple[object, ...]]:
        """Return the same of one stored value: its due time and the Python values of its fields."""
        if not self.indexed:
            return variable_keys.NO_DUE, self._declared[variable].decode_one(stored)
        return variable_keys.due_of(stored), self._declared[variable].decode_one(stored[variable_keys.WORD_BYTES :])

    @cached_property
    def _declared(self) -> dict[str, variable_kinds.ValueRows]:
        return {kind.name: kind for kind in variable_kinds.kinds_of(self.variables)}

    @cached_property
    def _kinds(self) -> list[variable_kinds.RowsOf]:
        return [*self._declared.values(), *([variable_kinds.TimerRows()] if self.indexed else [])]

    @cached_property
    def _marks(self) -> dict[str, bytes]:
        return {kind.name: bytes([kind.number]) for kind in self._kinds}

    @cached_property
    def _encode_key(self) -> KeyEncoder:
        return KeyEncoder(self.key.types)

    def _map(self, variable: str) -> variable_kinds.MapRows:
        kind = self._declared[variable]
        assert isinstance(kind, variable_kinds.MapRows), f"{variable} is no map"
        return kind


@lru_cache(maxsize=64)
def _of_text(store: str, key: str, variables: str, indexed: str) -> VariableColumns:
    declared = tuple(variable_kinds.Variable.from_json(row) for row in json.loads(variables))
    return VariableColumns(store, unpacked(key), declared, indexed=json.loads(indexed))


def _pieces(pairs: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Cut pairs, sorted or not, into pieces of bounded bytes; a larger pair stands alone."""
    first, size = 0, 0
    for at, (_, value) in enumerate(pairs):
        if at > first and size + len(value) > PIECE_BYTES_MAX:
            yield pairs[first:at]
            first, size = at, 0
        size += len(value)
    yield pairs[first:]
