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
from riffle_spark.process.blocks.folding import mask_too_precise
from riffle_spark.process.merging.merge_function import Columns, Groups, are_valid
from riffle_spark.process.merging.merged_picks import MergedExtreme, MergedPick
from riffle_spark.process.merging.merged_sums import MergedCount, MergedSum, add_row_counts

_NUMBERS = "integers, float, double, decimal"


@dataclass(frozen=True, slots=True)
class Accumulator(ABC):
    """A running aggregate of an input column, or of the rows if ``column`` is ``None``.

    ``function`` is its public name.
    """

    function: str
    column: str | None

    supported_types: ClassVar[str] = "any type"

    def __str__(self) -> str:
        """Return the function and column as a call, such as ``sum_('amount')``, for messages.

        ``meaning`` has all arguments.
        """
        return f"{self.function}({'' if self.column is None else repr(self.column)})"

    @property
    def meaning(self) -> str:
        """The aggregate as text with all arguments. It is stored, and compared when a query restarts."""
        return str(self)

    def with_column_names(self, names: Mapping[str, str]) -> "Accumulator":
        """Return the aggregate with another name of its input column.

        ``names`` maps the present name to the new one.
        """
        return self if self.column is None else replace(self, column=names.get(self.column, self.column))

    @abstractmethod
    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return the types of the state columns by the suffix of their names, for an input column of this type; empty
        if the type is not supported.
        """

    def result_type(self, input_type: pa.DataType) -> pa.DataType:
        """Return the type of the result for an input column of this type."""
        return self.state_types(input_type)[""]

    @abstractmethod
    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Return the state columns after a batch's values are merged into ``old``, one row per key.

        ``has_state`` marks the keys that were stored before.
        """

    def finish(self, state: Columns, input_type: pa.DataType, groups: Groups) -> pa.Array:  # noqa: ARG002
        """Return the result of each key from its state. ``input_type`` is the type of the aggregate's input column."""
        return state[0]


@dataclass(frozen=True, slots=True)
class Count(Accumulator):
    """The number of rows, or of a column's values that are not null."""

    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:  # noqa: ARG002
        """Return one int64 column, the count, for every input type."""
        return {"": pa.int64()}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the number of rows, or of values that are not null.

        An old null count, in a column that is new, counts as 0.
        """
        codes = groups.codes if values.null_count == 0 else groups.codes[are_valid(values)]
        return [add_row_counts(old[0], codes, groups.size)]


@dataclass(frozen=True, slots=True)
class CombinedCount(Accumulator):
    """The sum of the counts of combined rows. It equals ``Count`` of the original rows."""

    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:  # noqa: ARG002
        """Return one int64 column, the count, for every input type."""
        return {"": pa.int64()}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the counts of the rows. A null, old or new, counts as 0."""
        return MergedCount().fold([values], old, groups)


@dataclass(frozen=True, slots=True)
class Sum(Accumulator):
    """The sum, null without values: int64 of integers, double of floats, ten digits wider of decimals."""

    supported_types = _NUMBERS

    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return one column, the sum: int64 for integers, double for floats, a wider decimal for decimals.

        Empty for other input types.
        """
        if types.is_signed_integer(input_type):
            return {"": pa.int64()}
        if types.is_float32(input_type) or types.is_float64(input_type):
            return {"": pa.float64()}
        return {"": _widen_decimal(input_type, digits=10)} if types.is_decimal128(input_type) else {}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Add the values to the old sums. Raises ``UserFunctionError`` if a sum does not fit its type."""
        return _add_values(self, values, old, groups)


@dataclass(frozen=True, slots=True)
class Mean(Accumulator):
    """The arithmetic mean, null without values: double, or of decimals a decimal with four more digits."""

    supported_types = _NUMBERS

    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return the columns of the sum (integers are summed as doubles) and the count.

        Empty for input types that have no mean.
        """
        total = (
            pa.float64()
            if types.is_signed_integer(input_type)
            else Sum(self.function, self.column).state_types(input_type).get("")
        )
        return {"_sum": total, "_count": pa.int64()} if total is not None else {}

    def result_type(self, input_type: pa.DataType) -> pa.DataType:
        """Return double, or for decimals the input type with four more digits on each side of the point."""
        return _widen_decimal(input_type, digits=4, scale=4) if types.is_decimal(input_type) else pa.float64()

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Add the values to the old sums, and their number to the old counts.

        Raises ``UserFunctionError`` if a sum does not fit its type.
        """
        sums = _add_values(self, values, old[:1], groups)
        return [*sums, *Count(self.function, self.column).fold(values, old[1:], groups, has_state)]

    def finish(self, state: Columns, input_type: pa.DataType, groups: Groups) -> pa.Array:
        """Return sum divided by count, null for no values. Decimals are rounded half up."""
        total, count = state
        if not types.is_decimal(input_type):
            return pc.divide(total, count.cast(pa.float64()))
        result_type = self.result_type(input_type)
        divisor = pc.if_else(pc.equal(count, 0), pa.scalar(None, count.type), count).cast(pa.decimal256(19))
        exact = pc.divide(total.cast(pa.decimal256(38, total.type.scale)), divisor)
        rounded = pc.round(exact, ndigits=result_type.scale, round_mode="half_towards_infinity")
        overflows = mask_too_precise(rounded, result_type)
        if overflows.any():
            raise _overflow_error(self, result_type, groups.group_text(int(np.argmax(overflows))))
        return rounded.cast(result_type)


def _add_values(accumulator: Accumulator, values: pa.Array, old: Columns, groups: Groups) -> list[pa.Array]:
    """Return the old sums plus the values.

    Raises ``UserFunctionError`` that names the accumulator if a sum does not fit.
    """
    type = old[0].type
    try:
        return MergedSum("ANSI").fold([values.cast(type, safe=not types.is_floating(type))], old, groups)
    except UserFunctionError as error:
        raise _overflow_error(accumulator, type, error.where) from None


def _overflow_error(accumulator: Accumulator, type: pa.DataType, where: str) -> UserFunctionError:
    """Return the error for a sum of this accumulator that does not fit ``type``."""
    wider = "double, or a decimal with fewer digits after the point" if types.is_decimal(type) else "decimal(38, 0)"
    # Cause: The total of a key exceeds int64, or for decimals the type with ten more digits than the column.
    return UserFunctionError(
        f"{accumulator} does not fit {type}.",
        remedy=f"Cast column {accumulator.column!r} to {wider} before the operator, and use a new store name.",
        where=where,
        id="RIFFLE-0173",
    )


def _widen_decimal(type: pa.DataType, digits: int, scale: int = 0) -> pa.DataType:
    """Return a decimal type with more digits in all, and ``scale`` more of them after the point, up to 38."""
    return pa.decimal128(min(38, type.precision + digits), min(38, type.scale + scale))


@dataclass(frozen=True, slots=True)
class Extreme(Accumulator):
    """The least or the greatest value, ignoring nulls. NaN is above every number."""

    greatest: bool

    supported_types = "numbers, decimal, string, binary, boolean, dates, times, timestamps, day-time intervals"

    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return one column of the input's type, the extreme value. Empty for types whose values have no order."""
        is_supported = not types.is_nested(input_type) and MergedExtreme(self.greatest).state_types([input_type])
        return {"": input_type} if is_supported else {}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:  # noqa: ARG002
        """Return for each key the smaller (or greater) of the old extreme and the batch's values."""
        return MergedExtreme(self.greatest).fold([values], old, groups)


@dataclass(frozen=True, slots=True)
class Pick(Accumulator):
    """The first or the last value of a key, by the order of the rows.

    It may be null, unless ``ignore_nulls`` is set.
    """

    ignore_nulls: bool
    latest: bool

    @property
    def meaning(self) -> str:
        """The aggregate as text with all arguments: its name, the column and ``ignore_nulls``."""
        return f"{self.function}({self.column!r}, ignore_nulls={self.ignore_nulls})"

    def state_types(self, input_type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return one column of the input's type, the picked value, for every input type."""
        return {"": input_type}

    def fold(self, values: pa.Array, old: Columns, groups: Groups, has_state: BoolArray) -> list[pa.Array]:
        """Return for each key its first value (the old value, if there is one) or the last value of the batch (else the
        old value).

        Nulls are skipped only with ``ignore_nulls``.
        """
        is_set = values.is_valid() if self.ignore_nulls else pa.repeat(True, len(values))
        was_set = old[0].is_valid() if self.ignore_nulls else pa.array(has_state)
        return MergedPick(self.latest).fold([values, is_set], [old[0], was_set], groups)[:1]
