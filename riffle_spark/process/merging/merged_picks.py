"""Aggregate functions that pick the buffer of a row.

First and Last pick by the order of rows; ``any_value`` is First. Max, Min, MaxBy and MinBy pick by Spark's order of
values; ``every`` is Min and ``some`` is Max.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import is_text_or_bytes
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.blocks.folding import (
    fill_nulls,
    fold_by_sorting,
    fold_largest,
    fold_smallest,
    in_memory_type,
    true_mask,
)
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, are_valid, pick_places

_TOP = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class MergedPick(MergeFunction):
    """First or Last: a value of any type, also null, and whether it is set.

    The second column of a row is false if the row does not count: its value is an ignored null, or it was filtered out.
    """

    latest: bool

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the two buffer types: the value, and whether it is set."""
        return buffers if list(buffers[1:]) == [pa.bool_()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return the first (or last) buffer of each group that is set. The old state comes before all rows."""
        was_set = true_mask(old[1])
        if was_set.all() and not self.latest:
            return [old[0], pa.array(was_set)]
        are_all_set = rows[1].true_count == len(rows[1])
        rows_set = np.arange(len(rows[1])) if are_all_set else np.flatnonzero(true_mask(rows[1]))
        picked = pick_places(groups.codes, groups.size, rows_set, self.latest)
        has_row = picked >= 0
        if has_row.all() and self.latest:
            return [rows[0].take(pa.array(picked)), pa.array(has_row)]
        keeps_old = was_set & ~has_row if self.latest else was_set
        new = np.where(has_row, groups.size + picked, -1)
        places = np.where(keeps_old, np.arange(groups.size), new)
        return [_take_places(old[0], rows[0], places), pa.array(places >= 0)]


@dataclass(frozen=True, slots=True)
class MergedExtreme(MergeFunction):
    """Max or Min: a value. Nulls are ignored, NaN is above every number, and the first of 0.0 and -0.0 stays."""

    greatest: bool

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the type of the value; empty if its values have no order."""
        return buffers if len(buffers) == 1 and is_ordered(buffers[0]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return for each group the smallest (or greatest) of its old value and its rows' values."""
        type = rows[0].type
        if _is_integer_in_memory(type) or pa.types.is_floating(type):
            fold_extreme = fold_largest if self.greatest else fold_smallest
            extremes = fold_extreme(old[0], *groups.drop_nulls(rows[0]))
            return [
                _restore_signs_of_zero(extremes, rows[0], old[0], groups) if pa.types.is_floating(type) else extremes
            ]
        if is_text_or_bytes(type) or pa.types.is_decimal128(type):
            order = "descending" if self.greatest else "ascending"
            return [fold_by_sorting(old[0], *groups.drop_nulls(rows[0]), order)]
        return [_take_places(old[0], rows[0], _find_extremes(rows[0], old[0], groups, self.greatest, latest=False))]


def _restore_signs_of_zero(extremes: pa.Array, rows: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    """Return the extremes of floats, with each zero replaced by its group's first zero: 0.0 or -0.0."""
    are_zero = pc.equal(extremes, pa.scalar(0.0, extremes.type))
    if not are_zero.true_count:
        return extremes
    values = pa.concat_arrays([old, rows])
    is_zero = np.flatnonzero(fill_nulls(values, 1.0) == 0)
    zeros = pick_places(groups.codes_with_state(), groups.size, is_zero, latest=False)
    first_zeros = values.take(pa.array(zeros[true_mask(are_zero)]))
    return pc.replace_with_mask(extremes, pc.fill_null(are_zero, False), first_zeros)


@dataclass(frozen=True, slots=True)
class MergedExtremeBy(MergeFunction):
    """MaxBy or MinBy: a value of any type and its order value. Rows without an order value are ignored. If order
    values are equal, the later row wins.
    """

    greatest: bool

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the types of the value and the order value; empty if order values have no order."""
        return buffers if len(buffers) == 2 and is_ordered(buffers[1]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return for each group the value and order value of its old state or the row with the extreme order value."""
        places = _find_extremes(rows[1], old[1], groups, self.greatest, latest=True)
        return [_take_places(old[0], rows[0], places), _take_places(old[1], rows[1], places)]


def _take_places(old: pa.Array, rows: pa.Array, places: IndexArray) -> pa.Array:
    """Return the values at ``places``, which count through ``old`` and then ``rows``; null for -1."""
    is_row = places >= len(old)
    new = rows.take(pa.array(places[is_row] - len(old)))
    if len(new) == len(places):
        return new
    spots = places.copy()
    spots[is_row] = len(old) + np.arange(len(new))
    return pa.concat_arrays([old, new]).take(pa.array(spots, mask=spots < 0))


def _find_extremes(rows: pa.Array, old: pa.Array, groups: Groups, greatest: bool, latest: bool) -> IndexArray:
    """Return the place of each group's extreme value, counting through ``old`` and then ``rows``; -1 if all its values
    are null.

    Of equal values the first is taken, with ``latest`` the last.
    """
    values = pa.concat_arrays([old, rows])
    codes = groups.codes_with_state()
    present = np.flatnonzero(are_valid(values))
    rank = rank_values(values.drop_null())
    rank = rank if greatest else ~rank  # The complement reverses the order and does not overflow.
    best = np.full(groups.size, -_TOP - 1)
    np.maximum.at(best, codes[present], rank)
    return pick_places(codes, groups.size, present[rank == best[codes[present]]], latest)


def is_ordered(type: pa.DataType) -> bool:
    """Return whether ``rank_values`` can order values of this type."""
    if pa.types.is_struct(type):
        return all(is_ordered(type.field(place).type) for place in range(type.num_fields))
    if pa.types.is_list(type):
        return is_ordered(type.value_type)
    return bool(_is_number(type) or is_text_or_bytes(type) or pa.types.is_decimal128(type))


def _is_number(type: pa.DataType) -> bool:
    """Return whether values are numbers, booleans, dates, times or intervals in memory."""
    return bool(
        _is_integer_in_memory(type)
        or pa.types.is_boolean(type)
        or pa.types.is_float32(type)
        or pa.types.is_float64(type)
    )


def _is_integer_in_memory(type: pa.DataType) -> bool:
    """Return whether values are stored as integers in the same order: also dates, times and intervals."""
    return bool(pa.types.is_signed_integer(type) or (pa.types.is_temporal(type) and not pa.types.is_interval(type)))


def rank_values(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers with the order of Spark's values; equal for equal values. There must be no nulls.

    Strings are ordered by their bytes, structs by their fields and lists by their elements, with nulls first in both.
    """
    columns = _rank_columns(values)
    if len(columns) == 1:
        return columns[0]
    order = np.lexsort(columns[::-1])
    is_new = np.zeros(len(values), dtype=np.bool_)
    for column in columns:
        is_new |= np.diff(column[order], prepend=column[order[:1]]) != 0
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.cumsum(is_new)
    return result


def _rank_columns(values: pa.Array) -> list[npt.NDArray[np.int64]]:
    """Return columns of integers that together order the values, the most significant first.

    Nulls have equal integers.
    """
    if not pa.types.is_struct(values.type):
        if pa.types.is_list(values.type):
            rank = _rank_lists(values)
        else:
            rank = _rank_numbers(values) if _is_number(values.type) else _rank_by_sorting(values)
        return [np.where(are_valid(values), rank, 0) if values.null_count else rank]
    columns = []
    for field in values.flatten():
        columns += [are_valid(field).astype(np.int64), *_rank_columns(field)]
    return columns or [np.zeros(len(values), dtype=np.int64)]


def _rank_lists(values: pa.Array) -> npt.NDArray[np.int64]:
    """Rank lists by the big-endian bytes of their elements' ranks, with zeros for null elements."""
    elements = values.flatten()
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    rank = np.zeros(len(elements), dtype=">u8")
    rank[are_valid(elements)] = np.unique(rank_values(elements.drop_null()), return_inverse=True)[1] + 1
    ends = np.cumsum(lengths, dtype=np.int64) * rank.itemsize
    buffers = [None, pa.py_buffer(np.append(0, ends).tobytes()), pa.py_buffer(rank.tobytes())]
    return _rank_by_sorting(pa.Array.from_buffers(pa.large_binary(), len(values), buffers))


def _rank_numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers in the order of numbers, booleans, dates and times. NaN is greatest, and -0.0 equals 0.0."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if not pa.types.is_floating(values.type):
        return _numbers_in_memory(values.view(in_memory_type(values.type))).astype(np.int64)
    numbers = _numbers_in_memory(values).astype(np.float64) + 0.0  # Turns -0.0 into 0.0.
    bits = numbers.view(np.int64)
    return np.where(np.isnan(numbers), _TOP, np.where(bits < 0, bits ^ _TOP, bits))


def _numbers_in_memory(values: pa.Array) -> npt.NDArray[np.generic]:
    """Return the numbers of a column as an array. The values of nulls are arbitrary."""
    kind = values.type.to_pandas_dtype()
    data = values.buffers()[1]
    return np.frombuffer(data, dtype=kind)[values.offset : values.offset + len(values)] if data else np.empty(0, kind)


def _rank_by_sorting(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers in the order of strings, bytes or decimals, by sorting the distinct values."""
    encoded = values.dictionary_encode()
    places = np.empty(len(encoded.dictionary), dtype=np.int64)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places))
    return places[pc.fill_null(encoded.indices, 0).to_numpy()] if len(places) else np.zeros(len(values), dtype=np.int64)
