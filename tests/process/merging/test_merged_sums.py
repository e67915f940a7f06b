"""Counts, sums, averages, products and bits merge to those of one pass over all values."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.merging.merged_sums import MergedAverage, MergedBits, MergedCount, MergedProduct, MergedSum
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups

LONGS = st.none() | st.integers(-(2**63), 2**63 - 1)
EXACT_FLOATS = st.none() | st.integers(-1000, 1000).map(lambda number: number / 8)
FLOATS = EXACT_FLOATS | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
MONEY = pa.decimal128(5, 2)
GAINS = st.none() | st.integers(0, 40_000).map(lambda cents: Decimal(cents).scaleb(-2))


def known(values: list[Any]) -> list[Any]:
    """Return the values that are not null."""
    return [value for value in values if value is not None]


def wrapped(number: int) -> int:
    """Return a number modulo 2 to the 64, as a signed number."""
    return (number + 2**63) % 2**64 - 2**63


def same(value: Any) -> Any:
    """Return an approximation of a double. NaN equals NaN."""
    return pytest.approx(value, nan_ok=True) if isinstance(value, float) else value


@given(rows=rows_of_groups(st.integers(0, 9)))
def test_a_merged_count_is_the_sum_of_counts(rows: DrawnRows[int]) -> None:
    """Property: a count is the sum of counts, and 0 for a group without rows."""
    for way in merged_ways(MergedCount(), [pa.int64()], rows, lambda count: (count,)):
        assert way == [(sum(rows.of(group)),) for group in range(SIZE)]


@given(rows=rows_of_groups(LONGS))
def test_legacy_integer_sums_wrap_at_64_bits(rows: DrawnRows[int | None]) -> None:
    """Property: a legacy sum of integers wraps at 64 bits. It is null if all values are null."""
    for way in merged_ways(MergedSum("LEGACY"), [pa.int64()], rows, lambda value: (value,)):
        sums = [known(rows.of(group)) for group in range(SIZE)]
        assert way == [(wrapped(sum(values)) if values else None,) for values in sums]


@given(rows=rows_of_groups(st.integers(2**61, 2**62)))
def test_ansi_integer_sums_beyond_int64_are_refused(rows: DrawnRows[int]) -> None:
    """Property: in ANSI mode a sum beyond int64 raises an error, and any other sum is exact."""
    sums = [sum(rows.of(group)) for group in range(SIZE)]
    ways = merged_ways(MergedSum("ANSI"), [pa.int64()], rows, lambda value: (value,))
    if max(sums) < 2**63:
        assert all([total or 0 for (total,) in way] == sums for way in ways)
    else:
        with pytest.raises(UserFunctionError, match="RIFFLE-0182"):
            list(ways)


@pytest.mark.parametrize(("low", "high"), [(2**62, -1), (-(2**62), 1)])
def test_only_the_sum_of_a_whole_batch_must_fit(low: int, high: int) -> None:
    """Within a batch a partial sum may exceed int64. Only the sum of the batch must fit."""
    rows = DrawnRows([0, 0, 0], [low, low, high * 2**62], [3])
    for way in merged_ways(MergedSum("ANSI"), [pa.int64()], rows, lambda value: (value,)):
        assert way[0] == (low,)


@given(rows=rows_of_groups(GAINS))
def test_a_decimal_sum_is_exact_or_null_after_an_overflow(rows: DrawnRows[Decimal | None]) -> None:
    """Property: a decimal sum is exact. Once it exceeds its type it stays null."""
    buffers = [MONEY, pa.bool_()]
    for way in merged_ways(MergedSum("LEGACY"), buffers, rows, lambda value: (value or Decimal(0), value is None)):
        for group, (total, is_empty) in enumerate(way):
            values = known(rows.of(group))
            expected = sum(values, Decimal(0))
            assert (total, is_empty) == (expected if expected < 1000 else None, not values)


@given(rows=rows_of_groups(GAINS))
def test_a_decimal_average_keeps_its_count_after_an_overflow(rows: DrawnRows[Decimal | None]) -> None:
    """Property: the sum of a decimal average stays null once it exceeds its type. Its count is still right."""
    buffers = [MONEY, pa.int64()]
    for way in merged_ways(
        MergedAverage("ANSI"), buffers, rows, lambda value: (value or Decimal(0), int(value is not None))
    ):
        for group, (total, count) in enumerate(way):
            values = known(rows.of(group))
            expected = sum(values, Decimal(0))
            assert (total, count) == (expected if expected < 1000 else None, len(values))


@given(rows=rows_of_groups(FLOATS))
def test_sums_and_averages_of_doubles_equal_one_pass(rows: DrawnRows[float | None]) -> None:
    """Property: sums and averages of doubles are those of one pass, with NaN and infinities as in IEEE 754."""
    for way in merged_ways(MergedSum("ANSI"), [pa.float64()], rows, lambda value: (value,)):
        sums = [known(rows.of(group)) for group in range(SIZE)]
        assert way == [(same(sum(values, 0.0) if values else None),) for values in sums]
    buffers = [pa.float64(), pa.int64()]
    for way in merged_ways(MergedAverage("ANSI"), buffers, rows, lambda value: (value or 0.0, int(value is not None))):
        sums = [known(rows.of(group)) for group in range(SIZE)]
        assert way == [(same(sum(values, 0.0)), len(values)) for values in sums]


def test_a_sum_of_minus_zeros_is_zero() -> None:
    """A sum of -0.0 alone is 0.0, because Spark starts a sum with 0.0."""
    rows = DrawnRows([0], [-0.0], [1])
    for way in merged_ways(MergedSum("ANSI"), [pa.float64()], rows, lambda value: (value,)):
        assert math.copysign(1, way[0][0]) == 1


SPANS = st.none() | st.integers(2**60, 2**62).map(lambda micros: timedelta(microseconds=micros))


@given(rows=rows_of_groups(SPANS))
def test_interval_sums_overflow_in_any_mode_or_are_null_with_try(rows: DrawnRows[timedelta | None]) -> None:
    """Property: a sum of intervals that does not fit raises an error in any mode. With ``try_avg`` it stays null."""
    totals = [known(rows.of(group)) for group in range(SIZE)]
    micros = [sum(value // timedelta(microseconds=1) for value in values) for values in totals]
    buffers = [pa.duration("us"), pa.int64()]

    def average(value: timedelta | None) -> tuple[timedelta, int]:
        return (value or timedelta(0), int(value is not None))

    for way in merged_ways(MergedAverage("TRY"), buffers, rows, average):
        expected = [timedelta(microseconds=total) if total < 2**63 else None for total in micros]
        assert way == [(total, len(values)) for total, values in zip(expected, totals, strict=True)]
    for merge, types, buffer in (
        (MergedAverage("LEGACY"), buffers, average),
        (MergedSum("LEGACY"), buffers[:1], lambda value: (value,)),
    ):
        if max(micros) >= 2**63:
            with pytest.raises(UserFunctionError, match="RIFFLE-0182"):
                list(merged_ways(merge, types, rows, buffer))
        else:
            assert len(list(merged_ways(merge, types, rows, buffer))) == 5


@given(rows=rows_of_groups(st.none() | st.sampled_from([0.5, -2.0, 4.0, math.inf, math.nan, 0.0])))
def test_merged_products_equal_one_pass(rows: DrawnRows[float | None]) -> None:
    """Property: a product is that of one pass, and null if all values are null."""
    for way in merged_ways(MergedProduct(), [pa.float64()], rows, lambda value: (value,)):
        factors = [known(rows.of(group)) for group in range(SIZE)]
        assert way == [(same(math.prod(values, start=1.0) if values else None),) for values in factors]


BITS: dict[str, Callable[[int, int], int]] = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}


@pytest.mark.parametrize("operation", BITS)
@given(rows=rows_of_groups(st.none() | st.integers(-128, 127)))
def test_merged_bits_equal_plain_integers(operation: Any, rows: DrawnRows[int | None]) -> None:
    """Property: bits combine as those of plain integers. The result is null if all values are null."""
    for way in merged_ways(MergedBits(operation), [pa.int8()], rows, lambda value: (value,)):
        numbers = [known(rows.of(group)) for group in range(SIZE)]
        assert way == [(reduce(BITS[operation], values) if values else None,) for values in numbers]
