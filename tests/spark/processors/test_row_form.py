"""Rows of ``transformWithState``: those that a processor gets, and the conversion of those that it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
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


def rows_of_keys(rows: pa.Table, positions: list[int]) -> list[list[Any]]:
    """Return the rows of each key."""
    return [list(of_key) for of_key in RowForm(OUTPUT).rows(rows, positions)]


def returned(*output: Iterable[Any], schema: pa.Schema = OUTPUT) -> list[dict[str, Any]]:
    """Return the output rows for the results of some calls."""
    form = RowForm(schema)
    for one in output:
        form.collect(one)
    return form.output().to_pylist()


@pytest.mark.parametrize("rows_max", [1, 3, 100])
def test_each_key_gets_all_its_rows_for_any_conversion_size(monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    """Each key gets all its rows, however few of them are converted to Python objects at once."""
    monkeypatch.setattr(row_form, "ROWS_MAX", rows_max)
    sizes = [3, 0, 8, 1, 1, 2, 0]
    positions = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    table = pa.concat_tables([pa.table({"v": [at]}) for at in range(sum(sizes))])
    expected = [list(range(start, end)) for start, end in pairwise(positions)]
    assert [[row.v for row in rows] for rows in rows_of_keys(table, positions)] == expected


def test_a_processor_may_leave_rows_of_a_key_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a processor does not read all rows of a key, the next key still gets its own rows."""
    monkeypatch.setattr(row_form, "ROWS_MAX", 2)
    keys: Iterator[Iterator[Any]] = RowForm(OUTPUT).rows(pa.table({"v": list(range(6))}), [0, 5, 6])
    assert next(next(keys)).v == 0
    assert [row.v for row in next(keys)] == [5]


def test_rows_are_matched_by_name() -> None:
    """Output rows are matched by name in any order. Extra fields are dropped, and missing ones are NULL, as
    in PySpark.
    """
    same, other = Row(id="a", n=1, t=NOON), Row(n=2, extra=3, id="b")
    expected = [{"id": "a", "n": 1, "t": NOON}, {"id": "b", "n": 2, "t": None}]
    assert returned([same, other]) == expected
    assert returned([same]) == expected[:1]
    assert returned([Row("t", "n", "id")(NOON, 1, "a")]) == expected[:1]


def test_nested_rows_and_dictionaries_are_converted_by_name() -> None:
    """Nested rows and dictionaries are converted by name at every depth."""
    schema = schema_of_ddl("s struct<x:int,y:array<struct<z:string>>>, m map<string,int>")
    row = Row(m={"k": 1}, s=Row(y=[Row(z="d"), {"z": None}], x=1))
    assert returned([row], schema=schema) == [{"s": {"x": 1, "y": [{"z": "d"}, {"z": None}]}, "m": [("k", 1)]}]


@pytest.mark.parametrize("row", [("a", 1, None), {"id": "a"}, Row("a", 1, None), None, 5], ids=str)  # type: ignore[call-overload]
def test_output_without_field_names_is_refused(row: object) -> None:
    """Output without field names is refused, as in PySpark."""
    with pytest.raises((AttributeError, TypeError)):
        returned([row])


@pytest.mark.parametrize("row", [Row(id="a", n="many", t=None), Row(id=5, n=1, t=None), Row(id="a", n=2**63, t=None)])
def test_a_value_that_does_not_fit_its_column_is_refused(row: Row) -> None:
    """A value that does not fit its column raises Arrow's error."""
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)):
        returned([row])


def test_output_at_or_before_the_watermark_is_refused() -> None:
    """Output with an event time at or before the watermark raises Spark's error. NULL is allowed."""
    form = EventTimeForm(RowForm(OUTPUT), "t", 1_000)
    ahead = datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=timezone.utc)
    form.collect([Row(id="a", n=1, t=ahead), Row(id="b", n=1, t=None)])
    assert form.output().num_rows == 2
    form.collect([Row(id="a", n=1, t=ahead.replace(microsecond=0))])
    with pytest.raises(PySparkRuntimeError, match="eventTime=1000000 which is older than current_watermark_value=1000"):
        form.output()
