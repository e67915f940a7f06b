"""Compare the rows of two tables, whatever their types."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.columns import Column, Mask, fixed_values, is_text_or_bytes, one_array, with_long_offsets


def mask_differing_rows(left: Sequence[Column], right: Sequence[Column], count: int) -> Mask:
    """Return a mask of the rows that differ between columns of the same types and ``count`` rows.

    NULL equals NULL. Floats are compared by their bits, so NaN equals NaN and 0.0 differs from -0.0.
    """
    differs = np.zeros(count, dtype=np.bool_)
    for columns in zip(left, right, strict=True):
        differs |= _mask_differing(*map(one_array, columns))
    return differs


def _mask_differing(left: pa.Array, right: pa.Array) -> Mask:
    """Return a mask of the values that differ between two arrays of one type."""
    kind = left.type
    differs: Mask = _is_valid(left) != _is_valid(right)
    if types.is_null(kind) or not len(left):
        return differs
    if types.is_struct(kind):
        for children in zip(left.flatten(), right.flatten(), strict=True):
            differs |= _mask_differing(*children)
        return differs
    lists = _list_type_of(kind)
    if lists is not None:
        differs |= _mask_differing_lists(left.cast(lists), right.cast(lists))
        return differs
    if is_text_or_bytes(kind):
        unequal = pc.not_equal(with_long_offsets(left), with_long_offsets(right)).fill_null(False)
        differs |= unequal.to_numpy(zero_copy_only=False)
        return differs
    differs |= _is_valid(left) & _is_valid(right) & (fixed_values(left) != fixed_values(right))
    return differs


def _list_type_of(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of lists to compare lists and maps as, ``None`` for other types."""
    if types.is_map(kind):
        return pa.list_(pa.struct([kind.key_field, kind.item_field]))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return kind if types.is_list(kind) or types.is_large_list(kind) else None


def _mask_differing_lists(left: pa.Array, right: pa.Array) -> Mask:
    """Return a mask of the lists that have other lengths or elements. A null list counts as an empty one."""
    lengths = _lengths_of(left)
    differs = np.asarray(lengths != _lengths_of(right))
    same = np.flatnonzero(~differs)
    owners = np.repeat(same, lengths[same])
    places = pa.array(same)
    elements = _mask_differing(left.take(places).flatten(), right.take(places).flatten())
    differs[owners[elements]] = True
    return differs


def _lengths_of(lists: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the length of each list, 0 for null."""
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy(), np.int64)


def _is_valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
