"""Collected values are merged in order, as lists, sets or joined texts, up to a maximum length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.merging.merge_function import MergeFunction
from riffle_spark.process.merging.merged_lists import MergedList, MergedSet, MergedText
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups

STRUCT = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])
STRUCTS = st.builds(
    lambda x, y: {"x": x, "y": y}, st.none() | st.integers(0, 1), st.none() | st.lists(st.just("a"), max_size=2)
)
MOST = 12


def ways(merge: MergeFunction, type: pa.DataType, rows: DrawnRows[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the values of each group that are not null, and the merged result, for each way to split the rows."""
    for way in merged_ways(merge, [type], rows, lambda value: (value,)):
        for group in range(SIZE):
            yield [value for value in rows.of(group) if value is not None], way[group][0]


@pytest.mark.parametrize("type", [STRUCT], ids=str)
@given(data=st.data())
def test_lists_keep_the_order_of_rows(type: pa.DataType, data: st.DataObject) -> None:
    """Property: a list has the values that are not null, in the order of rows. Without values it is empty."""
    rows = data.draw(rows_of_groups(st.none() | STRUCTS))
    for values, result in ways(MergedList(MOST), type, rows):
        assert result == values


@pytest.mark.parametrize("type", [STRUCT, pa.int64(), pa.float64()], ids=str)
@given(data=st.data())
def test_sets_keep_the_first_of_equal_values(type: pa.DataType, data: st.DataObject) -> None:
    """Property: a set has each value once, in the order of first appearance. NaN is one value, and 0.0 equals -0.0."""
    drawn = {STRUCT: STRUCTS, pa.int64(): st.integers(0, 3), pa.float64(): st.sampled_from([math.nan, 0.0, -0.0, 1.0])}
    rows = data.draw(rows_of_groups(st.none() | drawn[type]))
    for values, result in ways(MergedSet(MOST), type, rows):
        firsts: dict[str, Any] = {}
        for value in values:
            firsts.setdefault(repr(value).removeprefix("-"), value)
        assert repr(result) == repr(list(firsts.values()))


@pytest.mark.parametrize(("type", "delimiter"), [(pa.string(), ", "), (pa.string(), ""), (pa.binary(), b"-")], ids=str)
@given(data=st.data())
def test_texts_and_bytes_are_joined_in_row_order(type: pa.DataType, delimiter: Any, data: st.DataObject) -> None:
    """Property: texts and bytes are joined in the order of rows. Without values the result is null."""
    rows = data.draw(
        rows_of_groups(st.none() | (st.text(max_size=2) if type == pa.string() else st.binary(max_size=2)))
    )
    for values, result in ways(MergedText(MOST, delimiter), type, rows):
        assert result == (delimiter.join(values) if values else None)


@given(rows=rows_of_groups(st.none() | st.integers(0, 2)), max_length=st.integers(0, 3))
def test_a_list_beyond_the_maximum_length_is_refused(rows: DrawnRows[int | None], max_length: int) -> None:
    """Property: a list longer than the maximum raises an error. In a set only distinct values count."""
    values = [[value for value in rows.of(group) if value is not None] for group in range(SIZE)]
    for merge, longest in (
        (MergedList(max_length), max(map(len, values))),
        (MergedSet(max_length), max(len(set(group_values)) for group_values in values)),
    ):
        if longest > max_length:
            with pytest.raises(UserFunctionError, match="RIFFLE-0181"):
                list(merged_ways(merge, [pa.int64()], rows, lambda value: (value,)))
        else:
            assert list(merged_ways(merge, [pa.int64()], rows, lambda value: (value,)))


def test_sets_of_maps_and_joins_of_numbers_are_refused() -> None:
    """A set of maps is refused, because Spark cannot compare maps.

    Joining anything but texts and bytes is refused too.
    """
    assert not MergedSet(MOST).state_types([pa.map_(pa.string(), pa.int64())])
    assert not MergedText(MOST, "").state_types([pa.int64()])
