"""Values that a user writes to state are accepted, converted or refused, and are read back equal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.fields import Fields, rows_as_tuples, to_python_list
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from tests.kit.state.drawn_tables import KEY_TYPES

NOON = datetime(2024, 5, 1, 12, 0, 0, 5)


@pytest.fixture(params=["UTC", "America/New_York"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the time zone of the process."""
    previous_zone = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    os.environ.pop("TZ") if previous_zone is None else os.environ.update(TZ=previous_zone)
    time.tzset()


def fields(kind: str) -> Fields:
    """Return a single field of this type."""
    return Fields(schema_of_ddl(f"a {kind}"))


def stored_and_read(kind: str, value: object) -> object:
    """Return a value after a round trip through Arrow, as from a store."""
    of = fields(kind)
    table = pa.table(of.columns([of.normalize((value,))]), schema=of.schema)
    (expected,) = of.tuples(table)
    return expected[0]


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        ("int", 5, 5),
        ("long", np.int8(-3), -3),
        ("double", 2.5, 2.5),
        ("double", 3, 3.0),
        ("double", np.float32(0.5), 0.5),
        ("float", 0.1, 0.10000000149011612),
        ("float", 1e300, float("inf")),
        ("boolean", np.bool_(True), True),
        ("string", np.str_("x"), "x"),
        ("string", 5, "5"),
        ("string", True, "true"),
        ("string", Decimal("1.005"), "1.005"),
        ("string", -0.0, "-0.0"),
        ("string", float("nan"), "NaN"),
        ("string", float("-inf"), "-Infinity"),
        ("string", 1e300, "1.0E300"),
        ("string", -12345678.5, "-1.23456785E7"),
        ("string", 9999999.0, "9999999.0"),
        ("string", 1e7, "1.0E7"),
        ("string", 0.00025, "2.5E-4"),
        ("interval day to second", pd.Timedelta(seconds=2), timedelta(seconds=2)),
        ("string", 0.001, "0.001"),
        ("binary", bytearray(b"ab"), b"ab"),
        ("binary", "ab", b"ab"),
        ("date", pd.Timestamp("2024-01-02"), date(2024, 1, 2)),
        ("date", NOON, date(2024, 5, 1)),
        ("array<date>", [NOON], [date(2024, 5, 1)]),
        ("decimal(10,2)", Decimal("1.005"), Decimal("1.01")),
        ("decimal(10,2)", 7, Decimal("7.00")),
        ("interval day to second", np.timedelta64(2, "s"), timedelta(seconds=2)),
        ("array<int>", (1, np.int64(2), None), [1, 2, None]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("array<int>", b"ab", [97, 98]),
        ("map<string,double>", {"a": 1}, {"a": 1.0}),
        ("struct<x:int,y:string>", {"y": "b", "x": 1}, (1, "b")),
        ("struct<x:int,y:string>", [1, None], (1, None)),
        ("array<struct<x:int>>", [(1,), {"x": 2}, None], [(1,), (2,), None]),
        ("void", None, None),
        ("int", None, None),
        ("int", pd.NaT, None),
    ],
    ids=str,
)
def test_a_written_value_equals_the_value_that_a_store_returns(kind: str, written: object, expected: object) -> None:
    """A value that was just written equals the value that a store returns, with the same type."""
    (normalized,) = fields(kind).normalize((written,))
    assert (normalized, type(normalized)) == (expected, type(expected))
    assert stored_and_read(kind, written) == expected


@pytest.mark.parametrize("value", [NOON, NOON.replace(tzinfo=timezone(timedelta(hours=5)))], ids=str)
def test_timestamps_are_naive_local_times(zone: str, value: datetime) -> None:
    """Timestamps are naive local times, as in Spark, also in nested types. A ``timestamp_ntz`` ignores the zone."""
    local = value if value.tzinfo is None else value.astimezone().replace(tzinfo=None)
    assert fields("timestamp").normalize((value,)) == (local,)
    assert stored_and_read("timestamp", value) == local
    assert stored_and_read("map<string,array<timestamp>>", {"a": [value, None]}) == {"a": [local, None]}
    assert fields("timestamp").columns([(local,)])[0][0].as_py() == local.astimezone(timezone.utc)
    assert stored_and_read("timestamp_ntz", value) == NOON


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("int", 1.0, "type"),
        ("int", True, "type"),
        ("int", 2**31, "range"),
        ("long", 2**63, "range"),
        ("double", 2**53 + 1, "range"),
        ("double", 10**400, "range"),
        ("double", "1", "type"),
        ("boolean", 1, "type"),
        ("string", timedelta(1), "type"),
        ("date", "2024-01-02", "type"),
        ("timestamp", date(2024, 1, 1), "type"),
        ("decimal(3,1)", Decimal("99.95"), "range"),
        ("decimal(3,1)", Decimal("NaN"), "range"),
        ("decimal(3,1)", 1.5, "type"),
        ("array<int>", "ab", "type"),
        ("map<string,int>", [("a", 1)], "type"),
        ("struct<x:int,y:int>", (1,), "length"),
        ("struct<x:int>", 1, "type"),
        ("binary", 1, "type"),
        ("struct<x:int not null>", (None,), "null"),
    ],
    ids=str,
)
def test_a_value_that_would_lose_digits_or_become_null_is_refused(kind: str, value: object, problem: str) -> None:
    """A value that would become null or lose digits is refused."""
    with pytest.raises(Misfit) as caught:
        fields(kind).normalize((value,))
    assert caught.value.problem == problem


def test_an_error_has_the_path_through_structs_and_lists() -> None:
    """The error has the path through structs and lists."""
    with pytest.raises(Misfit) as caught:
        fields("struct<x:array<int>>").normalize((([1, "two"],),))
    assert caught.value.path == "a.x.element"
    assert "'two'" in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [[7, 8], np.array([7, 8]), pd.Series([7, 8]), {7: 1, 8: 2}, iter([7, 8])],
    ids=lambda values: type(values).__name__,
)
def test_any_iterable_is_accepted_as_a_tuple(values: object) -> None:
    """Any iterable is accepted as a tuple, as in Spark. A dictionary gives its keys, and a string its letters."""
    assert Fields(schema_of_ddl("a int, b int")).normalize(values) == (7, 8)
    assert Fields(schema_of_ddl("k string")).normalize("a") == ("a",)


def test_a_row_of_another_size_is_refused_with_both_numbers() -> None:
    """The error for a row of another size has the number of its values and of the fields."""
    with pytest.raises(Misfit, match=r"\Agot 3 values for 2 fields\Z"):
        Fields(schema_of_ddl("a int, b int")).normalize((1, 2, 3))


@pytest.mark.parametrize(
    "values", [(1,), (1, 2, 3), 5, None, "ab", {"a": 1, "b": 2}, iter(())], ids=lambda values: type(values).__name__
)
def test_a_row_of_another_size_is_refused(values: object) -> None:
    """A row of another size is refused.

    So is a dictionary with the fields' names, because Spark would store the names.
    """
    with pytest.raises(Misfit):
        Fields(schema_of_ddl("a int, b int")).normalize(values)


def test_values_with_a_known_shape_are_still_checked() -> None:
    """A value with an accepted shape does not let other classes or nulls pass later."""
    row = Fields(schema_of_ddl("a int, b string not null"))
    assert row.normalize((1, "x")) == row.normalize((1, "x")) == (1, "x")
    for wrong in [(True, "x"), (1.0, "x"), (1, None)]:
        with pytest.raises(Misfit):
            row.normalize(wrong)


def test_several_tuples_are_normalized_like_single_ones() -> None:
    """Several tuples are normalized like single ones, with known and with new shapes."""
    longs = fields("long")
    batches: list[list[object]] = [[], [(1,)], [(2,), (3,)], [(4,), [5]], [(np.int64(6),), (7,)], [(None,), (8,)]]
    assert [longs.normalize_all(iter(rows)) for rows in batches] == [
        [longs.normalize(row) for row in rows] for rows in batches
    ]
    with pytest.raises(Misfit):
        longs.normalize_all([(1,), ("x",)])


def test_values_that_are_converted_are_converted_each_time() -> None:
    """Values that are rounded, or moved to another zone, are converted each time."""
    of = Fields(schema_of_ddl("d decimal(4,1), t timestamp"))
    for _ in range(2):
        assert str(of.normalize((Decimal("1.25"), NOON))[0]) == "1.3"
        moved = of.normalize((Decimal(1), NOON.replace(tzinfo=timezone.utc)))[1]
        assert isinstance(moved, datetime)
        assert moved.tzinfo is None


def test_an_integer_out_of_range_is_refused_with_its_field() -> None:
    """An integer out of range raises an error with its field when the columns are built."""
    of = Fields(schema_of_ddl("a int, n byte"))
    rows = [of.normalize((1, 5)), of.normalize((2, 5000)) if of.normalize((0, 0)) else ()]
    with pytest.raises(Misfit) as caught:
        of.columns(rows)
    assert (caught.value.value, caught.value.path) == (5000, "n")


def test_types_that_spark_does_not_have_are_refused() -> None:
    """A field of a type that Spark does not have is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0203"):
        Fields(pa.schema([("a", pa.uint8())]))


@given(st.data())
def test_fast_lists_of_values_equal_to_pylist(data: st.DataObject) -> None:
    """Property: the fast path for dates and times equals ``to_pylist``, with slices and nulls."""
    kinds = [
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.int64(),
    ]
    kind = data.draw(st.sampled_from(kinds))
    values = KEY_TYPES.get(kind, KEY_TYPES[pa.timestamp("us", "UTC")])
    column = pa.array(data.draw(st.lists(st.one_of(st.none(), values), max_size=6)), kind)
    column = column.slice(data.draw(st.integers(0, 2)))
    for array in (column, pa.chunked_array([column, column])):
        python_values, expected = to_python_list(array), array.to_pylist()
        assert python_values == expected
        assert [getattr(v, "tzinfo", None) for v in python_values] == [getattr(v, "tzinfo", None) for v in expected]


def test_rows_without_columns_are_empty_tuples() -> None:
    """Rows of a table without columns are empty tuples, as many as the table has rows."""
    assert list(rows_as_tuples(pa.table({"a": [1, 2]}).select([]))) == [(), ()]


def test_dates_that_python_cannot_hold_raise_an_error() -> None:
    """A date after the year 9999 raises an error instead of becoming an integer."""
    with pytest.raises((ValueError, OverflowError)):
        to_python_list(pa.array([0, 4_000_000], pa.date32()))
