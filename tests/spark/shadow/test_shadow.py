"""`riffle shadow` runs queries on both engines: equal ones are equal, and a difference is found and shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark
from riffle_spark.console.shadow import shadow_command
from riffle_spark.errors import ConfigError
from riffle_spark.spark.shadow.shadow_run import ShadowReport, shadow
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import QUICK, ROCKSDB, configured
from tests.kit.queries.query_shape import Frames, Shape

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

Query = DataFrame | DataStreamWriter

OFTEN = ("tumbling_append", "outer_full")
"""Shapes that every run of the tests compares. `--all` compares all that Spark itself runs as a stream."""
FIRST_FILE_AGE = 1_700_000_000


def source(shape: Shape, folder: Path) -> Callable[[SparkSession], Query]:
    """Write the batches of a shape as files, and return its query over them: one file per batch and stream."""
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
    """Compare a query on both engines, with all places below a folder."""
    return shadow(
        query,
        spark=spark,
        folder=str(folder / "shadow"),
        root=f"file://{folder}/state",
        local_dir=str(folder / "local"),
        **arguments,
    )


def of_shapes() -> list[object]:
    """Return all shapes that Spark itself runs, as arguments of a test."""
    shapes = [shape for shape in SHAPES.values() if shape.oracle == "stream" and not shape.owed and not shape.differs]
    return [
        pytest.param(
            shape,
            id=shape.name,
            marks=[
                *([] if shape.name in OFTEN else [pytest.mark.long]),
                *([pytest.mark.needs_spark4("transformWithState")] if shape.kind == "processor" else []),
            ],
        )
        for shape in shapes
    ]


@pytest.mark.parametrize("shape", of_shapes())
def test_a_query_is_equal_on_both(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """All rows are read, and both return the same ones."""
    conf = {**QUICK, **(ROCKSDB if shape.kind == "processor" else {}), **shape.conf}
    with configured(spark, conf):
        report = compare(spark, source(shape, tmp_path / "in"), tmp_path)
    rows = sum(len(table) for batch in shape.batches for table in batch.values())
    assert report.input_rows == rows
    assert report.is_equal, report
    assert report.spark.batch_seconds
    assert report.riffle.batch_seconds


def counts(folder: Path, numbers: list[list[int]]) -> Callable[[SparkSession], Query]:
    """Return a query that counts the numbers, of which each list is a batch."""
    folder.mkdir(parents=True)
    for position, batch in enumerate(numbers):
        path = folder / f"{position:04d}.parquet"
        pq.write_table(pa.table({"n": pa.array(batch, pa.int64())}), path)
        os.utime(path, (FIRST_FILE_AGE + position,) * 2)

    def query(session: SparkSession) -> Query:
        stream = session.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).parquet(str(folder))
        return riffle_spark.on(stream).groupBy("n").count().writeStream.outputMode("update")

    return query


def test_a_difference_is_found_and_shown(spark: SparkSession, tmp_path: Path) -> None:
    """The function returns another query on riffle: its batches differ."""
    calls: list[None] = []
    plain = counts(tmp_path / "in", [[1, 1, 2], [3], [3, 4, 1]])

    def differs(session: SparkSession) -> Query:
        calls.append(None)
        if len(calls) < 3:  # To find the streams, and on Spark.
            return plain(session)
        stream = session.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
        return riffle_spark.on(stream).where("n != 3").groupBy("n").count().writeStream.outputMode("update")

    with configured(spark, QUICK):
        report = compare(spark, differs, tmp_path)
    assert not report.is_equal
    assert report.batches == 3
    assert [(d.batch, d.only_spark, d.only_riffle) for d in report.differences] == [(1, 1, 0), (2, 1, 0)]
    assert report.differences[0].spark_examples == ({"n": 3, "count": 1},)
    assert report.differences[1].spark_examples == ({"n": 3, "count": 2},)


def test_different_columns_are_a_difference(spark: SparkSession, tmp_path: Path) -> None:
    """Equal values under other names are a difference."""
    calls: list[None] = []
    plain = counts(tmp_path / "in", [[1, 1]])

    def differs(session: SparkSession) -> Query:
        calls.append(None)
        if len(calls) < 3:
            return plain(session)
        stream = session.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
        frame = riffle_spark.on(stream).groupBy("n").agg(F.count("*").alias("rows"))
        return frame.writeStream.outputMode("update")

    with configured(spark, QUICK):
        report = compare(spark, differs, tmp_path)
    assert not report.is_equal
    assert report.columns == "Spark: struct<n:bigint,count:bigint>; riffle: struct<n:bigint,rows:bigint>"


def test_a_function_that_changes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A stream that was not there at first has no recorded rows."""
    calls: list[None] = []
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        calls.append(None)
        return [plain(session) for _ in calls][-1]

    with configured(spark, QUICK), pytest.raises(ConfigError) as raised:
        compare(spark, query, tmp_path)
    assert raised.value.id == "RIFFLE-1685"


def test_only_some_batches_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    """The number of batches is bounded."""
    with configured(spark, QUICK):
        report = compare(spark, counts(tmp_path / "in", [[1]] * 4), tmp_path, batches=2)
    assert (report.batches, report.input_rows, report.is_equal) == (2, 2, True)


def test_the_command_prints_a_report(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in a temporary folder, and prints JSON."""
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
def test_other_functions_are_refused(
    spark: SparkSession, tmp_path: Path, query: Callable[[SparkSession], Any], id: str
) -> None:
    """A function must return a query that calls riffle_spark.on."""
    with pytest.raises(ConfigError) as raised:
        compare(spark, query, tmp_path)
    assert raised.value.id == id


def test_a_stream_that_is_not_recorded_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise both engines would read other rows of it."""
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        plain(session)
        stream = session.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
        return riffle_spark.on(stream).union(session.readStream.schema("n bigint").parquet(str(tmp_path / "in")))

    with pytest.raises(ConfigError) as raised:
        compare(spark, query, tmp_path)
    assert raised.value.id == "RIFFLE-1684"


def test_a_query_that_fails_names_its_engine(spark: SparkSession, tmp_path: Path) -> None:
    """An error of Spark is shown with the engine that raised it."""
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        writer = plain(session)
        assert isinstance(writer, DataStreamWriter)
        return writer.outputMode("append")  # Spark refuses it without a watermark.

    with pytest.raises(ConfigError) as raised:
        compare(spark, query, tmp_path)
    assert raised.value.id == "RIFFLE-1683"
    assert "Spark's own operators" in str(raised.value)


def test_a_table_of_last_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself has no such table."""
    plain = counts(tmp_path / "in", [[1]])

    def query(session: SparkSession) -> Query:
        plain(session)
        stream = session.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
        return riffle_spark.latest(stream, "n", by="n")

    with pytest.raises(ConfigError) as raised:
        compare(spark, query, tmp_path)
    assert raised.value.id == "RIFFLE-1680"
