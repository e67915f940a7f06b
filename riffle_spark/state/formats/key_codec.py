"""Encode composite keys as bytes: the stored keys.

The bytes of two keys compare like the keys, column by column: nulls first, numbers by value, floats with one zero and
with NaN last, strings by their UTF-8 bytes. No stored key is a prefix of another.

| column | bytes |
| --- | --- |
| fixed width | a tag (0 null, 1 not), then the value, big-endian with its sign bit flipped; a null has the same width |
| text or bytes | a tag, then the bytes with ``00`` written as ``00 FF``, then ``00 00`` |
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import columns as arrow
from riffle_spark.keygroups import canonical_floats, check_key_type

_NULL, _PRESENT = b"\x00", b"\x01"
_END: Final = b"\x00\x00"
_ESCAPED: Final = b"\x00\xff"

Matrix: TypeAlias = npt.NDArray[np.uint8]


def encode_keys(columns: Sequence[arrow.Column]) -> pa.LargeBinaryArray:
    """Return the stored key of every row, as a large binary array without nulls."""
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


def find_differing_rows(left: pa.Table, right: pa.Table) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows that differ between two tables of keys.

    Null equals null, NaN equals NaN, -0.0 equals 0.0.
    """
    same = np.ones(left.num_rows, dtype=np.bool_)
    for columns in zip(left.columns, right.columns, strict=True):
        is_float = pa.types.is_floating(columns[0].type)
        first, second = (encode_keys([column]) if is_float else arrow.one_array(column) for column in columns)
        equal = pc.equal(first, second)
        if equal.null_count:
            equal = pc.if_else(equal.is_valid(), equal, pc.and_(first.is_null(), second.is_null()))
        same &= equal.to_numpy(zero_copy_only=False)
    return np.flatnonzero(~same)


def normalise_zeros(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows with 0.0 for -0.0 and one NaN in the columns ``key``, so that equal keys have equal values."""
    for name in key:
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        if pa.types.is_floating(field.type):
            column = table.column(index)
            nan = pa.scalar(np.nan, field.type)
            one_zero = pc.add(column, pa.scalar(0.0, field.type))
            table = table.set_column(index, field, pc.if_else(pc.is_nan(column), nan, one_zero))
    return table


def _scalar(data: bytes) -> pa.Scalar:
    """Return bytes as a large binary scalar."""
    return pa.scalar(data, pa.large_binary())


def _rows_as_binary(rows: Matrix) -> pa.Array:
    """Return the rows of a byte matrix as binary values."""
    return arrow.binary_column(np.ascontiguousarray(rows), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])


def _encode_fixed(array: pa.Array, kind: pa.DataType) -> Matrix:
    """Return a row with tag and big-endian value for each key."""
    valid = arrow.valid_mask(array)
    rows = np.empty((len(array), 1 + arrow.fixed_width(kind)), dtype=np.uint8)
    rows[:, 0] = 1
    rows[:, 1:] = _encode_ordered(arrow.fixed_values(array), kind)
    if valid is not None:
        rows[~valid] = 0
    return rows


def _encode_ordered(values: npt.NDArray[np.generic], kind: pa.DataType) -> Matrix:
    """Return big-endian bytes of fixed-width values that sort like the values."""
    width = values.dtype.itemsize
    if pa.types.is_floating(kind):
        signed = f"<i{width}"
        bits = canonical_floats(values.view(f"<f{width}")).view(signed)
        values = np.where(bits < 0, ~bits, bits ^ np.iinfo(signed).min).view(f"<u{width}")
    reversed_bytes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)[:, ::-1]
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return reversed_bytes
    return _flip_sign(reversed_bytes)


def _flip_sign(rows: Matrix) -> Matrix:
    """Return the byte matrix with the highest bit of each row inverted."""
    rows = rows.copy()
    rows[:, 0] ^= 0x80
    return rows


def _encode_text(array: pa.Array) -> list[pa.Array | pa.Scalar]:
    """Return tags, bodies and ends, to be joined."""
    tag = _scalar(_PRESENT)
    if array.null_count:
        tag = pc.if_else(array.is_valid(), tag, _scalar(_NULL))
        array = array.fill_null(b"")
    data, offsets = arrow.byte_slices(array)
    if not bool(data[offsets[0] : offsets[-1]].all()):
        array = pc.replace_substring(array, pattern=_NULL, replacement=_ESCAPED)
    return [tag, array, _scalar(_END)]
