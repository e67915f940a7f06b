"""Play a shape on Spark's own operators or on wrapped frames, and return its output step by step.

A *step* is a batch with rows and the following batches without rows. Spark's operators run such a batch after each new
watermark, riffle only if something is due.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import riffle_spark
from riffle_spark import Settings
from riffle_spark.spark.imports.import_checkpoint import import_checkpoint
from tests.kit.queries.query_shape import Frames, Shape

__all__ = [
    "IS_SPARK_35",
    "QUICK",
    "RESTARTABLE",
    "ROCKSDB",
    "SCHEMA_CHECK",
    "Played",
    "configured",
    "difference",
    "move",
    "play",
    "play_moved",
    "play_native_part",
    "play_ours",
    "play_part",
]

ALWAYS = {"spark.sql.streaming.noDataProgressEventInterval": "600000"}
"""Settings that make Spark report only batches. Reports of a waiting query have no watermark."""
STORES = "spark.sql.streaming.stateStore.providerClass"
QUICK = {
    STORES: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of queries on Spark's own operators. For a handful of rows, compilation and RocksDB would take most time."""
ROCKSDB = {STORES: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
"""The state store that Spark's own processors require."""
IS_SPARK_35 = pyspark.__version__.startswith("3.5.")
SCHEMA_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"
RESTARTABLE = {SCHEMA_CHECK: "false"} if IS_SPARK_35 else {}
"""Settings without the check of state schemas, with which Spark 3.5 refuses to restart some of its own joins."""
FIRST_FILE_AGE = 1_700_000_000
END_SECONDS = 120
TOLERANCE = 1e-9
KEY_GROUPS = 8

Rows = list[list[Any]]
Wrap = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Played:
    """The output of a query: its columns with types, the rows of each step, and the watermark after each step.

    The rows of a step are sorted unless their order counts. A watermark is ``""`` if the query has none, or if its
    files were not played one by one.
    """

    columns: str
    steps: list[Rows]
    watermarks: list[str]


def play(spark: SparkSession, shape: Shape, folder: Path) -> Played:
    """Play a shape on Spark's own operators.

    If its oracle is ``batch``, run it as a batch query over all rows so far.
    """
    quick = {**ALWAYS, **QUICK, **RESTARTABLE, **(ROCKSDB if shape.kind == "processor" else {})}
    with configured(spark, {**quick, **shape.conf}):
        if shape.oracle == "batch":
            return _by_batches(spark, shape)
        return _Player(spark, shape, folder, lambda frame: frame).play()


def play_ours(spark: SparkSession, shape: Shape, folder: Path) -> Played:
    """Play a shape on wrapped frames, with root and local copies in the folder."""
    settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=KEY_GROUPS)

    def wrap(frame: DataFrame) -> DataFrame:
        return riffle_spark.on(frame, settings=settings) if frame.isStreaming else frame

    with configured(spark, {**ALWAYS, **shape.conf}):
        return _Player(spark, shape, folder, wrap).play()


def play_native_part(
    spark: SparkSession, shape: Shape, folder: Path, numbers: range, conf: Mapping[str, str]
) -> list[tuple[Rows, str]]:
    """Play some batches of a shape on Spark's own operators, one by one, and stop. Return their steps.

    ``conf`` is added to the configuration of ``play``, such as another state store.
    """
    quick = {**ALWAYS, **QUICK, **(ROCKSDB if shape.kind == "processor" else {})}
    with configured(spark, {**quick, **shape.conf, **conf}):
        return _Player(spark, shape, folder, lambda frame: frame).play_some(numbers)


def play_moved(
    spark: SparkSession,
    shape: Shape,
    folder: Path,
    native_steps: list[tuple[Rows, str]],
    settings: Settings,
    conf: Mapping[str, str] | None = None,
) -> Played:
    """Move the Spark query of ``play_native_part`` to riffle, and play its remaining batches there, one by one."""
    with configured(spark, {**ALWAYS, **shape.conf, **(conf or {})}):
        move(spark, shape, folder, settings)
        numbers = range(len(native_steps), len(shape.batches))
        columns, steps = play_part(spark, shape, folder, numbers, settings, "checkpoint-riffle")
    steps = native_steps + steps
    return Played(columns, [rows for rows, _ in steps], [watermark for _, watermark in steps])


def play_part(
    spark: SparkSession,
    shape: Shape,
    folder: Path,
    numbers: range,
    settings: Settings,
    checkpoint: str,
    initial: Mapping[str, DataFrame] | None = None,
) -> tuple[str, list[tuple[Rows, str]]]:
    """Play some batches of a shape on wrapped frames, one by one, and stop. Return the columns and the steps.

    ``checkpoint`` is the name of the checkpoint in ``folder``, and ``initial`` the frames from which stores start.
    """

    def wrap(frame: DataFrame) -> DataFrame:
        return riffle_spark.on(frame, settings=settings, initial_state=initial) if frame.isStreaming else frame

    with configured(spark, {**ALWAYS, **shape.conf}):
        player = _Player(spark, shape, folder, wrap, checkpoint)
        steps = player.play_some(numbers)
    return player.columns, steps


def move(spark: SparkSession, shape: Shape, folder: Path, settings: Settings) -> None:
    """Move the Spark query of ``play_native_part`` to the root of the settings."""

    def wrap(frame: DataFrame) -> DataFrame:
        return riffle_spark.on(frame, settings=settings) if frame.isStreaming else frame

    assert settings.root is not None
    query = _Player(spark, shape, folder, wrap)
    import_checkpoint(settings.root, str(folder / "checkpoint"), lambda _: query.writer(), spark=spark, execute=True)


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Change the configuration of a session for a block."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _by_batches(spark: SparkSession, shape: Shape) -> Played:
    """Run Spark's batch query over all rows after each batch."""
    steps = list[Rows]()
    columns = ""
    for number in range(1, len(shape.batches) + 1):
        streams = {
            name: spark.createDataFrame(
                [row for table in tables for row in table.to_pylist()], from_arrow_schema(schema)
            )
            for name, schema in shape.schemas.items()
            if (tables := [batch[name] for batch in shape.batches[:number] if name in batch])
        }
        built_frame = shape.build(Frames(spark, streams, lambda frame: frame))
        columns = built_frame.schema.simpleString()
        steps.append(_in_order(built_frame, shape))
    return Played(columns, steps, [""] * len(steps))


class _Broken(Exception):
    """The error that the sink raises once."""


class _Player:
    """One query of a shape, with its files, its checkpoint, and its output by batch."""

    def __init__(
        self, spark: SparkSession, shape: Shape, folder: Path, wrap: Wrap, checkpoint: str = "checkpoint"
    ) -> None:
        self._spark, self._shape, self._folder, self._wrap = spark, shape, folder, wrap
        self._checkpoint = folder / checkpoint
        self._query: StreamingQuery | None = None
        self._out: dict[int, Rows] = {}
        self._fed: set[int] = set()
        """The batches that read a file."""
        self._columns = self._watermark = ""
        self._breaks = False
        for name in shape.schemas:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def play(self) -> Played:
        """Play all batches."""
        try:
            steps = {"each": self._each, "together": self._together, "now": self._now}[self._shape.play]()
        finally:
            self._stop()
        return Played(self._columns, [rows for rows, _ in steps], [watermark for _, watermark in steps])

    def play_some(self, numbers: range) -> list[tuple[Rows, str]]:
        """Play some of the batches one by one, and stop."""
        try:
            return self._each(numbers)
        finally:
            self._stop()

    def _each(self, numbers: range | None = None) -> list[tuple[Rows, str]]:
        steps = []
        for number in range(len(self._shape.batches)) if numbers is None else numbers:
            self._add(number)
            self._breaks = number == self._shape.breaks_in
            self._settle()
            steps.append((self._output_since(), self._watermark))
            if number == self._shape.restart_after:
                self._stop()
        return steps

    def _together(self) -> list[tuple[Rows, str]]:
        for number in range(len(self._shape.batches)):
            self._add(number)
        self._settle()
        steps: list[Rows] = []
        for batch, rows in sorted(self._out.items()):
            if batch in self._fed:
                steps.append([])
            steps[-1] += rows
        return [(_sorted(rows, self._shape), "") for rows in steps]

    def _now(self) -> list[tuple[Rows, str]]:
        for number in range(len(self._shape.batches)):
            self._add(number)
        query = self._started(availableNow=True)
        if not query.awaitTermination(END_SECONDS):
            raise TimeoutError(f"{self._shape.name} did not end: {query.status}")
        return [(self._output_since(), "")]

    def _add(self, number: int) -> None:
        """Add the files of a batch. Each appears with its whole content."""
        for name, table in self._shape.batches[number].items():
            hidden = self._folder / f"{name}.parquet"
            pq.write_table(table, hidden)
            os.utime(hidden, (FIRST_FILE_AGE + number,) * 2)
            hidden.replace(self._folder / name / f"{number:04d}.parquet")

    def _settle(self) -> None:
        """Run the query until it has processed all files. Start it if it is stopped or its sink failed."""
        for _ in range(2):
            query = self._query or self._started()
            try:
                query.processAllAvailable()
            except StreamingQueryException as error:
                if _Broken.__name__ not in str(error):
                    raise
                self._stop()
                continue
            self._look_at(query)
            return
        raise AssertionError(f"{self._shape.name} broke twice")

    def _look_at(self, query: StreamingQuery) -> None:
        """Collect from the reports of a query the batches that read files, and the newest watermark."""
        for report in query.recentProgress:
            if any(source["startOffset"] != source["endOffset"] for source in report["sources"] if _is_files(source)):
                self._fed.add(report["batchId"])
            self._watermark = report.get("eventTime", {}).get("watermark", "")

    def _started(self, **trigger: Any) -> StreamingQuery:
        writer = self.writer().foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        return self._query

    def writer(self) -> DataStreamWriter:
        """Return the writer of the query, with its output mode."""
        streams = {
            name: self._wrap(
                self._spark.readStream.schema(from_arrow_schema(schema))
                .options(maxFilesPerTrigger=1, fileNameOnly=True)
                .parquet(str(self._folder / name))
            )
            for name, schema in self._shape.schemas.items()
        }
        frame = self._shape.build(Frames(self._spark, streams, self._wrap))
        return frame.writeStream.outputMode(self._shape.mode)

    @property
    def columns(self) -> str:
        """The columns of the output, or ``""`` before the first batch."""
        return self._columns

    def _keep(self, frame: DataFrame, batch: int) -> None:
        rows = _in_order(frame, self._shape)
        if self._breaks:
            self._breaks = False
            raise _Broken
        self._columns = frame.schema.simpleString()
        self._out[batch] = rows

    def _output_since(self) -> Rows:
        """Return the output since the last call as one step. In complete mode, it is the output of the last batch."""
        batches = [rows for _, rows in sorted(self._out.items())]
        self._out.clear()
        if self._shape.mode == "complete":
            return batches[-1] if batches else []
        return _sorted([row for rows in batches for row in rows], self._shape)

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        self._query = None


def _is_files(source: dict[str, Any]) -> bool:
    return "FileStreamSource" in source["description"]


def _in_order(frame: DataFrame, shape: Shape) -> Rows:
    return _sorted([[_encoded(value) for value in row] for row in frame.collect()], shape)


def _sorted(rows: Rows, shape: Shape) -> Rows:
    return rows if shape.ordered else sorted(rows, key=lambda row: json.dumps(_rough(row)))


def _rough(value: Any) -> Any:
    """Return the sort key of a value. Floats are rounded, because their last digits may differ between both sides."""
    if isinstance(value, list):
        return [_rough(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


def _encoded(value: Any) -> Any:
    """Return the JSON form of a value. A struct becomes the list of its fields."""
    if isinstance(value, (list, tuple)):
        return [_encoded(each) for each in value]
    if isinstance(value, datetime):
        # Spark returns times in the time zone of this machine.
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, (Decimal, timedelta)) else value


def difference(played: Played, expected: Played) -> str:
    """Describe the first difference, or return ``""``.

    Floats are equal if they differ by at most 1e-9 of their size.
    """
    if played.columns != expected.columns:
        return f"columns are {played.columns}, expected {expected.columns}"
    if len(played.steps) != len(expected.steps):
        return f"there are {len(played.steps)} steps, expected {len(expected.steps)}"
    for number, (rows, expected_rows) in enumerate(zip(played.steps, expected.steps, strict=True)):
        if not _same(rows, expected_rows):
            return f"step {number}: {_row_difference(rows, expected_rows)}"
    # Spark's operators run a batch without rows after every new watermark, riffle only if something is due. Without
    # such a batch, the watermark of riffle is still that of the batch with rows.
    before = ["", *expected.watermarks]
    if not all(map(_between, before, played.watermarks, expected.watermarks)):
        return f"watermarks are {played.watermarks}, expected {expected.watermarks}"
    return ""


def _between(before: str, mark: str, after: str) -> bool:
    """Return whether a watermark is between those before and after a step of Spark."""
    return before <= mark <= after


def _row_difference(rows: Rows, expected_rows: Rows) -> str:
    actual = Counter(map(json.dumps, rows))
    expected = Counter(map(json.dumps, expected_rows))
    surplus = sorted((actual - expected).elements())
    missing = sorted((expected - actual).elements())
    return f"too much {surplus}, missing {missing}"


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(left) is type(right) and bool(left == right)
