"""Aggregate functions with Apache DataSketches that other programs can read: HllSketchAgg and HllUnionAgg.

The library estimates counts and unites sketches. It is imported when a query has such a function.
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

_ADDRESS_BITS = 26
_RANK_MAX = 63
_LIST_MAX = 7
"""A sketch with at most this number of coupons is a list."""
_SET_REGISTER_BITS = 8
"""From this number of register bits on, a sketch is a set of coupons before it has registers."""
_REGISTERS = 2
"""The mode bits in a sketch's bytes that mean it has registers."""
_OUT_OF_ORDER = 16
"""The flag in a sketch's bytes that values arrived in any order."""
_EMPTY_UNION_BITS = 12
"""The register bits of Spark's union of no sketches."""


@dataclass(frozen=True, slots=True)
class HashSketch(MergeFunction):
    """HllSketchAgg: a sketch in the library's bytes; null before the first value.

    A row's buffer is the two words of its value's hash. A hash becomes a *coupon*: 26 bits that name a register, and
    above them its rank. The bytes of a sketch with few coupons are a header and the coupons. So the library gets the
    coupons of a batch as sketches, not one by one.
    """

    register_bits: int

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return one binary column, the sketch; empty unless the buffer is the two words of a hash."""
        fits = len(buffers) == 1 and pa.types.is_list(buffers[0]) and buffers[0].value_type == pa.int64()
        return [pa.binary()] if fits else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add the rows' hashes to the old sketch of each group."""
        codes, hashes = groups.drop_nulls(rows[0])
        words = hashes.flatten().to_numpy().view(np.uint64).reshape(-1, 2)
        group_coupons = np.unique((codes.astype(np.uint64) << np.uint64(32)) | _make_coupons(words))
        owners, firsts = np.unique((group_coupons >> np.uint64(32)).astype(np.int64), return_index=True)
        parts = np.split(group_coupons.astype(np.uint32), firsts[1:]) if len(owners) else []
        part_sketches = [self._pack_coupons(coupons) for coupons in parts]
        sketches = [sketch for group_sketches in part_sketches for sketch in group_sketches]
        counts = [len(group_sketches) for group_sketches in part_sketches]
        return [_unite_sketches(old[0], np.repeat(owners, counts), sketches, groups, are_own=True)]

    def merge(self, states: Columns, groups: Groups) -> list[pa.Array]:
        """Return the union of the sketches of each group."""
        return SketchUnion().merge(states, groups)

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the sketch of each group, an empty one for groups without values."""
        return [pc.fill_null(state[0], _empty_sketch(self.register_bits))]

    def _pack_coupons(self, coupons: npt.NDArray[np.uint32]) -> list[bytes]:
        """Return the coupons of one group packed into as few sketches as possible."""
        size = 3 * 2**self.register_bits // 32 if self.register_bits >= _SET_REGISTER_BITS else _LIST_MAX
        if len(coupons) > size:  # The union will have registers, which keep the highest rank each.
            register = coupons & np.uint32(2**self.register_bits - 1)
            order = np.lexsort((coupons >> np.uint32(_ADDRESS_BITS), register))
            highest = coupons[order[np.append(np.diff(register[order]) != 0, True)]]
            coupons = highest if len(highest) > size else coupons
        return [self._encode_sketch(coupons[start : start + size]) for start in range(0, len(coupons), size)]

    def _encode_sketch(self, coupons: npt.NDArray[np.uint32]) -> bytes:
        """Return a compact HLL_8 sketch with these few coupons: a list (8 bytes of header) or a set (12 bytes)."""
        count = len(coupons)
        body = coupons.astype("<u4").tobytes()
        if count <= _LIST_MAX:
            return bytes((2, 1, 7, self.register_bits, 3, 8, count, 8)) + body
        return bytes((3, 1, 7, self.register_bits, 0, 8, 0, 9)) + count.to_bytes(4, "little") + body


@dataclass(frozen=True, slots=True)
class SketchUnion(MergeFunction):
    """HllUnionAgg: the union of sketches; null before the first one.

    The union has the register bits of the first sketch, or with ``may_differ`` the fewest of all.
    """

    may_differ: bool = False

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return one binary column, the union; empty unless the buffer is one binary column."""
        return list(buffers) if list(buffers) == [pa.binary()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return the union of the old sketch and the rows' sketches of each group.

        Raises ``UserFunctionError`` for bytes that are not a sketch.
        """
        codes, sketches = groups.drop_nulls(rows[0])
        order = np.argsort(codes, kind="stable")
        ordered = sketches.take(pa.array(order)).to_pylist()
        return [_unite_sketches(old[0], codes[order], ordered, groups, self.may_differ)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the union of each group, an empty sketch for groups without one."""
        return [pc.fill_null(state[0], _empty_sketch(_EMPTY_UNION_BITS))]


def import_sketches_library() -> ModuleType:
    """Return the module of Apache DataSketches. Raises ``ConfigError`` if it is not installed."""
    try:
        import datasketches
    except ImportError as error:
        raise ConfigError(
            "hll_sketch_agg and hll_union_agg need the Python package datasketches, which is not installed.",
            remedy="Run pip install 'datasketches>=5.0' in the Python of the driver and of every executor, or use "
            "approx_count_distinct, which needs no package.",
            id="RIFFLE-0183",
        ) from error
    library: ModuleType = datasketches
    return library


def _empty_sketch(register_bits: int) -> bytes:
    """Return the bytes of an empty HLL_8 sketch."""
    return bytes((2, 1, 7, register_bits, 3, 12, 0, 8))


def _make_coupons(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the coupon of each hash: low bits of its first word, and above them the rank of its second word."""
    ranks = np.minimum(65 - bit_lengths(words[:, 1]), _RANK_MAX).astype(np.uint64)
    return (ranks << np.uint64(_ADDRESS_BITS)) | (words[:, 0] & np.uint64(2**_ADDRESS_BITS - 1))


def _unite_sketches(
    old: pa.Array,
    owners: IndexArray,
    sketches: Sequence[bytes],
    groups: Groups,
    may_differ: bool = False,
    *,
    are_own: bool = False,
) -> pa.Array:
    """Return the union of each group's old sketch and new sketches. ``owners`` has the group of each new sketch, in
    ascending order.

    With ``are_own`` this module made the sketches, so a single sketch needs no check.
    """
    library = import_sketches_library()  # A missing library must fail the first batch, not the first union.
    touched, firsts, counts = np.unique(owners, return_index=True, return_counts=True)
    old_sketches = old.take(pa.array(touched)).to_pylist()
    unions = list[bytes]()
    for group, old_sketch, first, count in zip(touched, old_sketches, firsts, counts, strict=True):
        parts = [*([] if old_sketch is None else [old_sketch]), *sketches[first : first + count]]
        if are_own and len(parts) == 1:
            union = parts[0]
        else:
            union = _unite_as_spark(library, parts, groups.group_text(int(group)), may_differ)
        unions.append(_set_out_of_order(union) if are_own else union)
    places = np.arange(groups.size, dtype=np.int64)
    places[touched] = np.arange(groups.size, groups.size + len(touched))
    return pa.concat_arrays([old, pa.array(unions, old.type)]).take(pa.array(places))


def _set_out_of_order(sketch: bytes) -> bytes:
    """Return a sketch with registers with its out-of-order flag set.

    Without the flag the library estimates from the order of values, but it gets the coupons of a batch without their
    order.
    """
    has_registers = sketch[7] & 3 == _REGISTERS
    return sketch[:5] + bytes((sketch[5] | _OUT_OF_ORDER,)) + sketch[6:] if has_registers else sketch


def _unite_as_spark(library: ModuleType, sketches: Sequence[bytes], where: str, may_differ: bool) -> bytes:
    """Return the union of sketches as Spark makes it: HLL_8, with at most the registers of the first sketch.

    Raises ``UserFunctionError`` for bytes that are not a sketch.
    """
    try:
        parsed = [library.hll_sketch.deserialize(sketch) for sketch in sketches]
    except (IndexError, RuntimeError, ValueError) as error:
        # Cause: The column holds other bytes, or a truncated sketch.
        raise UserFunctionError(
            f"[HLL_INVALID_INPUT_SKETCH_BUFFER] An input of hll_union_agg is not an HLL sketch: {error}",
            remedy="Pass sketches from hll_sketch_agg, hll_union_agg or another program with Apache DataSketches.",
            where=where,
            id="RIFFLE-0184",
        ) from error
    bits = parsed[0].lg_config_k
    other_bits = next((sketch.lg_config_k for sketch in parsed if sketch.lg_config_k != bits), bits)
    if other_bits != bits and not may_differ:
        raise UserFunctionError(
            f"[HLL_UNION_DIFFERENT_LG_K] Sketches have different lgConfigK values: {bits} and {other_bits}.",
            remedy="Use hll_union_agg(column, true), which takes the smallest of them.",
            where=where,
            id="RIFFLE-0185",
        )
    union = library.hll_union(bits)
    for sketch in parsed:
        union.update(sketch)
    return bytes(union.get_result(library.tgt_hll_type.HLL_8).serialize_compact())
