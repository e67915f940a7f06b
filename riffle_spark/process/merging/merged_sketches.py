"""Aggregate functions that keep a sketch: HyperLogLogPlusPlus (``approx_count_distinct``) and ApproximatePercentile.

A row's buffer of HyperLogLogPlusPlus is Spark's ``xxhash64`` of its value, or null. The first bits of a hash name a
register. The number of leading zeros in the other bits plus one is its *rank*, and each register keeps the highest rank
(Heule, Nunkesser, Hall 2013). Only registers that are not empty are stored, so groups with few values take few bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.blocks.block import BoolArray, IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction
from riffle_spark.process.merging.merged_lists import build_lists, flatten_lists
from riffle_spark.process.merging.merged_picks import is_ordered, rank_values

_RANK_BITS = 6
_REGISTERS_A_WORD = 10
_LOW_HALF = np.uint64(2**32 - 1)
_SMALL_REGISTER_BITS = 9
"""Up to this number of register bits (Spark's default), register and rank fit 16 bits."""
_VALUES_PER_ACCURACY = 4
"""Values of the highest level per unit of accuracy; so the error of a rank is rarely above 1 / accuracy."""
_LEVEL_MIN = 8
"""Values that every level may have."""
_LEVEL_RATIO = 2 / 3
"""Values of a level, relative to the level above it."""
_VALUES_MAX = 4_000_000
_HASH_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


@dataclass(frozen=True, slots=True)
class MergedDistinct(MergeFunction):
    """HyperLogLogPlusPlus: a list of integers, each a register and, in its lowest six bits, its rank."""

    relative_error: float

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return one list of integers; empty unless the buffer is the hash of a value."""
        small = self._register_bits <= _SMALL_REGISTER_BITS
        return [pa.list_(pa.int16() if small else pa.int32())] if list(buffers) == [pa.int64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return the highest rank of each register, of the old state and the rows' hashes."""
        codes, hashes = groups.drop_nulls(rows[0])
        owners, stored = flatten_lists(old[0])
        numbers = np.concatenate([stored.to_numpy(), self._pack_registers(hashes.to_numpy())])
        return self._keep_highest_ranks(np.concatenate([owners, codes]), numbers, old[0].type, groups)

    def merge(self, states: Columns, groups: Groups) -> list[pa.Array]:
        """Return the highest rank of each register over the states of a group."""
        owners, numbers = flatten_lists(states[0])
        return self._keep_highest_ranks(groups.codes[owners], numbers.to_numpy(), states[0].type, groups)

    def _keep_highest_ranks(
        self, owners: IndexArray, numbers: npt.NDArray[np.int64], list_type: pa.DataType, groups: Groups
    ) -> list[pa.Array]:
        """Return one list array: per group, the highest rank of each register.

        ``numbers`` are registers with ranks, packed into whole numbers. ``owners`` holds the group of each number.
        """
        order = np.lexsort((numbers, owners))
        owners, numbers = owners[order], numbers[order]
        register = numbers >> _RANK_BITS
        is_highest = np.ones(len(order), dtype=np.bool_)
        is_highest[:-1] = (np.diff(owners) != 0) | (np.diff(register) != 0)
        highest = pa.array(numbers[is_highest], list_type.value_type)
        return [build_lists(owners[is_highest], highest, groups, max_length=2**self._register_bits)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the words of Spark's buffer as one struct. A word has ten registers, the first in the lowest bits."""
        owners, stored = flatten_lists(state[0])
        numbers = stored.to_numpy().astype(np.int64)
        word, place = np.divmod(numbers >> _RANK_BITS, _REGISTERS_A_WORD)
        rank_values = (numbers & ((1 << _RANK_BITS) - 1)) << (place * _RANK_BITS)
        words = np.zeros((2**self._register_bits // _REGISTERS_A_WORD + 1, len(state[0])), dtype=np.int64)
        np.bitwise_or.at(words, (word, owners), rank_values)
        return [
            pa.StructArray.from_arrays(list(map(pa.array, words)), [f"word_{index}" for index in range(len(words))])
        ]

    @property
    def _register_bits(self) -> int:
        """The number of bits that select a register, by Spark's formula for the relative error."""
        return int(np.ceil(2 * np.log2(1.106 / self.relative_error)))

    def _pack_registers(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the register and rank of each hash as one integer, the rank in the lowest six bits."""
        bits = self._register_bits
        unsigned = hashes.view(np.uint64)
        # The 1 after the other bits of the hash bounds the leading zeros.
        rest = (unsigned << np.uint64(bits)) | np.uint64(1 << (bits - 1))
        register = (unsigned >> np.uint64(64 - bits)).astype(np.int64)
        return (register << _RANK_BITS) | (65 - bit_lengths(rest))


@dataclass(frozen=True, slots=True)
class MergedQuantiles(MergeFunction):
    """ApproximatePercentile: a list of values, each at a *level*. A row's buffer is its value.

    A value at level n represents 2 ** n values. Values start at level 0. If a level has too many, they are sorted, and
    every second one moves up a level and represents its neighbour too (Karnin, Lang, Liberty 2016). Whether odd or even
    places move depends on the number of values so far, so a repeated batch has the same result.
    """

    accuracy: int
    percentages: float | tuple[float, ...]

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return one list of values with levels; empty if the values have no order."""
        if len(buffers) != 1 or not is_ordered(buffers[0]):
            return ()
        return [pa.list_(pa.struct([("value", buffers[0]), ("level", pa.int8())]))]

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add the rows' values at level 0, and compact the lists."""
        codes, values = groups.drop_nulls(rows[0])
        owners, stored = flatten_lists(old[0])
        levels = np.zeros(len(values), dtype=np.int8)
        new = pa.StructArray.from_arrays([values, pa.array(levels)], fields=list(stored.type))
        return [self._compact(np.concatenate([owners, codes]), pa.concat_arrays([stored, new]), groups)]

    def merge(self, states: Columns, groups: Groups) -> list[pa.Array]:
        """Concatenate the lists of each group, and compact them."""
        owners, items = flatten_lists(states[0])
        return [self._compact(groups.codes[owners], items, groups)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return for each percentage the smallest value with at least that share of values up to it; null for groups
        without values.
        """
        owners, items = flatten_lists(state[0])
        values, levels = items.flatten()
        order = np.lexsort((rank_values(values), owners))
        cumulative = np.cumsum(np.left_shift(np.int64(1), levels.to_numpy()[order].astype(np.int64)))
        starts = np.searchsorted(owners[order], np.arange(len(state[0]) + 1))
        ends = np.concatenate([[0], cumulative])[starts]
        percentages = np.atleast_1d(np.asarray(self.percentages, dtype=np.float64))
        number = np.maximum(np.ceil(percentages * np.diff(ends)[:, None]), 1).astype(np.int64) + ends[:-1, None]
        is_empty = np.repeat(np.diff(ends) == 0, len(percentages))
        places = np.minimum(np.searchsorted(cumulative, number.ravel()), max(len(order) - 1, 0))
        results = values.take(pa.array(order[places] if len(order) else places, mask=is_empty))
        if not isinstance(self.percentages, tuple):
            return [results]
        offsets = pa.array(np.arange(len(state[0]) + 1, dtype=np.int32) * len(percentages))
        is_null = (np.diff(ends) == 0) | (not len(percentages))
        return [pa.ListArray.from_arrays(offsets, results, mask=pa.array(is_null))]

    def _compact(self, owners: IndexArray, items: pa.Array, groups: Groups) -> pa.Array:
        """Return a list per group in which no level has too many items.

        ``items`` are values with levels, ``owners`` their groups.
        """
        values, item_levels = items.flatten()
        levels = item_levels.to_numpy().astype(np.int64)
        places = np.arange(len(items), dtype=np.int64)
        rank: npt.NDArray[np.int64] | None = None
        while (is_crowded := self._is_crowded(owners, levels, groups.size)).any():
            rank = rank_values(values) if rank is None else rank
            counts = np.bincount(owners, np.exp2(levels), groups.size).astype(np.uint64)
            promoted, unpaired = _promote(owners, levels, rank[places], np.flatnonzero(is_crowded), counts)
            levels[promoted] += 1
            remaining = np.sort(np.concatenate([np.flatnonzero(~is_crowded), promoted, unpaired]))
            owners, levels, places = owners[remaining], levels[remaining], places[remaining]
        columns = [values.take(pa.array(places)), pa.array(levels.astype(np.int8))]
        return build_lists(owners, pa.StructArray.from_arrays(columns, fields=list(items.type)), groups, _VALUES_MAX)

    def _is_crowded(self, owners: IndexArray, levels: npt.NDArray[np.int64], size: int) -> BoolArray:
        """Return a mask of the items at a level that has too many items of their group."""
        highest = np.zeros(size, dtype=np.int64)
        np.maximum.at(highest, owners, levels)
        group_levels, places, counts = np.unique(owners * 64 + levels, return_inverse=True, return_counts=True)
        depth = highest[group_levels // 64] - group_levels % 64
        limits = np.ceil(_VALUES_PER_ACCURACY * self.accuracy * _LEVEL_RATIO**depth)
        return np.asarray((counts > np.maximum(limits, _LEVEL_MIN))[places], dtype=np.bool_)


def _promote(
    owners: IndexArray,
    levels: npt.NDArray[np.int64],
    rank: npt.NDArray[np.int64],
    crowded: IndexArray,
    counts: npt.NDArray[np.uint64],
) -> tuple[IndexArray, IndexArray]:
    """Choose which items of crowded levels move up. Return a mask of the items that move up a level, and of those that
    stay because they have no neighbour.

    All other crowded items are dropped. ``counts`` holds the number of values that each group represents.
    """
    order = crowded[np.lexsort((rank[crowded], levels[crowded], owners[crowded]))]
    group_levels = owners[order] * 64 + levels[order]
    _, firsts, lengths = np.unique(group_levels, return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(firsts, lengths)
    is_unpaired = place == np.repeat(lengths - lengths % 2, lengths)
    hashes = counts[owners[order]] * _HASH_FACTORS[0] + levels[order].astype(np.uint64) * _HASH_FACTORS[1]
    parity = ((hashes * _HASH_FACTORS[1]) >> np.uint64(63)).astype(np.int64)
    return order[~is_unpaired & (place % 2 == parity)], order[is_unpaired]


def bit_lengths(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the bit length of each number. It is computed in halves, because doubles hold these exactly."""
    high, low = (np.frexp(half.astype(np.float64))[1] for half in (numbers >> np.uint64(32), numbers & _LOW_HALF))
    return np.where(high > 0, high + 32, low).astype(np.int64)
