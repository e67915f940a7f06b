"""Aggregates that add up: count, sum, mean. Knows their types and null rules (Spark's). Does not know schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.errors import UserFunctionError
from riffle_spark.process import folding
from riffle_spark.process.accumulators import Accumulator, Groups
from riffle_spark.process.compute import BoolArray

__all__ = ["Count", "Mean", "Sum"]


@dataclass(frozen=True, slots=True)
class Count(Accumulator):
    """The number of rows, or of a column's values that are not null."""

    function = "count"
    supported = "any type"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:  # noqa: ARG002
        """Keep one int64."""
        return {"": pa.int64()}

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
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

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
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

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Add and count the values."""
        return [_add(self, values, old[0], groups), *Count(self.column).fold(values, old[1:], groups)]

    def finish(self, state: Sequence[pa.Array], type: pa.DataType, groups: Groups) -> pa.Array:
        """Divide; decimals are rounded half up."""
        total, count = state
        if not types.is_decimal(type):
            return pc.divide(total, count.cast(pa.float64()))
        result = self.result(type)
        exact = pc.divide(total.cast(pa.decimal256(38, total.type.scale)), _no_zeros(count).cast(pa.decimal256(19)))
        rounded = pc.round(exact, ndigits=result.scale, round_mode="half_towards_infinity")
        _refuse(self, result, folding.beyond(rounded, result), groups)
        return rounded.cast(result)


def _add(accumulator: Accumulator, values: pa.Array, old: pa.Array, groups: Groups) -> pa.Array:
    codes, present = groups.present(values)
    if types.is_floating(old.type):
        return folding.add_floats(old, codes, present.cast(old.type, safe=False))
    sums, beyond = folding.add_exactly(old, codes, present.cast(old.type))
    _refuse(accumulator, old.type, beyond, groups)
    return sums


def _refuse(accumulator: Accumulator, type: pa.DataType, beyond: BoolArray, groups: Groups) -> None:
    if not beyond.any():
        return
    raise UserFunctionError(
        f"{accumulator} does not fit {type}",
        remedy=f"Cast column {accumulator.column!r} to decimal(38, 0) or double before the operator. "
        "A store keeps the type it was made with, so use a new store name.",
        where=f"store {groups.store!r}, key {groups.keys.slice(int(np.argmax(beyond)), 1).to_pylist()[0]}",
    )


def _wider(type: pa.DataType, digits: int, scale: int = 0) -> pa.DataType:
    return pa.decimal128(min(38, type.precision + digits), min(38, type.scale + scale))


def _no_zeros(count: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(count, 0), pa.scalar(None, count.type), count)
