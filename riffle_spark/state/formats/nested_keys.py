"""Encode keys of maps as bytes. Keys may hold structs, arrays and maps.

It extends ``key_codec``, so keys without nesting have the same bytes there.

| value | bytes |
| --- | --- |
| struct | a tag (0 null, 1 not), then its fields |
| array | a tag, then a 1 before each element, then a 0 |
| map | the array of its entries, as structs, sorted by key |

So the bytes of two keys compare like the keys: nulls first, structs field by field, and the shorter one first of two
arrays of which one is a prefix of the other. Equal maps have equal bytes in any insertion order. No key is a prefix of
another one.

``encode_nested_keys`` takes some 50 microseconds even for one row. A processor may read the elements of a map
individually, so ``KeyEncoder`` encodes single keys of the common types in plain Python. For other types, and for values
that are not exactly of the expected Python class, it encodes a column of one row.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from math import isnan, nan
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Column, Offsets, binary_column, byte_slices, positions_of, with_long_offsets
from riffle_spark.keygroups import check_key_type
from riffle_spark.state.formats.key_codec import encode_keys

Encode: TypeAlias = Callable[[object], bytes]

_PRESENT: Final = b"\x01"
_END: Final = b"\x00"
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)

_ZERO, _ONE, _EMPTY = (pa.scalar(data, pa.large_binary()) for data in (b"\x00", b"\x01", b""))
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)


def check_map_key_type(name: str, kind: pa.DataType) -> None:
    """Raise ``ConfigError`` unless the type is a type of grouping keys, or structs, arrays and maps of such types."""
    if pa.types.is_struct(kind):
        for field in kind:
            check_map_key_type(f"{name}.{field.name}", field.type)
    elif _is_array(kind):
        check_map_key_type(f"{name}.element", _element_type(kind))
    else:
        check_key_type(name, kind)


def encode_nested_keys(columns: Sequence[Column]) -> pa.LargeBinaryArray:
    """Return the bytes of every row's key, as a large binary array without nulls."""
    if not any(_is_nested(column.type) for column in columns):
        return encode_keys(columns)
    return _join_pieces([_encode_array(with_long_offsets(column)) for column in columns])


def _is_nested(kind: pa.DataType) -> bool:
    """Return whether a type is a struct, an array or a map."""
    return pa.types.is_struct(kind) or _is_array(kind)


def _is_array(kind: pa.DataType) -> bool:
    """Return whether a type is an array or a map."""
    return any(fits(kind) for fits in _LISTS)


def _element_type(kind: pa.DataType) -> pa.DataType:
    """Return the element type of an array, or the type of a map's entries."""
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type


def _join_pieces(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    """Return the pieces of each row concatenated."""
    return pc.binary_join_element_wise(*pieces, _EMPTY)


def _encode_array(array: pa.Array) -> pa.Array:
    """Return the encoded bytes of each value."""
    if not _is_nested(array.type):
        return encode_keys([array])
    valid = array.is_valid()
    if _is_array(array.type):
        present = _join_pieces([_ONE, _encode_elements(array), _ZERO])
    else:
        present = _join_pieces([pc.if_else(valid, _ONE, _ZERO), *map(_encode_array, array.flatten())])
    return pc.if_else(valid, present, _ZERO) if array.null_count else present


def _encode_elements(array: pa.Array) -> pa.Array:
    """Return for each array its encoded elements, each after a 1."""
    is_map = pa.types.is_map(array.type)
    lists = array.cast(pa.list_(_element_type(array.type))) if is_map else array
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    flat = _sort_entries(lists.flatten(), lengths) if is_map else lists.flatten()
    data, offsets = byte_slices(_join_pieces([_ONE, _encode_array(flat)]))
    return binary_column(data, offsets[positions_of(lengths)])


def sort_map_entries(array: pa.Array) -> pa.Array:
    """Return the values with the entries of every map, also nested ones, sorted by key."""
    kind = array.type
    if not _holds_maps(kind):
        return array
    if pa.types.is_struct(kind):
        fields = [sort_map_entries(field) for field in array.flatten()]
        ordered = pa.StructArray.from_arrays(fields, fields=list(kind))
    else:
        lists = array.cast(pa.list_(_element_type(kind))) if pa.types.is_map(kind) else array
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
        flat = sort_map_entries(lists.flatten())
        flat = _sort_entries(flat, lengths) if pa.types.is_map(kind) else flat
        where = positions_of(lengths).astype(np.int64 if pa.types.is_large_list(kind) else np.int32)
        ordered = pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(where)], children=[flat])
    return ordered.take(pa.array(np.arange(len(array)), mask=~array.is_valid().to_numpy(zero_copy_only=False)))


def _holds_maps(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_maps(field.type) for field in kind)
    return bool(pa.types.is_map(kind)) or (_is_array(kind) and _holds_maps(kind.value_type))


def _sort_entries(entries: pa.StructArray, lengths: Offsets) -> pa.StructArray:
    """Return the entries of maps sorted by key within each map. ``lengths`` has the number of entries of each map."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    table = pa.table({"owner": owner, "key": _encode_array(entries.flatten()[0])})
    return entries.take(pc.sort_indices(table, [("owner", "ascending"), ("key", "ascending")]))


class KeyEncoder:
    """Encodes one key, a tuple of Python values, to the same bytes as ``encode_nested_keys``.

    Raises Arrow's errors for values that do not have the column's type.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._columns = [_make_encoder(kind) for kind in types]

    def __call__(self, values: tuple[object, ...]) -> bytes:
        """Return the bytes of the key."""
        if len(values) == len(self._columns) == 1:
            return self._columns[0](values[0])
        return b"".join([encode(value) for encode, value in zip(self._columns, values, strict=True)])


def _make_encoder(kind: pa.DataType) -> Encode:
    """Return a function that encodes one Python value of this type."""
    slow = _make_column_encoder(kind)
    if pa.types.is_signed_integer(kind):
        return _make_integer_encoder(kind.bit_width // 8, slow)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _make_float_encoder(kind.bit_width // 8, slow)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _make_text_encoder(slow)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _make_time_encoder(kind.tz is not None, slow)
    return _make_nested_encoder(kind, slow)


def _make_nested_encoder(kind: pa.DataType, slow: Encode) -> Encode:
    """Return a function that encodes one struct or list. ``slow`` encodes values of other types and classes."""
    if pa.types.is_struct(kind):
        return _make_struct_encoder([_make_encoder(field.type) for field in kind], slow)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _make_array_encoder(_make_encoder(kind.value_type), slow)
    return slow


def _make_column_encoder(kind: pa.DataType) -> Encode:
    """Return a function that encodes any value of this type by way of an Arrow column, which is slow."""

    def encode(value: object) -> bytes:
        key: bytes = encode_nested_keys([pa.array([value], kind)])[0].as_py()
        return key

    return encode


def _make_integer_encoder(width: int, slow: Encode) -> Encode:
    """Return a function that encodes an ``int`` of ``width`` bytes. ``slow`` encodes other values."""
    end = 1 << (8 * width - 1)
    low = -end

    def encode(value: object) -> bytes:
        if type(value) is int and low <= value < end:
            return _PRESENT + (value - low).to_bytes(width, "big")
        return slow(value)

    return encode


def _make_float_encoder(width: int, slow: Encode) -> Encode:
    """Return a function that encodes a ``float`` of ``width`` bytes. ``slow`` encodes other values."""
    layout = struct.Struct(">f" if width == 4 else ">d")
    sign_bit = 1 << (8 * width - 1)
    all_bits = (1 << 8 * width) - 1

    def encode(value: object) -> bytes:
        if type(value) is not float:
            return slow(value)
        try:
            packed = layout.pack(nan if isnan(value) else value + 0.0)
        except OverflowError:
            return slow(value)
        bits = int.from_bytes(packed, "big")
        return _PRESENT + (bits ^ all_bits if bits & sign_bit else bits | sign_bit).to_bytes(width, "big")

    return encode


def _make_text_encoder(slow: Encode) -> Encode:
    """Return a function that encodes a ``str``. ``slow`` encodes other values."""

    def encode(value: object) -> bytes:
        if type(value) is str:
            return _PRESENT + value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
        return slow(value)

    return encode


def _make_time_encoder(has_zone: bool, slow: Encode) -> Encode:
    """Return a function that encodes a ``datetime`` with or without a zone. ``slow`` encodes other values."""
    epoch = _EPOCH_UTC if has_zone else _EPOCH

    def encode(value: object) -> bytes:
        if type(value) is datetime and (value.tzinfo is not None) == has_zone:
            return _PRESENT + ((value - epoch) // _MICROSECOND + (1 << 63)).to_bytes(8, "big")
        return slow(value)

    return encode


def _make_struct_encoder(fields: Sequence[Encode], slow: Encode) -> Encode:
    """Return a function that encodes a tuple. ``fields`` encode its fields, ``slow`` other values."""

    def encode(value: object) -> bytes:
        if type(value) is tuple and len(value) == len(fields):
            return _PRESENT + b"".join([encode_field(item) for encode_field, item in zip(fields, value, strict=True)])
        return slow(value)

    return encode


def _make_array_encoder(encode_element: Encode, slow: Encode) -> Encode:
    """Return a function that encodes a list. ``encode_element`` encodes its elements, ``slow`` other values."""

    def encode(value: object) -> bytes:
        if type(value) is list:
            return _PRESENT + b"".join([_PRESENT + encode_element(element) for element in value]) + _END
        return slow(value)

    return encode
