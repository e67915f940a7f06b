"""A state variable of a key: its kind, its fields, and the ids of its elements.

An element's *id* has 64 bits. It is the number of a list's element, the due time of a timer, the hash of a map key's
stored bytes, and 0 for a value. Callers compare keys of maps that share a hash.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from riffle_spark.columns import byte_slices, one_array
from riffle_spark.errors import CorruptStateError
from riffle_spark.keyhash import hash_bytes
from riffle_spark.state.formats.arrow_schemas import (
    can_become,
    check_storable,
    describe_schema,
    schema_from_text,
    schema_to_text,
)
from riffle_spark.state.formats.nested_keys import (
    KeyEncoder,
    check_map_key_type,
    encode_nested_keys,
    sort_map_entries,
)
from riffle_spark.state.formats.part_codec import VARIABLE, fit_columns

__all__ = [
    "DUE",
    "ELEMENT",
    "INDEX",
    "NO_DUE",
    "NO_ELEMENT",
    "TIMER",
    "VARIABLE",
    "Ids",
    "Kind",
    "Variable",
    "encoded_keys",
    "id_of_key",
    "ids_of_keys",
]

Kind: TypeAlias = Literal["value", "list", "map"]
Ids: TypeAlias = npt.NDArray[np.int64]

INDEX = "__index"
DUE = "__due"
ELEMENT = "__element"
"""The column of element ids in parts."""
TIMER = "__timer"
"""The variable of all timers."""
NO_ELEMENT: Final = -(2**63)
"""The id of a row that clears its key's variable. It sorts before all others."""
NO_DUE: Final = -(2**63)
"""The due time of rows that are never due."""
_SEED: Final = 42
_KEY = "key"
_VALUE = "value"


@dataclass(frozen=True)
class Variable:
    """A declared state variable: the fields of its value and of a map's key, and the TTL of an element."""

    name: str
    kind: Kind
    value: pa.Schema
    key: pa.Schema | None = None
    ttl_ms: int | None = None

    def check(self) -> None:
        """Raise ``ConfigError`` for fields that state cannot store."""
        for kind in self.value.types:
            check_storable(kind)
        for field in self.key or ():
            check_map_key_type(f"{self.name}, map key {field.name}", field.type)

    @property
    def column(self) -> str:
        """The name of the struct column, with the value's fields or a map's ``key`` and ``value``."""
        return f"__state_{self.name}"

    @cached_property
    def type(self) -> pa.DataType:
        """The type of ``column``."""
        value = pa.struct(list(self.value))
        return value if self.key is None else pa.struct([(_KEY, pa.struct(list(self.key))), (_VALUE, value)])

    @cached_property
    def encode_key(self) -> KeyEncoder:
        """The encoder of one key of the map."""
        assert self.key is not None, f"{self.name} is not a map"
        return KeyEncoder(self.key.types)

    def sort_map_keys(self, structs: pa.StructArray) -> pa.StructArray:
        """Return a map's entries with the maps inside their keys in canonical order, so that equal keys are equal."""
        key, value = structs.flatten()
        ordered = sort_map_entries(key)
        if ordered is key:
            return structs
        return _like(structs, [ordered, value], list(self.type))

    def keys(self, structs: pa.StructArray) -> pa.Table:
        """Return the map keys of a map's entries."""
        return pa.Table.from_arrays(_part(structs, _KEY).flatten(), schema=self.key)

    def values(self, structs: pa.StructArray) -> pa.Table:
        """Return the values of elements as a table of the declared fields."""
        return pa.Table.from_arrays(
            (structs if self.key is None else _part(structs, _VALUE)).flatten(), schema=self.value
        )

    def fit_to_fields(self, structs: pa.StructArray) -> pa.StructArray:
        """Return elements that were written under an earlier declaration with the current fields."""
        if structs.type == self.type:
            return structs
        values = self._values_of(structs)
        table = fit_columns(
            pa.Table.from_arrays(values.flatten(), names=[field.name for field in values.type]), self.value
        )
        fields = [one_array(column) for column in table.columns]
        return self._with_values(structs, _like(values, fields, list(self.value)))

    def hide_fields(self, structs: pa.StructArray, fields: Collection[str]) -> pa.StructArray:
        """Return elements with some fields of their values under a name that no declared field has, so that they read
        as absent.
        """
        values = self._values_of(structs)
        renamed = [field.with_name(f"\0{field.name}") if field.name in fields else field for field in values.type]
        return self._with_values(structs, _like(values, values.flatten(), renamed))

    def _values_of(self, structs: pa.StructArray) -> pa.StructArray:
        """Return the values of elements. Raises ``CorruptStateError`` if they were written as another kind."""
        if self.key is None:
            return structs
        if [field.name for field in structs.type] != [_KEY, _VALUE] or structs.type[0].type != self.type[0].type:
            stored_type = structs.type
            # Cause: The code of the job changed the variable to or from a map, or changed the type of its map key.
            raise CorruptStateError(
                f"Variable {self.name!r} was stored as {stored_type}, which does not fit {self.type}.",
                remedy="Declare the variable as it is stored, or use another name.",
                id="RIFFLE-0471",
            )
        return _part(structs, _VALUE)

    def _with_values(self, structs: pa.StructArray, values: pa.StructArray) -> pa.StructArray:
        """Return elements with other values. A map's entries keep their keys."""
        if self.key is None:
            return values
        return _like(structs, [_part(structs, _KEY), values], [self.type[0], pa.field(_VALUE, values.type)])

    @classmethod
    def from_json(cls, row: Sequence[object]) -> "Variable":
        """Return the variable that ``to_json`` wrote."""
        name, kind, value, key, ttl_ms = row
        return cls(name, kind, schema_from_text(value), None if key is None else schema_from_text(key), ttl_ms)  # type: ignore[arg-type]

    def to_json(self) -> list[object]:
        """Return the variable as a JSON array."""
        key = None if self.key is None else schema_to_text(self.key)
        return [self.name, self.kind, schema_to_text(self.value), key, self.ttl_ms]

    def describe(self) -> str:
        """Return the declaration of the variable as text for people."""
        key = "" if self.key is None else f"({describe_schema(self.key)}) to "
        lives = "" if self.ttl_ms is None else f" for {self.ttl_ms} ms"
        return f"{self.kind} {self.name}: {key}({describe_schema(self.value)}){lives}"

    def can_read(self, stored: "Variable") -> bool:
        """Return whether state of ``stored`` can be read as this variable."""
        return stored.kind == self.kind and stored.key == self.key and can_become(stored.value, self.value)


def _like(structs: pa.StructArray, fields: Sequence[pa.Array], kinds: Sequence[pa.Field]) -> pa.StructArray:
    """Return structs of these fields with the nulls of ``structs``."""
    return pa.StructArray.from_arrays(fields, fields=kinds, mask=structs.is_null())


def _part(structs: pa.StructArray, name: str) -> pa.StructArray:
    """Return a field of structs, with their nulls."""
    return structs.flatten()[structs.type.get_field_index(name)]


def ids_of_keys(structs: pa.StructArray) -> Ids:
    """Return the element ids of a map's entries, made of their keys; ``NO_ELEMENT`` for nulls."""
    data, offsets = byte_slices(encoded_keys(structs))
    seeds = np.full(len(structs), _SEED, dtype=np.uint64)
    ids = hash_bytes(data, offsets[:-1], np.diff(offsets), seeds).view(np.int64)
    ids = np.maximum(ids, NO_ELEMENT + 1)
    return np.where(structs.is_null().to_numpy(zero_copy_only=False), NO_ELEMENT, ids) if structs.null_count else ids


def encoded_keys(structs: pa.StructArray) -> pa.LargeBinaryArray:
    """Return the encoded map keys of a map's entries."""
    return encode_nested_keys(_part(structs, _KEY).flatten())


def id_of_key(encoded: bytes) -> int:
    """Return the element id of the map entry with this encoded map key."""
    bits = xxhash.xxh64_intdigest(encoded, seed=_SEED)
    signed = bits - (1 << 64) if bits >> 63 else bits
    return signed if signed != NO_ELEMENT else NO_ELEMENT + 1
