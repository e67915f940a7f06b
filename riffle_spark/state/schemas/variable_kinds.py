"""One state variable of a key: its kind, its fields, and what tells its elements apart. Knows a variable's columns.
Does not know the keys of a store, nor files.

An element is told by 64 bits, its *id*: in a list its number, of timers the due time, in a map the hash of its key's
stored bytes, of a value nothing. That two keys of a map have one hash is for whoever compares them.
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
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.keyhash import hash_bytes
from riffle_spark.state.formats.arrow_schemas import can_become, check_storable, listed, packed, unpacked
from riffle_spark.state.formats.nested_keys import (
    KeyEncoder,
    check_map_key_type,
    encode_nested_keys,
    with_maps_in_order,
)  # fmt: skip
from riffle_spark.state.formats.part_codec import VARIABLE, fitted

__all__ = [
    "DUE", "ELEMENT", "INDEX", "NO_DUE", "NO_ELEMENT", "TIMER", "VARIABLE", "Ids", "Kind", "Variable", "encoded_keys",
    "id_of_key", "ids_of_keys",
]  # fmt: skip

Kind: TypeAlias = Literal["value", "list", "map"]
Ids: TypeAlias = npt.NDArray[np.int64]

INDEX = "__index"
DUE = "__due"
ELEMENT = "__element"
"""The column of elements' ids, in parts."""
TIMER = "__timer"
"""The variable that every key's timers are rows of."""
NO_ELEMENT: Final = -(2**63)
"""The id of a row that is of no element: it clears the variable of its key, and comes before all others."""
NO_DUE: Final = -(2**63)
"""The due time of what is never due."""
_SEED: Final = 42
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

    def check(self) -> None:
        """Raise ``ConfigError`` for fields that state cannot hold."""
        if not len(self.value):
            raise ConfigError("a state variable needs a field", remedy="declare one", where=self.name, id="RIFFLE-0469")
        for kind in self.value.types:
            check_storable(kind)
        for field in self.key or ():
            check_map_key_type(f"{self.name}, map key {field.name}", field.type)
        if self.key is not None and not len(self.key):
            raise ConfigError("the key of a map needs a field", remedy="declare one", where=self.name, id="RIFFLE-0470")

    @property
    def column(self) -> str:
        """The name of its struct column: of the value's fields, or of ``key`` and ``value`` for a map."""
        return f"__state_{self.name}"

    @cached_property
    def type(self) -> pa.DataType:
        """The type of that column."""
        value = pa.struct(list(self.value))
        return value if self.key is None else pa.struct([(_KEY, pa.struct(list(self.key))), (_VALUE, value)])

    @cached_property
    def encode_key(self) -> KeyEncoder:
        """What encodes one key of the map alone."""
        assert self.key is not None, f"{self.name} is no map"
        return KeyEncoder(self.key.types)

    def canonical(self, structs: pa.StructArray) -> pa.StructArray:
        """Return entries of a map with maps in their keys in one order, whatever order they were written in."""
        key, value = structs.flatten()
        ordered = with_maps_in_order(key)
        if ordered is key:
            return structs
        return _like(structs, [ordered, value], list(self.type))

    def keys(self, structs: pa.StructArray) -> pa.Table:
        """Return the keys of a map's entries."""
        return pa.Table.from_arrays(_part(structs, _KEY).flatten(), schema=self.key)

    def values(self, structs: pa.StructArray) -> pa.Table:
        """Return the values of elements."""
        return pa.Table.from_arrays(
            (structs if self.key is None else _part(structs, _VALUE)).flatten(), schema=self.value
        )

    def fitted(self, structs: pa.StructArray) -> pa.StructArray:
        """Return elements that were written with other fields with those of today."""
        if structs.type == self.type:
            return structs
        values = self._values_of(structs)
        table = fitted(pa.Table.from_arrays(values.flatten(), names=[field.name for field in values.type]), self.value)
        fields = [one_array(column) for column in table.columns]
        return self._with_values(structs, _like(values, fields, list(self.value)))

    def without(self, structs: pa.StructArray, fields: Collection[str]) -> pa.StructArray:
        """Return elements without some fields of their values. They stay there, under a name that no field has."""
        values = self._values_of(structs)
        renamed = [field.with_name(f"\0{field.name}") if field.name in fields else field for field in values.type]
        return self._with_values(structs, _like(values, values.flatten(), renamed))

    def _values_of(self, structs: pa.StructArray) -> pa.StructArray:
        """Return what elements hold. Raises ``CorruptStateError`` if they were written as those of another kind."""
        if self.key is None:
            return structs
        if [field.name for field in structs.type] != [_KEY, _VALUE] or structs.type[0].type != self.type[0].type:
            raise CorruptStateError(
                f"variable {self.name!r} was written as {structs.type} and does not fit {self.type}",
                remedy="declare the variable as it is stored, or one of another name",
                id="RIFFLE-0471",
            )
        return _part(structs, _VALUE)

    def _with_values(self, structs: pa.StructArray, values: pa.StructArray) -> pa.StructArray:
        if self.key is None:
            return values
        return _like(structs, [_part(structs, _KEY), values], [self.type[0], pa.field(_VALUE, values.type)])

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


def _like(structs: pa.StructArray, fields: Sequence[pa.Array], kinds: Sequence[pa.Field]) -> pa.StructArray:
    """Return structs of these fields, null where others are."""
    return pa.StructArray.from_arrays(fields, fields=kinds, mask=structs.is_null())


def _part(structs: pa.StructArray, name: str) -> pa.StructArray:
    """Return a field, null where the struct is."""
    return structs.flatten()[structs.type.get_field_index(name)]


def ids_of_keys(structs: pa.StructArray) -> Ids:
    """Return the ids of a map's entries; what is null is none."""
    data, offsets = byte_slices(encoded_keys(structs))
    seeds = np.full(len(structs), _SEED, dtype=np.uint64)
    ids = hash_bytes(data, offsets[:-1], np.diff(offsets), seeds).view(np.int64)
    ids = np.maximum(ids, NO_ELEMENT + 1)
    return np.where(structs.is_null().to_numpy(zero_copy_only=False), NO_ELEMENT, ids) if structs.null_count else ids


def encoded_keys(structs: pa.StructArray) -> pa.LargeBinaryArray:
    """Return the stored keys of a map's entries."""
    return encode_nested_keys(_part(structs, _KEY).flatten())


def id_of_key(encoded: bytes) -> int:
    """Return the id of one entry by its stored key."""
    bits = xxhash.xxh64_intdigest(encoded, seed=_SEED)
    signed = bits - (1 << 64) if bits >> 63 else bits
    return signed if signed != NO_ELEMENT else NO_ELEMENT + 1
