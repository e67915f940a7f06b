"""Returned tables are fitted to declared schemas."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.types.conform import conform_table

A_LONG = pa.struct([("a", pa.int64())])
WIDENED: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.int32(), pa.int64(), 7),
    (pa.uint32(), pa.int64(), 7),
    (pa.int32(), pa.float64(), 7),
    (pa.null(), pa.string(), None),
    (pa.string_view(), pa.string(), "é"),
    (pa.large_binary(), pa.binary(), b"\xff"),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), "a"),
    (pa.decimal128(5, 2), pa.decimal128(10, 4), Decimal("1.25")),
    (pa.timestamp("ns"), pa.timestamp("us"), datetime(2024, 5, 6)),
    (pa.large_list(pa.int32()), pa.list_(pa.field("element", pa.int64())), [1, None]),
    (pa.struct([("a", pa.int8())]), A_LONG, {"a": 1}),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [("a", 1)]),
]
REFUSED: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.int64(), pa.float64()),
    (pa.float64(), pa.float32()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.binary()),
    (pa.decimal128(10, 2), pa.decimal128(10, 4)),
    (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (A_LONG, pa.struct([("b", pa.int64())])),
    (pa.map_(pa.int32(), pa.int32()), pa.map_(pa.int64(), pa.int32())),
]


def _conform(table: object, schema: pa.Schema) -> pa.Table:
    return conform_table(table, schema, "output", "store 'totals'")


@pytest.mark.parametrize(("returned", "declared", "value"), WIDENED, ids=str)
def test_a_narrower_type_is_widened(returned: pa.DataType, declared: pa.DataType, value: object) -> None:
    """A narrower type is cast to the declared type. Values and nulls are kept."""
    schema = pa.schema([("a", declared)])
    fitted = _conform(pa.table({"a": pa.array([value, None, value], returned)}), schema)
    assert fitted.schema == schema
    assert fitted["a"].to_pylist() == [value, None, value]


@pytest.mark.parametrize(("returned", "declared"), REFUSED, ids=str)
def test_a_type_that_may_not_fit_is_refused_even_when_empty(returned: pa.DataType, declared: pa.DataType) -> None:
    """A type that may not fit is refused also for an empty table, so the first batch fails and not a later one."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0200"):
        _conform(pa.table({"a": pa.array([], returned)}), pa.schema([("a", declared)]))


def test_columns_are_matched_by_name() -> None:
    """Columns are matched by name. Order, nullability and metadata of the returned columns do not matter."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    fitted = _conform(pa.table({"b": ["x"], "a": [1]}).replace_schema_metadata({"pandas": "{}"}), schema)
    assert fitted.schema.equals(schema, check_metadata=True)
    assert fitted.to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("table", "field", "id"),
    [
        (pa.table({"b": [1]}), pa.field("a", pa.int64()), "RIFFLE-0200.*declared: a int64.*returned: b int64"),
        (pa.table([[1], [1]], names=["a", "a"]), pa.field("a", pa.int64()), "RIFFLE-0200"),
        (pa.table({"a": [1, None]}), pa.field("a", pa.int64(), nullable=False), "RIFFLE-0201"),
        (pa.table({"a": pa.array([1], pa.timestamp("ns"))}), pa.field("a", pa.timestamp("us")), "RIFFLE-0202"),
        (None, pa.field("a", pa.int64()), "RIFFLE-0199"),
        (pa.RecordBatch.from_pylist([{"a": 1}]), pa.field("a", pa.int64()), "RIFFLE-0199"),
    ],
)
def test_tables_that_do_not_fit_the_declaration_are_refused(table: object, field: pa.Field, id: str) -> None:
    """Other columns, nulls, values that would lose digits, and objects that are not tables are refused."""
    with pytest.raises(UserFunctionError, match=rf"(?s){id}") as error:
        _conform(table, pa.schema([field]))
    assert error.value.where == "store 'totals'"


def test_nulls_in_a_not_null_column_are_refused() -> None:
    """Nulls in a NOT NULL column are refused, although PyArrow allows them in a table of the declared schema."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(UserFunctionError, match="RIFFLE-0201"):
        _conform(pa.table([pa.array([1, None])], schema=schema), schema)


def test_a_function_without_output_columns_may_return_rows() -> None:
    """A function whose output has no columns may return rows without columns."""
    assert _conform(pa.table({"a": [1, 2]}).select([]), pa.schema([])).num_rows == 0
