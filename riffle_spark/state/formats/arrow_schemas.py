"""Schemas of columns as text, and what columns may become. Knows Arrow's types. Does not know stores or values."""

import base64
import struct

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, raise_if_memory
from riffle_spark.state.formats.arrow_messages import check_schema

__all__ = ["can_become", "check_names", "check_storable", "inner_types", "listed", "packed", "unpacked", "widens"]

_REMEDY = "restore the log's objects from a backup, or roll back to a version that is intact (riffle rollback)"
_UNITS = ("s", "ms", "us", "ns")
_LEAVES = [
    getattr(pa.types, f"is_{name}")
    for name in (
        "null",
        "primitive",
        "decimal",
        "fixed_size_binary",
        "string",
        "large_string",
        "binary",
        "large_binary",
    )
]


def packed(schema: pa.Schema) -> str:
    """Return a schema as text that ``unpacked`` reads. Metadata is left out."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def unpacked(text: str) -> pa.Schema:
    """Return the schema that ``packed`` gave as text. Raises ``CorruptStateError`` for any other."""
    try:
        data = base64.b64decode(text)
        check_schema(memoryview(data))
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        check_names(schema)
        if len(set(schema.names)) < len(schema.names):
            raise ValueError("a column stands there twice")
    except (pa.ArrowException, OSError, struct.error, *UNREADABLE) as error:
        raise_if_memory(error)
        raise CorruptStateError(
            f"the columns of a state cannot be read from their text: {error}",
            remedy=_REMEDY,
            where="schemas",
            id="RIFFLE-0391",
        ) from error
    return schema


def check_names(schema: pa.Schema) -> None:
    """Raise ``UnicodeDecodeError`` for a name that is no text, also of a field in a field: Arrow reads any bytes."""
    assert schema.names is not None
    for kind in schema.types:
        if kind.num_fields:
            _check_names_in(kind)


def _check_names_in(kind: pa.DataType) -> None:
    for field in _inner(kind):
        assert field.name is not None
        _check_names_in(field.type)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _inner(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def inner_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the fields of a nested type."""
    return [field.type for field in _inner(kind)]


def listed(schema: pa.Schema) -> str:
    """Return names and types for a person to read."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def check_storable(kind: pa.DataType, what: str = "a column", *, with_dictionaries: bool = False) -> None:
    """Raise ``ConfigError`` for a type that state cannot hold: unions, views, runs, fixed-size lists of such lists,
    whose slices pyarrow copies wrongly, and, unless they are allowed, dictionaries.
    """
    named = pa.types
    inner = inner_types(kind)
    if with_dictionaries and named.is_dictionary(kind):
        inner = [kind.value_type]
    if not inner and not named.is_struct(kind) and not any(is_one(_stored(kind)) for is_one in _LEAVES):
        raise ConfigError(
            f"state cannot hold {what} of type {kind}", remedy="declare a plain type and cast to it", id="RIFFLE-0392"
        )
    if named.is_fixed_size_list(kind) and named.is_fixed_size_list(inner[0]):
        raise ConfigError(
            f"state cannot hold {what} of type {kind}", remedy="declare lists without a fixed size", id="RIFFLE-0393"
        )
    for one in inner:
        check_storable(one, what, with_dictionaries=with_dictionaries)


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def can_become(before: pa.Schema, now: pa.Schema) -> bool:
    """Tell whether stored values of some columns can be read as those of others, by name. As in Spark, a column that
    may be null stays one.
    """
    known = {field.name: field for field in before}
    return all(
        _can_hold(known[field.name].type, field.type) and field.nullable >= known[field.name].nullable
        if field.name in known
        else field.nullable
        for field in now
    )


def _can_hold(before: pa.DataType, now: pa.DataType) -> bool:
    """Tell whether every value of one type is one of the other; a time must not lose its fractions."""
    if pa.types.is_timestamp(before) and pa.types.is_timestamp(now) and before.tz == now.tz:
        return _UNITS.index(before.unit) <= _UNITS.index(now.unit)
    return before == now or (not pa.types.is_null(before) and widens(before, now))


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Tell whether every value of one type is a value of the other."""
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_dictionary(source):
        return widens(source.value_type, target)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        digits = [type.precision - type.scale for type in (source, target)]
        return bool(source.scale <= target.scale and digits[0] <= digits[1])
    if pa.types.is_nested(source):
        return _nested_widens(source, target)
    return _number_widens(source, target) or _same_bytes(source, target)


def _number_widens(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_integer(source) and pa.types.is_integer(target):
        spare = pa.types.is_unsigned_integer(source) and pa.types.is_signed_integer(target)
        loses_sign = pa.types.is_signed_integer(source) and pa.types.is_unsigned_integer(target)
        return not loses_sign and bool(source.bit_width + spare <= target.bit_width)
    if pa.types.is_integer(source) and pa.types.is_floating(target):
        return bool(2 * source.bit_width <= target.bit_width)
    return bool(pa.types.is_floating(source) and pa.types.is_floating(target) and source.bit_width <= target.bit_width)


def _same_bytes(source: pa.DataType, target: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    octets = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(
        any(is_one(source) for is_one in kind) and any(is_one(target) for is_one in kind) for kind in (texts, octets)
    )


def _nested_widens(source: pa.DataType, target: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list)
    if any(is_one(source) for is_one in lists) and any(is_one(target) for is_one in lists):
        return widens(source.value_type, target.value_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        same_names = [field.name for field in source] == [field.name for field in target]
        return same_names and all(widens(one.type, other.type) for one, other in zip(source, target, strict=True))
    both_maps = pa.types.is_map(source) and pa.types.is_map(target)
    return both_maps and source.key_type == target.key_type and widens(source.item_type, target.item_type)
