"""The running aggregates of one column that ``aggregate(...)`` declares: count, sum, mean, min, max, first, last.

Each one computes with a ``MergeFunction``: it turns a column into one-row buffers, and keeps fewer columns than Spark's
function where its own rules allow it. A sum that does not fit fails the batch, so decimals need no second column; a
picked value is known by its key's row, or by not being null.

Stored columns, by the name of the result:

=================  ===========================================================================================
count              NAME int64
sum_               NAME: int64 of integers, double of floats, the decimal with ten more digits; null without values
mean               NAME_sum: double of integers and floats, the decimal with ten more digits; null without values.
                   NAME_count int64
min_, max_         NAME of the column's type; null without values
first, last        NAME of the column's type; null where the picked value is null
=================  ===========================================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import BoolArray
from riffle_spark.process.blocks.folding import beyond
from riffle_spark.process.merging.merge_function import Columns, Groups, are_valid
from riffle_spark.process.merging.merged_picks import MergedExtreme, MergedPick
from riffle_spark.process.merging.merged_sums import MergedCount, MergedSum

__all__ = ["Accumulator", "Count", "First", "Last", "Max", "Mean", "Min", "Sum"]


@dataclass(frozen=True, slots=True)
class Accumulator(ABC):
    """One aggregate of one input column; ``None`` stands for the row itself."""

    column: str | None

    function: ClassVar[str]
    supported: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.function}({'' if self.column is None else repr(self.column)})"

    @property
    def meaning(self) -> str:
        """What its state holds: the function and all of its arguments."""
        return str(self)

    @abstractmethod
    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return the state columns' types by the suffix of their names; nothing if the type is not supported."""

    def result(self, type: pa.DataType) -> pa.DataType:
        """Return the result's type."""
        return self.state(type)[""]

    @abstractmethod
    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Merge a batch's values into the old state, one row per key. ``has_state`` marks keys that are stored."""

    def finish(self, state: Columns, type: pa.DataType, groups: Groups) -> pa.Array:  # noqa: ARG002
        """Turn the state into the result for a column of this type."""
        return state[0]


@dataclass(frozen=True, slots=True)
class Count(Accumulator):
    """The number of rows, or of a column's values that are not null."""

    function = "count"
    supported = "any type"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:  # noqa: ARG002
        """Keep one int64."""
        return {"": pa.int64()}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the number of values. A column that was not counted before counts from 0."""
        codes = groups.codes if values.null_count == 0 else groups.codes[are_valid(values)]
        ones = pa.array(np.ones(len(codes), dtype=np.int64))
        return MergedCount().fold([ones], old, Groups(codes, groups.size))


@dataclass(frozen=True, slots=True)
class Sum(Accumulator):
    """The sum, null over nothing but nulls: int64 of integers, double of floats, ten digits wider of decimals."""

    function = "sum_"
    supported = "integers, float, double, decimal"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the sum."""
        if types.is_signed_integer(type):
            return {"": pa.int64()}
        if types.is_float32(type) or types.is_float64(type):
            return {"": pa.float64()}
        return {"": _wider(type, digits=10)} if types.is_decimal128(type) else {}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the values."""
        return _added(self, values, old, groups)


@dataclass(frozen=True, slots=True)
class Mean(Accumulator):
    """The arithmetic mean, null over nothing but nulls: double, of decimals a decimal with four digits more."""

    function = "mean"
    supported = Sum.supported

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep sum and count; integers are summed as doubles."""
        total = pa.float64() if types.is_signed_integer(type) else Sum(self.column).state(type).get("")
        return {"_sum": total, "_count": pa.int64()} if total is not None else {}

    def result(self, type: pa.DataType) -> pa.DataType:
        """Return double, or the decimal's type with four more digits before and after the point."""
        return _wider(type, digits=4, scale=4) if types.is_decimal(type) else pa.float64()

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Add and count the values."""
        sums = _added(self, values, old[:1], groups)
        return [*sums, *Count(self.column).fold(values, old[1:], groups, has_state)]

    def finish(self, state: Columns, type: pa.DataType, groups: Groups) -> pa.Array:
        """Divide; decimals are rounded half up."""
        total, count = state
        if not types.is_decimal(type):
            return pc.divide(total, count.cast(pa.float64()))
        result = self.result(type)
        divisor = pc.if_else(pc.equal(count, 0), pa.scalar(None, count.type), count).cast(pa.decimal256(19))
        exact = pc.divide(total.cast(pa.decimal256(38, total.type.scale)), divisor)
        rounded = pc.round(exact, ndigits=result.scale, round_mode="half_towards_infinity")
        overflows = beyond(rounded, result)
        if overflows.any():
            raise _does_not_fit(self, result, groups.told(int(np.argmax(overflows))))
        return rounded.cast(result)


def _added(accumulator: Accumulator, values: pa.Array, old: Columns, groups: Groups) -> list[pa.Array]:
    type = old[0].type
    try:
        return MergedSum("ANSI").fold([values.cast(type, safe=not types.is_floating(type))], old, groups)
    except UserFunctionError as error:
        raise _does_not_fit(accumulator, type, error.where) from None


def _does_not_fit(accumulator: Accumulator, type: pa.DataType, where: str) -> UserFunctionError:
    return UserFunctionError(
        f"{accumulator} does not fit {type}",
        remedy=f"{_overflow_remedy(accumulator.column, type)} before the operator. "
        "A store keeps the type it was made with, so use a new store name.",
        where=where,
        id="RIFFLE-0173",
    )


def _overflow_remedy(column: str | None, type: pa.DataType) -> str:
    """Return how to make room for a sum that does not fit a type."""
    if not types.is_decimal(type):
        return f"Cast column {column!r} to decimal(38, 0) or double"
    if type.scale:
        return f"Cast column {column!r} to a decimal with fewer digits after the point, or to double,"
    return f"Cast column {column!r} to double, or divide it (by 1000, for a sum of thousands)"


def _wider(type: pa.DataType, digits: int, scale: int = 0) -> pa.DataType:
    return pa.decimal128(min(38, type.precision + digits), min(38, type.scale + scale))


@dataclass(frozen=True, slots=True)
class _Extreme(Accumulator):
    """The value that goes before all others in one order; nulls do not count."""

    supported = "numbers, decimal, string, binary, boolean, dates, times, timestamps, day-time intervals"
    greatest: ClassVar[bool]

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        is_supported = not types.is_nested(type) and MergedExtreme(self.greatest).state([type])
        return {"": type} if is_supported else {}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Keep the old value or take a new one."""
        return MergedExtreme(self.greatest).fold([values], old, groups)


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The least value; NaN only where there is nothing else."""

    function = "min_"
    greatest = False


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value; NaN is above every number."""

    function = "max_"
    greatest = True


@dataclass(frozen=True, slots=True)
class _PickedValue(Accumulator):
    """Keeps one value per key, chosen by the order of the rows."""

    ignore_nulls: bool = False

    supported = "any type"
    latest: ClassVar[bool]

    @property
    def meaning(self) -> str:
        """See ``Accumulator``."""
        return f"{self.function}({self.column!r}, ignore_nulls={self.ignore_nulls})"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Keep the old value or take a new one. Every row counts, unless nulls are ignored."""
        is_set = values.is_valid() if self.ignore_nulls else pa.repeat(True, len(values))
        was_set = old[0].is_valid() if self.ignore_nulls else pa.array(has_state)
        return MergedPick(self.latest).fold([values, is_set], [old[0], was_set], groups)[:1]


@dataclass(frozen=True, slots=True)
class First(_PickedValue):
    """The first value ever seen, null if that one is; with ``ignore_nulls`` the first that is not null."""

    function = "first"
    latest = False


@dataclass(frozen=True, slots=True)
class Last(_PickedValue):
    """The last value seen, null if that one is; with ``ignore_nulls`` the last that is not null."""

    function = "last"
    latest = True
