"""A stream without rows beside a query's input, which has Spark run a batch where nothing came and time has passed.
Knows Spark's streams, its checkpoint and its watermark. Does not know what is due, nor what the batch then does.

Spark's own stateful operators have a batch without data whenever the watermark moved: it closes what is over, and what
comes after it is late by that watermark. Spark plans such a batch for its own operators alone, so a wrapped query has
one source more: a ``MemoryStream`` that never has a row. To add nothing to it is a new offset, and makes Spark plan one
more batch, with its id, its offset entry and its watermark, also from inside ``foreachBatch`` and in the same run under
``availableNow``. Rows that come meanwhile are in the same batch.

One is made for each start of a query, before it is started, and told of each batch by ``RunningJob``::

    tick = Tick(spark, checkpoint)
    rows = tick.beside(rows)  # what is written: the input, and the tick behind it as the query's last source
    job = RunningJob(operators, settings, spark, reached, watermark_source="spark", tick=tick)
    query = rows.writeStream.foreachBatch(job.process)...start()
    ...
    tick.stop()  # once the query has ended

A query has its tick from its first start on, also where nothing can be due: Spark's checkpoint counts sources. One
that goes on from the checkpoint of a job for ``foreachBatch`` never has one.
"""

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.background import Alarm

__all__ = ["Tick", "query_id_in"]

_logger = logging.getLogger("riffle_spark")
_STREAMING = "org.apache.spark.sql.execution.streaming"
_STREAMS: Sequence[str] = (f"{_STREAMING}.MemoryStream", f"{_STREAMING}.runtime.MemoryStream")
"""Where a class is in Spark 4.0, and where from 4.1 on."""
_NUMBERS = (f"{_STREAMING}.LongOffset", f"{_STREAMING}.runtime.LongOffset")
_OFFSETS = (f"{_STREAMING}.OffsetSeqLog", f"{_STREAMING}.checkpointing.OffsetSeqLog")
_METADATA = (f"{_STREAMING}.StreamMetadata", f"{_STREAMING}.runtime.StreamMetadata")
_COMMITS = (f"{_STREAMING}.CommitLog", f"{_STREAMING}.checkpointing.CommitLog")
_NEVER = -1
"""The number of a stream to which nothing was ever added."""
_NOTHING = "-"
"""How Spark's offset log writes that a source has no offset yet."""
_TICKS = re.compile(r"-?\d*")
"""How offsets of a tick are written."""
_ALIKE: Final = ("RateStreamTable", "TextSocketTable", "MemoryStreamTable")
"""The tables of sources whose offsets are written like that, too."""
_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Where that is false, Spark's own operators have no batch either when the watermark moves."""
_AGAIN_MS = 1_000
"""How long a batch is waited for that has something due which the batch before had due too."""


class Tick:
    """The stream without rows of one start of a query. ``checkpoint`` is the query's, ``by_clock`` says whether
    anything of it goes by processing time: then a later start is a tick, since nobody knows yet when it is due.
    A start that is to run one batch alone (``once``) has none: as in Spark, what is due waits for rows.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, *, by_clock: bool = False, once: bool = False) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._by_clock = by_clock and not once
        self._alarm = Alarm(self._ring)
        self._stream: Any = None
        self._without_rows = not once and str(spark.conf.get(_NO_DATA, "true")).lower() == "true"
        self._silent = False

    def beside(self, frame: DataFrame) -> DataFrame:
        """Return a stream with this one behind it, or the stream alone where the checkpoint was begun with it alone.
        Where Spark's class for it is missing, Spark's ``rate`` source stands in for it, which has Spark run a batch
        each second.

        Raises ``UnavailableError`` if Spark's checkpoint is there and cannot be read.
        """
        try:
            self._stream = _stream(frame)
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: the query is dearer without it, not wrong
            _logger.warning(
                "[RIFFLE-0294] Spark runs a batch each second, also when nothing is due: no tick can be made (%s)",
                error,
            )
            return frame.union(_each_second(frame))
        reached = self._reached(frame)
        if reached is None:
            self._stream = None
            _logger.warning(
                "[RIFFLE-0295] the checkpoint was begun without a tick: what is due waits for the next rows"
            )
            return frame
        number, is_behind = reached
        if number > _NEVER:
            offset = _named(self._spark, _NUMBERS)(number)
            self._set("currentOffset", offset)
            self._set("lastOffsetCommitted", offset)
        if is_behind and (self._by_clock or self._without_rows):
            self.now()
        return frame.union(DataFrame(self._stream.toDF(), frame.sparkSession))

    def now(self) -> None:
        """Have Spark run a batch, whatever comes or not. From any thread."""
        if self._stream is not None:
            self._stream.addData(handles.scala_seq(_jvm(self._spark), []))

    def after(self, batch: DataFrame, incoming: IncomingBatch, clock_ms: int | None, *, by_watermark: bool) -> None:
        """Look, at the end of a batch, whether another one has to come: if its rows moved the watermark and anything
        goes ``by_watermark``, or once it is ``clock_ms``, when the first is due that goes by processing time.

        What fails here is a warning, once: the batch is committed, and rows bring the next one.
        """
        if self._stream is None:
            return
        try:
            if by_watermark and self._without_rows and _moves(batch, incoming.watermark_ms or 0):
                self.now()
            elif clock_ms is not None and not incoming.available_now:
                self._alarm.set(max(clock_ms, incoming.time_ms + _AGAIN_MS if clock_ms <= incoming.time_ms else 0))
        except Exception as error:
            if handles.is_interruption(error):
                raise
            if not self._silent:
                _logger.warning(
                    "[RIFFLE-0296] what is due waits for the next rows: Spark does not tell its watermark",
                    exc_info=error,
                )
            self._silent = True

    def stop(self) -> None:
        """Make no batch by the clock any more. Idempotent."""
        self._alarm.stop()

    def _ring(self) -> None:
        try:
            self.now()
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise that has gone
            _logger.debug("no tick by the clock: %s", error)

    def _set(self, name: str, offset: Any) -> None:
        getattr(self._stream, f"{name}_$eq")(offset)

    def _reached(self, frame: DataFrame) -> tuple[int, bool] | None:
        """Return the number that the stream has in the newest entry of Spark's offset log, committed or not, and
        whether a batch is wanted at once: the last one is committed and moved the watermark, and none has had it yet.
        ``None``: that entry has none but the sources of a frame.

        A stream that stands elsewhere would have Spark go back, or never come to rest.
        """
        try:
            return _reached(self._spark, self._checkpoint, _sources(frame), by_clock=self._by_clock)
        except Exception as error:
            raise UnavailableError(
                f"Spark's checkpoint cannot be read: {error}",
                remedy="start the query again once it can; the checkpoint has to be the query's own, from its first "
                "start on through riffle_spark.on",
                where=self._checkpoint,
                id="RIFFLE-0297",
            ) from error


def _reached(
    spark: SparkSession, checkpoint: str, sources: Sequence[str], *, by_clock: bool
) -> tuple[int, bool] | None:
    planned = _newest(spark, _OFFSETS, f"{checkpoint}/offsets")
    if planned is None:
        return _NEVER, False
    batch, (_, metadata, *offsets) = planned
    if len(offsets) == len(sources) and (sources[-1] in _ALIKE or not _TICKS.fullmatch(offsets[-1])):
        return None  # a query that now reads one more stream has as many, and its last one is the tick's
    number = _NEVER if offsets[-1] == _NOTHING else int(offsets[-1])
    committed = _newest(spark, _COMMITS, f"{checkpoint}/commits")
    if committed is None or committed[0] != batch:
        return number, False  # that batch comes again, and tells what is due after it
    seen, next_one = json.loads(metadata)["batchWatermarkMs"], json.loads(committed[1][1])["nextBatchWatermarkMs"]
    return number, by_clock or next_one > seen


def query_id_in(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query that a checkpoint belongs to, ``None`` if it belongs to none yet.

    Raises ``UnavailableError`` if Spark's checkpoint is there and cannot be read.
    """
    jvm = _jvm(spark)
    try:
        path = handles.looked_up(jvm, "org.apache.hadoop.fs.Path")(f"{checkpoint}/metadata")
        reader = handles.looked_up(jvm, f"{_class(spark, _METADATA).getName()}$", "MODULE$")
        found = reader.read(path, handles.session(spark).sessionState().newHadoopConf())
        return str(found.get().id()) if found.isDefined() else None
    except Exception as error:
        raise UnavailableError(
            f"Spark's checkpoint cannot be read: {error}",
            remedy="make the checkpoint's folder readable, and start the query again",
            where=checkpoint,
            id="RIFFLE-0298",
        ) from error


def _sources(frame: DataFrame) -> list[str]:
    """Return what Spark notes offsets of, each leaf of a stream that is one: the class of its table, if it has one."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    streams = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming()]
    return [_kind(leaf.table()) if _kind(leaf) == "StreamingRelationV2" else "" for leaf in streams]


def _kind(of: Any) -> str:
    return str(of.getClass().getSimpleName())


def _newest(spark: SparkSession, names: Sequence[str], path: str) -> tuple[int, list[str]] | None:
    """Return the newest batch in one of Spark's logs, and the lines that it has of it."""
    log = _named(spark, names)
    count = _class(spark, names).getConstructors()[0].getParameterCount()
    opened = log(*[handles.session(spark), path, False][:count])
    newest = opened.getLatest()
    if not newest.isDefined():
        return None
    out = handles.looked_up(_jvm(spark), "java.io.ByteArrayOutputStream")()
    opened.serialize(newest.get()._2(), out)
    return int(newest.get()._1()), str(out.toString()).split("\n")


def _stream(frame: DataFrame) -> Any:
    """Return a new stream of the frame's columns, which nothing was added to."""
    spark = frame.sparkSession
    schema = handles.looked_up(_jvm(spark), "org.apache.spark.sql.Encoders", "row")(frame._jdf.schema())
    name = str(_class(spark, _STREAMS).getName())
    return handles.looked_up(_jvm(spark), f"{name}$", "MODULE$").apply(schema, handles.session(spark).sqlContext())


def _each_second(frame: DataFrame) -> DataFrame:
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.sparkSession.readStream.format("rate").load().where(F.lit(False)).select(*columns)


def _moves(batch: DataFrame, watermark_ms: int) -> bool:
    """Tell whether the next batch will have another watermark than this one, by what this one's rows have told. Spark
    does just this at the end of the batch, and to do it twice changes nothing.
    """
    execution = inventory.running_query(batch)
    tracker = execution.watermarkTracker()
    tracker.updateWatermark(execution.lastExecution().executedPlan())
    return int(tracker.currentWatermark()) > watermark_ms


def _named(spark: SparkSession, names: Sequence[str]) -> Any:
    return handles.looked_up(_jvm(spark), str(_class(spark, names).getName()))


def _class(spark: SparkSession, names: Sequence[str]) -> Any:
    """Return the first of these classes that exists."""
    return handles.first_class(_jvm(spark), tuple(names))


def _jvm(spark: SparkSession) -> Any:
    return handles.context(spark)._jvm
