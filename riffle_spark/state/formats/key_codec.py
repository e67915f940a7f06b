"""The stored key: a composite key as bytes. Knows the order of every key type. Does not know values, files or hashes.

The bytes of two keys compare as the keys do, column by column: nulls first, numbers by value, floats with one zero and
with NaN last, strings by their UTF-8 bytes. No key is the beginning of another one. A column of fixed width is a tag
(0 null, 1 not) and its value big-endian with the sign turned; text is a tag, the bytes with ``00`` written ``00 FF``,
and ``00 00``. A null is as wide as any value of a fixed width, so such keys all have one length.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import columns as arrow
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import canonical_floats, check_key_type

__all__ = ["differing", "encode_keys", "with_one_zero"]

_NULL, _PRESENT = b"\x00", b"\x01"
_END: Final = b"\x00\x00"
_ESCAPED: Final = b"\x00\xff"

Matrix: TypeAlias = npt.NDArray[np.uint8]


def encode_keys(columns: Sequence[arrow.Column]) -> pa.LargeBinaryArray:
    """Return the stored key of every row, as a large binary array without nulls."""
    if not columns:
        raise ConfigError("a key needs at least one column", remedy="name the key columns", id="RIFFLE-0395")
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


def differing(one: pa.Table, other: pa.Table) -> npt.NDArray[np.int64]:
    """Return the rows in which two tables of keys differ: null is equal to null, NaN to NaN, -0.0 to 0.0."""
    same = np.ones(one.num_rows, dtype=np.bool_)
    for left, right in zip(map(arrow.one_array, one.columns), map(arrow.one_array, other.columns), strict=True):
        if pa.types.is_floating(left.type):
            left, right = encode_keys([left]), encode_keys([right])  # noqa: PLW2901 - the same values
        equal = pc.equal(left, right)
        if equal.null_count:
            equal = pc.if_else(equal.is_valid(), equal, pc.and_(left.is_null(), right.is_null()))
        same &= equal.to_numpy(zero_copy_only=False)
    return np.flatnonzero(~same)


def with_one_zero(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows with 0.0 for -0.0 and one NaN in the key's columns: what is one key reads as one."""
    for name in key:
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        if pa.types.is_floating(field.type):
            column, nan = table.column(at), pa.scalar(np.nan, field.type)
            one_zero = pc.add(column, pa.scalar(0.0, field.type))
            table = table.set_column(at, field, pc.if_else(pc.is_nan(column), nan, one_zero))
    return table


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
