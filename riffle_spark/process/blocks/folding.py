"""Number the keys of a batch, and fold the values of each to one result. Knows NumPy and Arrow. Does not know
aggregates or state.
"""

from decimal import Decimal
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.process.blocks.block import BoolArray, IndexArray

__all__ = [
    "add_exactly",
    "add_floats",
    "beyond",
    "filled",
    "group_keys",
    "hold",
    "largest",
    "smallest",
    "sort_extreme",
]

_WORD_BITS = 32
_WORD_MASK = (1 << _WORD_BITS) - 1


def add_floats(old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Add doubles one after the other."""
    total = filled(old, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(total, codes, values.to_numpy(zero_copy_only=False))
    return _where_known(pa.array(total), old, codes)


def add_exactly(old: pa.Array, codes: IndexArray, values: pa.Array) -> tuple[pa.Array, BoolArray]:
    """Add int64 or decimal128 values of one scale; return the sums and which of them do not fit.

    Numbers are split in words of 32 bits, added in 64 and carried once at the end, so that only the final sum must fit.
    """
    zero = Decimal(0) if pa.types.is_decimal(old.type) else 0
    totals = _words(pc.fill_null(old, pa.scalar(zero, old.type)))
    for total, word in zip(totals, _words(values), strict=True):
        np.add.at(total, codes, word)
    for low, high in pairwise(totals):
        np.add(high, low >> _WORD_BITS, out=high)
        np.bitwise_and(low, _WORD_MASK, out=low)
    top = totals[-1]
    wrapped = top != top.astype(np.int32)
    packed = np.stack([total.astype(np.uint32) for total in totals], axis=1)
    sums = pa.Array.from_buffers(old.type, len(old), [None, pa.py_buffer(packed.tobytes())])
    return _where_known(sums, old, codes), wrapped | beyond(sums, old.type)


def _words(array: pa.Array) -> list[npt.NDArray[np.int64]]:
    """Split little-endian integers into words, lowest first; the last one keeps the sign."""
    width = array.type.bit_width // _WORD_BITS
    raw = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint32)
    table = raw[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)
    return [table[:, i].astype(np.int64) for i in range(width - 1)] + [table[:, -1].view(np.int32).astype(np.int64)]


def beyond(values: pa.Array, type: pa.DataType) -> BoolArray:
    """Tell which decimals have more digits before the point than the type, which may be their own."""
    if not pa.types.is_decimal(type):
        return np.zeros(len(values), dtype=np.bool_)
    bounds = (Decimal((sign, (9,) * type.precision, -type.scale)) for sign in (1, 0))
    lowest, highest = (pa.scalar(bound, type).cast(values.type) for bound in bounds)
    outside = pc.or_(pc.less(values, lowest), pc.greater(values, highest))
    return hold(outside)


def smallest(old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Return the least number, date or time a key; NaN is above every number."""
    return _extreme(np.fmin, old, codes, values)


def largest(old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Return the greatest number, date or time a key; NaN is above every number."""
    return _extreme(np.maximum, old, codes, values)


def _extreme(choose: np.ufunc, old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    plain = _plain_type(old.type)
    result = filled(old.view(plain), _neutral(choose is np.fmin, plain))
    with np.errstate(invalid="ignore"):
        choose.at(result, codes, values.view(plain).to_numpy(zero_copy_only=False))
    return _where_known(pa.array(result).view(old.type), old, codes)


def _plain_type(type: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(type):
        return type
    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type.bit_width]


def _neutral(for_least: bool, type: pa.DataType) -> float | int:
    """Return the number that loses against every value: ``fmin`` prefers anything to NaN."""
    if pa.types.is_floating(type):
        return float("nan") if for_least else float("-inf")
    top: int = 2 ** (type.bit_width - 1) - 1
    return top if for_least else -top - 1


def sort_extreme(old: pa.Array, codes: IndexArray, values: pa.Array, order: str) -> pa.Array:
    """Return the value per key that an ``ascending`` or ``descending`` sort puts first; nulls go last."""
    every = pa.concat_arrays([old, values])
    key = np.concatenate([np.arange(len(old), dtype=np.int64), codes])
    by = [("key", "ascending"), ("value", order)]
    places = pc.sort_indices(pa.table({"key": key, "value": every}), sort_keys=by).to_numpy()
    is_first = np.diff(key[places], prepend=-1) != 0
    return every.take(pa.array(places[is_first]))


def _first_rows(codes: IndexArray, size: int) -> npt.NDArray[np.int64]:
    """Return per key the index of its first value, -1 where it has none."""
    rows = np.full(size, -1, dtype=np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1, dtype=np.int64)
    return rows


def _where_known(result: pa.Array, old: pa.Array, codes: IndexArray) -> pa.Array:
    """Make null what neither the old results nor the values know."""
    if old.null_count == 0:
        return result
    known = hold(old.is_valid())
    known[codes] = True
    return result if known.all() else pc.if_else(pa.array(known), result, pa.scalar(None, result.type))


def hold(array: pa.Array) -> BoolArray:
    """Return which booleans are true, in a new array; null is not."""
    return np.array(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def filled(array: pa.Array, value: float) -> npt.NDArray[np.generic]:
    """Return numbers in a new array, with a value for nulls."""
    return np.array(pc.fill_null(array, pa.scalar(value, array.type)).to_numpy(zero_copy_only=False))


def group_keys(encoded: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return per row the number of its key, and per key the index of its first row.

    ``encoded`` holds keys as bytes, without nulls. Keys are numbered from 0 in the order of their first rows, so the
    second result ascends. Takes one pass of hashing and no sort.
    """
    assert encoded.null_count == 0
    numbered = pc.dictionary_encode(encoded)
    codes = numbered.indices.to_numpy().astype(np.int64)
    return codes, _first_rows(codes, len(numbered.dictionary))
