"""Plays a shape on Spark's own operators or on wrapped frames, and tells what came out, step by step.

A *step* is a batch with rows and the batches without rows behind it: Spark's own run those on its own account, ours
where something is due.
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
"""No reports but those of batches: what a query tells while it waits has no watermark."""
STORES = "spark.sql.streaming.stateStore.providerClass"
QUICK = {
    STORES: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""How Spark's own side is played: for a handful of rows compiling takes longer than all else, and so does RocksDB."""
ROCKSDB = {STORES: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
"""Spark's own processors run on nothing else."""
IS_SPARK_35 = pyspark.__version__.startswith("3.5.")
SCHEMA_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"
RESTARTABLE = {SCHEMA_CHECK: "false"} if IS_SPARK_35 else {}
"""Spark 3.5 refuses to restart some of its own joins with its check of schemas."""
FIRST_FILE_AGE = 1_700_000_000
END_SECONDS = 120
TOLERANCE = 1e-9
KEY_GROUPS = 8

Rows = list[list[Any]]
Wrap = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Played:
    """What came out: the columns and their types, the rows of each step, sorted unless their order counts, and the
    watermark that each step left; ``""`` where there is none, or where files were not played one by one.
    """

    columns: str
    steps: list[Rows]
    watermarks: list[str]


def play(spark: SparkSession, shape: Shape, folder: Path) -> Played:
    """Play a shape on Spark's own operators; where those cannot run it as a stream, as a batch over all rows so far."""
    quick = {**ALWAYS, **QUICK, **RESTARTABLE, **(ROCKSDB if shape.kind == "processor" else {})}
    with configured(spark, {**quick, **shape.conf}):
        if shape.oracle == "batch":
            return _by_batches(spark, shape)
        return _Player(spark, shape, folder, lambda frame: frame).play()


def play_ours(spark: SparkSession, shape: Shape, folder: Path) -> Played:
    """Play a shape on frames that are wrapped, with root and copies in the folder."""
    settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=KEY_GROUPS)

    def wrap(frame: DataFrame) -> DataFrame:
        return riffle_spark.on(frame, settings=settings) if frame.isStreaming else frame

    with configured(spark, {**ALWAYS, **shape.conf}):
        return _Player(spark, shape, folder, wrap).play()


def play_native_part(
    spark: SparkSession, shape: Shape, folder: Path, numbers: range, conf: Mapping[str, str]
) -> list[tuple[Rows, str]]:
    """Play some batches of a shape on Spark's own operators, one by one, and stop. Return their steps.

    ``conf`` is the configuration beside that of ``play``, such as another state store.
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
    """Move the Spark query of ``play_native_part`` to riffle, and play the other batches there, one by one."""
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
    """Set settings of a session for a block."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _by_batches(spark: SparkSession, shape: Shape) -> Played:
    """Ask Spark's batch query after each batch."""
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
        found = shape.build(Frames(spark, streams, lambda frame: frame))
        columns = found.schema.simpleString()
        steps.append(_in_order(found, shape))
    return Played(columns, steps, [""] * len(steps))


class _Broken(Exception):
    """How a sink fails once."""


class _Player:
    """One query of a shape: its files, its checkpoint, and what it put out, by batch."""

    def __init__(
        self, spark: SparkSession, shape: Shape, folder: Path, wrap: Wrap, checkpoint: str = "checkpoint"
    ) -> None:
        self._spark, self._shape, self._folder, self._wrap = spark, shape, folder, wrap
        self._checkpoint = folder / checkpoint
        self._query: StreamingQuery | None = None
        self._out: dict[int, Rows] = {}
        self._fed: set[int] = set()
        """Batches that read a file."""
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
            steps.append((self._taken(), self._watermark))
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
        return [(self._taken(), "")]

    def _add(self, number: int) -> None:
        """Add a batch's files, whole at once."""
        for name, table in self._shape.batches[number].items():
            hidden = self._folder / f"{name}.parquet"
            pq.write_table(table, hidden)
            os.utime(hidden, (FIRST_FILE_AGE + number,) * 2)
            hidden.replace(self._folder / name / f"{number:04d}.parquet")

    def _settle(self) -> None:
        """Run until nothing is left to do, started anew where it stands or where its sink broke."""
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
        """Keep what a query's reports say: which batches read files, and the newest watermark."""
        for report in query.recentProgress:
            if any(one["startOffset"] != one["endOffset"] for one in report["sources"] if _is_files(one)):
                self._fed.add(report["batchId"])
            self._watermark = report.get("eventTime", {}).get("watermark", "")

    def _started(self, **trigger: Any) -> StreamingQuery:
        writer = self.writer().foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        return self._query

    def writer(self) -> DataStreamWriter:
        """Return the query's writer, with its output mode."""
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
        """The columns of what came out, ``""`` before the first batch."""
        return self._columns

    def _keep(self, frame: DataFrame, batch: int) -> None:
        rows = _in_order(frame, self._shape)
        if self._breaks:
            self._breaks = False
            raise _Broken
        self._columns = frame.schema.simpleString()
        self._out[batch] = rows

    def _taken(self) -> Rows:
        """Return what came since, as one step; of a complete answer the last one."""
        found = [rows for _, rows in sorted(self._out.items())]
        self._out.clear()
        if self._shape.mode == "complete":
            return found[-1] if found else []
        return _sorted([row for rows in found for row in rows], self._shape)

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
    """Return a value by which rows are sorted: floats of two sides may differ in their last digits."""
    if isinstance(value, list):
        return [_rough(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


def _encoded(value: Any) -> Any:
    """Return the JSON form of a value, a struct as the list of its fields."""
    if isinstance(value, (list, tuple)):
        return [_encoded(each) for each in value]
    if isinstance(value, datetime):
        # Spark gives times of this machine's zone.
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, (Decimal, timedelta)) else value


def difference(found: Played, expected: Played) -> str:
    """Return in words what differs first, ``""`` if nothing does; numbers with fractions may by 1e-9 of their size."""
    if found.columns != expected.columns:
        return f"columns are {found.columns}, expected {expected.columns}"
    if len(found.steps) != len(expected.steps):
        return f"there are {len(found.steps)} steps, expected {len(expected.steps)}"
    for number, (rows, wanted) in enumerate(zip(found.steps, expected.steps, strict=True)):
        if not _same(rows, wanted):
            return f"step {number}: {_apart(rows, wanted)}"
    # Spark's own has a batch without rows wherever the watermark went on, ours where something is due: then ours stands
    # where the batch with rows did.
    before = ["", *expected.watermarks]
    if not all(map(_between, before, found.watermarks, expected.watermarks)):
        return f"watermarks are {found.watermarks}, expected {expected.watermarks}"
    return ""


def _between(before: str, mark: str, after: str) -> bool:
    """Tell whether a watermark is that of a step's batch with rows, or that of the one behind it."""
    return before <= mark <= after


def _apart(rows: Rows, wanted: Rows) -> str:
    told, due = Counter(map(json.dumps, rows)), Counter(map(json.dumps, wanted))
    return f"too much {sorted((told - due).elements())}, missing {sorted((due - told).elements())}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(one) is type(other) and bool(one == other)
