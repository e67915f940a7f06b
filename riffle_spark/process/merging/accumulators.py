"""The running aggregates of a column that ``aggregate(...)`` declares.

Each computes with a ``MergeFunction``. It turns a column into one-row buffers, and stores fewer columns than Spark's
function if its own rules allow it. A sum that does not fit fails the batch, so decimals need no flag. A picked value is
set if its key is stored, or if it is not null.

Stored columns, by the name of the result:

=================  ===========================================================================================
count              NAME int64
sum_               NAME: int64 of integers, double of floats, the decimal with ten more digits; null without values
mean               NAME_sum: double of integers and floats, the decimal with ten more digits; null without values.
                   NAME_count int64
min_, max_         NAME of the column's type; null without values
first, last        NAME of the column's type; null if the picked value is null
=================  ===========================================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import BoolArray
from riffle_spark.process.blocks.folding import exceeds_precision
from riffle_spark.process.merging.merge_function import Columns, Groups, are_valid
from riffle_spark.process.merging.merged_picks import MergedExtreme, MergedPick
from riffle_spark.process.merging.merged_sums import MergedSum, add_row_counts

__all__ = ["Accumulator", "Count", "Extreme", "Mean", "Pick", "Sum"]

_NUMBERS = "integers, float, double, decimal"


@dataclass(frozen=True, slots=True)
class Accumulator(ABC):
    """An aggregate of an input column (without a column, of the rows); ``function`` is its public name."""

    function: str
    column: str | None

    supported_types: ClassVar[str] = "any type"

    def __str__(self) -> str:
        return f"{self.function}({'' if self.column is None else repr(self.column)})"

    @property
    def meaning(self) -> str:
        """The function with all arguments. It is stored and compared when a query restarts."""
        return str(self)

    def on(self, names: Mapping[str, str]) -> "Accumulator":
        """Return the same aggregate of another column: ``names`` maps the present column to it."""
        return self if self.column is None else replace(self, column=names.get(self.column, self.column))

    @abstractmethod
    def state_types(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return the types of the state columns by the suffix of their names; empty if the type is not supported."""

    def result_type(self, type: pa.DataType) -> pa.DataType:
        """Return the type of the result."""
        return self.state_types(type)[""]

    @abstractmethod
    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Merge a batch's values into the old state, one row per key. ``has_state`` marks keys that are stored."""

    def finish(self, state: Columns, type: pa.DataType, groups: Groups) -> pa.Array:  # noqa: ARG002
        """Return the results for a column of this type."""
        return state[0]


@dataclass(frozen=True, slots=True)
class Count(Accumulator):
    """The number of rows, or of a column's values that are not null."""

    def state_types(self, type: pa.DataType) -> Mapping[str, pa.DataType]:  # noqa: ARG002
        """Keep one int64."""
        return {"": pa.int64()}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the number of values. A null count, of a column that is new, is 0."""
        codes = groups.codes if values.null_count == 0 else groups.codes[are_valid(values)]
        return [add_row_counts(old[0], codes, groups.size)]


@dataclass(frozen=True, slots=True)
class Sum(Accumulator):
    """The sum, null without values: int64 of integers, double of floats, ten digits wider of decimals."""

    supported_types = _NUMBERS

    def state_types(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the sum."""
        if types.is_signed_integer(type):
            return {"": pa.int64()}
        if types.is_float32(type) or types.is_float64(type):
            return {"": pa.float64()}
        return {"": _widen(type, digits=10)} if types.is_decimal128(type) else {}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the values."""
        return _add(self, values, old, groups)


@dataclass(frozen=True, slots=True)
class Mean(Accumulator):
    """The arithmetic mean, null without values: double, or of decimals a decimal with four more digits."""

    supported_types = _NUMBERS

    def state_types(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep sum and count. Integers are summed as doubles."""
        total = (
            pa.float64() if types.is_signed_integer(type) else Sum(self.function, self.column).state_types(type).get("")
        )
        return {"_sum": total, "_count": pa.int64()} if total is not None else {}

    def result_type(self, type: pa.DataType) -> pa.DataType:
        """Return double, or the decimal's type with four more digits on each side of the point."""
        return _widen(type, digits=4, scale=4) if types.is_decimal(type) else pa.float64()

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Add and count the values."""
        sums = _add(self, values, old[:1], groups)
        return [*sums, *Count(self.function, self.column).fold(values, old[1:], groups, has_state)]

    def finish(self, state: Columns, type: pa.DataType, groups: Groups) -> pa.Array:
        """Divide. Decimals are rounded half up."""
        total, count = state
        if not types.is_decimal(type):
            return pc.divide(total, count.cast(pa.float64()))
        result_type = self.result_type(type)
        divisor = pc.if_else(pc.equal(count, 0), pa.scalar(None, count.type), count).cast(pa.decimal256(19))
        exact = pc.divide(total.cast(pa.decimal256(38, total.type.scale)), divisor)
        rounded = pc.round(exact, ndigits=result_type.scale, round_mode="half_towards_infinity")
        overflows = exceeds_precision(rounded, result_type)
        if overflows.any():
            raise _overflow_error(self, result_type, groups.group_text(int(np.argmax(overflows))))
        return rounded.cast(result_type)


def _add(accumulator: Accumulator, values: pa.Array, old: Columns, groups: Groups) -> list[pa.Array]:
    type = old[0].type
    try:
        return MergedSum("ANSI").fold([values.cast(type, safe=not types.is_floating(type))], old, groups)
    except UserFunctionError as error:
        raise _overflow_error(accumulator, type, error.where) from None


def _overflow_error(accumulator: Accumulator, type: pa.DataType, where: str) -> UserFunctionError:
    wider = "double, or a decimal with fewer digits after the point" if types.is_decimal(type) else "decimal(38, 0)"
    # Cause: The total of a key exceeds int64, or for decimals the type with ten more digits than the column.
    return UserFunctionError(
        f"{accumulator} does not fit {type}.",
        remedy=f"Cast column {accumulator.column!r} to {wider} before the operator, and use a new store name.",
        where=where,
        id="RIFFLE-0173",
    )


def _widen(type: pa.DataType, digits: int, scale: int = 0) -> pa.DataType:
    return pa.decimal128(min(38, type.precision + digits), min(38, type.scale + scale))


@dataclass(frozen=True, slots=True)
class Extreme(Accumulator):
    """The least or the greatest value, ignoring nulls. NaN is above every number."""

    greatest: bool

    supported_types = "numbers, decimal, string, binary, boolean, dates, times, timestamps, day-time intervals"

    def state_types(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        is_supported = not types.is_nested(type) and MergedExtreme(self.greatest).state_types([type])
        return {"": type} if is_supported else {}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Keep the old value or take a new one."""
        return MergedExtreme(self.greatest).fold([values], old, groups)


@dataclass(frozen=True, slots=True)
class Pick(Accumulator):
    """The first or the latest value by the order of the rows. It may be null, except with ``ignore_nulls``."""

    ignore_nulls: bool
    latest: bool

    @property
    def meaning(self) -> str:
        """Return the function with all arguments: its name, the column and ``ignore_nulls``."""
        return f"{self.function}({self.column!r}, ignore_nulls={self.ignore_nulls})"

    def state_types(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Keep the old value or take a new one. Every row counts, unless nulls are ignored."""
        is_set = values.is_valid() if self.ignore_nulls else pa.repeat(True, len(values))
        was_set = old[0].is_valid() if self.ignore_nulls else pa.array(has_state)
        return MergedPick(self.latest).fold([values, is_set], [old[0], was_set], groups)[:1]
