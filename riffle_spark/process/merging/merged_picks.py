"""What merges by picking one row's buffer: First and Last by the order of rows (``any_value`` is First), Max, Min,
MaxBy and MinBy by Spark's order of values (``every`` is Min, ``some`` is Max). Knows both orders. Does not know why a
value is wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import is_text_or_bytes
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.blocks.folding import filled, hold, largest, smallest, sort_extreme
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, are_valid, chosen

__all__ = ["MergedExtreme", "MergedExtremeBy", "MergedPick", "is_ordered", "ranks"]

_TOP = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class MergedPick(MergeFunction):
    """First or Last: a value of any type, null if that one is, and whether it was set.

    What ignores nulls, or has a filter, is told by the second column: the row does not count where it is false.
    """

    latest: bool

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep both."""
        return buffers if list(buffers[1:]) == [pa.bool_()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Pick a buffer among those that are set: what is kept goes before all rows."""
        was_set = hold(old[1])
        if was_set.all() and not self.latest:
            return [old[0], pa.array(was_set)]
        are_all_set = rows[1].true_count == len(rows[1])
        rows_set = np.arange(len(rows[1])) if are_all_set else np.flatnonzero(hold(rows[1]))
        picked = chosen(groups.codes, groups.size, rows_set, self.latest)
        has_row = picked >= 0
        if has_row.all() and self.latest:
            return [rows[0].take(pa.array(picked)), pa.array(has_row)]
        keeps_old = was_set & ~has_row if self.latest else was_set
        new = np.where(has_row, groups.size + picked, -1)
        places = np.where(keeps_old, np.arange(groups.size), new)
        return [_taken(old[0], rows[0], places), pa.array(places >= 0)]


@dataclass(frozen=True, slots=True)
class MergedExtreme(MergeFunction):
    """Max or Min: a value; nulls do not count, NaN is above every number, 0.0 and -0.0 are one: the first stays."""

    greatest: bool

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the value."""
        return buffers if len(buffers) == 1 and is_ordered(buffers[0]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Keep the extreme."""
        type = rows[0].type
        if _is_whole(type) or pa.types.is_floating(type):
            choose = largest if self.greatest else smallest
            extremes = choose(old[0], *groups.present(rows[0]))
            return [_with_first_zeros(extremes, rows[0], old[0], groups) if pa.types.is_floating(type) else extremes]
        if _is_sorted_beside_keys(type):
            order = "descending" if self.greatest else "ascending"
            return [sort_extreme(old[0], *groups.present(rows[0]), order)]
        return [_taken(old[0], rows[0], _extremes(rows[0], old[0], groups, self.greatest, latest=False))]


def _with_first_zeros(extremes: pa.Array, rows: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    """Give extremes that are 0.0 or -0.0 the sign of their group's first zero."""
    are_zero = pc.equal(extremes, pa.scalar(0.0, extremes.type))
    if not are_zero.true_count:
        return extremes
    every = pa.concat_arrays([old, rows])
    zeros = chosen(groups.with_old(), groups.size, np.flatnonzero(filled(every, 1.0) == 0), latest=False)
    return pc.replace_with_mask(extremes, pc.fill_null(are_zero, False), every.take(pa.array(zeros[hold(are_zero)])))


@dataclass(frozen=True, slots=True)
class MergedExtremeBy(MergeFunction):
    """MaxBy or MinBy: a value of any type and what it is ordered by. Where that is null the row does not count; of two
    that are alike the later row wins.
    """

    greatest: bool

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep both."""
        return buffers if len(buffers) == 2 and is_ordered(buffers[1]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Keep the buffer of the extreme."""
        places = _extremes(rows[1], old[1], groups, self.greatest, latest=True)
        return [_taken(old[0], rows[0], places), _taken(old[1], rows[1], places)]


def _taken(old: pa.Array, rows: pa.Array, places: IndexArray) -> pa.Array:
    """Return the values at places of ``old`` followed by ``rows``, null for -1."""
    is_new = places >= len(old)
    new = rows.take(pa.array(places[is_new] - len(old)))
    if len(new) == len(places):
        return new
    spots = places.copy()
    spots[is_new] = len(old) + np.arange(len(new))
    return pa.concat_arrays([old, new]).take(pa.array(spots, mask=spots < 0))


def _extremes(rows: pa.Array, old: pa.Array, groups: Groups, greatest: bool, latest: bool) -> IndexArray:
    """Return where the extreme of each group is, in ``old`` followed by ``rows``; -1 where all are null."""
    every, codes = pa.concat_arrays([old, rows]), groups.with_old()
    present = np.flatnonzero(are_valid(every))
    rank = ranks(every.drop_null())
    rank = rank if greatest else ~rank  # the complement turns the order round, and fits
    best = np.full(groups.size, -_TOP - 1)
    np.maximum.at(best, codes[present], rank)
    return chosen(codes, groups.size, present[rank == best[codes[present]]], latest)


def is_ordered(type: pa.DataType) -> bool:
    """Tell whether ``ranks`` knows the order of a type's values."""
    if pa.types.is_struct(type):
        return all(is_ordered(type.field(place).type) for place in range(type.num_fields))
    if pa.types.is_list(type):
        return is_ordered(type.value_type)
    return bool(_is_number(type) or is_text_or_bytes(type) or pa.types.is_decimal128(type))


def _is_sorted_beside_keys(type: pa.DataType) -> bool:
    """Tell whether Arrow sorts a table by such a column, equal values of which are the same bytes."""
    is_text = pa.types.is_string(type) or pa.types.is_large_string(type)
    is_bytes = pa.types.is_binary(type) or pa.types.is_large_binary(type)
    return bool(is_text or is_bytes or pa.types.is_decimal128(type))


def _is_number(type: pa.DataType) -> bool:
    return bool(_is_whole(type) or pa.types.is_boolean(type) or pa.types.is_float32(type) or pa.types.is_float64(type))


def _is_whole(type: pa.DataType) -> bool:
    """Tell whether values lie in memory as whole numbers that compare as they do: dates, times and intervals too."""
    return bool(pa.types.is_signed_integer(type) or (pa.types.is_temporal(type) and not pa.types.is_interval(type)))


def ranks(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return numbers that are ordered as Spark orders the values, alike where these are; there are no nulls.

    Text goes by its bytes; a struct by its fields and a list by its elements, one after the other, in which null goes
    first.
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
    """Return columns of numbers that order the values, the first column first. A null's numbers are all alike."""
    if not pa.types.is_struct(values.type):
        rank = _plain_ranks(values)
        return [np.where(are_valid(values), rank, 0) if values.null_count else rank]
    columns = []
    for field in values.flatten():
        columns += [are_valid(field).astype(np.int64), *_rank_columns(field)]
    return columns or [np.zeros(len(values), dtype=np.int64)]


def _plain_ranks(values: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_list(values.type):
        return _list_ranks(values)
    return _number_ranks(values) if _is_number(values.type) else _sorted_ranks(values)


def _list_ranks(values: pa.Array) -> npt.NDArray[np.int64]:
    """Number lists as the bytes that their elements' ranks make, highest byte first, with zeros for null."""
    elements, lengths = values.flatten(), pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    rank = np.zeros(len(elements), dtype=">u8")
    rank[are_valid(elements)] = np.unique(ranks(elements.drop_null()), return_inverse=True)[1] + 1
    ends = np.cumsum(lengths, dtype=np.int64) * rank.itemsize
    buffers = [None, pa.py_buffer(np.append(0, ends).tobytes()), pa.py_buffer(rank.tobytes())]
    return _sorted_ranks(pa.Array.from_buffers(pa.large_binary(), len(values), buffers))


def _number_ranks(values: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if not pa.types.is_floating(values.type):
        plain = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[values.type.bit_width]
        return _numbers(values.view(plain)).astype(np.int64)
    numbers = _numbers(values).astype(np.float64) + 0.0  # which makes 0.0 of -0.0
    bits = numbers.view(np.int64)
    return np.where(np.isnan(numbers), _TOP, np.where(bits < 0, bits ^ _TOP, bits))


def _numbers(values: pa.Array) -> npt.NDArray[np.generic]:
    """Return numbers as they lie in memory, nulls as they happen to."""
    kind = values.type.to_pandas_dtype()
    data = values.buffers()[1]
    return np.frombuffer(data, dtype=kind)[values.offset : values.offset + len(values)] if data else np.empty(0, kind)


def _sorted_ranks(values: pa.Array) -> npt.NDArray[np.int64]:
    """Number text, bytes or decimals by sorting each of them once."""
    encoded = values.dictionary_encode()
    places = np.empty(len(encoded.dictionary), dtype=np.int64)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places))
    return places[pc.fill_null(encoded.indices, 0).to_numpy()] if len(places) else np.zeros(len(values), dtype=np.int64)
