"""Run a query over rows of many types on Spark's own operators or wrapped, with a restart before each file.

Each run of the query reads one more file. Local copies of state are deleted between runs, so state is read from the
root.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark import Settings
from tests.kit.queries.type_columns import TypeColumn

__all__ = ["ROWS_PER_FILE", "Build", "add_file", "check_cells", "play", "stream", "typed", "wrapped"]

Build = Callable[[DataFrame, DataFrame], DataFrame]
"""A function that makes a query of two streams. Both have the columns ``n`` and ``k`` and read the same files."""
Run = Sequence[Mapping[str, object]]

ROWS_PER_FILE = 8
_END_SECONDS = 240
_SCHEMA = "n long, k string"


def add_file(folder: Path, number: int) -> None:
    """Add a file of rows with a number and one of two keys."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    numbers = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
    table = pa.table({"n": pa.array(numbers, pa.int64()), "k": [f"key {n % 2}" for n in numbers]})
    pq.write_table(table, folder / "rows" / f"{number:04d}.parquet")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the rows of the files as a stream."""
    return spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "rows"))


def wrapped(frame: DataFrame, folder: Path) -> DataFrame:
    """Return a wrapped stream, with root and local copies below a folder."""
    settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=8)
    return riffle_spark.on(frame, settings=settings)


def typed(frame: DataFrame, columns: Sequence[TypeColumn]) -> DataFrame:
    """Return the rows of a frame with additional columns of these types."""
    return frame.selectExpr("n", "k", *[f"{column.sql} AS {column.name}" for column in columns])


def play(
    spark: SparkSession,
    build: Build,
    folder: Path,
    mode: str,
    *,
    is_wrapped: bool,
    files: int = 3,
    source: Callable[[SparkSession, Path], DataFrame] = stream,
) -> list[Run]:
    """Run a query once per file, and return the sorted rows of each run. ``source`` reads the files of a folder."""
    runs = list[Run]()
    for number in range(files):
        add_file(folder, number)
        shutil.rmtree(folder / "local", ignore_errors=True)
        streams = [source(spark, folder) for _ in range(2)]
        rows, other_rows = [wrapped(source_frame, folder) for source_frame in streams] if is_wrapped else streams
        collected_rows = list[Mapping[str, object]]()

        def keep(frame: DataFrame, _batch: int, collected_rows: list[Mapping[str, object]] = collected_rows) -> None:
            collected_rows += [row.asDict() for row in frame.collect()]

        writer = build(rows, other_rows).writeStream.outputMode(mode).foreachBatch(keep)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(_END_SECONDS), query.status
        runs.append(sorted(collected_rows, key=lambda row: repr(list(row.values()))))
    return runs


def check_cells(runs: Sequence[Run], expected: Sequence[Run]) -> None:
    """Fail with a line for each column that differs in a run."""
    assert any(expected)
    lines = []
    for run, (rows, expected_rows) in enumerate(zip(runs, expected, strict=True)):
        if len(rows) != len(expected_rows):
            lines.append(f"run {run}: {len(rows)} rows, expected {len(expected_rows)}")
            continue
        for name in expected_rows[0] if expected_rows else ():
            pairs = [(row[name], other[name]) for row, other in zip(rows, expected_rows, strict=True)]
            differing = [pair for pair in pairs if pair[0] != pair[1]]
            lines += [f"run {run}, {name}: {value!r}, expected {other!r}" for value, other in differing[:1]]
    assert not lines, "\n".join(lines)
