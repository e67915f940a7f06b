"""What Spark knows about its executors and about the running micro-batch. Knows the JVM handle and what stands in for
it.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.ports import Executor, Incoming
from riffle_spark.settings import Settings
from riffle_spark.spark import jvm as handles
from riffle_spark.worker.place import LOCAL_EXECUTOR

__all__ = [
    "application_id",
    "await_executors",
    "batch_facts",
    "executors",
    "expected_executors",
    "unbounded_kafka_source",
]

_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
_POLL_SECONDS = 0.2
_CONNECT_SLOTS = 4
"""Slots where nobody tells how many cores there are (Spark Connect): the number of hash-placed tasks."""


def application_id(spark: SparkSession) -> str:
    """Return the id of the Spark application."""
    return str(spark.conf.get("spark.app.id", "application") or "application")


def executors(spark: SparkSession) -> tuple[Executor, ...]:
    """Return the live executors, sorted by id. In local mode and with Spark Connect that is one, of all cores."""
    if not handles.is_classic(spark):
        return (Executor(LOCAL_EXECUTOR, "", _CONNECT_SLOTS),)
    context = handles.context(spark)
    listed = context._jsc.sc().statusStore().executorList(True)
    found = [_executor(listed.apply(index)) for index in range(listed.size())]
    others = sorted(executor for executor in found if executor.id != LOCAL_EXECUTOR)
    if others or not _is_local(context):
        return tuple(others)
    return (Executor(LOCAL_EXECUTOR, "", context.defaultParallelism),)


def _is_local(context: Any) -> bool:
    """Tell whether the driver is the one executor; ``local-cluster`` has executors of its own."""
    return re.match(r"local(\[.*])?\Z", str(context.master)) is not None


def expected_executors(spark: SparkSession, settings: Settings) -> int:
    """Return how many executors a start waits for: ``expected_executors``, else ``spark.executor.instances``, else one.

    One where none can come: in local mode and with Spark Connect.
    """
    if not handles.is_classic(spark) or _is_local(handles.context(spark)):
        return 1
    return settings.expected_executors or int(spark.conf.get("spark.executor.instances", "1") or 1)


def await_executors(spark: SparkSession, settings: Settings, expected: int = 1) -> tuple[Executor, ...]:
    """Return the live executors once there are as many as expected, or after ``initial_rebalance_delay`` those there
    are.

    Raises ``UnavailableError`` if there is none at all.
    """
    deadline = time.monotonic() + settings.initial_rebalance_delay
    found = executors(spark)
    while len(found) < expected and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        found = executors(spark)
    if not found:
        raise UnavailableError(
            f"no executor came within {settings.initial_rebalance_delay:g} s",
            remedy="look at the cluster's resources, or raise initial_rebalance_delay",
            where="initial_rebalance_delay",
        )
    return found


def _executor(summary: Any) -> Executor:
    host = str(summary.hostPort()).rsplit(":", 1)[0]
    return Executor(str(summary.id()), host, max(1, int(summary.totalCores())))


def batch_facts(batch: DataFrame, batch_id: int, now_ms: int) -> Incoming:
    """Return what identifies a micro-batch: query, run, Spark's own offset-log entry, batch time and watermark.

    Without a JVM handle the rows' digest stands in for the offset log and ``now_ms`` for the batch's time.
    """
    spark = batch.sparkSession
    if not handles.is_classic(spark):
        return _connect_facts(batch, batch_id, now_ms)
    context = handles.context(spark)
    query_id, run_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_RUN_ID)
    execution = _execution(spark, query_id) if query_id else None
    if execution is None:
        return Incoming(batch_id, query_id or "direct", run_id or "direct", None, _digest(batch), now_ms, None)
    offsets = _offset_entry(context, execution, batch_id)
    metadata = json.loads(offsets.split("\n")[1])
    watermark = int(metadata["batchWatermarkMs"]) or None
    return Incoming(batch_id, query_id, run_id, offsets, None, int(metadata["batchTimestampMs"]), watermark)


def _execution(spark: SparkSession, query_id: str) -> Any:
    """Return the running query. The batch's session is a clone, so it is looked up where all sessions share it."""
    uuid = handles.context(spark)._jvm.java.util.UUID.fromString(query_id)
    return handles.session(spark).sharedState().activeStreamingQueries().get(uuid)


def _offset_entry(context: Any, execution: Any, batch_id: int) -> str:
    log = execution.offsetLog()
    out = context._jvm.java.io.ByteArrayOutputStream()
    log.serialize(log.get(batch_id).get(), out)
    return str(out.toString())


def _connect_facts(batch: DataFrame, batch_id: int, now_ms: int) -> Incoming:
    active = batch.sparkSession.streams.active
    known = active[0] if len(active) == 1 else None
    query_id = str(known.id) if known else "connect"
    return Incoming(batch_id, query_id, str(known.runId) if known else "connect", None, _digest(batch), now_ms, None)


def _digest(batch: DataFrame) -> str:
    """Return a digest of the rows, whatever their order: their number and the sum of their hashes."""
    each = F.xxhash64(F.to_json(F.struct(*[F.col("`" + name.replace("`", "``") + "`") for name in batch.columns])))
    row = batch.agg(F.count(F.lit(1)), F.sum(each.cast("decimal(38,0)"))).collect()[0]
    return f"{row[0]}:{row[1]}"


def unbounded_kafka_source(batch: DataFrame) -> bool:
    """Tell whether the query reads Kafka without ``maxOffsetsPerTrigger``. ``False`` where that cannot be known."""
    spark = batch.sparkSession
    if not handles.is_classic(spark):
        return False
    query_id = handles.context(spark).getLocalProperty(_QUERY_ID)
    execution = _execution(spark, query_id) if query_id else None
    text = str(execution.uniqueSources().toString()) if execution is not None else ""
    return "Kafka" in text and "All Available" in text
