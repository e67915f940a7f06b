"""Fitting returned tables to declared schemas."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.types.conform import conform

WHERE = "store 'totals', key-group 3"


def _conform(table: object, schema: pa.Schema) -> pa.Table:
    return conform(table, schema, "output", WHERE)


def _struct(*fields: tuple[str, pa.DataType]) -> pa.DataType:
    return pa.struct(fields)


WIDENED: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.int32(), pa.int64(), 7),
    (pa.uint32(), pa.int64(), 7),
    (pa.int32(), pa.float64(), 7),
    (pa.float32(), pa.float64(), 0.5),
    (pa.null(), pa.string(), None),
    (pa.large_string(), pa.string(), "é"),
    (pa.string_view(), pa.string(), "é"),
    (pa.string(), pa.large_string(), "é"),
    (pa.large_binary(), pa.binary(), b"\xff"),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), "a"),
    (pa.decimal128(5, 2), pa.decimal128(10, 4), Decimal("1.25")),
    (pa.timestamp("ns"), pa.timestamp("us"), datetime(2024, 5, 6)),
    (pa.list_(pa.int32()), pa.list_(pa.field("element", pa.int64())), [1, None]),
    (pa.large_list(pa.int64()), pa.list_(pa.int64()), [1]),
    (_struct(("a", pa.int8()), ("b", pa.string())), _struct(("a", pa.int64()), ("b", pa.string())), {"a": 1, "b": "x"}),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [("a", 1)]),
]
REFUSED: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.int8(), pa.uint16()),
    (pa.int64(), pa.float64()),
    (pa.float64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.binary()),
    (pa.decimal128(10, 2), pa.decimal128(10, 4)),
    (pa.decimal128(10, 4), pa.decimal128(12, 2)),
    (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (pa.list_(pa.int64()), pa.int64()),
    (_struct(("a", pa.int64())), _struct(("b", pa.int64()))),
    (pa.map_(pa.int32(), pa.int32()), pa.map_(pa.int64(), pa.int32())),
]


@pytest.mark.parametrize(("returned", "declared", "value"), WIDENED, ids=str)
def test_a_type_that_fits_in_the_declared_one_is_widened(
    returned: pa.DataType, declared: pa.DataType, value: object
) -> None:
    """A narrower type becomes the declared one and keeps its values and nulls."""
    table = pa.table({"a": pa.array([value, None, value], returned)})
    schema = pa.schema([("a", declared)])
    fitted = _conform(table, schema)
    assert fitted.schema == schema
    assert fitted["a"].to_pylist() == [value, None, value]


@pytest.mark.parametrize(("returned", "declared"), REFUSED, ids=str)
def test_a_type_that_may_not_fit_is_refused_even_when_empty(returned: pa.DataType, declared: pa.DataType) -> None:
    """What could fail on other values fails at once, so that a job does not break on its thousandth batch."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0200"):
        _conform(pa.table({"a": pa.array([], returned)}), pa.schema([("a", declared)]))


def test_columns_are_matched_by_name() -> None:
    """The order of the returned columns does not matter, nor their own nullability or metadata."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    returned = pa.table({"b": ["x"], "a": [1]}).replace_schema_metadata({"pandas": "{}"})
    fitted = _conform(returned, schema)
    assert fitted.schema.equals(schema, check_metadata=True)
    assert fitted.to_pylist() == [{"a": 1, "b": "x"}]


def test_other_columns_show_both_schemas_column_by_column() -> None:
    """One message tells missing, undeclared, repeated and ill-typed columns."""
    schema = pa.schema([("user", pa.string()), ("total", pa.int64()), ("seen", pa.date32()), ("n", pa.int64())])
    returned = pa.table(
        [pa.array(["u"]), pa.array(["1"]), pa.array([2.0]), pa.array([1]), pa.array([1])],
        names=["user", "total", "extra", "n", "n"],
    )
    with pytest.raises(UserFunctionError) as error:
        _conform(returned, schema)
    assert error.value.problem.splitlines() == [
        "The output has not the declared columns",
        "  column  declared     returned",
        "  user    string       string",
        "  total   int64        string           <- cannot become int64",
        "  seen    date32[day]  -                <- missing",
        "  n       int64        int64 and int64  <- more than once",
        "  extra   -            double           <- not declared",
    ]
    assert error.value.where == WHERE


def test_a_null_in_a_column_declared_not_null_is_refused() -> None:
    """The column is named."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0201"):
        _conform(pa.table({"a": [1, None]}), pa.schema([pa.field("a", pa.int64(), nullable=False)]))


def test_a_timestamp_finer_than_declared_is_refused() -> None:
    """Nothing is cut off silently."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0202"):
        _conform(pa.table({"a": pa.array([1], pa.timestamp("ns"))}), pa.schema([("a", pa.timestamp("us"))]))


@pytest.mark.parametrize(
    "returned", [None, [{"a": 1}], pa.RecordBatch.from_pylist([{"a": 1}])], ids=["none", "list", "batch"]
)
def test_what_is_no_table_is_refused(returned: object) -> None:
    """The type that came instead is named."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0199"):
        _conform(returned, pa.schema([("a", pa.int64())]))
