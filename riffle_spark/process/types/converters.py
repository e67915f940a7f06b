"""Converters between Python values and Arrow for all types, with nested types, nulls and NumPy scalars.

Structs are shown as records, maps as dictionaries. Both are accepted in these forms, and structs also as dictionaries,
as in Spark. Scalars of NumPy and pandas are accepted as the Python values that they represent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.simple_converters import Convert, Converter, Misfit, simple_converter

__all__ = ["RecordMaker", "accept_null", "converter_of"]

RecordMaker: TypeAlias = Callable[[Sequence[str]], Callable[[Iterable[object]], tuple[object, ...]]]
"""Returns, for the field names of a struct, the function that makes a user's record from their values."""

_PYTHON: Final = {type(None), bool, int, float, str, bytes, date, datetime, timedelta, Decimal, list, tuple, dict}


def converter_of(kind: pa.DataType, record: RecordMaker) -> Converter:
    """Return the converter of a type. Raises ``ConfigError`` if it is not supported."""
    simple = simple_converter(kind)
    if simple is not None:
        return simple
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(kind, record)
    if types.is_map(kind):
        return _maps(kind, record)
    if types.is_struct(kind):
        return _structs(kind, record)
    # Cause: The Arrow type has no equal among the types of Spark.
    raise ConfigError(f"State cannot keep type {kind}.", remedy="Declare a type of Spark.", id="RIFFLE-0203")


def accept_null(normalize: Convert, field: pa.Field) -> Convert:
    """Return a conversion that also accepts NumPy and pandas scalars, and nulls if the field is nullable."""

    def normalize_or_null(value: object) -> object:
        value = _to_python(value)
        if value is None or type(value).__name__ == "NaTType":
            if not field.nullable:
                raise Misfit("null", None, f"{field.type} that is not null").within(field.name)
            return None
        try:
            return normalize(value)
        except Misfit as misfit:
            raise misfit.within(field.name) from None

    return normalize_or_null


def _to_python(value: object) -> object:
    """Return a NumPy or pandas scalar as a Python value, and other values unchanged."""
    if type(value) in _PYTHON:
        return value
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    if isinstance(value, np.timedelta64):
        return value.astype("timedelta64[us]").item()
    if isinstance(value, np.generic):
        return value.item()
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _lists(kind: pa.DataType, record: RecordMaker) -> Converter:
    element = converter_of(kind.value_type, record)
    normalize_element = accept_null(element.normalize, kind.value_field)

    def normalize(value: object) -> list[object]:
        if not isinstance(value, list | tuple | np.ndarray | bytes | bytearray):
            raise Misfit("type", value, kind)
        return [normalize_element(item) for item in value]

    copy = _for_each(element.copy) or list
    return Converter(frozenset(), normalize, _for_each(element.to_arrow), _for_each(element.from_arrow), copy)


def _for_each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _maps(kind: pa.DataType, record: RecordMaker) -> Converter:
    key = converter_of(kind.key_type, record)
    item = converter_of(kind.item_type, record)
    normalize_key = accept_null(key.normalize, kind.key_field)
    normalize_item = accept_null(item.normalize, kind.item_field)
    key_to_arrow = _or_null(key.to_arrow)
    item_to_arrow = _or_null(item.to_arrow)
    key_from_arrow = _or_null(key.from_arrow)
    item_from_arrow = _or_null(item.from_arrow)
    copy_item = _or_null(item.copy)

    def normalize(value: object) -> dict[object, object]:
        if not isinstance(value, Mapping):
            raise Misfit("type", value, kind)
        return {normalize_key(k): normalize_item(v) for k, v in value.items()}

    return Converter(
        frozenset(),
        normalize,
        lambda value: [(key_to_arrow(k), item_to_arrow(v)) for k, v in value.items()],
        lambda pairs: {key_from_arrow(k): item_from_arrow(v) for k, v in pairs},
        lambda value: {k: copy_item(v) for k, v in value.items()},
    )


def _or_null(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _structs(kind: pa.DataType, record: RecordMaker) -> Converter:
    fields = list(kind)
    names = [field.name for field in fields]
    converters = [converter_of(field.type, record) for field in fields]
    pairs = zip(converters, fields, strict=True)
    normalizers = [accept_null(converter.normalize, field) for converter, field in pairs]
    to_arrow = [_or_null(converter.to_arrow) for converter in converters]
    from_arrow = [_or_null(converter.from_arrow) for converter in converters]
    copies = [_or_null(converter.copy) for converter in converters]
    make_record = record(names)

    def normalize(value: object) -> tuple[object, ...]:
        if isinstance(value, Mapping):
            value = tuple(value.get(name) for name in names)
        if not isinstance(value, tuple | list):
            raise Misfit("type", value, kind)
        if len(value) != len(names):
            raise Misfit("length", len(value), len(names))
        return make_record(convert(item) for convert, item in zip(normalizers, value, strict=True))

    def copy(value: tuple[object, ...]) -> tuple[object, ...]:
        return make_record(convert(item) for convert, item in zip(copies, value, strict=True))

    return Converter(
        frozenset(),
        normalize,
        lambda value: tuple(convert(item) for convert, item in zip(to_arrow, value, strict=True)),
        lambda value: make_record(convert(item) for convert, item in zip(from_arrow, value.values(), strict=True)),
        copy if any(converter.copy for converter in converters) else None,
    )
