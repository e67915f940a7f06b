"""What merges as sketches of Apache DataSketches, which other programs read: HllSketchAgg and HllUnionAgg. Knows which
bytes stand for a few values. Does not know what was hashed, nor how a count is estimated: the library does, which is
asked for where a query has such functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction
from riffle_spark.process.merging.merged_sketches import bit_lengths

__all__ = ["HashSketch", "SketchUnion", "sketches_library"]

_ADDRESS_BITS, _VALUE_MOST = 26, 63
_IN_LIST, _LEAST_OF_SETS = 7, 8
"""Of how many coupons a sketch is a list, and from how many register bits on it is a set before it has registers."""
_REGISTERS, _NO_ORDER = 2, 16
"""How the bytes of a sketch say that it has registers, and that values came in any order."""
_NO_SKETCH_BITS = 12
"""Of the sketch that Spark's union of no sketch is."""


@dataclass(frozen=True, slots=True)
class HashSketch(MergeFunction):
    """HllSketchAgg: a sketch of Apache DataSketches a group, as the library has it in bytes; null before its first
    value. A row's buffer are the two words of its value's hash.

    A hash becomes a *coupon*: 26 bits that name a register, and above them its rank. A sketch of a few coupons is no
    more than these, so that a batch's coupons of a group are given to the library as sketches, and not one by one.
    """

    register_bits: int

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the sketch."""
        fits = len(buffers) == 1 and pa.types.is_list(buffers[0]) and buffers[0].value_type == pa.int64()
        return [pa.binary()] if fits else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Put the hashes in."""
        codes, hashes = groups.present(rows[0])
        words = hashes.flatten().to_numpy().view(np.uint64).reshape(-1, 2)
        marks = np.unique((codes.astype(np.uint64) << np.uint64(32)) | _coupons(words))
        owners, firsts = np.unique((marks >> np.uint64(32)).astype(np.int64), return_index=True)
        parts = [self._sketches(some) for some in np.split(marks.astype(np.uint32), firsts[1:])] if len(owners) else []
        sketches = [one for part in parts for one in part]
        return [_united(old[0], np.repeat(owners, [len(part) for part in parts]), sketches, groups, are_ours=True)]

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Unite the sketches."""
        return SketchUnion().united(kept, groups)

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the sketches; an empty one where there was no value."""
        return [pc.fill_null(state[0], _empty(self.register_bits))]

    def _sketches(self, coupons: npt.NDArray[np.uint32]) -> list[bytes]:
        """Return sketches that have these coupons, as few as can be."""
        most = 3 * 2**self.register_bits // 32 if self.register_bits >= _LEAST_OF_SETS else _IN_LIST
        if len(coupons) > most:  # a sketch of so many has registers, which keep the highest rank each
            register = coupons & np.uint32(2**self.register_bits - 1)
            order = np.lexsort((coupons >> np.uint32(_ADDRESS_BITS), register))
            highest = coupons[order[np.append(np.diff(register[order]) != 0, True)]]
            coupons = highest if len(highest) > most else coupons
        return [self._sketch(coupons[start : start + most]) for start in range(0, len(coupons), most)]

    def _sketch(self, coupons: npt.NDArray[np.uint32]) -> bytes:
        """Return the compact form of a sketch of HLL_8 with few coupons: a list or a set, with its head of 8 or 12
        bytes.
        """
        count, body = len(coupons), coupons.astype("<u4").tobytes()
        if count <= _IN_LIST:
            return bytes((2, 1, 7, self.register_bits, 3, 8, count, 8)) + body
        return bytes((3, 1, 7, self.register_bits, 0, 8, 0, 9)) + count.to_bytes(4, "little") + body


@dataclass(frozen=True, slots=True)
class SketchUnion(MergeFunction):
    """HllUnionAgg: of sketches their union, which has the first one's number of registers or, where others
    ``may_differ``, the least of all; null before the first sketch.
    """

    may_differ: bool = False

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the union."""
        return list(buffers) if list(buffers) == [pa.binary()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Unite the sketches with the union of earlier ones."""
        codes, sketches = groups.present(rows[0])
        order = np.argsort(codes, kind="stable")
        told = sketches.take(pa.array(order)).to_pylist()
        return [_united(old[0], codes[order], told, groups, self.may_differ)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the unions; an empty sketch where there was none."""
        return [pc.fill_null(state[0], _empty(_NO_SKETCH_BITS))]


def sketches_library() -> ModuleType:
    """Return the library of sketches that Spark's own are compatible with. Raises ``ConfigError`` where it is not."""
    try:
        import datasketches
    except ImportError as missing:
        raise ConfigError(
            "hll_sketch_agg and hll_union_agg need Apache DataSketches, and this Python has no package datasketches",
            remedy="pip install 'datasketches>=5.0' in the Python of the driver and of every executor; or use "
            "approx_count_distinct, which needs no library",
            id="RIFFLE-0183",
        ) from missing
    found: ModuleType = datasketches
    return found


def _empty(register_bits: int) -> bytes:
    return bytes((2, 1, 7, register_bits, 3, 12, 0, 8))


def _coupons(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return of each hash the coupon: its first bits, and above them how many zeros lead its second word, and one."""
    ranks = np.minimum(65 - bit_lengths(words[:, 1]), _VALUE_MOST).astype(np.uint64)
    return (ranks << np.uint64(_ADDRESS_BITS)) | (words[:, 0] & np.uint64(2**_ADDRESS_BITS - 1))


def _united(
    old: pa.Array, owners: IndexArray, sketches: Sequence[bytes], groups: Groups, may_differ: bool = False, *,
    are_ours: bool = False,
) -> pa.Array:  # fmt: skip
    """Return the union of what is kept of each group and of the sketches of it, whose ``owners`` ascend. One sketch is
    its own union where it is ours; any other has to be looked at.
    """
    library = sketches_library()  # whoever has none is told with the first batch, not once sketches meet
    touched, firsts, counts = np.unique(owners, return_index=True, return_counts=True)
    known = old.take(pa.array(touched)).to_pylist()
    made = list[bytes]()
    for group, before, first, count in zip(touched, known, firsts, counts, strict=True):
        told = [*([] if before is None else [before]), *sketches[first : first + count]]
        found = told[0] if are_ours and len(told) == 1 else _union(library, told, groups.told(int(group)), may_differ)
        made.append(_in_no_order(found) if are_ours else found)
    places = np.arange(groups.size, dtype=np.int64)
    places[touched] = np.arange(groups.size, groups.size + len(touched))
    return pa.concat_arrays([old, pa.array(made, old.type)]).take(pa.array(places))


def _in_no_order(sketch: bytes) -> bytes:
    """Return a sketch that says so where it has registers: it was not told of each value when that came, by which it
    would estimate.
    """
    has_registers = sketch[7] & 3 == _REGISTERS
    return sketch[:5] + bytes((sketch[5] | _NO_ORDER,)) + sketch[6:] if has_registers else sketch


def _union(library: ModuleType, sketches: Sequence[bytes], where: str, may_differ: bool) -> bytes:
    """Return the union of sketches as Spark makes it: of HLL_8, with the first one's registers at most."""
    try:
        read = [library.hll_sketch.deserialize(one) for one in sketches]
    except (IndexError, RuntimeError, ValueError) as error:
        raise UserFunctionError(
            f"[HLL_INVALID_INPUT_SKETCH_BUFFER] what was given to hll_union_agg is no sketch of HLL: {error}",
            remedy="give it what hll_sketch_agg or hll_union_agg made, or another program with Apache DataSketches",
            where=where,
            id="RIFFLE-0184",
        ) from error
    bits = read[0].lg_config_k
    other = next((one.lg_config_k for one in read if one.lg_config_k != bits), bits)
    if other != bits and not may_differ:
        raise UserFunctionError(
            f"[HLL_UNION_DIFFERENT_LG_K] sketches have different lgConfigK values: {bits} and {other}",
            remedy="make them alike, or say hll_union_agg(column, true): the union then has the least of them",
            where=where,
            id="RIFFLE-0185",
        )
    union = library.hll_union(bits)
    for one in read:
        union.update(one)
    return bytes(union.get_result(library.tgt_hll_type.HLL_8).serialize_compact())
