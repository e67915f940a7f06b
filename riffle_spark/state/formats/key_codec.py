"""The stored key: a composite key as bytes. Knows the order of every key type. Does not know values, files or hashes.

The bytes of two keys compare as the keys do, column by column: nulls first, numbers by value, floats with one zero and
with NaN last, strings by their UTF-8 bytes. No key is the beginning of another one. A column of fixed width is a tag
(0 null, 1 not) and its value big-endian with the sign turned; text is a tag, the bytes with ``00`` written ``00 FF``,
and ``00 00``. A null is as wide as any value of a fixed width, so such keys all have one length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import columns as arrow
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.keygroups import canonical_floats, check_key_type

__all__ = ["KeyBytes", "decode_beginnings", "decode_keys", "encode_keys"]

_NULL, _PRESENT = b"\x00", b"\x01"
_END: Final = b"\x00\x00"
_ESCAPED: Final = b"\x00\xff"

Matrix: TypeAlias = npt.NDArray[np.uint8]


def encode_keys(columns: Sequence[arrow.Column]) -> pa.LargeBinaryArray:
    """Return the stored key of every row, as a large binary array without nulls."""
    if not columns:
        raise ConfigError("a key needs at least one column", remedy="name the key columns")
    pieces: list[pa.Array | pa.Scalar] = []
    fixed: list[Matrix] = []
    for position, column in enumerate(columns):
        check_key_type(f"key column {position}", column.type)
        if not arrow.is_text_or_bytes(column.type):
            fixed.append(_encode_fixed(arrow.with_long_offsets(column), column.type))
            continue
        if fixed:
            pieces.append(_rows_as_binary(np.hstack(fixed)))
            fixed = []
        pieces += _encode_text(arrow.with_long_offsets(column))
    if fixed:
        pieces.append(_rows_as_binary(np.hstack(fixed) if len(fixed) > 1 else fixed[0]))
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, _scalar(b""))


def _scalar(data: bytes) -> pa.Scalar:
    return pa.scalar(data, pa.large_binary())


def _rows_as_binary(rows: Matrix) -> pa.Array:
    return arrow.binary_column(np.ascontiguousarray(rows), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])


def _encode_fixed(array: pa.Array, kind: pa.DataType) -> Matrix:
    """Return a row of tag and big-endian value for each key."""
    valid = arrow.valid_mask(array)
    rows = np.empty((len(array), 1 + arrow.fixed_width(kind)), dtype=np.uint8)
    rows[:, 0] = 1
    rows[:, 1:] = _ordered(arrow.fixed_values(array), kind)
    if valid is not None:
        rows[~valid] = 0
    return rows


def _ordered(values: npt.NDArray[np.generic], kind: pa.DataType) -> Matrix:
    """Return big-endian bytes whose order is that of the values."""
    width = values.dtype.itemsize
    if pa.types.is_floating(kind):
        signed = f"<i{width}"
        bits = canonical_floats(values.view(f"<f{width}")).view(signed)
        values = np.where(bits < 0, ~bits, bits ^ np.iinfo(signed).min).view(f"<u{width}")
    turned = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)[:, ::-1]
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return turned
    return _turn_sign(turned)


def _turn_sign(rows: Matrix) -> Matrix:
    rows = rows.copy()
    rows[:, 0] ^= 0x80
    return rows


def _encode_text(array: pa.Array) -> list[pa.Array | pa.Scalar]:
    """Return tag, body and end, to be joined."""
    tag = _scalar(_PRESENT)
    if array.null_count:
        tag = pc.if_else(array.is_valid(), tag, _scalar(_NULL))
        array = array.fill_null(b"")
    data, offsets = arrow.byte_slices(array)
    if not bool(data[offsets[0] : offsets[-1]].all()):
        array = pc.replace_substring(array, pattern=_NULL, replacement=_ESCAPED)
    return [tag, array, _scalar(_END)]


def decode_keys(encoded: arrow.Column | Sequence[bytes], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns, of these types, that the keys were made from.

    Keys that were never made from such columns raise ``CorruptStateError``.
    """
    array = arrow.with_long_offsets(
        encoded if isinstance(encoded, pa.Array | pa.ChunkedArray) else pa.array(encoded, pa.large_binary())
    )
    columns, lengths = decode_beginnings(array, types)
    data, offsets = arrow.byte_slices(array)
    KeyBytes(data).check_at_end(offsets[:-1] + lengths, offsets[1:])
    return columns


def decode_beginnings(array: pa.LargeBinaryArray, types: Sequence[pa.DataType]) -> tuple[list[pa.Array], arrow.Offsets]:
    """Return the columns of keys that something may follow, and how many bytes each key is itself.

    Raises as ``decode_keys`` does.
    """
    if array.null_count:
        raise _corrupt("a key is missing")
    data, offsets = arrow.byte_slices(array)
    read, starts, columns = KeyBytes(data), offsets[:-1], []
    for kind in types:
        column, starts = read.column(starts, offsets[1:], kind)
        columns.append(column)
    return columns, starts - offsets[:-1]


@dataclass
class KeyBytes:
    """The bytes of keys, to be read column by column. What is no key raises ``CorruptStateError``."""

    data: Matrix

    @cached_property
    def _ends_of_text(self) -> arrow.Offsets:
        return np.flatnonzero((self.data[:-1] == 0) & (self.data[1:] == 0))

    def column(self, starts: arrow.Offsets, ends: arrow.Offsets, kind: pa.DataType) -> tuple[pa.Array, arrow.Offsets]:
        """Return the values of one type that begin at ``starts``, in keys that end at ``ends``, and where each ends."""
        if arrow.is_text_or_bytes(kind):
            return _decode_text(self.data, starts, ends, kind, self._ends_of_text)
        return _decode_fixed(self.data, starts, ends, kind)

    def tags(self, starts: arrow.Offsets, ends: arrow.Offsets) -> npt.NDArray[np.bool_]:
        """Return the tags that stand there."""
        if bool((starts >= ends).any()):
            raise _corrupt("a key is too short")
        return _tags(self.data[starts])

    def check_at_end(self, at: arrow.Offsets, ends: arrow.Offsets) -> None:
        """Raise unless every key was read to its end."""
        if not bool((at == ends).all()):
            raise _corrupt("bytes follow the last column")


def _decode_fixed(
    data: Matrix, starts: arrow.Offsets, ends: arrow.Offsets, kind: pa.DataType
) -> tuple[pa.Array, arrow.Offsets]:
    width = arrow.fixed_width(kind)
    after = starts + 1 + width
    if bool((after > ends).any()):
        raise _corrupt("a key is too short")
    rows = arrow.byte_slices(arrow.pick_slices(data, starts, after))[0][: len(starts) * (1 + width)].reshape(
        -1, 1 + width
    )
    valid = _tags(rows[:, 0])
    if pa.types.is_boolean(kind):
        _tags(rows[:, 1])
    return arrow.fixed_column(kind, _restored(rows[:, 1:], kind), valid), after


def _tags(tags: Matrix) -> npt.NDArray[np.bool_]:
    if bool((tags > 1).any()):
        raise _corrupt("a tag or boolean is neither 0 nor 1")
    return tags.astype(np.bool_)


def _restored(rows: Matrix, kind: pa.DataType) -> npt.NDArray[np.generic]:
    width = rows.shape[1]
    floating = pa.types.is_floating(kind)
    if not floating and not pa.types.is_boolean(kind):
        rows = _turn_sign(rows)
    values = np.ascontiguousarray(rows[:, ::-1]).reshape(-1).view(f"<i{width}" if width <= 8 else f"V{width}")
    if not floating:
        return values
    return np.where(values < 0, values ^ np.iinfo(values.dtype).min, ~values)


def _decode_text(
    data: Matrix, starts: arrow.Offsets, ends: arrow.Offsets, kind: pa.DataType, ends_of_text: arrow.Offsets
) -> tuple[pa.Array, arrow.Offsets]:
    """Cut each body out up to its end: the first ``00 00``, as every zero inside is followed by ``FF``."""
    if bool((starts + 3 > ends).any()):
        raise _corrupt("a key is too short")
    valid = _tags(data[starts])
    at = np.searchsorted(ends_of_text, starts + 1)
    stops = np.append(ends_of_text, len(data))[at]
    if bool((stops + 2 > ends).any()):
        raise _corrupt("a text has no end")
    bodies = arrow.pick_slices(data, starts + 1, stops)
    body_bytes, body_offsets = arrow.byte_slices(bodies)
    if not bool(body_bytes[: body_offsets[-1]].all()):
        bodies = pc.replace_substring(bodies, pattern=_ESCAPED, replacement=_NULL)
    if not bool(valid.all()):
        bodies = pc.if_else(pa.array(valid), bodies, pa.scalar(None, pa.large_binary()))
    try:
        return bodies.cast(kind), stops + 2
    except pa.ArrowInvalid as error:
        raise _corrupt(f"a text is not {kind}: {error}") from error


def _corrupt(problem: str) -> CorruptStateError:
    return CorruptStateError(
        f"stored keys cannot be read: {problem}", remedy="restore the key-group from its snapshot and deltas"
    )
