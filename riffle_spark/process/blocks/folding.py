"""Number the keys of a batch, and fold the values of each key to a result."""

from decimal import Decimal
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.process.blocks.block import BoolArray, IndexArray

_WORD_BITS = 32
_WORD_MASK = (1 << _WORD_BITS) - 1


def add_floats(old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Return the old sum of each key plus its values, added in the order of the rows.

    ``codes`` has the key of each value.
    """
    total = fill_nulls(old, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(total, codes, values.to_numpy(zero_copy_only=False))
    return _nullify_empty_keys(pa.array(total), old, codes)


def add_exactly(old: pa.Array, codes: IndexArray, values: pa.Array) -> tuple[pa.Array, BoolArray]:
    """Return the old sum of each key plus its values (int64, or decimal128 of one scale), and a mask of the sums that
    do not fit the type.

    Numbers are split into words of 32 bits and added in 64 bits. The carry is computed once at the end, so only the
    final sum must fit.
    """
    zero = Decimal(0) if pa.types.is_decimal(old.type) else 0
    totals = _split_words(pc.fill_null(old, pa.scalar(zero, old.type)))
    for total, word in zip(totals, _split_words(values), strict=True):
        np.add.at(total, codes, word)
    for low, high in pairwise(totals):
        np.add(high, low >> _WORD_BITS, out=high)
        np.bitwise_and(low, _WORD_MASK, out=low)
    top = totals[-1]
    overflows = top != top.astype(np.int32)
    packed = np.stack([total.astype(np.uint32) for total in totals], axis=1)
    sums = pa.Array.from_buffers(old.type, len(old), [None, pa.py_buffer(packed.tobytes())])
    return _nullify_empty_keys(sums, old, codes), overflows | mask_too_precise(sums, old.type)


def _split_words(array: pa.Array) -> list[npt.NDArray[np.int64]]:
    """Split little-endian integers into words of 32 bits, lowest first. The last word has the sign."""
    width = array.type.bit_width // _WORD_BITS
    raw = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint32)
    table = raw[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)
    return [table[:, i].astype(np.int64) for i in range(width - 1)] + [table[:, -1].view(np.int32).astype(np.int64)]


def mask_too_precise(values: pa.Array, type: pa.DataType) -> BoolArray:
    """Return a mask of the decimals with more digits before the point than ``type`` has."""
    if not pa.types.is_decimal(type):
        return np.zeros(len(values), dtype=np.bool_)
    bounds = (Decimal((sign, (9,) * type.precision, -type.scale)) for sign in (1, 0))
    lowest, highest = (pa.scalar(bound, type).cast(values.type) for bound in bounds)
    outside = pc.or_(pc.less(values, lowest), pc.greater(values, highest))
    return true_mask(outside)


def fold_smallest(old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Return the smallest number, date or time per key. NaN is above every number."""
    return _fold_extreme(np.fmin, old, codes, values)


def fold_largest(old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Return the greatest number, date or time per key. NaN is above every number."""
    return _fold_extreme(np.maximum, old, codes, values)


def _fold_extreme(ufunc: np.ufunc, old: pa.Array, codes: IndexArray, values: pa.Array) -> pa.Array:
    """Return the extreme of each key's old result and values. ``ufunc`` is ``np.fmin`` or ``np.maximum``."""
    plain = in_memory_type(old.type)
    result = fill_nulls(old.view(plain), _neutral_value(ufunc is np.fmin, plain))
    with np.errstate(invalid="ignore"):
        ufunc.at(result, codes, values.view(plain).to_numpy(zero_copy_only=False))
    return _nullify_empty_keys(pa.array(result).view(old.type), old, codes)


def in_memory_type(type: pa.DataType) -> pa.DataType:
    """Return the integer or float type with the memory layout of a number, date or time type."""
    if pa.types.is_floating(type):
        return type
    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type.bit_width]


def _neutral_value(for_smallest: bool, type: pa.DataType) -> float | int:
    """Return the number that every value replaces in a fold for the smallest (or greatest) value."""
    if pa.types.is_floating(type):
        return float("nan") if for_smallest else float("-inf")
    top: int = 2 ** (type.bit_width - 1) - 1
    return top if for_smallest else -top - 1


def fold_by_sorting(old: pa.Array, codes: IndexArray, values: pa.Array, order: str) -> pa.Array:
    """Return per key the first value of an ``ascending`` or ``descending`` sort, with nulls last."""
    all_values = pa.concat_arrays([old, values])
    key = np.concatenate([np.arange(len(old), dtype=np.int64), codes])
    sort_keys = [("key", "ascending"), ("value", order)]
    places = pc.sort_indices(pa.table({"key": key, "value": all_values}), sort_keys=sort_keys).to_numpy()
    is_first = np.diff(key[places], prepend=-1) != 0
    return all_values.take(pa.array(places[is_first]))


def _nullify_empty_keys(result: pa.Array, old: pa.Array, codes: IndexArray) -> pa.Array:
    """Return the results with null for keys that have neither an old result nor a value."""
    if old.null_count == 0:
        return result
    has_value = true_mask(old.is_valid())
    has_value[codes] = True
    return result if has_value.all() else pc.if_else(pa.array(has_value), result, pa.scalar(None, result.type))


def true_mask(array: pa.Array) -> BoolArray:
    """Return a new mask of the booleans that are true. Nulls count as false."""
    return np.array(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def fill_nulls(array: pa.Array, value: float) -> npt.NDArray[np.generic]:
    """Return numbers as a new array, with ``value`` for nulls."""
    return np.array(pc.fill_null(array, pa.scalar(value, array.type)).to_numpy(zero_copy_only=False))


def group_keys(encoded: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return per row the number of its key, and per key the index of its first row.

    ``encoded`` holds keys as bytes, without nulls. Keys are numbered from 0 in the order of their first rows, so the
    second result ascends. The cost is one pass of hashing.
    """
    assert encoded.null_count == 0
    numbered = pc.dictionary_encode(encoded)
    codes = numbered.indices.to_numpy().astype(np.int64)
    first_rows = np.empty(len(numbered.dictionary), dtype=np.int64)
    first_rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first_rows
