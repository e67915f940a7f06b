"""Moments about a mean merge to those of all values in exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.merging.merged_moments import MergedCoMoments, MergedMoments, MergedRegression
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups

NUMBERS = st.integers(-99, 99).map(lambda number: number / 8)
PAIRS = st.tuples(NUMBERS, NUMBERS)
DOUBLE = pa.float64()


FAR = st.sampled_from([0.0, 1e6])
Pair: TypeAlias = tuple[float, float]


def near(number: Fraction) -> object:
    """Return an approximation that a carefully computed double must match."""
    return pytest.approx(float(number), rel=1e-8, abs=1e-4)


def central(values: list[float], order: int) -> list[Fraction]:
    """Return the exact count, mean and central moments up to an order."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction(0)) / max(len(exact), 1)
    powers = (sum(((value - mean) ** power for value in exact), Fraction(0)) for power in range(2, order + 1))
    return [Fraction(len(exact)), mean, *powers]


def moments(value: float | None, order: int) -> tuple[float, ...]:
    """Return the one-row buffer of a number."""
    return ((0.0, 0.0) if value is None else (1.0, value)) + (0.0,) * (order - 1)


@given(rows=rows_of_groups(st.none() | NUMBERS), far=FAR, order=st.sampled_from([2, 3, 4]))
def test_merged_moments_equal_those_of_all_values(rows: DrawnRows[float | None], far: float, order: int) -> None:
    """Property: merged moments are those of one exact pass, for values near zero and far from it."""
    rows = replace(rows, values=[None if value is None else far + value for value in rows.values])
    for way in merged_ways(MergedMoments(order), [DOUBLE] * (order + 1), rows, lambda value: moments(value, order)):
        for group, moments_of_group in enumerate(way):
            values = [value for value in rows.of(group) if value is not None]
            assert list(moments_of_group) == [near(number) for number in central(values, order)]


def pairs(value: Pair | None, count: int) -> tuple[float, ...]:
    """Return the one-row buffer of a pair."""
    return ((0.0, 0.0, 0.0) if value is None else (1.0, *value)) + (0.0,) * (count - 3)


@given(rows=rows_of_groups(st.none() | PAIRS), far=FAR, squares=st.booleans())
def test_merged_moments_of_pairs_equal_those_of_all_pairs(
    rows: DrawnRows[Pair | None], far: float, squares: bool
) -> None:
    """Property: merged means, sums of products and sums of squares are those of one exact pass."""
    count = 6 if squares else 4
    rows = replace(rows, values=[value and (value[0] - far, value[1] + far) for value in rows.values])
    for way in merged_ways(MergedCoMoments(squares), [DOUBLE] * count, rows, lambda value: pairs(value, count)):
        for group, moments_of_group in enumerate(way):
            values = [value for value in rows.of(group) if value is not None]
            (n, x, x_squares), (_, y, y_squares) = (central([value[i] for value in values], 2) for i in (0, 1))
            products = sum(((Fraction(a) - x) * (Fraction(b) - y) for a, b in values), Fraction(0))
            assert list(moments_of_group) == [
                near(number) for number in (n, x, y, products, x_squares, y_squares)[:count]
            ]


@given(rows=rows_of_groups(st.none() | PAIRS))
def test_a_regression_has_the_buffers_of_covariance_and_variance(rows: DrawnRows[Pair | None]) -> None:
    """Property: the buffers of a regression are those of the covariance of the pairs and of the variance of x."""

    def both(value: Pair | None) -> tuple[float, ...]:
        return (*pairs(value, 4), *moments(value and value[0], 2))

    ways = merged_ways(MergedRegression(), [DOUBLE] * 7, rows, both)
    covariances = merged_ways(MergedCoMoments(squares=False), [DOUBLE] * 4, rows, lambda value: pairs(value, 4))
    variances = merged_ways(MergedMoments(2), [DOUBLE] * 3, rows, lambda value: moments(value and value[0], 2))
    for way, *parts in zip(ways, covariances, variances, strict=True):
        assert way == [first + right for first, right in zip(*parts, strict=True)]


@given(value=st.floats(allow_nan=False, allow_infinity=False), codes=st.lists(st.integers(0, SIZE - 2), max_size=9))
def test_equal_numbers_have_a_variance_of_zero(value: float, codes: list[int]) -> None:
    """Property: equal numbers have that mean and moments of exactly zero, also if they are large."""
    rows = DrawnRows(codes, [value] * len(codes), [len(codes) // 2, len(codes)])
    for way in merged_ways(MergedMoments(4), [DOUBLE] * 5, rows, lambda number: moments(number, 4)):
        assert way == [(codes.count(i), value if i in codes else 0.0, 0.0, 0.0, 0.0) for i in range(SIZE)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_makes_the_moments_nan(value: float) -> None:
    """One value that is not finite makes the moments of its group NaN, because its one-row buffer has NaN."""
    rows = DrawnRows([0, 0, 1], [1.0, value, 2.0], [1, 3])

    def buffer(number: float) -> tuple[float, ...]:
        return (1.0, number, 0.0 if math.isfinite(number) else math.nan)

    for way in merged_ways(MergedMoments(2), [DOUBLE] * 3, rows, buffer):
        assert math.isnan(way[0][2])
        assert way[1] == (1.0, 2.0, 0.0)
