"""User-defined aggregates merge to the result of all rows at once. Results that break the declaration are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.merging.merge_function import Groups
from riffle_spark.process.merging.merge_registry import make_merge_function
from riffle_spark.process.merging.user_aggregate import MergedByUser, TopRows, UserAggregate
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups
from tests.kit.process.user_aggregates import Latest, WeightedMean

LONG = pa.struct([("0", pa.int64())])
PAIR = pa.struct([("0", pa.float64()), ("1", pa.int32())])
NUMBERS = st.none() | st.integers(-9, 9)


def merged(own: UserAggregate, type: pa.DataType) -> MergedByUser:
    """Return the merge function of a user-defined aggregate with arguments of these types."""
    merge = make_merge_function("PythonUDAF", [type], user_function=own)
    assert isinstance(merge, MergedByUser)
    return merge


@given(rows=rows_of_groups(NUMBERS))
def test_values_arrive_in_the_order_of_rows(rows: DrawnRows[int | None]) -> None:
    """Property: values arrive in the order of rows, in one batch, in several, and in merged groups.

    Nulls are included.
    """
    for way in merged_ways(merged(Latest(3), LONG), [LONG], rows, lambda value: ({"0": value},)):
        assert way == [(rows.of(group)[-3:],) for group in range(SIZE)]


@given(rows=rows_of_groups(st.tuples(NUMBERS, st.integers(0, 3))))
def test_arguments_are_cast_to_the_declared_types(rows: DrawnRows[tuple[int | None, int]]) -> None:
    """Property: several arguments are cast to the declared types.

    A pandas-style call with all rows returns the same.
    """
    own = merged(WeightedMean(), PAIR)
    ways = list(merged_ways(own, [PAIR], rows, lambda row: ({"0": row[0], "1": row[1]},)))
    for group in range(SIZE):
        values, weights = zip(*rows.of(group), strict=True) if rows.of(group) else ((), ())
        total = sum(value * weight for value, weight in rows.of(group) if value)
        expected = total / sum(weights) if sum(weights) else None
        assert [way[group][0] for way in ways] == pytest.approx([expected] * len(ways))
        assert own.aggregate_all_rows([pa.array(values, pa.int64()), pa.array(weights, pa.int8())]) == pytest.approx(
            expected
        )


@given(rows=rows_of_groups(st.tuples(NUMBERS, st.none() | st.sampled_from("ab"))))
def test_the_greatest_rows_are_kept(rows: DrawnRows[tuple[int | None, str | None]]) -> None:
    """Property: the greatest rows are kept by the first column, then by the second. Nulls are last."""
    type = pa.struct([("0", pa.int64()), ("1", pa.string())])
    own = merged(TopRows(3, "n bigint, s string"), type)
    for way in merged_ways(own, [type], rows, lambda row: ({"0": row[0], "1": row[1]},)):
        for group in range(SIZE):
            expected = sorted(rows.of(group), key=lambda row: (row[0] is not None, row[0] or 0, row[1] or ""))
            assert [tuple(row.values()) for row in way[group][0]] == expected[::-1][:3]


@pytest.mark.parametrize("type", [pa.int64(), PAIR, pa.struct([("0", pa.list_(pa.int64()))])])
def test_arguments_that_do_not_fit_are_refused_at_construction(type: pa.DataType) -> None:
    """Too many arguments, or arguments that cannot be cast to the declared types, are refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0180"):
        merged(Latest(3), type)


def _fails(*_: object) -> pa.Table:
    raise ValueError("no such value")


WRONG: dict[str, tuple[str, Callable[..., Any], str]] = {
    "too few rows": ("update", lambda state, *_: state.slice(1), "RIFFLE-0187"),
    "another column": ("update", lambda state, *_: state.rename_columns(["other"]), "RIFFLE-0200"),
    "an error": ("update", _fails, "RIFFLE-0198"),
    "an initial state of another type": ("init", lambda: {"values": 3}, "RIFFLE-0700"),
    "a result of another type": ("finish", lambda _: pa.array(["a", "b"]), "RIFFLE-0200"),
    "too few results": ("finish", lambda state: state["values"].slice(1), "RIFFLE-0187"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_does_not_match_its_declaration_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of other types or lengths, and exceptions, raise an error that names the function."""
    method, replacement, id = WRONG[name]
    monkeypatch.setattr(Latest, method, staticmethod(replacement))
    own = merged(Latest(3), LONG)
    with pytest.raises(UserFunctionError, match=id) as error:
        own.finish(_folded(own, {"0": 1}))
    assert (error.value.where, bool(error.value.remedy)) == ("Latest", True)


def test_an_argument_that_cannot_be_cast_is_refused() -> None:
    """An argument that cannot be cast is refused: a fraction is not an integer."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0186"):
        _folded(merged(Latest(3), pa.struct([("0", pa.float64())])), {"0": 1.5})


def _folded(own: MergedByUser, value: dict[str, object]) -> list[pa.Array]:
    type = pa.struct([("0", pa.float64() if isinstance(value["0"], float) else pa.int64())])
    (state,) = own.state_types([type])
    groups = Groups(np.array([1, 0], dtype=np.int64), 2)
    return own.fold([pa.array([value, value], type)], [pa.nulls(2, state)], groups)


class InTable(WeightedMean):
    """A weighted mean whose result is a table instead of an array."""

    def finish(self, state: pa.Table) -> Any:
        """Return the means as the only column of a table."""
        return pa.table({"value": super().finish(state)})


def test_results_may_be_a_table_with_one_column() -> None:
    """``finish`` may return an array or a table with one column. No group has no result."""
    own = merged(InTable(), PAIR)
    assert own.aggregate_all_rows([pa.array([1.0, 4.0]), pa.array([1, 2], pa.int32())]) == 3.0
    (none,) = own.finish([pa.nulls(0, pa.struct([("total", pa.float64()), ("weights", pa.float64())]))])
    assert (none.type, len(none)) == (pa.float64(), 0)
