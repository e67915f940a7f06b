"""`riffle shadow` runs a query on both engines and reports whether the results are equal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark import cloudpickle
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark
from riffle_spark.console.shadow import shadow_command
from riffle_spark.errors import ConfigError
from riffle_spark.spark.shadow.shadow_run import ShadowReport, shadow
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import IS_SPARK_35, QUICK, RESTARTABLE, ROCKSDB, SCHEMA_CHECK, configured
from tests.kit.queries.query_shape import Frames, Shape
from tests.kit.queries.record_shapes import is_recorded

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

Query = DataFrame | DataStreamWriter

OFTEN = ("tumbling_append",)
"""The shapes that every test run compares. ``--all`` compares all that Spark itself runs as a stream."""
FIRST_FILE_AGE = 1_700_000_000


def source(shape: Shape, folder: Path) -> Callable[[SparkSession], Query]:
    """Write a shape's batches as files, and return its query over them, with one file per batch and stream."""
    for name in shape.schemas:
        (folder / name).mkdir(parents=True)
    for number, batch in enumerate(shape.batches):
        for name, table in batch.items():
            path = folder / name / f"{number:04d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (FIRST_FILE_AGE + number,) * 2)

    def query(session: SparkSession) -> Query:
        streams = {
            name: riffle_spark.on(
                session.readStream.schema(from_arrow_schema(schema))
                .option("maxFilesPerTrigger", 1)
                .parquet(str(folder / name)),
                root="file:///production/is/never/touched",
            )
            for name, schema in shape.schemas.items()
        }
        frame = shape.build(Frames(session, streams, riffle_spark.on))
        return frame.writeStream.outputMode(shape.mode)

    return query


def compare(spark: SparkSession, query: Callable[[SparkSession], Any], folder: Path, **arguments: Any) -> ShadowReport:
    """Compare a query on both engines. All files are below a folder."""
    return shadow(
        query,
        spark=spark,
        folder=str(folder / "shadow"),
        root=f"file://{folder}/state",
        local_dir=str(folder / "local"),
        **arguments,
    )


def refusal(spark: SparkSession, query: Callable[[SparkSession], Any], folder: Path) -> ConfigError:
    """Return the error that refuses a query."""
    with pytest.raises(ConfigError) as raised:
        compare(spark, query, folder)
    return raised.value


def of_shapes() -> list[object]:
    """Return all shapes that Spark itself runs, as test arguments."""
    shapes = [shape for shape in SHAPES.values() if shape.oracle == "stream" and not shape.owed and not shape.differs]
    return [
        pytest.param(
            shape,
            id=shape.name,
            marks=[
                *([] if shape.name in OFTEN else [pytest.mark.long]),
                *([] if is_recorded(shape, "3.5.9") else [pytest.mark.needs_spark4("what this query uses")]),
            ],
        )
        for shape in shapes
    ]


@pytest.mark.parametrize("shape", of_shapes())
@pytest.mark.long
def test_a_query_has_equal_rows_on_both_engines(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """The query reads all rows, and both engines return the same ones."""
    conf = {**QUICK, **(ROCKSDB if shape.kind == "processor" else {}), **RESTARTABLE, **shape.conf}
    with configured(spark, conf):
        report = compare(spark, source(shape, tmp_path / "in"), tmp_path)
    rows = sum(len(table) for batch in shape.batches for table in batch.values())
    assert report.input_rows == rows
    assert report.is_equal, report
    assert report.spark.batch_seconds
    assert report.riffle.batch_seconds


ODD_SCHEMA = pa.schema({"at": pa.timestamp("us", "UTC"), "raw": pa.binary(), "n": pa.int64()})
ODD_TEXTS = (b"caf\xe9", b"\xff", "\u00e9".encode(), b"", None)
"""Text that is not UTF-8, text that is, and no text."""


def odd_rows(folder: Path) -> Callable[[Callable[[DataFrame], DataFrame], str], Callable[[SparkSession], Query]]:
    """Write three batches of odd rows. Return a function that makes a query over them with an output mode."""
    folder.mkdir(parents=True)
    for number in range(3):
        path = folder / f"{number:04d}.parquet"
        at = [datetime(2026, 1, 1, 0, 0, 20 * number + second, tzinfo=timezone.utc) for second in range(len(ODD_TEXTS))]
        numbers = [number + second for second in range(len(ODD_TEXTS))]
        pq.write_table(pa.table([at, ODD_TEXTS, numbers], schema=ODD_SCHEMA), path)
        os.utime(path, (FIRST_FILE_AGE + number,) * 2)

    def make_query(build: Callable[[DataFrame], DataFrame], mode: str) -> Callable[[SparkSession], Query]:
        def query(session: SparkSession) -> Query:
            reader = session.readStream.schema(from_arrow_schema(ODD_SCHEMA)).option("maxFilesPerTrigger", 1)
            rows = riffle_spark.on(reader.parquet(str(folder))).withWatermark("at", "30 seconds")
            return build(rows.withColumn("k", F.col("raw").cast("string"))).writeStream.outputMode(mode)

        return query

    return make_query


STRUCT = "case when n % 2 = 0 then struct(coalesce(n, 0) as a, 't' as b) end"
"""A struct that is NULL in every second row, with fields that are NOT NULL."""
VARIANT = "case when n % 2 = 0 then parse_json('[1]') end"
"""A variant that is NULL in every second row."""
NEAR = "k = k2 and at2 between at - interval 5 seconds and at + interval 5 seconds"


def beside_a_join(rows: DataFrame, value: str) -> DataFrame:
    """Join the rows with themselves. The left side has the value of an expression."""
    others = rows.select(F.col("k").alias("k2"), F.col("at").alias("at2"), F.col("n").alias("n2"))
    return rows.select("at", "k", "n", F.expr(value).alias("v")).join(others, F.expr(NEAR), "leftOuter")


def doubled(key: Any, frames: Iterable[Any], state: Any) -> Iterable[Any]:
    """Return each row of a group with a struct that is NULL or has a field that is NOT NULL."""
    rows = pd.concat(list(frames))
    state.update(((state.getOption or (0,))[0] + len(rows),))
    yield pd.DataFrame({"n": rows["n"], "s": [{"a": int(n)} if n % 2 else None for n in rows["n"]]})


ODD_QUERIES: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "text as a key": ("update", lambda e: e.groupBy("k").count()),
    "text in aggregates": (
        "update",
        lambda e: e.groupBy(F.col("n") % 2).agg(F.min("k"), F.max_by("k", "n"), F.collect_list("k")),
    ),
    "structs beside a join": ("append", lambda e: beside_a_join(e, STRUCT)),
    "structs of a function": (
        "append",
        lambda e: (
            e.selectExpr("n", "n % 3 as g")
            .groupBy("g")
            .applyInPandasWithState(doubled, "n long, s struct<a: long not null>", "c long", "append", "NoTimeout")
        ),
    ),
    "variants beside a join": ("append", lambda e: beside_a_join(e, VARIANT)),
    "untyped nulls beside a join": ("append", lambda e: beside_a_join(e, "null")),
    "collated text in aggregates": (
        "update",
        lambda e: e.selectExpr("n", "k collate UTF8_LCASE as v").groupBy("n").agg(F.max_by("v", "n").alias("v")),
    ),
}
"""Queries with a value of each odd type. The type matrix (``test_type_matrix.py``) has them in all positions."""
NEEDS_SPARK4 = ("variants", "collated")


def of_odd_queries() -> list[object]:
    """Return the names of all queries of odd rows, as test arguments."""
    return [
        pytest.param(
            name,
            marks=[
                *([] if name == "text in aggregates" else [pytest.mark.long]),
                *([pytest.mark.needs_spark4("the type")] if name.startswith(NEEDS_SPARK4) else []),
            ],
        )
        for name in ODD_QUERIES
    ]


@pytest.mark.parametrize("name", of_odd_queries())
@pytest.mark.long
def test_odd_values_are_equal_on_both_engines(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """Both engines return equal rows for text that is not UTF-8, NULL structs with NOT NULL fields, NULL variants and
    untyped NULL.
    """
    mode, build = ODD_QUERIES[name]
    with configured(spark, QUICK):
        report = compare(spark, odd_rows(tmp_path / "in")(build, mode), tmp_path)
    assert report.is_equal, report
    assert (report.batches, report.input_rows) == (3, 3 * len(ODD_TEXTS))
    assert report.output_rows > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "named"),
    [
        pytest.param(
            lambda e: e.selectExpr("n", "k collate UTF8_LCASE as v").groupBy("n").agg(F.max("v")),
            "v",
            marks=pytest.mark.needs_spark4("collations"),
            id="collated text",
        ),
        pytest.param(
            lambda e: e.selectExpr("n", "make_ym_interval(n) as months").groupBy("n").agg(F.max_by("months", "n")),
            "months",
            id="year-month intervals",
        ),
        pytest.param(
            lambda e: e.withColumn("vector", array_to_vector(F.array(F.col("n").cast("double")))).dropDuplicates(["n"]),
            "vector",
            id="vectors",
        ),
    ],
)
def test_a_query_that_riffle_refuses_is_not_compared(
    spark: SparkSession, build: Callable[[DataFrame], DataFrame], named: str, tmp_path: Path
) -> None:
    """A query that riffle refuses raises the error that names the column, as without a comparison."""
    with configured(spark, QUICK), pytest.raises(ConfigError, match=rf"\b{named}\b"):
        compare(spark, odd_rows(tmp_path / "in")(build, "append" if named == "vector" else "update"), tmp_path)


def counts(folder: Path, numbers: list[list[int]]) -> Callable[[SparkSession], Query]:
    """Return a query that counts numbers. Each list is one batch."""
    folder.mkdir(parents=True)
    for position, batch in enumerate(numbers):
        path = folder / f"{position:04d}.parquet"
        pq.write_table(pa.table({"n": pa.array(batch, pa.int64())}), path)
        os.utime(path, (FIRST_FILE_AGE + position,) * 2)

    def query(session: SparkSession) -> Query:
        return riffle_spark.on(numbers_of(session, folder)).groupBy("n").count().writeStream.outputMode("update")

    return query


def numbers_of(session: SparkSession, folder: Path) -> DataFrame:
    """Return a stream with one list of numbers per batch."""
    return session.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).parquet(str(folder))


def other_on_riffle(
    query: Callable[[SparkSession], Query], other: Callable[[SparkSession], DataFrame]
) -> Callable[[SparkSession], Query]:
    """Return a function that returns ``other`` when it is called for riffle.

    The first call finds the streams, and the second one is for Spark.
    """
    calls: list[None] = []

    def function(session: SparkSession) -> Query:
        calls.append(None)
        return query(session) if len(calls) < 3 else other(session).writeStream.outputMode("update")

    return function


def test_a_difference_is_found_and_shown(spark: SparkSession, tmp_path: Path) -> None:
    """If the function returns another query on riffle, the report shows the differing batches with example rows."""
    plain = counts(tmp_path / "in", [[1, 1, 2], [3], [3, 4, 1]])

    def without_3(session: SparkSession) -> DataFrame:
        return riffle_spark.on(numbers_of(session, tmp_path / "in")).where("n != 3").groupBy("n").count()

    with configured(spark, QUICK):
        report = compare(spark, other_on_riffle(plain, without_3), tmp_path)
    assert not report.is_equal
    assert report.batches == 3
    assert [(d.batch, d.only_spark, d.only_riffle) for d in report.differences] == [(1, 1, 0), (2, 1, 0)]
    assert report.differences[0].spark_examples == ({"n": 3, "count": 1},)
    assert report.differences[1].spark_examples == ({"n": 3, "count": 2},)


def test_different_columns_are_a_difference(spark: SparkSession, tmp_path: Path) -> None:
    """Equal values under other column names are a difference."""
    plain = counts(tmp_path / "in", [[1, 1]])

    def renamed(session: SparkSession) -> DataFrame:
        stream = riffle_spark.on(numbers_of(session, tmp_path / "in"))
        return stream.groupBy("n").agg(F.count("*").alias("rows"))

    with configured(spark, QUICK):
        report = compare(spark, other_on_riffle(plain, renamed), tmp_path)
    assert not report.is_equal
    assert report.columns == "Spark: struct<n:bigint,count:bigint>; riffle: struct<n:bigint,rows:bigint>"


def test_a_function_that_uses_a_new_stream_later_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A function that uses a new stream in a later call is refused, because the stream has no recorded rows."""
    calls: list[None] = []
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        calls.append(None)
        return [plain(session) for _ in calls][-1]

    with configured(spark, QUICK):
        assert refusal(spark, query, tmp_path).id == "RIFFLE-1685"


@pytest.mark.long
def test_the_number_of_compared_batches_can_be_limited(spark: SparkSession, tmp_path: Path) -> None:
    """The number of compared batches can be limited."""
    with configured(spark, QUICK):
        report = compare(spark, counts(tmp_path / "in", [[1]] * 4), tmp_path, batches=2)
    assert (report.batches, report.input_rows, report.is_equal) == (2, 2, True)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_an_endless_source_is_recorded_for_a_limited_time(spark: SparkSession, tmp_path: Path) -> None:
    """A source that always has rows is recorded for a limited time, and the recorded rows are compared."""

    def query(session: SparkSession) -> Query:
        stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        return (
            riffle_spark.on(stream.selectExpr("value % 3 as n")).groupBy("n").count().writeStream.outputMode("update")
        )

    with configured(spark, QUICK):
        report = compare(spark, query, tmp_path, follow_seconds=6.0)
    assert report.batches > 0
    assert (report.input_rows, report.is_equal) == (10 * report.batches, True)


def test_a_function_that_spark_refuses_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """If Spark refuses the query, the error names the reason."""

    def query(session: SparkSession) -> Query:
        return riffle_spark.on(session.readStream.format("rate").load()).where("no_such_column > 1")

    error = refusal(spark, query, tmp_path)
    assert error.id == "RIFFLE-1745"
    assert "no_such_column" in error.problem
    assert "\n" not in error.problem.strip()


def test_a_cluster_needs_a_folder_that_executors_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster the command requires a folder that all executors share, because each records its own rows."""

    @contextmanager
    def session_of_a_cluster(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(sparkContext=SimpleNamespace(master="yarn"))

    monkeypatch.setattr("riffle_spark.spark.command_session.command_session", session_of_a_cluster)
    monkeypatch.setattr("riffle_spark.console.shadow.load_function", lambda *_: None)
    result = CliRunner().invoke(shadow_command, ["--query", "any:query"])
    assert result.exit_code == 2
    assert "--folder" in result.output


@pytest.mark.long
def test_the_command_prints_a_report(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses a temporary folder and prints the report as JSON."""
    query = counts(tmp_path / "in", [[1, 2], [2]])
    monkeypatch.setattr("riffle_spark.console.shadow.load_function", lambda *_: query)
    with configured(spark, QUICK):
        result = CliRunner().invoke(shadow_command, ["--query", "any:query", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["batches"], report["input_rows"], report["output_rows"]) == (2, 3, 3)
    assert report["is_equal"] is True
    assert report["differences"] == []


@pytest.mark.parametrize(
    ("query", "id"),
    [
        (lambda spark: None, "RIFFLE-1681"),  # noqa: ARG005 - the function of a user
        (lambda spark: spark.readStream.format("rate").load(), "RIFFLE-1682"),
    ],
    ids=["nothing", "without riffle"],
)
def test_a_function_that_returns_no_wrapped_query_is_refused(
    spark: SparkSession, tmp_path: Path, query: Callable[[SparkSession], Any], id: str
) -> None:
    """A function must return a query that calls riffle_spark.on."""
    assert refusal(spark, query, tmp_path).id == id


def test_a_stream_that_is_not_recorded_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A stream that is not wrapped is refused, because both engines would read different rows of it."""
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        plain(session)
        wrapped = riffle_spark.on(numbers_of(session, tmp_path / "in"))
        return wrapped.union(numbers_of(session, tmp_path / "in"))

    assert refusal(spark, query, tmp_path).id == "RIFFLE-1684"


@pytest.mark.long
def test_a_query_that_fails_names_its_engine(spark: SparkSession, tmp_path: Path) -> None:
    """If the query fails on one engine, the error names the engine."""
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        writer = plain(session)
        assert isinstance(writer, DataStreamWriter)
        return writer.outputMode("append")  # Spark refuses it without a watermark.

    error = refusal(spark, query, tmp_path)
    assert error.id == "RIFFLE-1683"
    assert "Spark's own operators" in str(error)


@pytest.mark.skipif(not IS_SPARK_35, reason="Spark 4 restarts its joins")
def test_a_join_that_spark_35_cannot_restart_names_the_setting(spark: SparkSession, tmp_path: Path) -> None:
    """A join that Spark 3.5 cannot restart is refused, with the setting that allows it (``RESTARTABLE``)."""
    with configured(spark, QUICK), pytest.raises(ConfigError, match=f"Set {SCHEMA_CHECK} to false") as raised:
        compare(spark, source(SHAPES["inner_compared"], tmp_path / "in"), tmp_path)
    assert raised.value.id == "RIFFLE-1683"


def test_a_table_of_last_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A table of ``latest`` is refused, because Spark itself has no such table."""
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        plain(session)
        return riffle_spark.latest(numbers_of(session, tmp_path / "in"), "n", by="n")

    assert refusal(spark, query, tmp_path).id == "RIFFLE-1680"
