"""Running aggregates of one column: count, sum, mean, min, max, first, last. Knows their types and null rules, and
which value Spark keeps. Does not know schemas.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks import folding
from riffle_spark.process.blocks.block import BoolArray, IndexArray
from riffle_spark.state.formats.arrow_values import readable_row

__all__ = ["Accumulator", "Count", "First", "KeyedValues", "Last", "Max", "Mean", "Min", "Sum"]


@dataclass(frozen=True, slots=True)
class KeyedValues:
    """Whose values are folded: per row the index of its key; the keys; which of them have state."""

    codes: IndexArray
    keys: pa.Table
    found: BoolArray
    store: str

    def present(self, values: pa.Array) -> tuple[IndexArray, pa.Array]:
        """Return the codes and the values of the rows that are not null."""
        if values.null_count == 0:
            return self.codes, values
        return self.codes[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()


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
    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Merge a batch's values into the old state, one row a key."""

    def finish(self, state: Sequence[pa.Array], type: pa.DataType, groups: KeyedValues) -> pa.Array:  # noqa: ARG002
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

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Add the number of values; of a column that was not counted before as well."""
        codes, _ = groups.present(values)
        before = pc.fill_null(old[0], 0).to_numpy()
        return [pa.array(before + folding.count(codes, len(before)))]


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

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Add the values."""
        return [_add(self, values, old[0], groups)]


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

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Add and count the values."""
        return [_add(self, values, old[0], groups), *Count(self.column).fold(values, old[1:], groups)]

    def finish(self, state: Sequence[pa.Array], type: pa.DataType, groups: KeyedValues) -> pa.Array:
        """Divide; decimals are rounded half up."""
        total, count = state
        if not types.is_decimal(type):
            return pc.divide(total, count.cast(pa.float64()))
        result = self.result(type)
        exact = pc.divide(total.cast(pa.decimal256(38, total.type.scale)), _no_zeros(count).cast(pa.decimal256(19)))
        rounded = pc.round(exact, ndigits=result.scale, round_mode="half_towards_infinity")
        _refuse(self, result, folding.beyond(rounded, result), groups)
        return rounded.cast(result)


def _add(accumulator: Accumulator, values: pa.Array, old: pa.Array, groups: KeyedValues) -> pa.Array:
    codes, present = groups.present(values)
    if types.is_floating(old.type):
        return folding.add_floats(old, codes, present.cast(old.type, safe=False))
    sums, beyond = folding.add_exactly(old, codes, present.cast(old.type))
    _refuse(accumulator, old.type, beyond, groups)
    return sums


def _refuse(accumulator: Accumulator, type: pa.DataType, beyond: BoolArray, groups: KeyedValues) -> None:
    if not beyond.any():
        return
    raise UserFunctionError(
        f"{accumulator} does not fit {type}",
        remedy=f"{_overflow_remedy(accumulator.column, type)} before the operator. "
        "A store keeps the type it was made with, so use a new store name.",
        where=f"store {groups.store!r}, key {readable_row(groups.keys, int(np.argmax(beyond)))}",
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


def _no_zeros(count: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(count, 0), pa.scalar(None, count.type), count)


@dataclass(frozen=True, slots=True)
class _Extreme(Accumulator):
    """The value that goes before all others in one order; nulls do not count."""

    supported = "numbers, decimal, string, binary, boolean, dates, times, timestamps, day-time intervals"
    order: ClassVar[str]

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type} if _is_plain(type) or _is_sortable(type) else {}

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Keep the old value or take a new one."""
        codes, present = groups.present(values)
        if not _is_plain(values.type):
            return [folding.sort_extreme(old[0], codes, present, self.order)]
        choose = folding.smallest if self.order == "ascending" else folding.largest
        return [choose(old[0], codes, present)]


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The least value; NaN only where there is nothing else."""

    function = "min_"
    order = "ascending"


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value; NaN is above every number."""

    function = "max_"
    order = "descending"


@dataclass(frozen=True, slots=True)
class _PickedValue(Accumulator):
    """Keeps one value per key, chosen by the order of the rows."""

    ignore_nulls: bool = False

    supported = "any type"

    @property
    def meaning(self) -> str:
        """See ``Accumulator``."""
        return f"{self.function}({self.column!r}, ignore_nulls={self.ignore_nulls})"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type}


@dataclass(frozen=True, slots=True)
class First(_PickedValue):
    """The first value ever seen, null if that one is; with ``ignore_nulls`` the first that is not null."""

    function = "first"

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Keep the old value where there is one."""
        codes, seen = groups.present(values) if self.ignore_nulls else (groups.codes, values)
        settled = old[0].is_valid().to_numpy(zero_copy_only=False) if self.ignore_nulls else groups.found
        return [_choose(old[0], seen, folding.first_rows(codes, len(old[0])), settled)]


@dataclass(frozen=True, slots=True)
class Last(_PickedValue):
    """The last value seen, null if that one is; with ``ignore_nulls`` the last that is not null."""

    function = "last"

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: KeyedValues) -> list[pa.Array]:
        """Take the new value where there is one."""
        codes, seen = groups.present(values) if self.ignore_nulls else (groups.codes, values)
        rows = folding.last_rows(codes, len(old[0]))
        return [_choose(old[0], seen, rows, rows < 0)]


def _choose(old: pa.Array, values: pa.Array, rows: IndexArray, keep_old: BoolArray) -> pa.Array:
    """Take, per key, the old value or the value of its row; null where it has neither."""
    new = values.take(pa.array(rows, mask=rows < 0))
    places = np.arange(len(old)) + np.where(keep_old, 0, len(old))
    return pa.concat_arrays([old, new]).take(pa.array(places))


def _is_plain(type: pa.DataType) -> bool:
    """Tell whether values can be compared as NumPy's: signed integers, floats, dates and times."""
    return bool(
        types.is_signed_integer(type) or types.is_float32(type) or types.is_float64(type) or types.is_temporal(type)
    ) and not types.is_interval(type)


def _is_sortable(type: pa.DataType) -> bool:
    text = types.is_string(type) or types.is_large_string(type)
    octets = types.is_binary(type) or types.is_large_binary(type)
    return bool(text or octets or types.is_decimal128(type) or types.is_boolean(type))
