"""The way to Spark's JVM, behind one getter; what is asked of a kept frame and of jobs there; and how an interruption
looks that comes from there. With ``inventory`` and ``placed`` all of Spark's that is private: docs/spark-internals.md.
"""

import time
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "NoJvm",
    "Py4JJavaError",
    "context",
    "frame_of",
    "is_classic",
    "is_interruption",
    "is_same",
    "logical_rdd",
    "module",
    "observed",
    "release",
    "running_seconds",
    "scala_seq",
    "session",
    "sized",
]


_LONG_BYTES = 8
_TASKS = 10_000
_RUNNING = "RUNNING"
_INTERRUPTIONS = ("java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException")


class NoJvm(Exception):
    """This session has no JVM handle, as with Spark Connect."""


def is_classic(spark: SparkSession) -> bool:
    """Tell whether the session runs in a process with a JVM handle."""
    return hasattr(spark, "_jsparkSession")


def is_same(spark: SparkSession, other: SparkSession | None) -> bool:
    """Tell whether two objects are one session: Spark wraps the JVM's anew for every micro-batch."""
    if spark is other or other is None or not (is_classic(spark) and is_classic(other)):
        return spark is other
    return bool(spark._jsparkSession == other._jsparkSession)


def context(spark: SparkSession) -> Any:
    """Return the SparkContext, or raise ``NoJvm``."""
    if not is_classic(spark):
        raise NoJvm("Spark Connect has no SparkContext")
    return spark.sparkContext


def session(spark: SparkSession) -> Any:
    """Return the JVM's session, or raise ``NoJvm``."""
    if not is_classic(spark):
        raise NoJvm("Spark Connect has no JVM session")
    return spark._jsparkSession


def observed(frame: DataFrame, name: str) -> int | None:
    """Return the number that a frame observed under a name while it was computed, or ``None`` if Spark does not tell.

    It is read from the plan that ran. What Spark's listener bus tells may be dropped under load. Spark Connect tells
    nothing of a frame that is kept.
    """
    if not is_classic(frame.sparkSession):
        return None
    row = frame._jdf.queryExecution().observedMetrics().get(name)
    return int(row.get().getLong(0)) if row.isDefined() else None


def checkpointed(frame: DataFrame) -> Any:
    """Return the RDD of a local checkpoint."""
    return frame._jdf.queryExecution().analyzed().rdd()


def release(frame: DataFrame) -> None:
    """Drop what a local checkpoint keeps."""
    checkpointed(frame).unpersist(False)


def sized(frame: DataFrame) -> DataFrame:
    """Return a frame of the rows of a local checkpoint whose plan has their size, as Spark's block managers know it."""
    spark, leaf, rdd = frame.sparkSession, frame._jdf.queryExecution().analyzed(), checkpointed(frame)
    jvm = context(spark)._jvm
    kept = [info for info in context(spark)._jsc.sc().getRDDStorageInfo() if info.id() == rdd.id()]
    size = sum(info.memSize() + info.diskSize() for info in kept)
    # Statistics take a Scala BigInt, which Py4J turns into an int at once: those of so many longs stand in for them.
    ranges = module(getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, "Range$"))
    longs = ranges.apply(0, size // _LONG_BYTES + 1, 1, 1)
    plan = logical_rdd(jvm, leaf.output(), rdd, leaf.outputPartitioning(), session(spark), longs.stats())
    return frame_of(spark, plan)


def logical_rdd(jvm: Any, output: Any, rdd: Any, partitioning: Any, session: Any, stats: Any = None) -> Any:
    """Return a plan that is an RDD of rows; its constructor gained a tenth parameter in Spark 4.3."""
    none, nil = module(getattr(jvm.scala, "None$")), scala_seq(jvm, [])
    told = none if stats is None else jvm.scala.Some(stats)
    made = jvm.org.apache.spark.sql.execution.LogicalRDD
    arity = jvm.java.lang.Class.forName(made._fqn).getConstructors()[0].getParameterCount()
    return made(*[output, rdd, partitioning, nil, False, none, session, told, none, False][:arity])


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Return a logical plan as a DataFrame."""
    dataset = module(getattr(context(spark)._jvm.org.apache.spark.sql.classic, "Dataset$"))
    return DataFrame(dataset.ofRows(session(spark), plan), spark)


def module(cls: Any) -> Any:
    """Return the instance of a Scala object."""
    return getattr(cls, "MODULE$")


def scala_seq(jvm: Any, items: list[Any]) -> Any:
    """Return a Scala Seq of the items."""
    java_list = jvm.java.util.ArrayList()
    for item in items:
        java_list.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(java_list).toSeq()


def running_seconds(spark: SparkSession, tag: str) -> dict[str, float]:
    """Return for how many seconds the tasks of the jobs with this tag have run, by executor; nothing where Spark does
    not tell.
    """
    jvm, found = context(spark)._jsc.sc(), dict[str, float]()
    with suppress(Exception):
        for job in jvm.statusTracker().getJobIdsForTag(tag):
            for stage in jvm.statusTracker().getJobInfo(job).get().stageIds():
                tasks = jvm.statusStore().taskList(stage, 0, _TASKS)
                for task in (tasks.apply(at) for at in range(tasks.size())):
                    if str(task.status()) == _RUNNING:
                        found[str(task.executorId())] = time.time() - task.launchTime().getTime() / 1000
    return found


class Py4JJavaError(Exception):
    """Reads in a traceback like the error of the same name that Spark looks for."""

    def __str__(self) -> str:
        return "An error occurred while calling foreachBatch.\n: java.lang.InterruptedException: the query was stopped"


Py4JJavaError.__module__ = "py4j.protocol"


def is_interruption(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, is Spark's interruption of the batch."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if any(name in str(link) for name in _INTERRUPTIONS):
            return True
        link = link.__cause__ or link.__context__
    return False
