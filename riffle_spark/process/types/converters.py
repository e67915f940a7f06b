"""One value of any type, between a user and Arrow. Knows nesting, nulls and NumPy's scalars. Does not know columns.

Structs are shown as records, maps as dictionaries, and so they are taken; a struct also as a dictionary, as Spark does.
NumPy's and pandas' scalars are taken for the Python values that they are.
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

__all__ = ["RecordMaker", "converter_of", "nullable"]

RecordMaker: TypeAlias = Callable[[Sequence[str]], Callable[[Iterable[object]], tuple[object, ...]]]
"""Makes, for the names of a struct's fields, what turns their values into what a user sees."""

_PYTHON: Final = {type(None), bool, int, float, str, bytes, date, datetime, timedelta, Decimal, list, tuple, dict}


def converter_of(kind: pa.DataType, record: RecordMaker) -> Converter:
    """Return the converter of a type; ``ConfigError`` if there is none."""
    simple = simple_converter(kind)
    if simple is not None:
        return simple
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(kind, record)
    if types.is_map(kind):
        return _maps(kind, record)
    if types.is_struct(kind):
        return _structs(kind, record)
    raise ConfigError(
        f"state cannot hold a column of type {kind}", remedy="declare a type that Spark has", id="RIFFLE-0203"
    )


def nullable(take: Convert, field: pa.Field) -> Convert:
    """Return what takes a null too, if the field does, and NumPy's and pandas' scalars."""

    def taken(value: object) -> object:
        value = _taken_as(value)
        if value is None or type(value).__name__ == "NaTType":
            if not field.nullable:
                raise Misfit("null", None, f"{field.type} that is not null").at(field.name)
            return None
        try:
            return take(value)
        except Misfit as misfit:
            raise misfit.at(field.name) from None

    return taken


def _taken_as(value: object) -> object:
    """Return a NumPy or pandas scalar as the Python value that it is; anything else as it is."""
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
    take_element = nullable(element.take, kind.value_field)

    def take(value: object) -> list[object]:
        if not isinstance(value, list | tuple | np.ndarray | bytes | bytearray):
            raise Misfit("type", value, kind)
        return [take_element(one) for one in value]

    copied = _each(element.copied) or list
    return Converter(frozenset(), take, _each(element.to_arrow), _each(element.from_arrow), copied)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _maps(kind: pa.DataType, record: RecordMaker) -> Converter:
    key, item = converter_of(kind.key_type, record), converter_of(kind.item_type, record)
    take_key, take_item = nullable(key.take, kind.key_field), nullable(item.take, kind.item_field)
    out_key, out_item = _or_null(key.to_arrow), _or_null(item.to_arrow)
    back_key, back_item = _or_null(key.from_arrow), _or_null(item.from_arrow)
    copied_item = _or_null(item.copied)

    def take(value: object) -> dict[object, object]:
        if not isinstance(value, Mapping):
            raise Misfit("type", value, kind)
        return {take_key(one): take_item(other) for one, other in value.items()}

    return Converter(
        frozenset(),
        take,
        lambda value: [(out_key(one), out_item(other)) for one, other in value.items()],
        lambda pairs: {back_key(one): back_item(other) for one, other in pairs},
        lambda value: {one: copied_item(other) for one, other in value.items()},
    )


def _or_null(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _structs(kind: pa.DataType, record: RecordMaker) -> Converter:
    fields = list(kind)
    names = [field.name for field in fields]
    converters = [converter_of(field.type, record) for field in fields]
    takes = [nullable(one.take, field) for one, field in zip(converters, fields, strict=True)]
    outs = [_or_null(one.to_arrow) for one in converters]
    backs = [_or_null(one.from_arrow) for one in converters]
    copies = [_or_null(one.copied) for one in converters]
    make = record(names)

    def take(value: object) -> tuple[object, ...]:
        if isinstance(value, Mapping):
            value = tuple(value.get(name) for name in names)
        if not isinstance(value, tuple | list):
            raise Misfit("type", value, kind)
        if len(value) != len(names):
            raise Misfit("length", len(value), len(names))
        return make(convert(one) for convert, one in zip(takes, value, strict=True))

    return Converter(
        frozenset(),
        take,
        lambda value: tuple(convert(one) for convert, one in zip(outs, value, strict=True)),
        lambda value: make(convert(one) for convert, one in zip(backs, value.values(), strict=True)),
        (lambda value: make(map(_call, copies, value))) if any(one.copied for one in converters) else None,
    )


def _call(convert: Convert, value: object) -> object:
    return convert(value)
