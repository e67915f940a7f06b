"""One variable's rows among wide rows: which element each is of, and its fields. Knows a variable's columns and codecs.
Does not know the keys of a store, nor files.

Each kind of variable is a class that takes rows of its variable apart into elements and values, and puts them together
again. Only whole columns are touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import binary_column, one_array, positions_of
from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.arrow_schemas import can_become, listed, packed, unpacked
from riffle_spark.state.formats.nested_keys import check_map_key_type, decode_nested_keys, encode_nested_keys
from riffle_spark.state.formats.row_codec import RowCodec
from riffle_spark.state.formats.scalar_codec import KeyEncoder, ValueDecoder
from riffle_spark.state.schemas.variable_keys import due_bytes, index_bytes, numbers_of

__all__ = ["DUE", "INDEX", "TIMER", "VARIABLE", "MapRows", "RowsOf", "TimerRows", "ValueRows", "Variable", "kinds_of"]

Kind: TypeAlias = Literal["value", "list", "map"]

VARIABLE = "__variable"
INDEX = "__index"
DUE = "__due"
TIMER = "__timer"
"""The variable that every key's timers are rows of."""
_KEY, _VALUE = "key", "value"


@dataclass(frozen=True)
class Variable:
    """One declared state variable: the fields of its value, of a map's key, and how long an element lives.

    ``value`` and ``key`` are the fields of the structs, as Arrow schemas; ``key`` is a map's alone.
    """

    name: str
    kind: Kind
    value: pa.Schema
    key: pa.Schema | None = None
    ttl_ms: int | None = None

    @property
    def column(self) -> str:
        """The name of its struct column: of the value's fields, or of ``key`` and ``value`` for a map."""
        return f"__state_{self.name}"

    @classmethod
    def from_json(cls, row: Sequence[object]) -> "Variable":
        """Return the variable that ``to_json`` gave."""
        name, kind, value, key, ttl_ms = row
        return cls(name, kind, unpacked(value), None if key is None else unpacked(key), ttl_ms)  # type: ignore[arg-type]

    def to_json(self) -> list[object]:
        """Return what JSON can hold."""
        key = None if self.key is None else packed(self.key)
        return [self.name, self.kind, packed(self.value), key, self.ttl_ms]

    def described(self) -> str:
        """Return the variable for a person to read."""
        key = "" if self.key is None else f"({listed(self.key)}) to "
        lives = "" if self.ttl_ms is None else f" for {self.ttl_ms} ms"
        return f"{self.kind} {self.name}: {key}({listed(self.value)}){lives}"

    def can_read(self, before: "Variable") -> bool:
        """Tell whether what was kept for ``before`` can be read for this one."""
        return before.kind == self.kind and before.key == self.key and can_become(before.value, self.value)


class TimerRows:
    """Rows of timers, each of which is its due time. The number is that of the variable in stored keys."""

    number = 255
    name = TIMER
    has_elements = True
    reads = ()

    def elements(self, rows: pa.Table) -> pa.Array:
        """Return what follows the prefix in each row's stored key: nothing where the row is of no element."""
        dues = rows.column(DUE)
        return due_bytes(dues.fill_null(0).to_numpy(), dues.is_valid().to_numpy())

    def values(self, rows: pa.Table) -> pa.Array:
        """Return the value that is stored for each row."""
        return _nothing(rows.num_rows)

    def columns(self, elements: pa.Array, values: pa.Array) -> dict[str, pa.Array]:  # noqa: ARG002 - nothing in them
        """Return the columns that these elements and values fill."""
        return {}


class ValueRows:
    """Rows of a value variable: no element, one row a key."""

    has_elements = False

    def __init__(self, number: int, variable: Variable) -> None:
        if not len(variable.value):
            raise ConfigError("a state variable needs a field", remedy="declare one", where=variable.name)
        self.number = number
        self.name = variable.name
        self.reads = (INDEX, variable.column)
        self.variable = variable
        self.codec = RowCodec(variable.value)

    @cached_property
    def decode_one(self) -> ValueDecoder:
        """What decodes one value alone."""
        return ValueDecoder(self.codec)

    @property
    def type(self) -> pa.DataType:
        """The type of the variable's column."""
        return pa.struct(list(self.variable.value))

    def elements(self, rows: pa.Table) -> pa.Array:
        """See ``TimerRows``."""
        return _nothing(rows.num_rows)

    def values(self, rows: pa.Table) -> pa.Array:
        """See ``TimerRows``."""
        return self.codec.encode(_fields(self._structs(rows), self.variable.value))

    def columns(self, elements: pa.Array, values: pa.Array) -> dict[str, pa.Array]:  # noqa: ARG002 - nothing in them
        """See ``TimerRows``."""
        return {self.variable.column: self._decoded(values)}

    def _structs(self, rows: pa.Table) -> pa.Array:
        return one_array(rows.column(self.variable.column))

    def _decoded(self, values: pa.Array) -> pa.Array:
        return _struct(self.codec.decode(values))


class ListRows(ValueRows):
    """Rows of a list variable: an element each, by its index."""

    has_elements = True

    def elements(self, rows: pa.Table) -> pa.Array:
        """See ``TimerRows``."""
        indexes = rows.column(INDEX)
        return index_bytes(indexes.fill_null(0).to_numpy(), indexes.is_valid().to_numpy())

    def columns(self, elements: pa.Array, values: pa.Array) -> dict[str, pa.Array]:
        """See ``TimerRows``."""
        return {INDEX: pa.array(numbers_of(elements)), self.variable.column: self._decoded(values)}


class MapRows(ValueRows):
    """Rows of a map variable: an element each, by its key."""

    has_elements = True

    def __init__(self, number: int, variable: Variable) -> None:
        super().__init__(number, variable)
        assert variable.key is not None, "a map has a key"
        self.key = variable.key
        for field in self.key:
            check_map_key_type(f"{variable.name}, map key {field.name}", field.type)
        if not len(self.key):
            raise ConfigError("the key of a map needs a field", remedy="declare one", where=variable.name)

    @cached_property
    def encode_one(self) -> KeyEncoder:
        """What encodes one key of the map alone."""
        return KeyEncoder(self.key.types)

    @property
    def type(self) -> pa.DataType:
        """See ``ValueRows``."""
        return pa.struct([(_KEY, pa.struct(list(self.key))), (_VALUE, super().type)])

    def elements(self, rows: pa.Table) -> pa.Array:
        """See ``TimerRows``."""
        entries = self._structs(rows)
        keys = encode_nested_keys(_part(entries, _KEY).flatten())
        if not entries.null_count:
            return keys
        return pc.if_else(entries.is_valid(), keys, pa.scalar(b"", pa.large_binary()))

    def values(self, rows: pa.Table) -> pa.Array:
        """See ``TimerRows``."""
        return self.codec.encode(_fields(_part(self._structs(rows), _VALUE), self.variable.value))

    def keys(self, elements: pa.Array | Sequence[bytes]) -> pa.Table:
        """Return the keys of elements."""
        return pa.Table.from_arrays(decode_nested_keys(elements, self.key.types), schema=self.key)

    def columns(self, elements: pa.Array, values: pa.Array) -> dict[str, pa.Array]:
        """See ``TimerRows``."""
        parts = [_struct(self.keys(elements)), self._decoded(values)]
        return {self.variable.column: pa.StructArray.from_arrays(parts, fields=list(self.type))}


RowsOf: TypeAlias = ValueRows | TimerRows

_KINDS: dict[Kind, type[ValueRows]] = {"value": ValueRows, "list": ListRows, "map": MapRows}


def kinds_of(variables: Sequence[Variable]) -> list[ValueRows]:
    """Return what handles the rows of each variable. Raises ``ConfigError`` for types that cannot be stored."""
    return [_KINDS[variable.kind](number, variable) for number, variable in enumerate(variables, 1)]


def _nothing(count: int) -> pa.Array:
    return binary_column(b"", positions_of(np.zeros(count, dtype=np.int64)))


def _part(structs: pa.Array, name: str) -> pa.Array:
    """Return a field, null where the struct is."""
    return structs.flatten()[structs.type.get_field_index(name)]


def _fields(structs: pa.Array, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(structs.flatten(), schema=schema)


def _struct(table: pa.Table) -> pa.Array:
    arrays = [one_array(column) for column in table.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(table.schema))
