"""What merges by adding, by multiplying or bit by bit: Count, Sum, Average, Product, BitAndAgg and their kin. Knows
where Spark's sums overflow. Does not know keys.

Whole numbers and decimals are added exactly, so that in a batch only the result has to fit, whatever the order of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import BoolArray
from riffle_spark.process.blocks.folding import add_exactly, add_floats, filled, hold
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, are_valid

Overflow: TypeAlias = Literal["LEGACY", "ANSI", "TRY"]

__all__ = ["MergedAverage", "MergedBits", "MergedCount", "MergedProduct", "MergedSum", "Overflow"]


@dataclass(frozen=True, slots=True)
class MergedCount(MergeFunction):
    """Count: one int64."""

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the count."""
        return buffers if list(buffers) == [pa.int64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add counts."""
        return [_counted(rows[0], old[0], groups)]


@dataclass(frozen=True, slots=True)
class MergedSum(MergeFunction):
    """Sum: the sum, null where there was nothing to add; where Spark keeps it, a second column says that so it is.

    With that column, for decimals and ``try_sum``, a sum that does not fit is null for good, and Spark's evaluation
    raises or answers null. Without it the batch fails, but for int64 outside ANSI mode, which wraps.
    ``aggregate(...)`` keeps decimals without that column, in ANSI mode.
    """

    overflow: Overflow

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the sum, and whether it is empty."""
        if list(buffers[1:]) == [pa.bool_()]:
            return buffers if _is_exact(buffers[0]) else ()
        may_be_exact = self.overflow == "ANSI" or not pa.types.is_decimal(buffers[0])
        fits = pa.types.is_float64(buffers[0]) or (_is_exact(buffers[0]) and may_be_exact)
        return buffers if fits and len(buffers) == 1 else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add sums."""
        if len(old) > 1:
            return self._flagged(rows, old, groups)
        codes, values = groups.present(rows[0])
        if pa.types.is_floating(values.type):
            return [add_floats(old[0], codes, values)]
        sums, wrapped = add_exactly(old[0], codes, values)
        if self.overflow == "ANSI" or pa.types.is_duration(values.type):
            _refuse(wrapped, values.type, groups)
        return [sums]

    def _flagged(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add sums of which another column says whether they are empty: one that is null, and not empty, is lost."""
        present, known = ~hold(pc.fill_null(rows[1], True)), ~hold(pc.fill_null(old[1], True))
        sums = _added_or_lost(rows[0], present & ~are_valid(rows[0]), old[0], known & ~are_valid(old[0]), groups)
        known[groups.codes[present]] = True
        return [sums, pa.array(~known)]


@dataclass(frozen=True, slots=True)
class MergedAverage(MergeFunction):
    """Average: sum and count. A sum that does not fit is null for good; for intervals it fails the batch, but for
    ``try_avg``.
    """

    overflow: Overflow

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep both."""
        fits = pa.types.is_float64(buffers[0]) or _is_exact(buffers[0])
        return buffers if fits and list(buffers[1:]) == [pa.int64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add both."""
        counts = _counted(rows[1], old[1], groups)
        if pa.types.is_floating(rows[0].type):
            return [pc.fill_null(add_floats(old[0], *groups.present(rows[0])), 0.0), counts]
        lost, lost_before = (~are_valid(part[0]) & (filled(part[1], 0) != 0) for part in (rows, old))
        sums = _added_or_lost(rows[0], lost, old[0], lost_before, groups)
        if pa.types.is_duration(sums.type) and self.overflow != "TRY":
            _refuse(~are_valid(sums), sums.type, groups)
        return [sums, counts]


@dataclass(frozen=True, slots=True)
class MergedProduct(MergeFunction):
    """Product: a double, null where there was nothing to multiply."""

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the product."""
        return buffers if list(buffers) == [pa.float64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Multiply."""
        return [_combined(np.multiply, 1.0, rows[0], old[0], groups)]


@dataclass(frozen=True, slots=True)
class MergedBits(MergeFunction):
    """BitAndAgg, BitOrAgg, BitXorAgg: a whole number, null where there was none."""

    operation: Literal["and", "or", "xor"]

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the number."""
        return buffers if len(buffers) == 1 and pa.types.is_signed_integer(buffers[0]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Combine bit by bit."""
        combine: np.ufunc = getattr(np, f"bitwise_{self.operation}")
        return [_combined(combine, -1 if self.operation == "and" else 0, rows[0], old[0], groups)]


def _counted(rows: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    before = pc.fill_null(old, 0).to_numpy()
    added = pc.fill_null(rows, 0).to_numpy()
    if (added == 1).all():
        return pa.array(before + np.bincount(groups.codes, minlength=groups.size))
    counts = before.copy()
    np.add.at(counts, groups.codes, added)
    return pa.array(counts)


def _combined(combine: np.ufunc, neutral: float, rows: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    codes, values = groups.present(rows)
    result, known = filled(old, neutral), are_valid(old)
    with np.errstate(all="ignore"):
        combine.at(result, codes, values.to_numpy(zero_copy_only=False))
    known[codes] = True
    return pa.array(result, mask=~known)


def _added_or_lost(
    rows: pa.Array, lost_rows: BoolArray, old: pa.Array, lost_before: BoolArray, groups: Groups
) -> pa.Array:
    """Add exactly, from 0; null where the sum does not fit its type, or one that it is made of did not."""
    sums, lost = add_exactly(old, *groups.present(rows))
    lost |= lost_before
    lost[groups.codes[lost_rows]] = True
    return pc.if_else(pa.array(lost), pa.scalar(None, sums.type), pc.fill_null(sums, _zero(sums.type)))


def _is_exact(type: pa.DataType) -> bool:
    return bool(pa.types.is_int64(type) or pa.types.is_decimal128(type) or pa.types.is_duration(type))


def _zero(type: pa.DataType) -> pa.Scalar:
    return pa.scalar(Decimal(0) if pa.types.is_decimal(type) else 0, type)


def _refuse(beyond: BoolArray, type: pa.DataType, groups: Groups) -> None:
    if not beyond.any():
        return
    raise UserFunctionError(
        f"[ARITHMETIC_OVERFLOW] A sum does not fit {type}",
        remedy="Use try_sum or try_avg, which answer null then, or cast the column to a decimal. "
        "With spark.sql.ansi.enabled=false sums of whole numbers wrap.",
        where=groups.told(int(np.argmax(beyond))),
        id="RIFFLE-0182",
    )
