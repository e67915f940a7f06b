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
from riffle_spark.process.types.simple_converters import Convert, Converter, Misfit, make_simple_converter

RecordMaker: TypeAlias = Callable[[Sequence[str]], Callable[[Iterable[object]], tuple[object, ...]]]
"""Returns, for the field names of a struct, the function that makes a user's record from their values."""

_PYTHON: Final = {type(None), bool, int, float, str, bytes, date, datetime, timedelta, Decimal, list, tuple, dict}


def make_converter(kind: pa.DataType, record: RecordMaker) -> Converter:
    """Return the converter of a type between Python values and Arrow.

    ``record`` makes the tuples of structs. Raises ``ConfigError`` if the type is not supported.
    """
    simple = make_simple_converter(kind)
    if simple is not None:
        return simple
    if types.is_list(kind) or types.is_large_list(kind):
        return _make_list_converter(kind, record)
    if types.is_map(kind):
        return _make_map_converter(kind, record)
    if types.is_struct(kind):
        return _make_struct_converter(kind, record)
    # Cause: The Arrow type has no equal among the types of Spark.
    raise ConfigError(f"State cannot keep type {kind}.", remedy="Declare a type of Spark.", id="RIFFLE-0203")


def accept_null(normalize: Convert, field: pa.Field) -> Convert:
    """Return a function that checks values of ``field`` by ``normalize``.

    It also accepts NumPy and pandas scalars, and nulls if the field is nullable; it raises ``Misfit`` for other nulls.
    """

    def normalize_or_null(value: object) -> object:
        value = _to_python(value)
        if value is None or type(value).__name__ == "NaTType":
            if not field.nullable:
                raise Misfit("null", None, f"{field.type} that is not null").add_field(field.name)
            return None
        try:
            return normalize(value)
        except Misfit as misfit:
            raise misfit.add_field(field.name) from None

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


def _make_list_converter(kind: pa.DataType, record: RecordMaker) -> Converter:
    """Return the converter of a list type. It accepts lists, tuples, NumPy arrays and bytes."""
    element = make_converter(kind.value_type, record)
    normalize_element = accept_null(element.normalize, kind.value_field)

    def normalize(value: object) -> list[object]:
        if not isinstance(value, list | tuple | np.ndarray | bytes | bytearray):
            raise Misfit("type", value, kind)
        return [normalize_element(item) for item in value]

    copy = _convert_items(element.copy) or list
    return Converter(frozenset(), normalize, _convert_items(element.to_arrow), _convert_items(element.from_arrow), copy)


def _convert_items(convert: Convert | None) -> Convert | None:
    """Return a function that converts each item of a list by ``convert`` and leaves nulls; ``None`` if there is nothing
    to convert.
    """
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _make_map_converter(kind: pa.DataType, record: RecordMaker) -> Converter:
    """Return the converter of a map type. It accepts mappings."""
    key = make_converter(kind.key_type, record)
    item = make_converter(kind.item_type, record)
    normalize_key = accept_null(key.normalize, kind.key_field)
    normalize_item = accept_null(item.normalize, kind.item_field)
    key_to_arrow = _pass_nulls(key.to_arrow)
    item_to_arrow = _pass_nulls(item.to_arrow)
    key_from_arrow = _pass_nulls(key.from_arrow)
    item_from_arrow = _pass_nulls(item.from_arrow)
    copy_item = _pass_nulls(item.copy)

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


def _pass_nulls(convert: Convert | None) -> Convert:
    """Return a function that converts by ``convert``, if any, and returns ``None`` for null."""
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _make_struct_converter(kind: pa.DataType, record: RecordMaker) -> Converter:
    """Return the converter of a struct type.

    It accepts mappings, tuples and lists; ``record`` makes the tuples that users read.
    """
    fields = list(kind)
    names = [field.name for field in fields]
    converters = [make_converter(field.type, record) for field in fields]
    pairs = zip(converters, fields, strict=True)
    normalizers = [accept_null(converter.normalize, field) for converter, field in pairs]
    to_arrow = [_pass_nulls(converter.to_arrow) for converter in converters]
    from_arrow = [_pass_nulls(converter.from_arrow) for converter in converters]
    copies = [_pass_nulls(converter.copy) for converter in converters]
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
