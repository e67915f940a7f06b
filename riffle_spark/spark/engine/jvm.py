"""Access Spark's JVM: its classes and sessions, frames and plans, and running tasks.

docs/spark-internals.md lists every private name of Spark.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

from pyspark import SparkContext, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riffle_spark.spark import compat
from riffle_spark.spark.compat.java import (
    MODULE,
    cache_of,
    first_class,
    items,
    looked_up,
    nil,
    parameter_count,
    scala_seq,
)
from riffle_spark.spark.engine.jvm_errors import is_interruption

__all__ = [
    "NoJvm",
    "active",
    "add_pool",
    "cogrouped",
    "context",
    "first_class",
    "frame_of",
    "in_session",
    "is_classic",
    "is_in_execution",
    "is_same",
    "logical_rdd",
    "looked_up",
    "mapped_rdd",
    "observed",
    "rdd_frame_of",
    "rdd_of",
    "release",
    "removals_since",
    "row_tag",
    "running_seconds",
    "scala_seq",
    "sent_files",
    "session",
    "session_conf",
    "setting",
    "store_rdd",
]


_logger = logging.getLogger("riffle_spark")
_ROW = "org.apache.spark.sql.catalyst.InternalRow"
_EXECUTION_ID = "spark.sql.execution.id"
_LOGICAL_RDD = "org.apache.spark.sql.execution.LogicalRDD"
_MAPPED_RDD = "org.apache.spark.rdd.MapPartitionsRDD"
_SCHEDULER = "org.apache.spark.scheduler"
_FAIR = "FAIR"
_SEPARATOR = "\x1f"
"""A character that no setting contains."""
_TASKS = 10_000
_STATUS = "org.apache.spark.status.api.v1"
T = TypeVar("T")


class NoJvm(Exception):
    """This session has no JVM handle, as with Spark Connect."""


def is_classic(spark: SparkSession) -> bool:
    """Return whether the session has a JVM handle."""
    return hasattr(spark, "_jsparkSession")


def is_same(spark: SparkSession, earlier: SparkSession | None) -> bool:
    """Return whether two Python objects wrap the same JVM session.

    Spark makes a new wrapper for every micro-batch.
    """
    if spark is earlier or earlier is None or not (is_classic(spark) and is_classic(earlier)):
        return spark is earlier
    return bool(spark._jsparkSession == earlier._jsparkSession)


def context(spark: SparkSession) -> Any:
    """Return the SparkContext. Raise ``NoJvm`` with Spark Connect."""
    if not is_classic(spark):
        raise NoJvm("Spark Connect has no SparkContext")
    return spark.sparkContext


def session(spark: SparkSession) -> Any:
    """Return the JVM's session. Raise ``NoJvm`` with Spark Connect."""
    if not is_classic(spark):
        raise NoJvm("Spark Connect has no JVM session")
    return spark._jsparkSession


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make ``spark`` the active session of this thread within the block.

    A thread that the caller started has no active session.
    """
    sessions = looked_up(context(spark)._jvm, f"{compat.CLASSIC}.SparkSession")
    previous = sessions.getActiveSession()
    sessions.setActiveSession(session(spark))
    try:
        yield
    finally:
        sessions.setActiveSession(previous.get()) if previous.isDefined() else sessions.clearActiveSession()


def in_session(spark: SparkSession, call: Callable[[], T]) -> T:
    """Return the result of a call. If it fails, call again with ``spark`` as the active session of this thread.

    A thread that the caller started has no active session. Setting it takes calls to the JVM, so the first call is made
    without. An interruption of the batch is raised at once.
    """
    try:
        return call()
    except Exception as error:
        if is_interruption(error):
            raise
        _logger.debug("Call again with an active session after an error: %s", error)
        with active(spark):
            return call()


def session_conf(spark: SparkSession) -> dict[str, str]:
    """Return a session's configuration in a single call. PySpark's ``conf.getAll`` makes two calls per setting."""
    text = str(session(spark).conf().getAll().mkString(_SEPARATOR))
    pairs = (line.partition(" -> ") for line in text.split(_SEPARATOR) if line)
    return {key: value for key, _, value in pairs}


@contextmanager
def setting(spark: SparkSession, name: str, value: str, *, keeps_users: bool = False) -> Iterator[None]:
    """Set a Spark setting within the block. With ``keeps_users``, a value that the user has set stays."""
    conf = session(spark).sessionState().conf()
    previous = conf.getConfString(name) if conf.contains(name) else None
    if keeps_users and previous is not None:
        yield
        return
    conf.setConfString(name, value)
    try:
        yield
    finally:
        conf.unsetConf(name) if previous is None else conf.setConfString(name, previous)


def sent_files(spark: SparkSession) -> tuple[str, ...]:
    """Return the names of the Python files that Spark sends to workers."""
    return tuple(getattr(context(spark), "_python_includes", None) or ())


def cogrouped(left: DataFrame, right: DataFrame, by: str, function: Any, output: StructType) -> DataFrame:
    """Return the frame of a slot function's results, called per value of column ``by`` with the rows of both frames.

    PySpark makes up to ten JVM calls per column for it, so the JVM's methods are called directly. PySpark builds the
    frame with Spark Connect, and if such a call fails.
    """
    spark = left.sparkSession
    if is_classic(spark):
        try:
            return DataFrame(compat.cogrouped_in_jvm(context(spark)._jvm, left, right, by, function, output), spark)
        except Exception as error:  # noqa: BLE001 - the JVM may raise any error; a wrong query fails below as well
            _logger.debug("Cannot cogroup through the JVM: %s", error)
    return compat.cogrouped(left, right, by, function, output)


def observed(frame: DataFrame, name: str) -> int | None:
    """Return the metric ``name`` that a computed frame observed, or ``None`` if it is unknown, as with Spark Connect.

    It is read from the plan that ran, because Spark's listener bus may drop events under load.
    """
    if not is_classic(frame.sparkSession):
        return None
    row = frame._jdf.queryExecution().observedMetrics().get(name)
    return int(row.get().getLong(0)) if row.isDefined() else None


def rdd_of(frame: DataFrame) -> Any:
    """Return the RDD of a frame whose plan is a ``LogicalRDD``."""
    return frame._jdf.queryExecution().analyzed().rdd()


def release(spark: SparkSession, rdd: Any) -> None:
    """Drop the blocks of a local checkpoint on the executors. ``rdd`` is the checkpoint's RDD."""
    _scala_context(context(spark)).unpersistRDD(rdd.id(), False)


@lru_cache(maxsize=1)
def _scala_context(context: SparkContext) -> Any:
    """Return the Scala SparkContext behind PySpark's. It is cached, because each call to the JVM takes time."""
    return context._jsc.sc()


def add_pool(spark: SparkSession, name: str) -> None:
    """Add a pool to Spark's fair scheduler. Spark logs a warning for each pool that it has to add itself."""
    jvm = context(spark)._jvm
    pools = context(spark)._jsc.sc().taskScheduler().rootPool()
    if str(pools.schedulingMode()) == _FAIR and pools.getSchedulableByName(name) is None:
        fifo = looked_up(jvm, f"{_SCHEDULER}.SchedulingMode$", MODULE).FIFO()
        pools.addSchedulable(looked_up(jvm, f"{_SCHEDULER}.Pool")(name, fifo, 0, 1))


def logical_rdd(jvm: Any, output: Any, rdd: Any, partitioning: Any, session: Any) -> Any:
    """Return the logical plan of an RDD of internal rows. The constructor has a tenth parameter since Spark 4.3."""
    none = looked_up(jvm, "scala.None$", MODULE)
    arguments = [output, rdd, partitioning, nil(jvm), False, *compat.no_stream(none), session, none, none, False]
    return looked_up(jvm, _LOGICAL_RDD)(*arguments[: parameter_count(jvm, _LOGICAL_RDD)])


def mapped_rdd(jvm: Any, rdd: Any, function: Any) -> Any:
    """Return an RDD that applies a function of the JVM to each partition of an RDD of internal rows.

    The constructor has one more option since Spark 4.3.
    """
    tag = row_tag(jvm)
    options = [False] * (parameter_count(jvm, _MAPPED_RDD) - 4)
    return looked_up(jvm, _MAPPED_RDD)(rdd, function, *options, tag, tag)


def row_tag(jvm: Any) -> Any:
    """Return the Scala class tag of Spark's internal rows. The constructor of an RDD needs it."""
    cache = cache_of(jvm)
    if "row tag" not in cache:
        row_class = looked_up(jvm, "java.lang.Class", "forName")(_ROW)
        cache["row tag"] = looked_up(jvm, "scala.reflect.ClassTag$", MODULE).apply(row_class)
    return cache["row tag"]


def is_in_execution(spark: SparkSession) -> bool:
    """Return whether Spark runs a SQL execution on this thread, as in ``foreachBatch``.

    Only then do the executors get the settings of the session with each job.
    """
    return context(spark)._jsc.getLocalProperty(_EXECUTION_ID) is not None


def store_rdd(spark: SparkSession, rdd: Any, level: StorageLevel) -> None:
    """Compute an RDD and store its rows on the executors at a storage level, as a local checkpoint of a frame does.

    If a task fails, drop the rows that other tasks stored.
    """
    if level != StorageLevel.MEMORY_AND_DISK:
        rdd.persist(context(spark)._getJavaStorageLevel(level))
    rdd.localCheckpoint()
    try:
        rdd.doCheckpoint()
    except Exception:
        with suppress(Exception):  # An error of the JVM must not hide the error of the tasks.
            release(spark, rdd)
        raise


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Return a logical plan as a DataFrame."""
    dataset = looked_up(context(spark)._jvm, f"{compat.CLASSIC}.Dataset$", MODULE)
    return DataFrame(dataset.ofRows(session(spark), plan), spark)


def schema_json_of(frame: DataFrame) -> str:
    """Return a frame's schema as Spark's JSON, which may have types that PySpark lacks."""
    return str(frame._jdf.schema().json())


def rdd_frame_of(spark: SparkSession, rdd_plan: Any) -> DataFrame:
    """Return the logical plan of an RDD as a DataFrame. The plan is marked as analysed, so Spark skips the analysis."""
    rdd_plan.setAnalyzed()
    return frame_of(spark, rdd_plan)


def running_seconds(spark: SparkSession, tag: str) -> dict[str, float]:
    """Return by executor how long its longest-running task of the jobs with a tag has run, in seconds.

    Raise the JVM's error if Spark cannot list the tasks.
    """
    jvm = context(spark)._jvm
    scala_context = context(spark)._jsc.sc()
    tracker = scala_context.statusTracker()
    statuses = looked_up(jvm, "java.util.ArrayList")()
    statuses.add(looked_up(jvm, f"{_STATUS}.TaskStatus", "RUNNING"))
    sort_by = looked_up(jvm, f"{_STATUS}.TaskSorting", "ID")
    stages = [stage for job in tracker.getJobIdsForTag(tag) for stage in tracker.getJobInfo(job).get().stageIds()]
    longest: dict[str, float] = {}
    for attempt in filter(lambda info: info.isDefined(), map(tracker.getStageInfo, stages)):
        stage = attempt.get()
        tasks = scala_context.statusStore().taskList(
            stage.stageId(), stage.currentAttemptId(), 0, _TASKS, sort_by, statuses
        )
        for task in items(tasks):
            executor = str(task.executorId())
            seconds = time.time() - task.launchTime().getTime() / 1000
            longest[executor] = max(seconds, longest.get(executor, 0.0))
    return longest


def removals_since(spark: SparkSession, seconds: float) -> list[str]:
    """Return Spark's reasons for removing executors since a Unix time in seconds.

    Raise the JVM's error if Spark cannot list the executors.
    """
    listed = items(context(spark)._jsc.sc().statusStore().executorList(False))
    removed = [executor for executor in listed if executor.removeReason().isDefined()]
    return [
        str(executor.removeReason().get())
        for executor in removed
        if executor.removeTime().get().getTime() >= seconds * 1000
    ]
