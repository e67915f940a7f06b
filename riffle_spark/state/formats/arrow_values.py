"""Values that Spark and Arrow columns may hold, and that Arrow's full validation or Python refuses.

Spark's strings hold any bytes, and Arrow functions give decimals of more digits than declared and times beyond a day.
State keeps such values as they are, because Arrow compares, sorts and copies them as bytes. So ``check_buffers`` checks
buffers but no values, and ``readable_rows`` converts such values for people.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from riffle_spark.columns import Column, one_array
from riffle_spark.errors import ConfigError

_Change: TypeAlias = Callable[[pa.Array], pa.Array]


def check_buffers(table: pa.Table) -> None:
    """Raise ``pa.ArrowInvalid`` if an offset, length or index of a table points outside its buffers.

    Values are not checked: text need not be UTF-8, and a decimal may have more digits than its type declares.
    """
    table.validate()  # first, because the rest relies on lengths and on the last offset of each buffer
    for column in table.columns:
        if not _has_checked_values(column.type):
            column.validate(full=True)
            continue
        for chunk in column.chunks:
            _map_leaves(chunk, _as_bytes).validate(full=True)


@lru_cache(maxsize=1024)
def _has_checked_values(kind: pa.DataType) -> bool:
    """Return whether full validation checks values of a type. ``check_buffers`` then checks them as raw bytes."""
    empty = pa.nulls(0, kind)
    return bool(_map_leaves(empty, _as_bytes).type != kind)


def is_offset_overflow(error: Exception) -> bool:
    """Return whether an error of Arrow means that a column's bytes or elements exceeded 32-bit offsets."""
    return isinstance(error, pa.ArrowException) and "overflow" in str(error)


def offset_overflow_error(detail: object) -> ConfigError:
    """Return the error for a column that exceeds Arrow's 32-bit offsets. ``detail`` is Arrow's message."""
    return ConfigError(
        f"A column of a slot's rows, state or output exceeds 2 GiB of text or 2^31 elements: {detail}",
        remedy="Keep smaller values, limit the rows of a batch (maxOffsetsPerTrigger, maxFilesPerTrigger), or use more "
        "slots and key-groups.",
        where="values",
        id="RIFFLE-0394",
    )


def readable_rows(table: pa.Table) -> list[dict[str, object]]:
    """Return the rows as ``to_pylist`` does, including values that Python's types cannot hold.

    Bytes of text that are not UTF-8 become U+FFFD, as in Spark's ``collect``. A column with a date or time that Python
    cannot hold becomes the numbers that Arrow stores.
    """
    try:
        rows: list[dict[str, object]] = table.to_pylist()
    except (OverflowError, ValueError):
        columns = [_map_leaves(one_array(column), _make_readable) for column in table.columns]
        rows = pa.table(columns, names=table.column_names).to_pylist()
    return rows


def readable_row(table: pa.Table, row: int) -> dict[str, object]:
    """Return the row at this index as a dictionary, as ``readable_rows`` does for all rows."""
    return readable_rows(table.slice(row, 1))[0]


def find_undecodable(column: Column) -> bytes | None:
    """Return the first string of a column that is not UTF-8, as bytes; ``None`` if all strings are."""
    undecodable_texts: list[bytes] = []

    def collect(leaf: pa.Array) -> pa.Array:
        if types.is_string(leaf.type) or types.is_large_string(leaf.type):
            undecodable_texts.extend(
                value for value in _as_bytes(leaf).to_pylist() if value is not None and not _is_utf8(value)
            )
        return leaf

    _map_leaves(one_array(column), collect)
    return undecodable_texts[0] if undecodable_texts else None


def _is_utf8(value: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_bytes(leaf: pa.Array) -> pa.Array:
    """Return values that full validation would check as binary values over the same buffers.

    Return other values unchanged.
    """
    kind = leaf.type
    if types.is_string(kind):
        return _reinterpret(leaf, pa.binary(), [])
    if types.is_large_string(kind):
        return _reinterpret(leaf, pa.large_binary(), [])
    if types.is_decimal(kind) or types.is_time(kind) or types.is_date64(kind):
        return _reinterpret(leaf, pa.binary(kind.bit_width // 8), [])
    return leaf


def _make_readable(leaf: pa.Array) -> pa.Array:
    """Return a column that ``to_pylist`` can convert: strings with U+FFFD for bytes that are not UTF-8, and integers
    for dates and times that Python cannot hold.
    """
    kind = leaf.type
    if types.is_string(kind) or types.is_large_string(kind):
        values = _as_bytes(leaf).to_pylist()
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values], kind)
    try:
        leaf.to_pylist()
    except (OverflowError, ValueError):
        return _reinterpret(leaf, pa.int32() if kind.bit_width == 32 else pa.int64(), [])
    return leaf


def _map_leaves(array: pa.Array, change: _Change) -> pa.Array:
    """Return the array with ``change`` applied to each array that is not nested below it: inside structs, maps, lists
    and dictionaries.
    """
    kind = array.type
    if not kind.num_fields and not types.is_dictionary(kind):
        return change(array)
    if types.is_struct(kind):
        array = array.take(pa.array(np.arange(len(array)))) if array.offset else array
        children = [_map_leaves(array.field(place), change) for place in range(len(kind))]
        fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
        return _reinterpret(array, pa.struct(fields), children)
    if types.is_map(kind):
        keys = _map_leaves(array.keys, change)
        items = _map_leaves(array.items, change)
        key = kind.key_field.with_type(keys.type)
        item = kind.item_field.with_type(items.type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[key, item])
        return _reinterpret(array, pa.map_(key, item, kind.keys_sorted), [entries])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        values = _map_leaves(array.values, change)
        return _reinterpret(array, _list_type_of(kind, kind.value_field.with_type(values.type)), [values])
    if types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, _map_leaves(array.dictionary, change), safe=False)
    return change(array)


def _list_type_of(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    """Return a list type of the same kind with another field."""
    if types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if types.is_large_list(kind) else pa.list_(field)


def _reinterpret(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return an array of type ``kind`` over the same buffers, with these children."""
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children)
