"""Rows as ``transformWithState`` gives them to a processor, and what becomes of the rows that it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row

from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.spark.processors import row_form
from riffle_spark.spark.processors.row_form import EventTimeForm, RowForm

pytestmark = pytest.mark.newer_spark

OUTPUT = schema_of_ddl("id string, n long, t timestamp")
NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


def given(rows: pa.Table, positions: list[int]) -> list[list[Any]]:
    """Return each key's rows."""
    return [list(of_key) for of_key in RowForm(OUTPUT).rows(rows, positions)]


def returned(*output: Iterable[Any], schema: pa.Schema = OUTPUT) -> list[dict[str, Any]]:
    """Return what becomes of what some calls returned."""
    form = RowForm(schema)
    for one in output:
        form.collect(one)
    return form.output().to_pylist()


def test_each_key_gets_its_rows_in_order() -> None:
    """All columns, the key's too; a key without rows gets none."""
    table = pa.table({"id": ["a", "a", "b", "d"], "v": [1, 2, 3, 4]})
    assert given(table, [0, 2, 3, 3, 4]) == [
        [Row(id="a", v=1), Row(id="a", v=2)], [Row(id="b", v=3)], [], [Row(id="d", v=4)],
    ]  # fmt: skip


@pytest.mark.parametrize("rows_max", [1, 2, 3, 7, 100])
def test_rows_of_all_keys_come_whatever_is_held_at_once(monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    """Also of a key that has more rows than are Python objects at once."""
    monkeypatch.setattr(row_form, "ROWS_MAX", rows_max)
    sizes = [3, 0, 8, 1, 1, 2, 0]
    positions = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    table = pa.concat_tables([pa.table({"v": [at]}) for at in range(sum(sizes))])
    expected = [list(range(start, end)) for start, end in pairwise(positions)]
    assert [[row.v for row in rows] for rows in given(table, positions)] == expected


def test_a_key_need_not_look_at_all_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next key gets its own nevertheless."""
    monkeypatch.setattr(row_form, "ROWS_MAX", 2)
    keys: Iterator[Iterator[Any]] = RowForm(OUTPUT).rows(pa.table({"v": list(range(6))}), [0, 5, 6])
    assert next(next(keys)).v == 0
    assert [row.v for row in next(keys)] == [5]


def test_values_are_what_arrow_makes_of_them() -> None:
    """As in PySpark: structs are dictionaries, maps are pairs, times have the session's zone."""
    table = pa.table(
        {
            "s": pa.array([{"x": 1}], pa.struct([("x", pa.int32())])),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([NOON], pa.timestamp("us", "Europe/Berlin")),
            "d": pa.array([date(2024, 1, 2)]),
            "p": pa.array([Decimal("1.50")]),
            "z": pa.nulls(1),
        }
    )
    ((row,),) = given(table, [0, 1])
    assert row == Row(s={"x": 1}, m=[("k", 1)], t=NOON, d=date(2024, 1, 2), p=Decimal("1.50"), z=None)
    assert row.t.utcoffset() == table.column("t")[0].as_py().utcoffset() != NOON.utcoffset()


def test_keys_are_tuples_of_python_values() -> None:
    """One for each column of the key."""
    keys = pa.table({"a": ["x", None], "b": pa.array([1, 2], pa.int16())})
    assert list(RowForm(OUTPUT).keys(keys)) == [("x", 1), (None, 2)]


def test_output_keeps_the_order_of_calls() -> None:
    """Whatever kind of iterable each call returned."""
    rows = [Row(id=str(n), n=n, t=None) for n in range(4)]
    output = returned([rows[0]], (), iter(rows[1:3]), (row for row in rows[3:]))
    assert [row["n"] for row in output] == [0, 1, 2, 3]


def test_rows_are_matched_by_name() -> None:
    """In any order; what is not declared is lost and what is missing is null, as in PySpark."""
    same, other = Row(id="a", n=1, t=NOON), Row(n=2, extra=3, id="b")
    expected = [{"id": "a", "n": 1, "t": NOON}, {"id": "b", "n": 2, "t": None}]
    assert returned([same, other]) == expected
    assert returned([same]) == expected[:1]
    assert returned([Row("t", "n", "id")(NOON, 1, "a")]) == expected[:1]


def test_rows_that_came_in_may_go_out() -> None:
    """They are rows like others."""
    ((row,),) = given(pa.table({"id": ["a"], "n": [1], "t": pa.array([NOON], pa.timestamp("us", "UTC"))}), [0, 1])
    assert returned([row]) == [{"id": "a", "n": 1, "t": NOON}]


def test_nested_rows_and_dictionaries_go_out_alike() -> None:
    """By name at every depth."""
    schema = schema_of_ddl("s struct<x:int,y:array<struct<z:string>>>, m map<string,int>")
    row = Row(m={"k": 1}, s=Row(y=[Row(z="d"), {"z": None}], x=1))
    assert returned([row], schema=schema) == [{"s": {"x": 1, "y": [{"z": "d"}, {"z": None}]}, "m": [("k", 1)]}]


def test_a_form_that_was_emptied_begins_anew() -> None:
    """Output comes once, and an empty one has the declared columns."""
    form = RowForm(OUTPUT)
    form.collect([Row(id="a", n=1, t=None)])
    assert form.output().num_rows == 1
    assert form.output().equals(OUTPUT.empty_table())


@pytest.mark.parametrize("row", [("a", 1, None), {"id": "a"}, Row("a", 1, None), None, 5], ids=str)  # type: ignore[call-overload]
def test_what_is_no_row_with_names_is_refused(row: object) -> None:
    """As PySpark cannot make a dictionary of it."""
    with pytest.raises((AttributeError, TypeError)):
        returned([row])


@pytest.mark.parametrize("row", [Row(id="a", n="many", t=None), Row(id=5, n=1, t=None), Row(id="a", n=2**63, t=None)])
def test_what_does_not_fit_its_column_is_refused(row: Row) -> None:
    """Arrow says what is wrong."""
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)):
        returned([row])


def test_a_call_that_returns_nothing_iterable_is_refused() -> None:
    """A processor must return an iterator, though an empty one."""
    with pytest.raises(TypeError):
        returned(None)  # type: ignore[arg-type]


def test_output_with_an_event_time_is_ahead_of_the_watermark() -> None:
    """Else Spark's error tells both; a null is no time."""
    form = EventTimeForm(RowForm(OUTPUT), "t", 1_000)
    ahead = datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=timezone.utc)
    form.collect([Row(id="a", n=1, t=ahead), Row(id="b", n=1, t=None)])
    assert form.output().num_rows == 2
    form.collect([Row(id="a", n=1, t=ahead.replace(microsecond=0))])
    with pytest.raises(PySparkRuntimeError, match="eventTime=1000000 which is older than current_watermark_value=1000"):
        form.output()
