"""Aggregate functions that add, multiply or combine bits: Count, Sum, Average, Product, BitAndAgg, BitOrAgg, BitXorAgg.

Integers and decimals are added exactly, so within a batch only the final sum must fit, whatever the order of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import BoolArray, IndexArray
from riffle_spark.process.blocks.folding import add_exactly, add_floats, fill_nulls, true_mask
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, are_valid

Overflow: TypeAlias = Literal["LEGACY", "ANSI", "TRY"]


@dataclass(frozen=True, slots=True)
class MergedCount(MergeFunction):
    """Count: an int64."""

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's type, int64."""
        return buffers if list(buffers) == [pa.int64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add the rows' counts to the old count of each group."""
        return [_add_counts(rows[0], old[0], groups)]


@dataclass(frozen=True, slots=True)
class MergedSum(MergeFunction):
    """Sum: the sum, null if there were no values, and in some of Spark's functions a flag that it is empty.

    With the flag (decimals and ``try_sum``), a sum that does not fit stays null, and Spark's evaluation raises or
    returns null. Without it a sum that does not fit fails the batch. An int64 outside ANSI mode wraps instead.
    ``aggregate(...)`` stores decimals without the flag, in ANSI mode.
    """

    overflow: Overflow

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's types: the sum and, in some of Spark's functions, the flag that it is empty.

        Empty for types that cannot be summed.
        """
        if list(buffers[1:]) == [pa.bool_()]:
            return buffers if _adds_exactly(buffers[0]) else ()
        may_be_exact = self.overflow == "ANSI" or not pa.types.is_decimal(buffers[0])
        fits = pa.types.is_float64(buffers[0]) or (_adds_exactly(buffers[0]) and may_be_exact)
        return buffers if fits and len(buffers) == 1 else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add the rows' sums to the old sum of each group.

        Raises ``UserFunctionError`` if a sum without the flag does not fit, except outside ANSI mode.
        """
        if len(old) > 1:
            return self._fold_flagged(rows, old, groups)
        codes, values = groups.drop_nulls(rows[0])
        if pa.types.is_floating(values.type):
            return [add_floats(old[0], codes, values)]
        sums, overflows = add_exactly(old[0], codes, values)
        if self.overflow == "ANSI" or pa.types.is_duration(values.type):
            _check_overflow(overflows, values.type, groups)
        return [sums]

    def _fold_flagged(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add sums that have the flag. A sum that is null but not flagged as empty has overflowed, and stays null."""
        row_has_sum = ~true_mask(pc.fill_null(rows[1], True))
        has_sum = ~true_mask(pc.fill_null(old[1], True))
        row_overflowed = row_has_sum & ~are_valid(rows[0])
        overflowed = has_sum & ~are_valid(old[0])
        sums = _add_with_overflow_null(rows[0], row_overflowed, old[0], overflowed, groups)
        has_sum[groups.codes[row_has_sum]] = True
        return [sums, pa.array(~has_sum)]


@dataclass(frozen=True, slots=True)
class MergedAverage(MergeFunction):
    """Average: sum and count.

    A sum that does not fit stays null. For intervals it fails the batch, except in ``try_avg``.
    """

    overflow: Overflow

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's types: sum and count. Empty for types that cannot be summed."""
        fits = pa.types.is_float64(buffers[0]) or _adds_exactly(buffers[0])
        return buffers if fits and list(buffers[1:]) == [pa.int64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Add the rows' sums and counts to the old ones of each group.

        A sum that is null with a count above 0 has overflowed, and stays null.
        """
        counts = _add_counts(rows[1], old[1], groups)
        if pa.types.is_floating(rows[0].type):
            return [pc.fill_null(add_floats(old[0], *groups.drop_nulls(rows[0])), 0.0), counts]
        row_overflowed, overflowed = (~are_valid(part[0]) & (fill_nulls(part[1], 0) != 0) for part in (rows, old))
        sums = _add_with_overflow_null(rows[0], row_overflowed, old[0], overflowed, groups)
        if pa.types.is_duration(sums.type) and self.overflow != "TRY":
            _check_overflow(~are_valid(sums), sums.type, groups)
        return [sums, counts]


@dataclass(frozen=True, slots=True)
class MergedProduct(MergeFunction):
    """Product: a double, null if there were no values."""

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's type, double."""
        return buffers if list(buffers) == [pa.float64()] else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Multiply the rows' products with the old product of each group."""
        return [_fold_values(np.multiply, 1.0, rows[0], old[0], groups)]


@dataclass(frozen=True, slots=True)
class MergedBits(MergeFunction):
    """BitAndAgg, BitOrAgg, BitXorAgg: an integer, null if there were no values."""

    operation: Literal["and", "or", "xor"]

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's type, an integer."""
        return buffers if len(buffers) == 1 and pa.types.is_signed_integer(buffers[0]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Combine the rows' integers with the old integer of each group, bit by bit."""
        combine: np.ufunc = getattr(np, f"bitwise_{self.operation}")
        return [_fold_values(combine, -1 if self.operation == "and" else 0, rows[0], old[0], groups)]


def add_row_counts(old: pa.Array, codes: IndexArray, size: int) -> pa.Array:
    """Return the old counts, one per group, plus the number of rows of each group. A null count is 0."""
    return pa.array(pc.fill_null(old, 0).to_numpy() + np.bincount(codes, minlength=size))


def _add_counts(rows: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    """Return the old count of each group plus the counts of its rows. A null counts as 0."""
    row_counts = pc.fill_null(rows, 0).to_numpy()
    if (row_counts == 1).all():
        return add_row_counts(old, groups.codes, groups.size)
    counts = fill_nulls(old, 0)
    np.add.at(counts, groups.codes, row_counts)
    return pa.array(counts)


def _fold_values(operation: np.ufunc, neutral: float, rows: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    """Return the old value of each group combined with its rows' values by ``operation``; null for groups without a
    value. ``neutral`` is the operation's neutral element.
    """
    codes, values = groups.drop_nulls(rows)
    result = fill_nulls(old, neutral)
    has_value = are_valid(old)
    with np.errstate(all="ignore"):
        operation.at(result, codes, values.to_numpy(zero_copy_only=False))
    has_value[codes] = True
    return pa.array(result, mask=~has_value)


def _add_with_overflow_null(
    rows: pa.Array, row_overflowed: BoolArray, old: pa.Array, overflowed: BoolArray, groups: Groups
) -> pa.Array:
    """Return the sum of each group, 0 without values.

    It is null if it does not fit its type, or if the old sum or a row's sum overflowed before.
    """
    sums, is_null = add_exactly(old, *groups.drop_nulls(rows))
    is_null |= overflowed
    is_null[groups.codes[row_overflowed]] = True
    zero = pa.scalar(Decimal(0) if pa.types.is_decimal(sums.type) else 0, sums.type)
    return pc.if_else(pa.array(is_null), pa.scalar(None, sums.type), pc.fill_null(sums, zero))


def _adds_exactly(type: pa.DataType) -> bool:
    """Return whether sums of a type are exact: int64, decimals and intervals."""
    return bool(pa.types.is_int64(type) or pa.types.is_decimal128(type) or pa.types.is_duration(type))


def _check_overflow(overflows: BoolArray, type: pa.DataType, groups: Groups) -> None:
    """Raise ``UserFunctionError`` for the first group whose sum does not fit ``type``.

    ``overflows`` marks such groups.
    """
    if not overflows.any():
        return
    # Cause: The sum of a key exceeds the type of the sum. In ANSI mode that is an error, as in Spark.
    raise UserFunctionError(
        f"[ARITHMETIC_OVERFLOW] A sum does not fit {type}.",
        remedy="Use try_sum or try_avg, which return null instead, or cast the column to a decimal. "
        "With spark.sql.ansi.enabled=false sums of integers wrap.",
        where=groups.group_text(int(np.argmax(overflows))),
        id="RIFFLE-0182",
    )
