"""What merges as a sketch: HyperLogLogPlusPlus, which is approx_count_distinct. Knows Spark's registers and words. Does
not know what was hashed, nor how a count is estimated.

A row's buffer is Spark's ``xxhash64`` of its value, null where the value is. The first bits of a hash name a register;
the zeros that lead its other bits, and one, are a *rank*, of which each register keeps the highest (Heule, Nunkesser,
Hall 2013). Of a group, only registers that are not empty are kept, so that one of few values takes few bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction
from riffle_spark.process.merging.merged_lists import lists_of, owned

__all__ = ["MergedDistinct"]

_RANK_BITS = 6
_REGISTERS_A_WORD = 10
_LOW_HALF = np.uint64(2**32 - 1)
_SMALL_REGISTER_BITS = 9
"""With so many, which Spark has by default, register and rank together fit 16 bits."""


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
        return (register << _RANK_BITS) | (65 - _bit_lengths(rest))


def _bit_lengths(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return how many bits each number has from its highest one on, by halves, which doubles hold exactly."""
    high, low = (np.frexp(half.astype(np.float64))[1] for half in (numbers >> np.uint64(32), numbers & _LOW_HALF))
    return np.where(high > 0, high + 32, low).astype(np.int64)
