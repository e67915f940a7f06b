"""Run a query on both engines over the same batches."""

import statistics
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import Row

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from riffle_spark.spark.command_session import made_by
from riffle_spark.spark.plans.plan_nodes import analysed, items
from riffle_spark.spark.queries.replaced_streams import Replace, replacing_streams
from riffle_spark.spark.queries.stream_options import StreamOptions
from riffle_spark.spark.shadow import row_comparison
from riffle_spark.spark.shadow.recorded_streams import RecordedBatch, RecordedStream, Recordings

Engine: TypeAlias = Literal["spark", "riffle"]
Query: TypeAlias = Callable[[SparkSession], "DataFrame | DataStreamWriter"]
_ENGINES: Final[tuple[Engine, Engine]] = ("spark", "riffle")
_ENGINE_NAMES: Final = {"spark": "Spark's own operators", "riffle": "riffle"}
_WITH_REFERENCE: Final = "CTERelationRef"
"""A leaf that refers to a part of SQL's WITH clause. The streams of that part are leaves of the same plan."""
_SCHEMA_CHECK: Final = "spark.sql.streaming.stateStore.stateSchemaCheck"
_EXAMPLES: Final = 3
_WARM_UP: Final = 3
"""The first batches compile code, so the times of at most this many are left out."""


@dataclass(frozen=True, slots=True)
class BatchDifference:
    """A batch whose rows differ: its number from 0, how many rows only one engine returned, and examples of them as
    dictionaries.
    """

    batch: int
    only_spark: int
    only_riffle: int
    spark_examples: tuple[dict[str, object], ...]
    riffle_examples: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Medians and sums of an engine.

    ``batch_seconds``: the median time of a batch, after up to three batches; ``None`` without batches. ``state_rows``:
    the rows of state at the end. ``memory_bytes``: the largest ``memoryUsedBytes`` of the state operators. For Spark
    this is the memory of its state stores, for riffle the peak memory of a Python worker.
    """

    batch_seconds: float | None
    state_rows: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The result of ``shadow``.

    ``batches`` and ``input_rows`` count what both engines ran, ``output_rows`` what Spark returned. ``close_rows``
    counts rows that differ only in floating-point numbers within the tolerance, or in the order of a list. They count
    as equal. ``columns`` is empty if the result has the same columns on both sides, and otherwise describes both.
    """

    batches: int
    input_rows: int
    output_rows: int
    close_rows: int
    columns: str
    differences: tuple[BatchDifference, ...]
    spark: EngineFigures
    riffle: EngineFigures

    @property
    def is_equal(self) -> bool:
        """Whether both engines returned the same rows in each batch."""
        return not self.differences and not self.columns

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON object. Values that JSON lacks have to be written as text."""
        return {**asdict(self), "is_equal": self.is_equal}


def shadow(
    query: Query,
    *,
    spark: SparkSession,
    folder: str,
    root: str,
    local_dir: str | None = None,
    batches: int | None = None,
    follow_seconds: float | None = None,
    tolerance: float = 1e-9,
) -> ShadowReport:
    """Run a query on Spark's own operators and on riffle over the same batches, and compare their rows.

    The streams that the query passes to ``riffle_spark.on`` are recorded batch by batch, and each batch is run by both
    engines in turn. The query's sink, trigger and name are replaced, so nothing is delivered. The root and the
    checkpoint of the query are not used.

    Parameters:
        query: gets the session, and returns a frame of ``riffle_spark.on`` or its writer. It is called three times.
        spark: the session. Its settings, such as the provider of state stores, are those of Spark's own run.
        folder: an empty folder for the recorded rows and for checkpoints, which all executors can reach.
        root: an empty place for the state of riffle.
        local_dir: the folder for local copies, by default that of the query's settings.
        batches: the number of batches to compare, by default all.
        follow_seconds: follow the sources for this time. By default they are read up to their present end.
        tolerance: the relative difference up to which floating-point numbers are equal.

    Raises ``ConfigError`` if the function does not return a query of ``riffle_spark.on``, if it has another stream, and
    if the query fails on one engine. Errors of the sources are Spark's.
    """
    streams = _streams_of(query, spark, folder)
    sides = {
        "spark": _Side("spark", query, spark, streams, folder, lambda frame, _options: (frame, None)),
        "riffle": _Side("riffle", query, spark, streams, folder, _moved_options(root, local_dir)),
    }
    compared: list[_Compared] = []
    with Recordings(streams, follow_seconds) as recordings, _stopping(list(sides.values())):
        while batches is None or len(compared) < batches:
            batch = recordings.next_batch()
            if not batch:
                break
            results = {engine: sides[engine].run(batch) for engine in _ENGINES}
            difference = row_comparison.compare_rows(results["spark"], results["riffle"], tolerance)
            compared.append(
                _Compared(sum(part.rows for part in batch), len(results["spark"]), difference, sides["spark"].columns)
            )
    return _report(compared, sides["spark"], sides["riffle"])


@dataclass(frozen=True, slots=True)
class _Compared:
    """The comparison of a batch. ``columns`` are the names of the columns of its rows."""

    input_rows: int
    output_rows: int
    difference: row_comparison.Difference
    columns: tuple[str, ...]


def _report(compared: Sequence[_Compared], spark: "_Side", riffle: "_Side") -> ShadowReport:
    """Return the report of all batches."""
    is_same = spark.schema == riffle.schema
    return ShadowReport(
        batches=len(compared),
        input_rows=sum(batch.input_rows for batch in compared),
        output_rows=sum(batch.output_rows for batch in compared),
        close_rows=sum(batch.difference.close for batch in compared),
        columns="" if is_same else f"Spark: {spark.schema}; riffle: {riffle.schema}",
        differences=tuple(
            _batch_difference(number, batch) for number, batch in enumerate(compared) if not batch.difference.is_equal
        ),
        spark=spark.figures(),
        riffle=riffle.figures(),
    )


def _batch_difference(number: int, batch: _Compared) -> BatchDifference:
    """Return the difference of a batch, with examples."""

    def examples(rows: Sequence[row_comparison.Row]) -> tuple[dict[str, object], ...]:
        shown = sorted(rows, key=repr)[:_EXAMPLES]
        return tuple(dict(zip(batch.columns, row, strict=True)) for row in shown)

    difference = batch.difference
    return BatchDifference(
        number,
        len(difference.only_spark),
        len(difference.only_riffle),
        examples(difference.only_spark),
        examples(difference.only_riffle),
    )


def _streams_of(query: Query, spark: SparkSession, folder: str) -> list[RecordedStream]:
    """Return the streams that a query passes to ``riffle_spark.on``. Raises ``ConfigError`` if there are none."""
    streams: list[RecordedStream] = []

    def collect(frame: DataFrame, options: StreamOptions) -> tuple[DataFrame, StreamOptions]:
        if _reads_recordings(frame, folder):  # It is wrapped again, such as the result of spark.sql.
            return frame, options
        streams.append(RecordedStream(frame, f"{folder}/stream-{len(streams)}"))
        return streams[-1].stream("riffle"), options

    result = _call(query, spark, collect)
    if not isinstance(result, DataFrame | DataStreamWriter):
        raise ConfigError(
            f"The function returned a {type(result).__name__}, not a frame or its writer.",
            remedy="Return the wrapped frame, or frame.writeStream with its output mode. Do not start the query.",
            where="query",
            id="RIFFLE-1681",
        )
    if not streams:
        raise ConfigError(
            "The function did not call riffle_spark.on.",
            remedy="Pass each stream to riffle_spark.on within the function.",
            where="query",
            id="RIFFLE-1682",
        )
    return streams


def _call(query: Query, spark: SparkSession, replace_stream: Replace) -> "DataFrame | DataStreamWriter":
    """Call the function of the query, with its streams replaced. Raises ``ConfigError`` if Spark refuses its frames."""
    with replacing_streams(replace_stream):
        return made_by(query, spark)


def _moved_options(root: str, local_dir: str | None) -> Replace:
    """Return a replacement of options that moves the state to ``root``."""

    def replace_options(frame: DataFrame, options: StreamOptions) -> tuple[DataFrame, StreamOptions]:
        settings = (options.settings or Settings()).but(root=root)
        if local_dir is not None:
            settings = settings.but(local_dir=local_dir)
        return frame, replace(options, root=root, settings=settings)

    return replace_options


@contextmanager
def _stopping(sides: "Sequence[_Side]") -> Iterator[None]:
    """Stop the queries of all sides at the end."""
    try:
        yield
    finally:
        for side in sides:
            side.stop()


@dataclass
class _Side:
    """The query on one engine.

    A query that reads one stream runs on. If it reads several, or one of them twice, it is started for each batch,
    because a running query may see a batch's file in one stream before that in another.
    """

    engine: Engine
    query: Query
    spark: SparkSession
    streams: Sequence[RecordedStream]
    folder: str
    options: Replace
    schema: str = ""
    columns: tuple[str, ...] = ()
    _active: StreamingQuery | None = None
    _restarts: bool = False
    _rows: dict[int, list[Row]] = field(default_factory=dict)
    _seconds: list[float] = field(default_factory=list)
    _last_batch: int = -1
    _state_rows: int = 0
    _memory_bytes: int = 0

    def run(self, batch: Sequence[RecordedBatch]) -> list[row_comparison.Row]:
        """Run a batch, and the batches without rows that follow it. Return their rows.

        Raises ``ConfigError`` if the query fails.
        """
        for part in batch:
            part.feed(self.engine)
        self._rows.clear()
        try:
            if self._active is None or self._restarts:
                writer = self._writer()
                self._restarts = len(_streams_in(writer._df)) > 1  # private: as in _check_streams
                self._active = (writer.trigger(availableNow=True) if self._restarts else writer).start()
            if self._restarts:
                self._active.awaitTermination()
            else:
                self._active.processAllAvailable()
        except PySparkException as error:
            raise ConfigError(
                f"The query fails on {_ENGINE_NAMES[self.engine]}: {error}",
                remedy=f"Set {_SCHEMA_CHECK} to false in this session: Spark 3.5 cannot restart such a join with it."
                if _SCHEMA_CHECK in str(error)
                else "Correct the query, or compare one that both engines run.",
                where="riffle shadow",
                id="RIFFLE-1683",
            ) from error
        self._read_progress(self._active)
        return [tuple(row) for _, rows in sorted(self._rows.items()) for row in rows]

    def stop(self) -> None:
        """Stop the query."""
        if self._active is not None:
            self._active.stop()

    def figures(self) -> EngineFigures:
        """Return the figures of all batches."""
        seconds = self._seconds[min(_WARM_UP, len(self._seconds) - 1) :]
        return EngineFigures(statistics.median(seconds) if seconds else None, self._state_rows, self._memory_bytes)

    def _writer(self) -> DataStreamWriter:
        """Call the function on the fed streams, and return its writer with our sink and checkpoint."""
        remaining = list(self.streams)

        def on_fed_rows(frame: DataFrame, options: StreamOptions) -> tuple[DataFrame, StreamOptions | None]:
            if _reads_recordings(frame, self.folder):
                return self.options(frame, options)
            if not remaining:
                # Cause: The function depends on something besides its argument.
                raise ConfigError(
                    f"The function called riffle_spark.on {len(self.streams)} times, and more often when repeated.",
                    remedy="Let the function return the same query each time.",
                    where="query",
                    id="RIFFLE-1685",
                )
            return self.options(remaining.pop(0).stream(self.engine), options)

        result = _call(self.query, self.spark, on_fed_rows)
        writer = result.writeStream if isinstance(result, DataFrame) else result
        _check_streams(writer, self.folder)
        writer = writer.foreachBatch(self._take).trigger(processingTime="0 seconds")
        writer = writer.queryName(f"riffle-shadow-{self.engine}-{uuid.uuid4().hex[:8]}")
        return writer.option("checkpointLocation", f"{self.folder}/{self.engine}-checkpoint")

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        """Keep the rows of a batch: the sink."""
        self.columns = tuple(rows.columns)
        self.schema = rows.schema.simpleString()
        self._rows[batch_id] = rows.collect()

    def _read_progress(self, query: StreamingQuery) -> None:
        """Add the time of the batches since the last call, and read rows and memory of the state."""
        seconds = 0.0
        for progress in query.recentProgress:
            if progress["batchId"] <= self._last_batch or "addBatch" not in progress["durationMs"]:
                continue
            self._last_batch = progress["batchId"]
            seconds += progress["durationMs"]["triggerExecution"] / 1000
            operators = progress["stateOperators"]
            self._state_rows = sum(operator["numRowsTotal"] for operator in operators)
            memory = [operator["memoryUsedBytes"] for operator in operators]
            used = max(memory, default=0) if self.engine == "riffle" else sum(memory)
            self._memory_bytes = max(self._memory_bytes, used)
        self._seconds.append(seconds)


def _check_streams(writer: DataStreamWriter, folder: str) -> None:
    """Raise ``ConfigError`` if a query has a stream besides the recorded ones."""
    for stream in _streams_in(writer._df):  # private: Spark's writer has no public property for its frame
        if folder not in stream:
            raise ConfigError(
                f"The query reads a stream that was not passed to riffle_spark.on: {stream}",
                remedy="Pass each stream to riffle_spark.on, so that both engines read the same rows of it.",
                where="query",
                id="RIFFLE-1684",
            )


def _reads_recordings(frame: DataFrame, folder: str) -> bool:
    """Return whether a frame reads recorded streams."""
    return any(folder in stream for stream in _streams_in(frame))


def _streams_in(frame: DataFrame) -> list[str]:
    """Return a description of each stream that a frame reads, with its folder."""
    leaves = [leaf for leaf in items(analysed(frame).collectLeaves()) if leaf.isStreaming()]
    return [str(leaf.toString()) for leaf in leaves if str(leaf.nodeName()) != _WITH_REFERENCE]
