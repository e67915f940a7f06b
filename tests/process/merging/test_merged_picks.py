"""Minima and maxima merge by Spark's order of values, and first and last values by the order of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.merging.merged_picks import (
    MergedExtreme,
    MergedExtremeBy,
    MergedPick,
    is_ordered,
    rank_values,
)
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups

FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, -1.5, 1e-300, 2.0])
TEXTS = st.sampled_from(["", "a", "aa", "B", "é", "￮", "\U0001f600"])
PAIR = pa.struct([("x", pa.float64()), ("y", pa.string())])

PAIRS = st.builds(lambda x, y: {"x": x, "y": y}, st.none() | FLOATS, st.none() | TEXTS)

ORDERED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]),
    pa.float32(): st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, -1.5, 2.0]),
    pa.float64(): FLOATS,
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    pa.decimal128(38, 2): st.integers(-(10**30), 10**30).map(lambda cents: Decimal(f"{cents}.00")),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=2),
    PAIR: PAIRS,
    pa.struct([("inner", pa.list_(PAIR))]): st.builds(
        lambda inner: {"inner": inner}, st.none() | st.lists(st.none() | PAIRS, max_size=2)
    ),
}


def compared(left: Any, right: Any) -> int:
    """Compare two values in Spark's order: null first, NaN last, text by bytes."""
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if isinstance(left, dict):
        return compared(list(left.values()), list(right.values()))
    if isinstance(left, list):
        comparisons = (compared(*pair) for pair in zip(left, right, strict=False))
        return next(filter(None, comparisons), len(left) - len(right))
    left, right = plain(left), plain(right)
    return int(left > right) - int(left < right)


def plain(value: Any) -> Any:
    """Return a value that Python orders as Spark does."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


spark_order: Callable[[Any], Any] = cmp_to_key(compared)


def exact_text(value: Any) -> str:
    """Return a text that is equal for equal values. NaN equals NaN, and 0.0 and -0.0 differ."""
    return repr(value)


@pytest.mark.parametrize("type", ORDERED, ids=str)
@given(data=st.data())
def test_ranks_have_sparks_order(type: pa.DataType, data: st.DataObject) -> None:
    """Property: ranks have Spark's order, and equal values have equal ranks, also in slices of arrays."""
    values, start = data.draw(st.lists(ORDERED[type], max_size=8)), data.draw(st.integers(0, 3))
    rank = rank_values(pa.array(values, type).slice(start))
    values = values[start:]
    assert rank.dtype == np.int64
    assert [np.sign(int(a) - int(b)) for a in rank for b in rank] == [
        np.sign(compared(a, b)) for a in values for b in values
    ]


def test_lists_of_many_different_elements_are_ordered() -> None:
    """Lists are ordered by their first elements, and a prefix is before the longer list."""
    values = [[number, *rest] for number in range(600) for rest in ([], [3])]
    assert (np.diff(rank_values(pa.array(values, pa.list_(pa.int64())))) > 0).all()


@pytest.mark.parametrize("type", ORDERED, ids=str)
@given(data=st.data(), greatest=st.booleans())
def test_max_and_min_return_the_first_of_equal_extremes(type: pa.DataType, data: st.DataObject, greatest: bool) -> None:
    """Property: max and min return the first of equal extremes, and null without values."""
    rows = data.draw(rows_of_groups(st.none() | ORDERED[type]))
    choose = max if greatest else min
    for way in merged_ways(MergedExtreme(greatest), [type], rows, lambda value: (value,)):
        values = [[value for value in rows.of(group) if value is not None] for group in range(SIZE)]
        expected = [choose(group_values, key=spark_order) if group_values else None for group_values in values]
        assert [exact_text(value) for (value,) in way] == [exact_text(value) for value in expected]


@pytest.mark.parametrize("type", [pa.int8(), PAIR], ids=str)
@given(data=st.data(), greatest=st.booleans())
def test_max_by_and_min_by_return_the_last_of_equal_extremes(
    type: pa.DataType, data: st.DataObject, greatest: bool
) -> None:
    """Property: max_by and min_by return the last row with the extreme. Rows with a null order are ignored."""
    ordering = st.integers(0, 2) if type == pa.int8() else ORDERED[type]
    rows = data.draw(
        rows_of_groups(st.tuples(st.none() | st.lists(st.integers(0, 9), max_size=2), st.none() | ordering))
    )
    choose = max if greatest else min
    buffers = [pa.list_(pa.int64()), type]
    for way in merged_ways(
        MergedExtremeBy(greatest), buffers, rows, lambda row: row if row[1] is not None else (None, None)
    ):
        for group, result in enumerate(way):
            present = [row for row in rows.of(group) if row[1] is not None]
            expected = choose(reversed(present), key=lambda row: spark_order(row[1]), default=(None, None))
            assert exact_text(result) == exact_text(expected)


@given(
    rows=rows_of_groups(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2)),
    latest=st.booleans(),
    ignores_nulls=st.booleans(),
)
def test_first_and_last_follow_the_order_of_rows(
    rows: DrawnRows[list[int] | None], latest: bool, ignores_nulls: bool
) -> None:
    """Property: first and last also return null values, unless nulls are ignored."""
    buffers = [pa.list_(pa.int64()), pa.bool_()]
    for way in merged_ways(
        MergedPick(latest), buffers, rows, lambda value: (value, value is not None or not ignores_nulls)
    ):
        for group, result in enumerate(way):
            present = [value for value in rows.of(group) if value is not None or not ignores_nulls]
            assert result == ((present[-1 if latest else 0], True) if present else (None, False))


@pytest.mark.parametrize(
    "type",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.month_day_nano_interval(),
        pa.struct([("m", pa.map_(pa.string(), pa.int64()))]),
    ],
    ids=str,
)
def test_types_without_an_order_in_spark_are_refused(type: pa.DataType) -> None:
    """Min, max, min_by and max_by refuse types without an order in Spark."""
    assert not is_ordered(type)
    assert not MergedExtreme(greatest=True).state_types([type])
    assert not MergedExtremeBy(greatest=True).state_types([pa.int64(), type])
