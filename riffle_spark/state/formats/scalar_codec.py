"""One key to bytes and one value from bytes, as the codecs of whole columns do it. Knows their bytes. Does not know who
asks.

The codecs of columns take some 50 microseconds however few rows there are; a user who asks for one element of a map
after the other waits for each. What is compiled here are the common types and what Python values of them look like; all
else, and every value that is not exactly of the expected Python class, goes through the codecs of columns.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from math import isnan, nan
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from riffle_spark.state.formats.nested_keys import encode_nested_keys
from riffle_spark.state.formats.row_codec import RowCodec

__all__ = ["KeyEncoder", "ValueDecoder"]

Encode: TypeAlias = Callable[[object], bytes]

_PRESENT: Final = b"\x01"
_NO_MORE: Final = b"\x00"
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


class _Compiled(NamedTuple):
    """How one column is unpacked: its format, what makes a number a value, or reads the body that is so long."""

    format: str
    convert: Callable[[int], object] | None = None
    read: Callable[[bytes], object] | None = None


_COMPILED: Final = {
    pa.bool_(): _Compiled("B", (False, True).__getitem__),
    pa.int8(): _Compiled("b"),
    pa.int16(): _Compiled("h"),
    pa.int32(): _Compiled("i"),
    pa.int64(): _Compiled("q"),
    pa.float32(): _Compiled("f"),
    pa.float64(): _Compiled("d"),
    pa.date32(): _Compiled("i", lambda days: date.fromordinal(days + _EPOCH_DAY)),
    pa.string(): _Compiled("I", read=bytes.decode),
    pa.binary(): _Compiled("I", read=bytes),
}


class KeyEncoder:
    """Encodes one key, a tuple of the Python values of its columns, to exactly what ``encode_nested_keys`` gives for
    it.

    Raises what Arrow raises for a value that is not of the column's type.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._columns = [_encoder(kind) for kind in types]

    def __call__(self, values: tuple[object, ...]) -> bytes:
        """Return the whole key."""
        if len(values) == len(self._columns) == 1:
            return self._columns[0](values[0])
        return b"".join([encode(value) for encode, value in zip(self._columns, values, strict=True)])


def _encoder(kind: pa.DataType) -> Encode:
    slow = _by_column(kind)
    if pa.types.is_signed_integer(kind):
        return _of_integers(kind.bit_width // 8, slow)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _of_floats(kind.bit_width // 8, slow)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _of_text(slow)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _of_times(kind.tz is not None, slow)
    return _nested_encoder(kind, slow)


def _nested_encoder(kind: pa.DataType, slow: Encode) -> Encode:
    if pa.types.is_struct(kind):
        return _of_structs([_encoder(field.type) for field in kind], slow)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_arrays(_encoder(kind.value_type), slow)
    return slow


def _by_column(kind: pa.DataType) -> Encode:
    def encode(value: object) -> bytes:
        key: bytes = encode_nested_keys([pa.array([value], kind)])[0].as_py()
        return key

    return encode


def _of_integers(width: int, slow: Encode) -> Encode:
    low, end = -(1 << (8 * width - 1)), 1 << (8 * width - 1)

    def encode(value: object) -> bytes:
        if type(value) is int and low <= value < end:
            return _PRESENT + (value - low).to_bytes(width, "big")
        return slow(value)

    return encode


def _of_floats(width: int, slow: Encode) -> Encode:
    layout = struct.Struct(">f" if width == 4 else ">d")
    sign, every = 1 << (8 * width - 1), (1 << 8 * width) - 1

    def encode(value: object) -> bytes:
        if type(value) is not float:
            return slow(value)
        try:
            packed = layout.pack(nan if isnan(value) else value + 0.0)
        except OverflowError:
            return slow(value)
        bits = int.from_bytes(packed, "big")
        return _PRESENT + (bits ^ every if bits & sign else bits | sign).to_bytes(width, "big")

    return encode


def _of_text(slow: Encode) -> Encode:
    def encode(value: object) -> bytes:
        if type(value) is str:
            return _PRESENT + value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
        return slow(value)

    return encode


def _of_times(has_zone: bool, slow: Encode) -> Encode:
    epoch = _EPOCH_UTC if has_zone else _EPOCH

    def encode(value: object) -> bytes:
        if type(value) is datetime and (value.tzinfo is not None) == has_zone:
            return _PRESENT + ((value - epoch) // _MICROSECOND + (1 << 63)).to_bytes(8, "big")
        return slow(value)

    return encode


def _of_structs(fields: Sequence[Encode], slow: Encode) -> Encode:
    def encode(value: object) -> bytes:
        if type(value) is tuple and len(value) == len(fields):
            return _PRESENT + b"".join([field(one) for field, one in zip(fields, value, strict=True)])
        return slow(value)

    return encode


def _of_arrays(element: Encode, slow: Encode) -> Encode:
    def encode(value: object) -> bytes:
        if type(value) is list:
            return _PRESENT + b"".join([_PRESENT + element(one) for one in value]) + _NO_MORE
        return slow(value)

    return encode


class ValueDecoder:
    """Decodes one value of a row codec to a tuple of Python values, as ``RowCodec.decode`` and ``to_pylist`` do."""

    def __init__(self, codec: RowCodec) -> None:
        self._codec = codec
        compiled = [_compiled(kind) for kind in codec.schema.types]
        self._columns = [column for column in compiled if column is not None]
        self._is_compiled = len(self._columns) == len(compiled)
        self._no_nulls = bytes((len(compiled) + 7) // 8)
        self._layout = struct.Struct(f"<{len(self._no_nulls)}s" + "".join(column.format for column in self._columns))
        self._is_plain = self._is_compiled and all(not (column.convert or column.read) for column in self._columns)

    def __call__(self, data: bytes) -> tuple[object, ...]:
        """Return the values. Raises ``CorruptStateError`` for bytes that are no row of the schema."""
        if self._is_compiled:
            try:
                return self._unpacked(data)
            except (struct.error, ValueError, OverflowError, IndexError):
                pass  # the codec of columns tells what is wrong
        table = self._codec.decode([data])
        return tuple(column[0].as_py() for column in table.columns)

    def _unpacked(self, data: bytes) -> tuple[object, ...]:
        if self._is_plain and len(data) == self._layout.size:
            plain = self._layout.unpack(data)
            if plain[0] == self._no_nulls:
                return plain[1:]
        nulls, *fields = self._layout.unpack_from(data)
        absent, after = int.from_bytes(nulls, "little"), self._layout.size
        for place, column in enumerate(self._columns):
            if absent >> place & 1:
                fields[place] = None
            elif column.read:
                start, after = after, after + fields[place]
                fields[place] = column.read(data[start:after])
            elif column.convert:
                fields[place] = column.convert(fields[place])
        if after != len(data) or absent >> len(fields):
            raise ValueError("a row has another length or more nulls than columns")
        return tuple(fields)


def _compiled(kind: pa.DataType) -> _Compiled | None:
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz in {None, "UTC"}:
        epoch = _EPOCH_UTC if kind.tz else _EPOCH
        return _Compiled("q", lambda time: epoch + timedelta(microseconds=time))
    return _COMPILED.get(kind)
