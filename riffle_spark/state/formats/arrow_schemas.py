"""Schemas as text, types that state can store, and conversions between types that lose nothing."""

import base64
import struct

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, raise_if_memory
from riffle_spark.state.formats.arrow_messages import check_schema

_REMEDY = "Restore the log's objects from a backup, or roll back to an intact version (riffle rollback)."
_UNITS = ("s", "ms", "us", "ns")
_STORABLE_LEAVES = [
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


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as base64 of its Arrow IPC message, for ``schema_from_text``. The schema's own metadata is left
    out.
    """
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Return the schema that ``schema_to_text`` wrote. Raises ``CorruptStateError`` for any other text."""
    try:
        data = base64.b64decode(text)
        check_schema(memoryview(data))
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        check_names(schema)
        if len(set(schema.names)) < len(schema.names):
            raise ValueError("two columns have the same name")
    except (pa.ArrowException, OSError, struct.error, *UNREADABLE) as error:
        raise_if_memory(error)
        # Cause: The record with the schema was altered, or another program wrote it.
        raise CorruptStateError(
            f"Cannot read the stored schema of a state: {error}",
            remedy=_REMEDY,
            where="schemas",
            id="RIFFLE-0391",
        ) from error
    return schema


def check_names(schema: pa.Schema) -> None:
    """Raise ``UnicodeDecodeError`` if the name of a column or nested field is not UTF-8. Arrow does not check it."""
    assert schema.names is not None
    for kind in schema.types:
        if kind.num_fields:
            _check_names_in(kind)


def _check_names_in(kind: pa.DataType) -> None:
    """Raise ``UnicodeDecodeError`` if the name of a nested field is not UTF-8."""
    for field in _inner_fields(kind):
        assert field.name is not None
        _check_names_in(field.type)


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a nested type; empty for other types."""
    if isinstance(kind, pa.BaseExtensionType):
        return _inner_fields(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def inner_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types directly inside a nested type; empty for other types."""
    return [field.type for field in _inner_fields(kind)]


def describe_schema(schema: pa.Schema) -> str:
    """Return the names and types as readable text."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def check_storable(kind: pa.DataType, subject: str = "a column", *, with_dictionaries: bool = False) -> None:
    """Raise ``ConfigError`` for a type that state cannot store. ``subject`` names the column or value in the error.

    These are unions, views, run-end encoded columns, and dictionaries unless they are allowed. Fixed-size lists of
    fixed-size lists are refused too, because pyarrow copies their slices wrongly.
    """
    inner = inner_types(kind)
    if with_dictionaries and pa.types.is_dictionary(kind):
        inner = [kind.value_type]
    if (
        not inner
        and not pa.types.is_struct(kind)
        and not any(is_leaf(_storage_type(kind)) for is_leaf in _STORABLE_LEAVES)
    ):
        raise ConfigError(
            f"State cannot store {subject} of type {kind}.",
            remedy="Declare a plain type and cast to it.",
            id="RIFFLE-0392",
        )
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(inner[0]):
        raise ConfigError(
            f"State cannot store {subject} of type {kind}.",
            remedy="Declare lists without a fixed size.",
            id="RIFFLE-0393",
        )
    for inner_type in inner:
        check_storable(inner_type, subject, with_dictionaries=with_dictionaries)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that an extension type is stored as, and other types unchanged."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def can_become(stored: pa.Schema, declared: pa.Schema) -> bool:
    """Return whether columns with the stored schema can be read with the declared schema. Columns are matched by name.

    Nullable columns stay nullable, as in Spark. So do elements and fields inside them, because stored values of keys
    that no batch reads may hold NULL there. A declared column that is not stored must be nullable.
    """
    stored_fields = {field.name: field for field in stored}
    return all(
        _can_hold(stored_fields[field.name].type, field.type) and _stays_nullable(stored_fields[field.name], field)
        if field.name in stored_fields
        else field.nullable
        for field in declared
    )


def _can_hold(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether every stored value is a value of the declared type, without loss of fractions of times."""
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(declared) and stored.tz == declared.tz:
        return _UNITS.index(stored.unit) <= _UNITS.index(declared.unit)
    return stored == declared or (not pa.types.is_null(stored) and widens(stored, declared))


def _stays_nullable(stored: pa.Field, declared: pa.Field) -> bool:
    """Return whether the declared field, and every field inside it, may be null if the stored one may be."""
    return declared.nullable >= stored.nullable and all(
        _stays_nullable(stored_field, declared_field)
        for stored_field, declared_field in zip(_inner_fields(stored.type), _inner_fields(declared.type), strict=False)
    )


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of type ``source`` is a value of type ``target``."""
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
    """Return whether every number of type ``source`` is one of type ``target``; false for other types."""
    if pa.types.is_integer(source) and pa.types.is_integer(target):
        spare = pa.types.is_unsigned_integer(source) and pa.types.is_signed_integer(target)
        loses_sign = pa.types.is_signed_integer(source) and pa.types.is_unsigned_integer(target)
        return not loses_sign and bool(source.bit_width + spare <= target.bit_width)
    if pa.types.is_integer(source) and pa.types.is_floating(target):
        return bool(2 * source.bit_width <= target.bit_width)
    return bool(pa.types.is_floating(source) and pa.types.is_floating(target) and source.bit_width <= target.bit_width)


def _same_bytes(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether both types are string types, or both are binary types."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    octets = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(
        any(matches(source) for matches in group) and any(matches(target) for matches in group)
        for group in (texts, octets)
    )


def _nested_widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every list, struct or map of type ``source`` is one of type ``target``; false for other types."""
    lists = (pa.types.is_list, pa.types.is_large_list)
    if any(is_list(source) for is_list in lists) and any(is_list(target) for is_list in lists):
        return widens(source.value_type, target.value_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        same_names = [field.name for field in source] == [field.name for field in target]
        return same_names and all(
            widens(source_field.type, target_field.type)
            for source_field, target_field in zip(source, target, strict=True)
        )
    both_maps = pa.types.is_map(source) and pa.types.is_map(target)
    return both_maps and source.key_type == target.key_type and widens(source.item_type, target.item_type)
