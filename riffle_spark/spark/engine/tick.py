"""Provide a stream without rows that makes Spark run a batch when something is due although no rows arrive.

Theory of operation. Spark runs a batch without data for its own stateful operators whenever the watermark has advanced.
It does not do this for ``foreachBatch``. So a wrapped query has one more source: a ``MemoryStream`` that never has a
row.

1. Adding zero rows to the stream makes a new offset. Spark plans another batch for it, with its own id, offset entry
   and watermark. This works inside ``foreachBatch``, and in the same run with ``availableNow``.
2. Rows that arrive at this time are in the same batch.
3. A tick is created before each start of a query. ``RunningJob`` passes each batch to it::

    tick = Tick(spark, checkpoint)
    rows = tick.unite_with(rows)  # the input united with the tick, which is the query's last source
    job = RunningJob(operators, settings, spark, reached, watermark_source="spark", tick=tick)
    query = rows.writeStream.foreachBatch(job.process)...start()
    ...
    tick.stop()  # after the end of the query

4. After a restart the stream has no offset until a batch has arrived, so Spark keeps the tick's offset in its
   checkpoint. An offset below it would end the query, and each later start. The checkpoint may advance after it was
   read here, because Spark stops an earlier run of the query only when it starts the new one.
5. Every wrapped query has a tick from its first start on, because Spark's checkpoint fixes the number of sources. A
   query that continues the checkpoint of a ``foreachBatch`` job never has a tick.
"""

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.spark import compat
from riffle_spark.spark.compat.java import items, kind, parameter_count
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.background import Alarm
from riffle_spark.spark.engine.jvm_errors import first_line, is_interruption

_logger = logging.getLogger("riffle_spark")
_STREAMING = "org.apache.spark.sql.execution.streaming"
_STREAMS: Sequence[str] = (f"{_STREAMING}.MemoryStream", f"{_STREAMING}.runtime.MemoryStream")
"""The names of the class in Spark 4.0, and since 4.1."""
_NUMBERS = (f"{_STREAMING}.LongOffset", f"{_STREAMING}.runtime.LongOffset")
_OFFSETS = (f"{_STREAMING}.OffsetSeqLog", f"{_STREAMING}.checkpointing.OffsetSeqLog")
_METADATA = (f"{_STREAMING}.StreamMetadata", f"{_STREAMING}.runtime.StreamMetadata")
_COMMITS = (f"{_STREAMING}.CommitLog", f"{_STREAMING}.checkpointing.CommitLog")
_NEVER = -1
"""The offset of a stream to which nothing was added."""
OFFSET_FORMAT_1: Final = "v1"
"""The first line of an entry of format 1 in the offset log."""
_NOTHING = "-"
"""Spark's entry in the offset log for a source without an offset."""
_TICK_OFFSET = re.compile(r"-?\d*")
_SAME_OFFSET_FORM: Final = ("RateStreamTable", "TextSocketTable", "MemoryStreamTable")
"""The tables of sources whose offsets look like those of a tick."""
_AVAILABLE_NOW = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
_WRAPPER = "AvailableNowMicroBatchStreamWrapper"
_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
"""If it is false, Spark also runs no batch for its own operators when the watermark advances."""
_RETRY_MS = 1_000
"""The delay before a batch for a key that was already due in the previous batch."""
_OFFSET_FORMAT: Final = "spark.sql.streaming.offsetLog.formatVersion"
_NAMED_SOURCES: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""With named sources Spark writes its offset log in format 2."""
_AHEAD = 1_000
"""How far the offset of a start's own batch is ahead of the checkpoint. An earlier run that still ends adds fewer."""


class Tick:
    """The stream without rows for one start of a query."""

    def __init__(self, spark: SparkSession, checkpoint: str, *, by_clock: bool = False, once: bool = False) -> None:
        """Create the tick for a query with this checkpoint.

        With ``by_clock`` keys of the query are due by processing time. Then a restart runs a batch at once, because the
        due time is unknown. With ``once`` the tick starts no batch: as in Spark, due keys wait for rows.
        """
        self._spark = spark
        self._checkpoint = checkpoint
        self._by_clock = by_clock and not once
        self._alarm = Alarm(self._ring)
        self._stream: Any = None
        self._has_offset = False
        self._without_rows = not once and str(spark.conf.get(_NO_DATA, "true")).lower() == "true"
        self._has_warned = False

    def unite_with(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` united with the tick, or ``frame`` alone if its checkpoint was started without a tick.

        Raise ``UnavailableError`` if Spark's checkpoint exists and cannot be read.
        """
        reached = self._reached(frame)
        if reached is None:
            # Cause: A foreachBatch job made the checkpoint. Spark fixes the number of sources in it, so no tick can be
            # added.
            _logger.warning(
                "[RIFFLE-0295] The checkpoint was started without a tick, so due keys wait for rows.\n"
                "  What to do: Do nothing if rows arrive regularly. Otherwise start the query with a new checkpoint, "
                "and move the state to it (riffle adopt)."
            )
            return frame
        self._stream = _stream(frame)
        number, is_batch_due = reached
        if number != _NEVER or is_batch_due:
            compat.prepare_for_commits(self._spark, self._stream, number, _AHEAD)
        if is_batch_due and (self._by_clock or self._without_rows):
            self._set_offset(number + _AHEAD)
            self.now()
        return frame.union(compat.kept_without_rows(DataFrame(self._stream.toDF(), frame.sparkSession)))

    def now(self) -> None:
        """Make Spark run a batch. Any thread may call it."""
        if self._stream is not None:
            self._stream.addData(handles.scala_seq(_jvm(self._spark), []))

    def schedule_next(
        self, batch: DataFrame, incoming: IncomingBatch, clock_ms: int | None, *, by_watermark: bool
    ) -> None:
        """Schedule the next batch at the end of a batch, if anything is due.

        It is due at once if the rows advanced the watermark and ``by_watermark`` is true. Otherwise it is due at
        ``clock_ms``, the first due time by processing time. The batch is committed, so a failure is only logged, once.
        """
        if self._stream is None:
            return
        try:
            if not self._has_offset:
                self._set_offset(_tick_offset((incoming.offsets or _NOTHING).rpartition("\n")[2]))
            if by_watermark and self._without_rows and _advances_watermark(batch, incoming.watermark_ms or 0):
                self.now()
                if incoming.available_now:
                    _admit_latest(batch, self._stream)
            elif clock_ms is not None and not incoming.available_now:
                self._alarm.set(max(clock_ms, incoming.time_ms + _RETRY_MS if clock_ms <= incoming.time_ms else 0))
        except Exception as error:
            if is_interruption(error):
                raise
            if not self._has_warned:
                # Cause: The JVM refused the call. Timers and windows end with the next batch that has rows.
                _logger.warning(
                    "[RIFFLE-0296] Cannot read Spark's watermark. Due keys wait for rows.\n"
                    "  What to do: Do nothing if rows arrive regularly. Otherwise restart the query.",
                    exc_info=error,
                )
            self._has_warned = True

    def stop(self) -> None:
        """Cancel the scheduled batch, and schedule no more. May be called more than once."""
        self._alarm.stop()

    def _set_offset(self, number: int) -> None:
        """Set the stream's offset, once per start. The next batch has a greater one."""
        if number > _NEVER:
            getattr(self._stream, "currentOffset_$eq")(_class_named(self._spark, _NUMBERS)(number))
        self._has_offset = True

    def _ring(self) -> None:
        """Start a batch that is due by processing time. Log errors, because the JVM may be shutting down."""
        try:
            self.now()
        except Exception as error:  # noqa: BLE001 - a JVM that shuts down may raise any error
            _logger.debug("Cannot start a batch by the clock: %s", error)

    def _reached(self, frame: DataFrame) -> tuple[int, bool] | None:
        """Return the tick's offset in the newest entry of Spark's offset log, and whether a batch is due at once.

        A batch is due if the newest batch is committed and advanced the watermark. Return ``None`` if the entry has no
        tick.
        """
        try:
            return _reached(self._spark, self._checkpoint, _sources(frame), by_clock=self._by_clock)
        except ConfigError:
            raise
        except Exception as error:
            # Cause: The newest entry of Spark's offset or commit log is damaged, unreachable, or from another query.
            raise UnavailableError(
                f"Cannot read Spark's checkpoint: {first_line(error)}",
                remedy="Make the checkpoint readable. It must be the query's own, started with riffle_spark.on. If the "
                "newest file in its folder offsets or commits is incomplete, delete this file, and restart the query.",
                where=self._checkpoint,
                id="RIFFLE-0297",
            ) from error


def check_offset_format(spark: SparkSession, checkpoint: str) -> None:
    """Raise ``ConfigError`` if Spark would write the offset log of a new checkpoint in format 2."""
    if not hasattr(DataStreamReader, "name"):
        return  # Spark has both settings since 4.2
    has_names = str(spark.conf.get(_NAMED_SOURCES, "false")).lower() == "true"
    if has_names or str(spark.conf.get(_OFFSET_FORMAT, "1")) != "1":
        raise offset_format_error(checkpoint)


def offset_format_error(checkpoint: str) -> ConfigError:
    """Return the error for a query whose offset log has the offsets of sources by name."""
    # Cause: A tick is the last source of an entry. Format 2 has names of sources instead of an order.
    return ConfigError(
        "The offset log of the query has format 2, which riffle does not support.",
        remedy=f"Set {_OFFSET_FORMAT} to 1 and {_NAMED_SOURCES} to false, remove name() from the sources, and start "
        "with a new checkpoint.",
        where=checkpoint,
        id="RIFFLE-1841",
    )


def _reached(
    spark: SparkSession, checkpoint: str, sources: Sequence[str], *, by_clock: bool
) -> tuple[int, bool] | None:
    """Return the tick's offset in the checkpoint, and whether a batch is due at once. See ``Tick._reached``.

    ``sources`` are the names of the query's sources.
    """
    planned = _newest(spark, _OFFSETS, f"{checkpoint}/offsets")
    if planned is None:
        return _NEVER, False
    batch, (entry_format, metadata, *offsets) = planned
    if entry_format != OFFSET_FORMAT_1:
        raise offset_format_error(checkpoint)
    # With as many offsets as sources there is no tick, unless a source was added since. Then the last one is a tick's.
    if len(offsets) == len(sources) and (sources[-1] in _SAME_OFFSET_FORM or not _TICK_OFFSET.fullmatch(offsets[-1])):
        return None
    number = _tick_offset(offsets[-1])
    committed = _newest(spark, _COMMITS, f"{checkpoint}/commits")
    if committed is None or committed[0] != batch:
        return number, False  # Spark repeats that batch, which schedules the next one
    watermark_ms = json.loads(metadata)["batchWatermarkMs"]
    next_watermark_ms = json.loads(committed[1][1])["nextBatchWatermarkMs"]
    return number, by_clock or next_watermark_ms > watermark_ms


def _tick_offset(line: str) -> int:
    """Return the offset in the tick's line of an offset-log entry."""
    return _NEVER if line == _NOTHING else int(line)


def query_id_in(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query in a checkpoint, or ``None`` if the checkpoint is new.

    Raise ``UnavailableError`` if the checkpoint exists and cannot be read.
    """
    jvm = _jvm(spark)
    try:
        path = handles.looked_up(jvm, "org.apache.hadoop.fs.Path")(f"{checkpoint}/metadata")
        reader = handles.looked_up(jvm, f"{_class(spark, _METADATA).getName()}$", "MODULE$")
        metadata = reader.read(path, handles.session(spark).sessionState().newHadoopConf())
        return str(metadata.get().id()) if metadata.isDefined() else None
    except Exception as error:
        # Cause: The file metadata in the checkpoint's folder is damaged or unreachable.
        raise UnavailableError(
            f"Cannot read the file metadata of Spark's checkpoint: {first_line(error)}",
            remedy="Make the file readable, and restart the query. If it is incomplete, restore it from a backup. It "
            "has the id of the query.",
            where=checkpoint,
            id="RIFFLE-0298",
        ) from error


def _sources(frame: DataFrame) -> list[str]:
    """Return the table class of each streaming leaf, or an empty text if it has no table."""
    leaves = items(frame._jdf.queryExecution().analyzed().collectLeaves())
    streams = [leaf for leaf in leaves if leaf.isStreaming()]
    return [kind(leaf.table()) if kind(leaf) == "StreamingRelationV2" else "" for leaf in streams]


def _newest(spark: SparkSession, names: Sequence[str], path: str) -> tuple[int, list[str]] | None:
    """Return the newest batch id in a log of Spark's checkpoint, and the lines of its entry; ``None`` without one."""
    log = _class_named(spark, names)
    count = parameter_count(_jvm(spark), str(_class(spark, names).getName()))
    spark_log = log(*[handles.session(spark), path, False][:count])
    newest = spark_log.getLatest()
    if not newest.isDefined():
        return None
    out = handles.looked_up(_jvm(spark), "java.io.ByteArrayOutputStream")()
    spark_log.serialize(newest.get()._2(), out)
    return int(newest.get()._1()), str(out.toString()).split("\n")


def _stream(frame: DataFrame) -> Any:
    """Return a new stream with the frame's columns."""
    spark = frame.sparkSession
    schema = handles.looked_up(_jvm(spark), "org.apache.spark.sql.Encoders", "row")(frame._jdf.schema())
    name = str(_class(spark, _STREAMS).getName())
    return handles.looked_up(_jvm(spark), f"{name}$", "MODULE$").apply(
        *compat.STREAM_PARTITIONS, schema, handles.session(spark).sqlContext()
    )


def _advances_watermark(batch: DataFrame, watermark_ms: int) -> bool:
    """Update Spark's watermark tracker from the executed plan; return whether its watermark exceeds ``watermark_ms``.

    Call it after the rows of the batch were read. Spark repeats the update at the end of the batch, which changes
    nothing.
    """
    execution = inventory.running_query(batch)
    tracker = execution.watermarkTracker()
    tracker.updateWatermark(execution.lastExecution().executedPlan())
    return int(tracker.currentWatermark()) > watermark_ms


def _admit_latest(batch: DataFrame, stream: Any) -> None:
    """Make a run of ``availableNow`` read the newest tick.

    Spark 3.5 wraps a stream that does not support the trigger, and reads it only up to the offset at the start of the
    run. Later versions of Spark's stream in memory support the trigger.
    """
    if handles.looked_up(_jvm(batch.sparkSession), "java.lang.Class", "forName")(_AVAILABLE_NOW).isInstance(stream):
        return
    for source in items(inventory.running_query(batch).uniqueSources().keys().toSeq()):
        if kind(source) == _WRAPPER and source.delegate().equals(stream):
            source.prepareForTriggerAvailableNow()


def _class_named(spark: SparkSession, names: Sequence[str]) -> Any:
    """Return the first class in ``names`` that exists, as Py4J's handle of its static members."""
    return handles.looked_up(_jvm(spark), str(_class(spark, names).getName()))


def _class(spark: SparkSession, names: Sequence[str]) -> Any:
    """Return the first class in ``names`` that exists, as a Java ``Class`` object."""
    return handles.first_class(_jvm(spark), tuple(names))


def _jvm(spark: SparkSession) -> Any:
    return handles.context(spark)._jvm
