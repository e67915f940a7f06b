"""Operators of ``Stateful`` keep every type of Spark, or refuse it with column and type in their first batch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from riffle_spark import Stateful, aggregate, arrow_function, count, last, max_, transform_with_state
from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine.routing import arrow_schema
from tests.kit.queries.type_columns import KEPT, REFUSED, RefusedColumn, TypeColumn, vector_of
from tests.kit.queries.typed_functions import IdentityProcessor
from tests.kit.queries.typed_play import typed
from tests.kit.streams.streaming import committed, settings_in

pytestmark = pytest.mark.spark

UNIT_LOSING = ("c_hours", "c_required", "c_required_array", "c_required_map")
"""Columns with day-time intervals of other units. Arrow has one type for all units, so results have days to seconds."""
WHOLE = [column for column in KEPT if column.name not in UNIT_LOSING]


def texts(columns: list[TypeColumn]) -> list[str]:
    """Return an expression for the text of each column."""
    return [f"{column.text} AS {column.name}" for column in columns]


def rows_of(spark: SparkSession, batch: int) -> DataFrame:
    """Return the eight rows of a batch, with two keys."""
    return spark.range(8 * batch, 8 * batch + 8).selectExpr("id AS n", "concat('key ', id % 2) AS k")


def play(operators: list[Stateful], frames: list[DataFrame], folder: Path, shown: list[str]) -> list[list[Row]]:
    """Return the results of each batch. Each batch has a new operator without local copies."""
    results = list[list[Row]]()

    def keep(frame: DataFrame, _batch: int) -> None:
        results.append(sorted(frame.selectExpr(*shown).collect(), key=repr))

    for batch, (operator, frame) in enumerate(zip(operators, frames, strict=True)):
        shutil.rmtree(folder / "local", ignore_errors=True)
        operator.into(keep)(frame, batch)
    return results


def last_rows(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Output the state of each key, and store the last row of each key."""
    latest = {k: row_index for row_index, k in enumerate(rows["k"].to_pylist())}
    return state, rows.take(list(latest.values())).select(state.column_names)


@pytest.mark.long
def test_a_function_on_arrow_stores_and_returns_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """A function on Arrow has columns of every type in its state and output, and reads back the values of the batch
    before.
    """
    frames = [typed(rows_of(spark, batch), WHOLE) for batch in range(3)]
    schema = arrow_schema(frames[0].drop("k", "n"))

    compute = arrow_function(last_rows, state=schema, output=pa.schema([("k", pa.string()), *schema]))
    operators = [_stateful("k", compute, tmp_path, order_by="n") for _ in frames]
    shown = ["k", *texts(WHOLE)]
    results = play(operators, frames, tmp_path, shown)
    for batch in range(2):
        expected = frames[batch].where(f"n >= {8 * batch + 6}").selectExpr(*shown)
        assert results[batch + 1] == sorted(expected.collect(), key=repr)
    assert results[0] == []
    print(f"state and output of a function on Arrow: {sum(len(column.values) + 1 for column in WHOLE)} cells")


@pytest.mark.long
def test_the_last_row_has_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """``last`` returns the last row of a batch query for every type, after a restart without local copies."""
    frames = [typed(rows_of(spark, batch), WHOLE) for batch in range(3)]

    lasts = aggregate(**{column.name: last(column.name) for column in WHOLE})
    operators = [_stateful("k", lasts, tmp_path, order_by="n") for _ in frames]
    shown = ["k", *texts(WHOLE)]
    expected = [frame.where(f"n >= {8 * batch + 6}").selectExpr(*shown) for batch, frame in enumerate(frames)]
    assert play(operators, frames, tmp_path, shown) == [sorted(frame.collect(), key=repr) for frame in expected]
    print(f"last rows: {sum(len(column.values) + 1 for column in WHOLE)} cells")


NO_ROWS = {"c_invalid", "c_timestamp_far", "c_ntz_far", "c_variant", "c_void"}


@pytest.mark.long
def test_a_processor_with_rows_returns_every_type_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    """A processor with rows returns values of every type unchanged."""
    columns = [column for column in WHOLE if column.name not in NO_ROWS]
    frames = [typed(rows_of(spark, batch), columns) for batch in range(2)]

    operators = [
        transform_with_state(IdentityProcessor(), key="k", output=frames[0].schema, settings=settings_in(tmp_path))
        for _ in frames
    ]
    shown = ["k", "n", *texts(columns)]
    results = play(operators, frames, tmp_path, shown)
    assert results == [sorted(frame.selectExpr(*shown).collect(), key=repr) for frame in frames]
    print(f"input and output of a processor with rows: {sum(len(column.values) + 1 for column in columns)} cells")


_NOT_SORTED = ("c_array", "c_required_array", "c_struct")
ORDERED = [column for column in KEPT if column.is_ordered and column.name not in _NOT_SORTED]
"""Columns that can be an order column. Arrow sorts NULL within structs and arrays last, and Spark first."""


@pytest.mark.long
def test_rows_are_ordered_by_columns_of_every_type_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The last row by a column is that of Spark's ``max_by``. Equal values are ordered by the number of the row."""
    for column in ORDERED:
        frame = typed(rows_of(spark, 0), [column])
        order = ["is_there", column.name, "n"]
        operator = _stateful("k", aggregate(n=last("n")), tmp_path / column.name, order_by=order)
        rows = frame.selectExpr("*", f"{column.name} IS NOT NULL AS is_there")
        (results,) = play([operator], [rows], tmp_path / column.name, ["k", "n"])
        expected = frame.groupBy("k").agg(F.expr(f"max_by(n, struct({column.name}, n))").alias("n"))
        assert results == sorted(expected.collect(), key=repr), column.name


Make = Callable[[str, Path], Stateful]


def _stateful(key: str, compute: Any, folder: Path, **more: Any) -> Stateful:
    return Stateful("typed", key, compute, settings=settings_in(folder), **more)


USES: Mapping[str, Make] = {
    "beside": lambda _, folder: _stateful("k", aggregate(rows=count()), folder),
    "key": lambda name, folder: _stateful(name, aggregate(rows=count()), folder),
    "order": lambda name, folder: _stateful("k", aggregate(rows=count()), folder, order_by=name),
    "last": lambda name, folder: _stateful("k", aggregate(last=last(name)), folder),
    "max": lambda name, folder: _stateful("k", aggregate(most=max_(name)), folder),
    "function": lambda _, folder: _stateful(
        "k", arrow_function(last_rows, state=pa.schema([("n", pa.int64())]), output=pa.schema([("k", pa.string())])),
        folder,
    ),
    "processor": lambda _, folder: transform_with_state(
        IdentityProcessor(), key="k", output="k string", settings=settings_in(folder)
    ),
}  # fmt: skip


def refusal(operator: Stateful, frame: DataFrame, folder: Path) -> ConfigError:
    """Return the error that refuses an operator's first batch, and check that nothing is committed."""
    with pytest.raises(ConfigError) as refused:
        operator.into(lambda *_: None)(frame, 0)
    assert committed(f"file://{folder}/state") == []
    return refused.value


def marks_of(index: int, column: RefusedColumn) -> list[pytest.MarkDecorator]:
    """Return the marks of a refused column. ``./run test`` runs every twelfth."""
    marks = [pytest.mark.long] if index % 12 else []
    if column.name == "r_calendar":
        return [*marks, pytest.mark.needs_spark4("calendar intervals in PySpark's schemas")]
    return marks


@pytest.mark.parametrize(
    "column",
    [pytest.param(column, marks=marks_of(index, column), id=column.name) for index, column in enumerate(REFUSED)],
)
def test_a_type_that_cannot_be_kept_is_refused_in_every_position(
    column: RefusedColumn, spark: SparkSession, tmp_path: Path
) -> None:
    """A type that cannot be kept is refused in every position and in an initial state. The error names the column and
    the type.
    """
    spark.udf.register("vector_of", vector_of, VectorUDT())
    frame = rows_of(spark, 0).selectExpr("n", "k", f"{column.sql} AS {column.name}")
    refused = {use: refusal(make(column.name, tmp_path), frame, tmp_path) for use, make in USES.items()}
    started = transform_with_state(
        IdentityProcessor(), key="k", output="k string", settings=settings_in(tmp_path), initial_state=frame
    )
    refused["initial state"] = refusal(started, frame.select("k", "n"), tmp_path)
    for use, error in refused.items():
        assert column.path in error.problem, use
        assert column.type in error.problem, use


@pytest.mark.parametrize(
    ("sql", "use"), [(sql, use) for sql in ("NULL", "array(n)") for use in ("key", "order", "max")]
)
@pytest.mark.sample(step=4)
def test_a_type_for_values_only_is_refused_as_key_and_order(
    sql: str, use: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A type that can be a value but not a key or order column is refused in these positions."""
    error = refusal(USES[use]("c", tmp_path), rows_of(spark, 0).selectExpr("n", "k", f"{sql} AS c"), tmp_path)
    assert "'c'" in error.problem or (use == "key" and "key" in error.problem)
    assert error.remedy


@pytest.mark.parametrize(
    ("part", "kind", "words"),
    [
        ("state", pa.run_end_encoded(pa.int32(), pa.string()), "'odd'"),
        ("output", pa.run_end_encoded(pa.int32(), pa.string()), "'odd'"),
        ("output", pa.month_day_nano_interval(), "'odd'"),
        ("output", pa.uint64(), "'odd'"),
        ("output", pa.list_(pa.uint64()), "'odd'"),
        ("output", pa.list_(pa.null()), "'odd.element'"),
    ],
    ids=str,
)
@pytest.mark.sample(step=3)
def test_a_declared_type_that_cannot_be_kept_is_refused(
    part: str, kind: pa.DataType, words: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A type that a function on Arrow declares and that cannot be kept is refused with its column, before the function
    is called.
    """
    schemas = {"state": pa.schema([("n", pa.int64())]), "output": pa.schema([("k", pa.string())])}
    schemas[part] = schemas[part].append(pa.field("odd", kind))
    operator = _stateful("k", arrow_function(last_rows, **schemas), tmp_path)
    error = refusal(operator, rows_of(spark, 0), tmp_path)
    assert words in error.problem
    assert error.remedy
