"""Every type of Spark is kept as in Spark, as key, value, order column and output, or refused with its column when the
query starts.

Each position is one query with a wide frame: one column per type, with ordinary and extreme values, text that is not
UTF-8, NULL, and NOT NULL inside. Local copies are lost between two runs. A cell is one value of a type in a position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans import rules
from tests.kit.queries.played_query import QUICK, configured
from tests.kit.queries.type_columns import COLLATED, KEPT, REFUSED, RefusedColumn, TypeColumn, exploded, vector_of
from tests.kit.queries.typed_functions import ANSWER, STATE, STATE_CELLS, gives_back, keeps_types
from tests.kit.queries.typed_play import Build, add_file, check_cells, play, stream, typed, wrapped

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

Columns = Sequence[TypeColumn]
COLLATION = "CAST(n AS STRING) COLLATE UTF8_LCASE"
_COLLATION = re.compile(r" COLLATE \w+")
_OF_VALUES = ("max_by({}, n)", "min_by({}, n)", "last({})", "first({})", "count({})")
_OF_ORDERED = ("max({})", "min({})", "max_by(n, {})", "min_by(n, {})")


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> None:
    """Let Spark keep its own state on the heap."""
    for name, value in QUICK.items():
        spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def _zone(spark: SparkSession) -> Iterator[None]:
    """Give the session a time zone that is not UTC, so that a time which the zone shifts differs from Spark's."""
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        yield


def texts(columns: Columns) -> list[str]:
    """Return an expression for the text of each column."""
    return [f"{column.text} AS {column.name}" for column in columns]


def beside_duplicates(columns: Columns) -> Build:
    """Return a query with the columns as values of ``dropDuplicates``."""
    return lambda rows, _: typed(rows, columns).dropDuplicates(["k", "n"]).selectExpr("n", *texts(columns))


def aggregated(columns: Columns) -> Build:
    """Return a query with the columns as values and order columns of aggregate functions."""
    calls = [(call, column) for column in columns for call in _OF_VALUES]
    calls += [(call, column) for column in columns if column.is_ordered for call in _OF_ORDERED]
    calls += [("collect_list({})", column) for column in columns if column.name != "c_void"]
    # Spark's streams collect NaN again in each batch. Its batch queries and riffle collect it once.
    calls += [
        ("collect_set({})", column)
        for column in columns
        if column.is_key and column.type not in ("void", "float", "double")
    ]

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        named = [F.expr(call.format(column.name)).alias(f"f{index}") for index, (call, column) in enumerate(calls)]
        selected = []
        for index, (call, column) in enumerate(calls):
            value = f"array_sort(f{index})" if call.startswith("collect_set") else f"f{index}"
            text = (
                f"to_json({value})" if column.type == "variant" and "count" not in call else f"CAST({value} AS STRING)"
            )
            selected.append(f"hex({text}) AS `{call.format(column.name)}`")
        return typed(rows, columns).groupBy("k").agg(*named).selectExpr("k", *selected)

    return build


def joined(columns: Columns) -> Build:
    """Return a query with the columns as values of both sides of a join. Matching rows are of different runs."""

    def build(rows: DataFrame, others: DataFrame) -> DataFrame:
        right = [f"{column.name} AS right_{column.name}" for column in columns]
        other = typed(others, columns).selectExpr("n AS m", "k AS j", *right)
        pairs = typed(rows, columns).join(other, F.expr("k = j AND m = n + 8"))
        more = [f"{replace(column, name=f'right_{column.name}').text} AS right_{column.name}" for column in columns]
        return pairs.selectExpr("n", *texts(columns), *more)

    return build


def spread(rows: DataFrame, columns: Columns) -> DataFrame:
    """Return each row once per column, with the other columns NULL."""
    return (
        typed(rows, columns)
        .selectExpr("*", f"explode(sequence(0, {len(columns) - 1})) AS t")
        .selectExpr(*exploded(columns))
    )


def grouped(columns: Columns) -> Build:
    """Return a query with the columns as keys of an aggregate."""
    names = [column.name for column in columns]
    return lambda rows, _: spread(rows, columns).groupBy("t", *names).count().selectExpr("t", "count", *texts(columns))


def once(columns: Columns) -> Build:
    """Return a query with the columns as keys of ``dropDuplicates``."""
    names = ["t", *(column.name for column in columns)]
    return lambda rows, _: spread(rows, columns).dropDuplicates(names).selectExpr("t", "n", *texts(columns))


def paired(columns: Columns) -> Build:
    """Return a query with the columns as keys of a join."""

    def build(rows: DataFrame, others: DataFrame) -> DataFrame:
        right = [f"{column.name} AS right_{column.name}" for column in columns]
        other = spread(others, columns).selectExpr("n AS m", "t AS u", *right)
        same = " AND ".join(f"{column.name} <=> right_{column.name}" for column in columns)
        pairs = spread(rows, columns).join(other, F.expr(f"t = u AND {same}"))
        return pairs.selectExpr("t", "n", "m", *texts(columns))

    return build


POSITIONS: dict[str, tuple[Callable[[Columns], Build], str, bool]] = {
    "beside dropDuplicates": (beside_duplicates, "append", False),
    "in aggregate functions": (aggregated, "update", False),
    "in a join": (joined, "append", False),
    "as keys of an aggregate": (grouped, "update", True),
    "as keys of dropDuplicates": (once, "append", True),
    "as keys of a join": (paired, "append", True),
}
"""The query of each position, its output mode, and whether the columns are keys."""


def check(spark: SparkSession, folder: Path, position: str, files: int) -> None:
    """Compare the results of a position with those of Spark.

    Collated text is only a value, and is compared with plain text: Spark 4.0's own aggregates return the bytes of other
    rows for it.
    """
    query, mode, of_keys = POSITIONS[position]
    chosen, others = [column for column in KEPT if column.is_key], list[TypeColumn]()
    if not of_keys:
        chosen, others = [*KEPT], [replace(column, is_ordered=False, is_key=False) for column in COLLATED]
    plain = [replace(column, values=(_COLLATION.sub("", column.values[0]),)) for column in others]
    expected = play(spark, query([*chosen, *plain]), folder / "spark", mode, is_wrapped=False, files=files)
    results = play(spark, query([*chosen, *others]), folder / "riffle", mode, is_wrapped=True, files=files)
    check_cells(results, expected)
    columns = [*chosen, *others]
    print(f"{position}: {len(columns)} types, {sum(len(column.values) + 1 for column in columns)} cells as in Spark")


@pytest.mark.parametrize(
    "position",
    [name if name == "beside dropDuplicates" else pytest.param(name, marks=pytest.mark.long) for name in POSITIONS],
)
def test_every_type_is_kept_as_in_spark(position: str, spark: SparkSession, tmp_path: Path) -> None:
    """Every type is kept as in Spark in this position."""
    check(spark, tmp_path, position, files=2 if position == "beside dropDuplicates" else 3)


def table_of(kind: str) -> Callable[[SparkSession, Path], DataFrame]:
    """Return a function that reads the files as a table whose key is text of limited length."""

    def read(spark: SparkSession, folder: Path) -> DataFrame:
        name = f"bounded_{folder.name}"
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.sql(f"CREATE TABLE {name} (n BIGINT, k {kind}) USING parquet LOCATION 'file://{folder}/rows'")
        return spark.readStream.option("maxFilesPerTrigger", 1).table(name)

    return read


@pytest.mark.long
@pytest.mark.parametrize("kind", ["char(7)", pytest.param("varchar(7)", marks=pytest.mark.long)])
def test_text_of_bounded_length_in_a_table_is_kept_as_in_spark(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Text of type ``char`` or ``varchar`` is kept as in Spark as key and value. ``char`` is padded with spaces."""

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return rows.groupBy("k").agg(F.max_by("k", "n").alias("v"), F.max("k").alias("m"), F.count("*").alias("c"))

    runs = {
        side: play(spark, build, tmp_path / side, "update", is_wrapped=side == "riffle", files=2, source=table_of(kind))
        for side in ("spark", "riffle")
    }
    check_cells(runs["riffle"], runs["spark"])
    assert [row["k"] for row in runs["riffle"][1]] == [
        f"key {index}{'  ' if kind == 'char(7)' else ''}" for index in (0, 1)
    ]


def _sums(*functions: str) -> Build:
    """Return a query that sums decimals with the most digits."""
    largest = f"CAST({'9' * 38}BD AS DECIMAL(38, 0))"
    return lambda rows, _: rows.groupBy("k").agg(*[F.expr(f"{name}({largest})").alias(name) for name in functions])


@pytest.mark.long
def test_a_sum_beyond_38_digits_is_null_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A sum that exceeds 38 digits is NULL without ANSI mode and for ``try_sum``, also after a restart."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    query = _sums("sum", "try_sum")
    expected = play(spark, query, tmp_path / "spark", "update", is_wrapped=False, files=2)
    results = play(spark, query, tmp_path / "riffle", "update", is_wrapped=True, files=2)
    assert {(row["sum"], row["try_sum"]) for run in expected for row in run} == {(None, None)}
    check_cells(results, expected)


@pytest.mark.long
def test_a_sum_beyond_38_digits_fails_in_ansi_mode_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A sum that exceeds 38 digits fails the query in ANSI mode, with Spark's error condition."""
    spark.conf.set("spark.sql.ansi.enabled", "true")
    for name in ("spark", "riffle"):
        with pytest.raises(StreamingQueryException, match=r"ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE"):
            play(spark, _sums("sum"), tmp_path / name, "update", is_wrapped=name == "riffle", files=1)


def passed(columns: Columns, frame: DataFrame) -> DataFrame:
    """Return the output of a user's function that returns its columns unchanged."""
    output = ", ".join(["k string", "n long", *(f"{column.name} {column.type}" for column in columns)])
    groups = typed(frame, columns).groupBy("k")
    return groups.applyInPandasWithState(gives_back, output, "n long", "append", "NoTimeout")


@pytest.mark.long
def test_functions_return_columns_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """``applyInPandasWithState`` returns columns of all types that pandas supports unchanged, as in Spark."""
    columns = [column for column in KEPT if column.pandas]

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return passed(columns, rows).selectExpr("k", "n", *texts(columns))

    expected = play(spark, build, tmp_path / "spark", "append", is_wrapped=False, files=2)
    results = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True, files=2)
    check_cells(results, expected)
    print(f"input and output of functions: {sum(len(column.values) + 1 for column in columns)} cells as in Spark")


@pytest.mark.long
def test_state_of_each_type_is_read_back_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The state of a user's function has fields of all types, and is read back as in Spark after a restart."""

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return rows.groupBy("k").applyInPandasWithState(keeps_types, ANSWER, STATE, "append", "NoTimeout")

    expected = play(spark, build, tmp_path / "spark", "append", is_wrapped=False)
    results = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True)
    check_cells(results, expected)
    print(f"state of a function: {STATE_CELLS} cells as in Spark")


Use = Callable[[DataFrame, DataFrame, str], DataFrame]
ROWS_USES: dict[str, Use] = {
    "beside dropDuplicates": lambda rows, *_: rows.dropDuplicates(["n", "k"]),
    "dropDuplicates": lambda rows, _, name: rows.dropDuplicates([name]),
    "join": lambda rows, others, _: rows.join(others.toDF("m", "j"), F.expr("k = j")),
    "join key": lambda rows, others, name: rows.join(others.toDF("m", "j"), F.expr(f"k = j AND {name} = {name}")),
    "function": lambda rows, *_: rows.groupBy("k").applyInPandasWithState(
        lambda _key, frames, _state: frames, "n long", "seen long", "append", "NoTimeout"
    ),
}  # fmt: skip
"""Queries in append mode that store the column or use it as a key."""
GROUP_USES: dict[str, Use] = {
    "max_by": lambda rows, _, name: rows.groupBy("k").agg(F.max_by(name, "n").alias("m")),
    "max": lambda rows, _, name: rows.groupBy("k").agg(F.max(name).alias("m")),
    "order": lambda rows, _, name: rows.groupBy("k").agg(F.max_by("n", name).alias("m")),
    "collect_list": lambda rows, _, name: rows.groupBy("k").agg(F.collect_list(name).alias("m")),
    "key": lambda rows, _, name: rows.groupBy(name).count(),
}
"""Queries in update mode that store the column, compare it or group by it."""


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> tuple[DataFrame, DataFrame]:
    """Two wrapped streams of the same folder."""
    spark.udf.register("vector_of", vector_of, VectorUDT())
    add_file(tmp_path, 0)
    rows, others = (wrapped(stream(spark, tmp_path), tmp_path) for _ in range(2))
    return rows, others


def _marks(column: RefusedColumn) -> list[pytest.MarkDecorator]:
    if column.name == "r_calendar":
        return [pytest.mark.needs_spark4("calendar intervals in PySpark's schemas")]
    return [pytest.mark.needs_spark4("grouping by maps")] if column.name == "r_map" else []


def refusals(
    streams: tuple[DataFrame, DataFrame], folder: Path, column: RefusedColumn
) -> Iterator[tuple[str, ConfigError]]:
    """Yield each use of the column that Spark accepts, with the error that refuses it."""
    rows, others = streams
    rows = rows.selectExpr("n", "k", f"{column.sql} AS {column.name}")
    for use, query in {**ROWS_USES, **GROUP_USES}.items():
        try:
            writer = query(rows, others, column.name).writeStream.outputMode(
                "update" if use in GROUP_USES else "append"
            )
            writer.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
        except AnalysisException:  # Spark does not compare this type or group by it.
            continue
        except ConfigError as refused:
            yield use, refused
        else:
            pytest.fail(f"{use} of {column.type} was started")


@pytest.mark.parametrize("column", [pytest.param(column, id=column.name, marks=_marks(column)) for column in REFUSED])
@pytest.mark.sample(step=3)
def test_a_type_that_cannot_be_kept_is_refused_at_the_start(
    column: RefusedColumn, streams: tuple[DataFrame, DataFrame], tmp_path: Path
) -> None:
    """A type that cannot be kept is refused in every position. The error names the column and the type."""
    errors = dict(refusals(streams, tmp_path, column))
    assert {"beside dropDuplicates", "max_by", "join", "key", "function"} <= errors.keys()
    for use, error in errors.items():
        if error.id in (rules.REFUSED["array_key"].id, rules.REFUSED["void_key"].id):
            assert use in ("key", "dropDuplicates", "join key")
            assert column.name in error.where
            continue
        assert column.path in error.problem, use
        assert column.type in error.problem, use
    print(f"{column.name}: refused in {len(errors)} positions")


@pytest.mark.parametrize(
    ("sql", "use", "words"),
    [
        pytest.param(COLLATION, "max", "string collate UTF8_LCASE", marks=pytest.mark.needs_spark4("collations")),
        pytest.param(COLLATION, "key", "RIFFLE-0618", marks=pytest.mark.needs_spark4("collations")),
        ("NULL", "key", "RIFFLE-0617"),
        ("NULL", "collect_list", r"'collect_list\(c\).element'"),
        ("array(1)", "key", "RIFFLE-0616"),
    ],
)
def test_a_type_for_values_only_is_refused_as_key_and_order(
    sql: str, use: str, words: str, streams: tuple[DataFrame, DataFrame], tmp_path: Path
) -> None:
    """A type that can be a value but not a key or order column is refused in these positions."""
    rows, others = streams
    frame = GROUP_USES[use](rows.selectExpr("n", "k", f"{sql} AS c"), others, "c")
    writer = frame.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(ConfigError, match=words):
        writer.start()
