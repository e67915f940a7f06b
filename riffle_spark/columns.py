"""Conversion between Arrow columns and NumPy arrays, as views if possible.

Variable-length values are one buffer with n + 1 offsets, as in Arrow.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Column: TypeAlias = pa.Array | pa.ChunkedArray
Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_RAW: dict[int, np.dtype[np.generic]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}

_TEXT_NAMES = ("string", "binary", "large_string", "large_binary", "string_view", "binary_view")
_TEXT_OR_BYTES = [getattr(pa.types, f"is_{name}") for name in _TEXT_NAMES if hasattr(pa.types, f"is_{name}")]
"""The string and binary views exist since pyarrow 16."""


def with_long_offsets(column: Column) -> pa.Array:
    """Return the column as one array. Strings and binary values become large binary, others keep their type."""
    if is_text_or_bytes(column.type):
        column = column.cast(pa.large_binary())
    return one_array(column)


def one_array(column: Column) -> pa.Array:
    """Return the column as one array, copied only if it has several chunks."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Return whether values of a type are strings or variable-length bytes."""
    return any(fits(kind) for fits in _TEXT_OR_BYTES)


def fixed_width(kind: pa.DataType) -> int:
    """Return the width of a value of a fixed-width type in bytes, 1 for a boolean."""
    return 1 if pa.types.is_boolean(kind) else kind.bit_width // 8


def valid_mask(array: pa.Array) -> Mask | None:
    """Return a mask of the values that are not null, or ``None`` if no value is null."""
    if array.null_count == 0:
        return None
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def fixed_values(array: pa.Array) -> npt.NDArray[np.generic]:
    """Return the bits of fixed-width values, little-endian: unsigned up to 8 bytes, void above. Nulls are arbitrary."""
    count = len(array)
    start = array.offset
    width = fixed_width(array.type)
    kind: np.dtype[np.generic] = _RAW.get(width) or np.dtype(f"V{width}")
    data = array.buffers()[1]
    if count == 0 or width == 0 or data is None:
        return np.zeros(count, dtype=kind)
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits[: (start + count + 7) // 8], bitorder="little")[start : start + count]
    return np.frombuffer(data, dtype=kind, count=count, offset=start * width)


def byte_slices(array: pa.Array) -> tuple[Bytes, Offsets]:
    """Return the bytes of a large binary array, and the n + 1 offsets of its n values in them.

    Nulls may have a length.
    """
    _, ends, data = array.buffers()
    if ends is None or len(array) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(ends, dtype=np.int64, count=len(array) + 1, offset=array.offset * 8)
    return np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8), offsets


def binary_column(data: npt.NDArray[np.generic] | bytes, offsets: Offsets) -> pa.Array:
    """Return a large binary array over bytes, without a copy. ``offsets`` are the n + 1 offsets of its n values."""
    offset_buffer = pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int64))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, offset_buffer, pa.py_buffer(data)]
    )


def positions_of(lengths: npt.NDArray[np.integer]) -> Offsets:
    """Return the n + 1 offsets of n consecutive values that have these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
