"""What merges as a sketch: HyperLogLogPlusPlus, which is approx_count_distinct, and ApproximatePercentile. Knows
Spark's registers and words, and its ranks. Does not know what was hashed, nor how a count is estimated.

Of the first a row's buffer is Spark's ``xxhash64`` of its value, null where the value is. The first bits of a hash name
a register; the zeros that lead its other bits, and one, are a *rank*, of which each register keeps the highest (Heule,
Nunkesser, Hall 2013). Of a group, only registers that are not empty are kept, so that one of few values takes few
bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.blocks.block import BoolArray, IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction
from riffle_spark.process.merging.merged_lists import lists_of, owned
from riffle_spark.process.merging.merged_picks import is_ordered, ranks

__all__ = ["MergedDistinct", "MergedQuantiles", "bit_lengths"]

_RANK_BITS = 6
_REGISTERS_A_WORD = 10
_LOW_HALF = np.uint64(2**32 - 1)
_SMALL_REGISTER_BITS = 9
"""With so many, which Spark has by default, register and rank together fit 16 bits."""
_VALUES_EACH = 4
"""How many values of one level are kept for each of the accuracy, so that ranks are hardly off by one of it."""
_LEAST, _SHRINKS = 8, 2 / 3
"""How many are kept of any level, and how many of one against the level above it."""
_MOST = 4_000_000
_CHANCE = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


@dataclass(frozen=True, slots=True)
class MergedDistinct(MergeFunction):
    """HyperLogLogPlusPlus: a list of numbers a group, each a register and, in its lowest six bits, its rank."""

    relative_error: float

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the list."""
        small = self._register_bits <= _SMALL_REGISTER_BITS
        return [pa.list_(pa.int16() if small else pa.int32())] if list(buffers) == [pa.int64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Keep the highest rank of each register."""
        codes, hashes = groups.present(rows[0])
        owners, kept = owned(old[0])
        numbers = np.concatenate([kept.to_numpy(), self._numbers(hashes.to_numpy())])
        return self._highest(np.concatenate([owners, codes]), numbers, old[0].type, groups)

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Keep the highest rank of each register."""
        owners, numbers = owned(kept[0])
        return self._highest(groups.codes[owners], numbers.to_numpy(), kept[0].type, groups)

    def _highest(
        self, owners: IndexArray, numbers: npt.NDArray[np.int64], kind: pa.DataType, groups: Groups
    ) -> list[pa.Array]:
        order = np.lexsort((numbers, owners))
        owners, numbers = owners[order], numbers[order]
        register = numbers >> _RANK_BITS
        is_highest = np.ones(len(order), dtype=np.bool_)
        is_highest[:-1] = (np.diff(owners) != 0) | (np.diff(register) != 0)
        kept = pa.array(numbers[is_highest], kind.value_type)
        return [lists_of(owners[is_highest], kept, groups, most=2**self._register_bits)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the words that Spark's own buffer has, as one struct: ten registers each, the first one in the lowest
        bits.
        """
        owners, kept = owned(state[0])
        numbers = kept.to_numpy().astype(np.int64)
        word, place = np.divmod(numbers >> _RANK_BITS, _REGISTERS_A_WORD)
        ranks = (numbers & ((1 << _RANK_BITS) - 1)) << (place * _RANK_BITS)
        words = np.zeros((2**self._register_bits // _REGISTERS_A_WORD + 1, len(state[0])), dtype=np.int64)
        np.bitwise_or.at(words, (word, owners), ranks)
        return [pa.StructArray.from_arrays(list(map(pa.array, words)), [f"word_{at}" for at in range(len(words))])]

    @property
    def _register_bits(self) -> int:
        """How many bits name a register: Spark's formula for the error that is asked for."""
        return int(np.ceil(2 * np.log2(1.106 / self.relative_error)))

    def _numbers(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        bits = self._register_bits
        unsigned = hashes.view(np.uint64)
        # A one behind what is left of a hash bounds the zeros before it.
        rest = (unsigned << np.uint64(bits)) | np.uint64(1 << (bits - 1))
        register = (unsigned >> np.uint64(64 - bits)).astype(np.int64)
        return (register << _RANK_BITS) | (65 - bit_lengths(rest))


@dataclass(frozen=True, slots=True)
class MergedQuantiles(MergeFunction):
    """ApproximatePercentile: a list of values a group, each at a *level*; one at level n stands for 2 ** n values. A
    row's buffer is its value.

    All values are kept, at level 0, as long as they are few. Where a level has too many, they are sorted, and every
    second one goes up for itself and its neighbour (Karnin, Lang, Liberty 2016). Which half goes depends on how many
    values there were, so that a batch that runs again does the same.
    """

    accuracy: int
    percentages: float | tuple[float, ...]

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the list."""
        if len(buffers) != 1 or not is_ordered(buffers[0]):
            return ()
        return [pa.list_(pa.struct([("value", buffers[0]), ("level", pa.int8())]))]

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add the values."""
        codes, values = groups.present(rows[0])
        owners, kept = owned(old[0])
        levels = np.zeros(len(values), dtype=np.int8)
        new = pa.StructArray.from_arrays([values, pa.array(levels)], fields=list(kept.type))
        return [self._thinned(np.concatenate([owners, codes]), pa.concat_arrays([kept, new]), groups)]

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Add what others have."""
        owners, items = owned(kept[0])
        return [self._thinned(groups.codes[owners], items, groups)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return for each percentage the least value that so many are at most; null where there is no value."""
        owners, items = owned(state[0])
        values, levels = items.flatten()
        order = np.lexsort((ranks(values), owners))
        counted = np.cumsum(np.left_shift(np.int64(1), levels.to_numpy()[order].astype(np.int64)))
        before = np.searchsorted(owners[order], np.arange(len(state[0]) + 1))
        ends = np.concatenate([[0], counted])[before]
        wanted = np.atleast_1d(np.asarray(self.percentages, dtype=np.float64))
        number = np.maximum(np.ceil(wanted * np.diff(ends)[:, None]), 1).astype(np.int64) + ends[:-1, None]
        is_empty = np.repeat(np.diff(ends) == 0, len(wanted))
        places = np.minimum(np.searchsorted(counted, number.ravel()), max(len(order) - 1, 0))
        found = values.take(pa.array(order[places] if len(order) else places, mask=is_empty))
        if not isinstance(self.percentages, tuple):
            return [found]
        offsets = np.arange(len(state[0]) + 1, dtype=np.int32) * len(wanted)
        return [
            pa.ListArray.from_arrays(pa.array(offsets), found, mask=pa.array((np.diff(ends) == 0) | (not len(wanted))))
        ]

    def _thinned(self, owners: IndexArray, items: pa.Array, groups: Groups) -> pa.Array:
        """Return lists of items, of which no level has too many."""
        values, told = items.flatten()
        levels, places = told.to_numpy().astype(np.int64), np.arange(len(items), dtype=np.int64)
        rank: npt.NDArray[np.int64] | None = None
        while (crowded := self._crowded(owners, levels, groups.size)).any():
            rank = ranks(values) if rank is None else rank
            counts = np.bincount(owners, np.exp2(levels), groups.size).astype(np.uint64)
            up, stays = _halved(owners, levels, rank[places], np.flatnonzero(crowded), counts)
            levels[up] += 1
            kept = np.sort(np.concatenate([np.flatnonzero(~crowded), up, stays]))
            owners, levels, places = owners[kept], levels[kept], places[kept]
        columns = [values.take(pa.array(places)), pa.array(levels.astype(np.int8))]
        return lists_of(owners, pa.StructArray.from_arrays(columns, fields=list(items.type)), groups, _MOST)

    def _crowded(self, owners: IndexArray, levels: npt.NDArray[np.int64], size: int) -> BoolArray:
        """Tell which items are at a level that has too many in their group."""
        highest = np.zeros(size, dtype=np.int64)
        np.maximum.at(highest, owners, levels)
        of_level, places, counts = np.unique(owners * 64 + levels, return_inverse=True, return_counts=True)
        below = highest[of_level // 64] - of_level % 64
        most = np.ceil(_VALUES_EACH * self.accuracy * _SHRINKS**below)
        return np.asarray((counts > np.maximum(most, _LEAST))[places], dtype=np.bool_)


def _halved(
    owners: IndexArray,
    levels: npt.NDArray[np.int64],
    rank: npt.NDArray[np.int64],
    crowded: IndexArray,
    counts: npt.NDArray[np.uint64],
) -> tuple[IndexArray, IndexArray]:
    """Return which crowded items go a level up, and which stay since they have no neighbour; the others go.

    ``counts`` says how many values each group has had.
    """
    order = crowded[np.lexsort((rank[crowded], levels[crowded], owners[crowded]))]
    of_level = owners[order] * 64 + levels[order]
    _, firsts, lengths = np.unique(of_level, return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(firsts, lengths)
    is_single = place == np.repeat(lengths - lengths % 2, lengths)
    drawn = (counts[owners[order]] * _CHANCE[0] + levels[order].astype(np.uint64) * _CHANCE[1]) * _CHANCE[1]
    chance = (drawn >> np.uint64(63)).astype(np.int64)
    return order[~is_single & (place % 2 == chance)], order[is_single]


def bit_lengths(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return how many bits each number has from its highest one on, by halves, which doubles hold exactly."""
    high, low = (np.frexp(half.astype(np.float64))[1] for half in (numbers >> np.uint64(32), numbers & _LOW_HALF))
    return np.where(high > 0, high + 32, low).astype(np.int64)
