"""Keys and values of state as JSON, by their Arrow types.

JSON has no bytes, dates or exact decimals, so they are written as:

| type | JSON |
| --- | --- |
| null | ``null`` |
| binary, text that is not UTF-8 | ``{"base64": "AAEC"}`` |
| floats that JSON lacks | ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| decimal | text, such as ``"1.50"``; a number is read too |
| date, timestamp, time | text: ``"2026-01-31"``, ``"2026-01-31 10:00:00.000000Z"``; a number of units is read too |
| duration | a whole number of the type's units |
| interval of months, days and nanoseconds | a list of the three numbers |
| list, struct | list, object |
| map | a list of ``[key, value]`` pairs |
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Final, cast

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Mask, is_text_or_bytes, one_array
from riffle_spark.errors import UNREADABLE, ConfigError

_BYTES: Final = "base64"
_SPECIAL_FLOATS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Misfit(ValueError):
    """A JSON value that does not fit the type of its column.

    ``column`` is the path of the column, such as ``total`` or ``window.start``, and ``kind`` the expected type. The
    text of the error has both, and not the value, which may be user data.
    """

    def __init__(self, column: str, kind: object, problem: str = "") -> None:
        """Create the error. ``problem`` describes the error if the type alone does not."""
        super().__init__(f"{column} must be {kind}{', ' if problem else ''}{problem}")
        self.column = column
        self.kind = kind


def parse_json(text: str) -> object:
    """Return the value of JSON text, with exact decimals. Raises ``ValueError`` for other text."""
    try:
        return json.loads(text, parse_float=Decimal)
    except UNREADABLE as error:
        raise ValueError(f"it is not JSON: {error}") from None


def parse_key(text: str, key: pa.Schema, store: str, routing: Sequence[str] = ()) -> pa.Table:
    """Return the key that a text names, as a table with the columns of ``key`` and one row.

    ``text`` is JSON: a list with the value of each column, or an object by column. The value alone is enough for a
    single column. For a single text column the text itself is the key, unless it is a JSON list or object. So
    ``[null]`` is the null key. Text that is not JSON is the value of a single column. The text may also name the
    columns ``routing`` alone; then the table has these.

    Raises ``ConfigError`` with the columns and their types if the text does not fit.
    """
    if routing and list(routing) != key.names:
        with suppress(ConfigError):
            return parse_key(text, pa.schema([key.field(name) for name in routing]), store)
    try:
        value = parse_json(text)
    except ValueError as error:
        if len(key) > 1:
            raise _misfit_error(key, store, error) from error
        value = [text]
    if _is_text_key(key) and not isinstance(value, list | dict):
        value = [text]
    return table_of_keys([value], key, store)


def table_of_keys(values: Sequence[object], key: pa.Schema, store: str) -> pa.Table:
    """Return JSON values of keys as a table with the columns of ``key``: lists, objects, or values of a single column.

    Raises ``ConfigError`` as ``parse_key`` does.
    """
    try:
        rows = [_split_value(value, key.names) for value in values]
        columns = [array_of_json([row[place] for row in rows], field) for place, field in enumerate(key)]
    except UNREADABLE as error:
        raise _misfit_error(key, store, error) from error
    return pa.table(columns, schema=key)


def _misfit_error(key: pa.Schema, store: str, error: Exception) -> ConfigError:
    """Return the error for a key that does not fit its columns."""
    return ConfigError(
        f"The key does not fit store {store!r}: {error}.",
        remedy=f"Give {describe_key(key)}.",
        where=store,
        id="RIFFLE-1590",
    )


def describe_key(key: pa.Schema) -> str:
    """Return how a key of these columns is written, as text for a remedy."""
    described = ", ".join(f"{field.name} ({field.type})" for field in key)
    if _is_text_key(key):
        return f"{described}: the text as it is, or [null] for the null key"
    form = "a JSON value" if len(key) == 1 else "a JSON list in this order, or a JSON object by column"
    return f"{described} as {form}; bytes as an object with base64"


def _split_value(value: object, names: Sequence[str]) -> Sequence[object]:
    """Return the JSON value of each column of a key. Raises ``ValueError`` if the columns differ."""
    is_bytes = isinstance(value, dict) and len(names) == 1 and value.keys() == {_BYTES} != set(names)
    if isinstance(value, dict) and not is_bytes:
        unknown = sorted(value.keys() - set(names))
        missing = [name for name in names if name not in value]
        if unknown or missing:
            raise ValueError(f"it has no column {unknown[0]!r}" if unknown else f"column {missing[0]!r} is missing")
        return [value[name] for name in names]
    values = value if isinstance(value, list) else [value]
    if len(values) != len(names):
        raise ValueError(f"it has {len(names)} columns, and {len(values)} values were given")
    return values


def _is_text_key(key: pa.Schema) -> bool:
    """Return whether a key is a single text column."""
    return len(key) == 1 and _is_text(key.field(0).type)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def array_of_json(values: Sequence[object], field: pa.Field, path: str = "") -> pa.Array:
    """Return an array of the field's type with these JSON values (``parse_json``).

    ``path`` names the columns around the field. Raises ``Misfit`` for a value of another type, and for null in a field
    that may not be null.
    """
    kind = field.type
    name = f"{path}.{field.name}" if path else field.name
    is_null = np.array([value is None for value in values], np.bool_)
    if is_null.any() and not field.nullable:
        raise Misfit(name, kind, "and not null")
    try:
        if pa.types.is_struct(kind):
            return _structs(values, kind, is_null, name)
        if pa.types.is_map(kind):
            return _maps(values, kind, name)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return _lists(values, kind, name)
        return _leaf_of_json(values, kind)
    except Misfit:
        raise
    except (*UNREADABLE, pa.ArrowException, InvalidOperation) as error:
        raise Misfit(name, kind) from error


def _structs(values: Sequence[object], kind: pa.StructType, is_null: Mask, name: str) -> pa.Array:
    """Return structs of JSON objects. A field that an object lacks is null."""
    rows: list[Mapping[str, object]] = []
    for value in values:
        if value is not None and not isinstance(value, dict):
            raise Misfit(name, kind)
        rows.append(value or {})
    known = {field.name for field in kind}
    unknown = sorted({key for row in rows for key in row} - known)
    if unknown:
        raise Misfit(name, kind, f"which has no field {unknown[0]!r}")
    fields = []
    for field in kind:
        inner = field.with_nullable(True) if is_null.all() else field
        fields.append(array_of_json([row.get(field.name) for row in rows], inner, name))
    if not fields:
        return pa.array([None if null else {} for null in is_null.tolist()], kind)
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(is_null))


def _offsets(lengths: Sequence[int | None]) -> list[int | None]:
    """Return the offsets of lists with these lengths, ``None`` for null, as Arrow's constructors expect them."""
    position = 0
    offsets: list[int | None] = []
    for length in lengths:
        offsets.append(None if length is None else position)
        position += length or 0
    return [*offsets, position]


def _lists(values: Sequence[object], kind: pa.DataType, name: str) -> pa.Array:
    """Return lists of JSON lists."""
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    if not all(value is None or (isinstance(value, list) and size in (None, len(value))) for value in values):
        raise Misfit(name, kind)
    lists = [cast("list[object] | None", value) for value in values]
    if size is not None:
        flat = [element for value in lists for element in (value or [None] * size)]
        elements = array_of_json(flat, kind.value_field, name)
        is_null = pa.array([value is None for value in lists], pa.bool_())
        return pa.FixedSizeListArray.from_arrays(elements, type=kind, mask=is_null)
    is_large = pa.types.is_large_list(kind)
    offsets = _offsets([None if value is None else len(value) for value in lists])
    elements = array_of_json([element for value in lists for element in value or ()], kind.value_field, name)
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(pa.array(offsets, pa.int64() if is_large else pa.int32()), elements, type=kind)


def _maps(values: Sequence[object], kind: pa.MapType, name: str) -> pa.Array:
    """Return maps of JSON lists of pairs, or of JSON objects if the keys are text."""
    keys: list[object] = []
    items: list[object] = []
    lengths: list[int | None] = []
    for value in values:
        pairs = list(value.items()) if isinstance(value, dict) and _is_text(kind.key_type) else value
        if pairs is not None and not (
            isinstance(pairs, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
        ):
            raise Misfit(name, kind, "written as a list of [key, value] pairs")
        keys += [key for key, _ in pairs or ()]
        items += [item for _, item in pairs or ()]
        lengths.append(None if pairs is None else len(pairs))
    return pa.MapArray.from_arrays(
        pa.array(_offsets(lengths), pa.int32()),
        array_of_json(keys, kind.key_field, name),
        array_of_json(items, kind.item_field, name),
        type=kind,
    )


def _leaf_of_json(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return an array of a type that is not nested. Raises errors of Python and Arrow for values that do not fit."""
    if is_text_or_bytes(kind):
        return pa.array([_bytes_of(value, kind) for value in values], _binary_of(kind)).view(kind)
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        return pa.concat_arrays([pa.nulls(0, kind), *(_time_of(value, kind) for value in values)])
    for has_type, convert in _LEAVES:
        if has_type(kind):
            return pa.array([None if value is None else convert(value) for value in values], kind)
    raise TypeError(f"JSON has no form for {kind}")


def _binary_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of bytes with the layout of a type of text or bytes."""
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return pa.large_binary() if is_large else pa.binary()


def _bytes_of(value: object, kind: pa.DataType) -> bytes | None:
    """Return the bytes of a text or of an object with base64. Bytes have no other form. Raises ``TypeError``."""
    if isinstance(value, str) and _is_text(kind):
        return value.encode()
    return None if value is None else _bytes_of_object(value)


def _bytes_of_object(value: object) -> bytes:
    """Return the bytes of an object with base64. Raises ``TypeError`` or ``ValueError`` for other values."""
    if not (isinstance(value, dict) and value.keys() == {_BYTES} and isinstance(value[_BYTES], str)):
        raise TypeError
    return base64.b64decode(value[_BYTES], validate=True)


def _float_of(value: object) -> float:
    """Return a number or one of the special texts as a float. Raises ``TypeError`` or ``KeyError``."""
    if isinstance(value, str):
        return _SPECIAL_FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError
    return float(value)


def _decimal_of(value: object) -> Decimal:
    """Return a number or a text as a decimal. Raises ``TypeError`` or ``InvalidOperation``."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise TypeError
    return Decimal(repr(value) if isinstance(value, float) else value)


def _bool_of(value: object) -> bool:
    """Return a truth value. Raises ``TypeError`` for other values."""
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int_of(value: object) -> int:
    """Return a whole number. Raises ``TypeError`` for other values."""
    if type(value) is not int:
        raise TypeError
    return value


def _interval_of(value: object) -> tuple[int, ...]:
    """Return the numbers of an interval. Raises ``TypeError`` for other values."""
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_int_of, value))


def _no_value(value: object) -> None:
    """Refuse a value of a type that has only null."""
    raise TypeError(f"{type(value)} is not null")


_LEAVES: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[object], object]]]] = (
    (pa.types.is_boolean, _bool_of),
    (pa.types.is_integer, _int_of),
    (pa.types.is_floating, _float_of),
    (pa.types.is_decimal, _decimal_of),
    (pa.types.is_fixed_size_binary, _bytes_of_object),
    (pa.month_day_nano_interval().__eq__, _interval_of),
    (pa.types.is_null, _no_value),
)
"""For each kind of type that is not nested, how a JSON value becomes a value that pyarrow accepts."""


def _time_of(value: object, kind: pa.DataType) -> pa.Array:
    """Return one date, time or duration of its text or of a number of units. Raises errors of Python or Arrow."""
    if value is None:
        return pa.nulls(1, kind)
    if isinstance(value, str) and not pa.types.is_duration(kind):
        return pa.array([value]).cast(kind)
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array([_int_of(value)], width).cast(kind)


def to_json_rows(table: pa.Table) -> list[dict[str, object]]:
    """Return the rows of a table as JSON objects by column."""
    columns = [json_of_array(one_array(column)) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def json_of_array(array: pa.Array) -> list[object]:
    """Return the values of an array as JSON values, which ``json.dumps`` writes and ``array_of_json`` reads."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return json_of_array(array.dictionary_decode())
    if pa.types.is_struct(kind):
        fields = [json_of_array(field) for field in array.flatten()]
        names = [field.name for field in kind]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)] if fields else None
        return [None if null else (rows[row] if rows is not None else {}) for row, null in enumerate(_null_list(array))]
    if pa.types.is_map(kind):
        pairs = [list(pair) for pair in zip(json_of_array(array.keys), json_of_array(array.items), strict=True)]
        return _split(pairs, array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _split(json_of_array(array.values), array)
    if pa.types.is_fixed_size_list(kind):
        elements = json_of_array(array.values)
        starts = range(array.offset * kind.list_size, (array.offset + len(array)) * kind.list_size, kind.list_size or 1)
        lists = [elements[start : start + kind.list_size] for start in starts] if kind.list_size else [[]] * len(array)
        return [None if null else values for null, values in zip(_null_list(array), lists, strict=True)]
    return [_json_of_leaf(value, kind) for value in _leaf_values(array)]


def _null_list(array: pa.Array) -> list[bool]:
    nulls: list[bool] = array.is_null().to_pylist()
    return nulls


def _split(elements: Sequence[object], array: pa.Array) -> list[object]:
    """Return the elements of each list of an array. ``elements`` are those of the whole child array."""
    offsets = array.offsets.to_pylist()
    return [
        None if null else list(elements[start:end])
        for null, start, end in zip(_null_list(array), offsets[:-1], offsets[1:], strict=True)
    ]


def _leaf_values(array: pa.Array) -> list[object]:
    """Return the values of an array that is not nested: bytes for text, text for dates and times."""
    kind = array.type
    if is_text_or_bytes(kind):
        array = array.view(_binary_of(kind))
    elif pa.types.is_duration(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        array = array.cast(pa.string())
    values: list[object] = array.to_pylist()
    return values


def _json_of_leaf(value: object, kind: pa.DataType) -> object:
    """Return a value of ``_leaf_values`` as JSON."""
    if isinstance(value, bytes):
        if _is_text(kind):
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, np.floating):
        value = float(value)
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Decimal) else value
