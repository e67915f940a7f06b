"""Rows of two engines are compared in any order, and every difference is reported."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import datetime
from decimal import Decimal
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.types import Row

from riffle_spark.spark.shadow.row_comparison import compare_rows

VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("ab", max_size=2), st.binary(max_size=1))
ROWS = st.lists(st.tuples(VALUES, st.integers(0, 2)), max_size=8)


@given(spark=ROWS, riffle=ROWS, order=st.randoms(use_true_random=False))
def test_repeated_rows_count_in_a_difference(spark: list[Row], riffle: list[Row], order: random.Random) -> None:
    """The difference is that of two multisets, so repeated rows count."""
    shuffled = list(riffle)
    order.shuffle(shuffled)
    difference = compare_rows(spark, shuffled, 1e-9)
    assert Counter(difference.only_spark) == Counter(spark) - Counter(riffle)
    assert Counter(difference.only_riffle) == Counter(riffle) - Counter(spark)
    assert difference.close == 0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (math.nan, math.nan),
        (0.0, -0.0),
        (Decimal("1.10"), Decimal("1.1")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Row(x=1, y=[1, 2]), Row(x=1, y=[1, 2])),
        (bytearray(b"x"), bytearray(b"x")),
        (datetime(2026, 1, 1), datetime(2026, 1, 1)),
    ],
    ids=repr,
)
def test_equal_values(left: object, right: object) -> None:
    """Values that Spark considers equal are equal."""
    difference = compare_rows([("k", left)], [("k", right)], 0.0)
    assert difference.is_equal
    assert difference.close == 0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.1 + 0.2, 0.3),
        ([1, 2, 3], [3, 1, 2]),
        ([Row(a=1, b=0.3), Row(a=0, b=1.0)], [Row(a=0, b=1.0), Row(a=1, b=0.1 + 0.2)]),
        ({"a": 0.3}, {"a": 0.1 + 0.2}),
        (Row(a=math.nan, b=0.3), Row(a=math.nan, b=0.1 + 0.2)),
    ],
    ids=repr,
)
def test_close_values(left: object, right: object) -> None:
    """Rounding and the order of a list do not count as differences."""
    difference = compare_rows([("k", left)], [("k", right)], 1e-9)
    assert difference.is_equal
    assert difference.close == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1.0, 1.001),
        (math.nan, 1.0),
        (1.0, None),
        ([1, 1, 2], [1, 2, 2]),
        ([0.5, 0.25], [0.5, 0.125]),
        ({"a": 1}, {"a": 2}),
        (Row(x=1, y=2), Row(x=2, y=1)),
    ],
    ids=repr,
)
def test_different_values(left: object, right: object) -> None:
    """Any other difference is reported, with both rows."""
    difference = compare_rows([("k", left)], [("k", right)], 1e-9)
    assert difference.only_spark == (("k", left),)
    assert difference.only_riffle == (("k", right),)


def test_each_close_row_is_paired_once() -> None:
    """A close row hides only one row, so a missing one is reported."""
    difference = compare_rows([("k", 0.3), ("k", 0.3)], [("k", 0.1 + 0.2)], 1e-9)
    assert (len(difference.only_spark), len(difference.only_riffle), difference.close) == (1, 0, 1)


@pytest.mark.skipif(not hasattr(types, "VariantVal"), reason="this Spark has no variants")
def test_variants_are_compared_by_their_bytes() -> None:
    """Variants are compared by their bytes, because PySpark's class has no equality."""

    def variant(value: bytes) -> object:
        return types.VariantVal(value, b"\x01\x00\x00")

    assert compare_rows([("k", variant(b"\x00"))], [("k", variant(b"\x00"))], 1e-9).is_equal
    nested = [("k", [{"a": variant(b"\x00")}])], [("k", [{"a": variant(b"\x00")}])]
    assert compare_rows(*nested, 1e-9).close == 0
    difference = compare_rows([("k", variant(b"\x00"))], [("k", variant(b"\x04"))], 1e-9)
    assert (len(difference.only_spark), len(difference.only_riffle)) == (1, 1)


def test_lists_with_nan_are_compared_in_any_order() -> None:
    """Lists that contain NaN are compared in any order."""
    left = [("a", [1.0, math.nan, 3.0])]
    for order in permutations([3.0, 1.0, math.nan]):
        assert compare_rows(left, [("a", [*order])], 1e-9).is_equal
