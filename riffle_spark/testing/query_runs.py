"""Run a wrapped query in local mode over given batches, with jumps of time and crashes between and within them."""

import json
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.settings import Settings
from riffle_spark.testing.input_rows import Row, input_table
from riffle_spark.testing.simulated_work import Crashed, Faults, Step
from riffle_spark.unknown_names import check_known

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

Engine: TypeAlias = Literal["riffle", "spark"]
_KEY_GROUPS: Final = 8
_PYTHON: Final = "PYSPARK_PYTHON"
_ONLY: Final = "events"
"""The name of the only stream of a query."""
_SMALL_SESSION: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of ``run``, and what happens before and in it.

    Parameters:
        rows: the rows as dictionaries, or of several streams a dictionary from name to rows. A column that a row omits
            is null. Times may be texts such as ``"2026-01-01 12:00:00"``.
        advance: seconds by which the clock is advanced before the batch, for timers and time-outs of processing time,
            and for TTL.
        watermark: the watermark of the batch, as a time or as milliseconds. It never decreases. The first batch cannot
            set it.
        crash: the step at which the driver crashes. The query then restarts and repeats the batch.
        lose_copies: whether all local copies are lost in that crash.
    """

    rows: Iterable[Row] | Mapping[str, Iterable[Row]] = ()
    advance: float = 0.0
    watermark: datetime | str | int | None = None
    crash: Step | None = None
    lose_copies: bool = False


class _InjectedCrash(Exception):
    """The crash that a batch requests."""


@contextmanager
def session_for_tests() -> "Iterator[SparkSession]":
    """Yield the active session, or a small one that is stopped afterwards: two cores in this process."""
    from pyspark.sql import SparkSession

    from riffle_spark import configure

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    environ.setdefault(_PYTHON, sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("riffle-tests")
    for name, value in _SMALL_SESSION.items():
        builder = builder.config(name, value)
    session = configure(builder, kafka=False).getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def run(
    query_function: "Callable[..., DataFrame | DataStreamWriter]",
    batches: Iterable[object],
    *,
    schema: str | Mapping[str, str],
    output_mode: str = "append",
    settings: Settings | None = None,
    engine: Engine = "riffle",
    **options: Any,
) -> list[list[dict[str, object]]]:
    """Run a wrapped query over batches in local mode, and return the rows that its sink received for each of them.

    The query restarts for each batch, so each one also tests recovery. As in a query that runs on, batches without rows
    follow if something is due. Their rows belong to the batch before them. A batch that is repeated after a crash
    replaces its rows, as in an idempotent sink.

    Parameters:
        query_function: is called with the wrapped stream and returns a frame, or a writer. The output mode and options
            of a writer are used. Its sink and trigger are replaced. Several streams are passed by name.
        batches: for each batch a list of its rows, or a ``Batch``.
        schema: the columns of the stream as DDL, such as ``"at timestamp, page string"``. For several streams a
            dictionary from name to DDL.
        output_mode: the output mode if the function returns a frame.
        settings: settings of the query, without root and ``local_dir``. By default it has 8 key-groups.
        engine: ``"spark"`` runs the same query on Spark's own state, to compare the results.
        options: further arguments of ``riffle_spark.on``, such as ``dead_letters``.

    Raises ``ConfigError`` for rows with unknown columns, and for batches that ``engine="spark"`` cannot run. Errors of
    the query are Spark's.

    The active Spark session is used, or a small one that is stopped at the end.

    >>> from riffle_spark.testing import Batch, run
    >>> def visits(events):
    ...     return events.groupBy("page").count()
    >>> first, second = run(
    ...     visits,
    ...     [[{"page": "a"}, {"page": "a"}], Batch([{"page": "a"}], crash="after record", lose_copies=True)],
    ...     schema="page string",
    ...     output_mode="update",
    ... )
    >>> first, second
    ([{'page': 'a', 'count': 2}], [{'page': 'a', 'count': 3}])
    """
    check_known("engine", [engine], ["riffle", "spark"], source="riffle_spark.testing.run")
    schemas = {_ONLY: schema} if isinstance(schema, str) else dict(schema)
    folder = Path(tempfile.mkdtemp(prefix="riffle-run-"))
    try:
        with session_for_tests() as spark:
            query = _Query(query_function, schemas, spark, folder, engine, output_mode, settings, options)
            return [query.run(_batch_of(batch, isinstance(schema, str))) for batch in batches]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _batch_of(batch: object, has_one_stream: bool) -> Batch:
    """Return a batch with its rows by stream."""
    batch = batch if isinstance(batch, Batch) else Batch(cast("Iterable[Row]", batch))
    return replace(batch, rows={_ONLY: cast("Iterable[Row]", batch.rows)}) if has_one_stream else batch


@dataclass
class _Query:
    """A query that is started for each batch, with its input, its state and the rows of its sink."""

    function: "Callable[..., DataFrame | DataStreamWriter]"
    schemas: Mapping[str, str]
    spark: "SparkSession"
    folder: Path
    engine: Engine
    output_mode: str
    settings: Settings | None
    options: Mapping[str, Any]
    faults: Faults = field(default_factory=Faults)
    shift_ms: int = 0
    crashed: bool = False
    outputs: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.schemas:
            (self.folder / "in" / name).mkdir(parents=True)

    @property
    def checkpoint(self) -> Path:
        """The folder of Spark's checkpoint."""
        return self.folder / "checkpoint"

    def run(self, batch: Batch) -> list[dict[str, object]]:
        """Run a batch to its end and return its rows."""
        self._check(batch)
        if batch.watermark is not None:
            self._set_watermark(_milliseconds(batch.watermark))
        self.shift_ms += round(batch.advance * 1000)
        rows = cast("Mapping[str, Iterable[Row]]", batch.rows)
        check_known("stream", list(rows), list(self.schemas), source="the batch")
        for name, stream_rows in rows.items():
            self._add(name, list(stream_rows))
        if batch.crash is not None:
            self.faults.crash(batch.crash, lose_copies=batch.lose_copies)
        last_output = max(self.outputs, default=-1)
        self._run_to_end()
        return [row for number in sorted(self.outputs) if number > last_output for row in self.outputs[number]]

    def _check(self, batch: Batch) -> None:
        """Raise ``ConfigError`` if Spark's own engine cannot run a batch."""
        if self.engine == "spark" and (batch.advance or batch.crash not in (None, "after sink") or batch.lose_copies):
            # Cause: Spark's clock cannot be set, and its operators have no such steps.
            raise ConfigError(
                "engine='spark' cannot advance the clock, and crashes only after the sink.",
                remedy="Use crash='after sink', without advance and lose_copies, or engine='riffle'.",
                where="engine",
                id="RIFFLE-1124",
            )

    def _add(self, name: str, rows: Sequence[Row]) -> None:
        """Write a file with the rows of a stream, if there are any."""
        schema = schema_of_ddl(self.schemas[name])
        table = input_table([_with_times(row, schema) for row in rows], schema)
        if len(table):
            hidden = self.folder / "in" / name / f".{uuid.uuid4().hex}"
            pq.write_table(table, hidden)
            hidden.rename(hidden.with_name(f"{hidden.name[1:]}.parquet"))

    def _run_to_end(self) -> None:
        """Run the query until nothing is due. Start it again after a crash."""
        self.crashed = False
        query = self._start()
        try:
            query.awaitTermination()
        except Exception:
            if not self.crashed:
                raise
            if self.faults.lose_copies:
                shutil.rmtree(self.folder / "local", ignore_errors=True)
            self._start().awaitTermination()
        finally:
            query.stop()

    def _start(self) -> "StreamingQuery":
        """Start the query with ``availableNow`` on the rows that were written so far, and return it."""
        from pyspark.sql import DataFrame

        from riffle_spark.spark.frames.stream_frame import StreamWriter, start_prepared

        frames = {name: self._stream(name) for name in self.schemas}
        result = self.function(**frames) if tuple(frames) != (_ONLY,) else self.function(frames[_ONLY])
        writer = result.writeStream.outputMode(self.output_mode) if isinstance(result, DataFrame) else result
        writer = writer.foreachBatch(self._take).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return start_prepared(writer, self._prepare) if isinstance(writer, StreamWriter) else writer.start()

    def _stream(self, name: str) -> "DataFrame":
        """Return the stream of a name, wrapped by ``riffle_spark.on`` unless the query runs on Spark's own state."""
        from riffle_spark import on

        stream = self.spark.readStream.schema(self.schemas[name]).parquet(str(self.folder / "in" / name))
        if self.engine == "spark":
            return stream
        settings = self.settings or Settings(key_groups=_KEY_GROUPS)
        places = settings.but(root=f"file://{self.folder}/state", local_dir=str(self.folder / "local"))
        return on(stream, settings=places, **self.options)

    def _prepare(self, job: Any) -> None:
        """Pass the clock and the crash to the job of a query before its first batch."""
        job.time_shift_ms = self.shift_ms
        job.set_step_listener(self._reached)

    def _reached(self, step: str) -> None:
        try:
            self.faults.reached(step)
        except Crashed as crash:
            self.crashed = True
            raise _InjectedCrash(f"crash {step}") from crash

    def _take(self, rows: "DataFrame", batch_id: int) -> None:
        self.outputs[batch_id] = [row.asDict(recursive=True) for row in rows.collect()]
        if self.engine == "spark":
            self._reached("after sink")

    def _set_watermark(self, milliseconds: int) -> None:
        """Set the watermark in the newest entry of Spark's commit log."""
        commits = self.checkpoint / "commits"
        numbers = [int(path.name) for path in commits.glob("[0-9]*")] if commits.exists() else []
        if not numbers:
            # Cause: Spark stores the next watermark with a batch.
            raise ConfigError(
                "The first batch has no watermark to set.",
                remedy="Let a batch precede it, which may be without late rows.",
                where="watermark",
                id="RIFFLE-1125",
            )
        entry = commits / str(max(numbers))
        version, body = entry.read_text().split("\n", 1)
        metadata = json.loads(body)
        metadata["nextBatchWatermarkMs"] = max(milliseconds, metadata["nextBatchWatermarkMs"])
        entry.write_text(f"{version}\n{json.dumps(metadata)}")
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)


def _milliseconds(time: datetime | str | int) -> int:
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    return time if isinstance(time, int) else round(time.timestamp() * 1000)


def _with_times(row: Row, schema: pa.Schema) -> dict[str, object]:
    """Return a row with times instead of texts. As in PySpark, a time without a zone is in this process's zone."""
    return {name: _time_of(value, schema, name) for name, value in row.items()}


def _time_of(value: object, schema: pa.Schema, name: str) -> object:
    """Return a value as a time if its column has a type of times and the value is a text or lacks a zone."""
    column = schema.field(name).type if name in schema.names else None
    if column is None or not (pa.types.is_timestamp(column) or pa.types.is_date(column)):
        return value
    if isinstance(value, str):
        value = date.fromisoformat(value) if pa.types.is_date(column) else datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is None and column.tz is not None:
        return value.astimezone()
    return value
