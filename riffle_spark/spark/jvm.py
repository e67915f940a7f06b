"""The way to Spark's JVM, behind one getter. Knows whether there is one. Does not know what it is used for.

The one module without types: py4j has none. Objects of the JVM itself are used only in ``placement``, ``inventory``,
``departures``, ``kept`` and ``overdue``.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "NoJvm",
    "checkpointed",
    "context",
    "frame_of",
    "is_classic",
    "is_same",
    "logical_rdd",
    "module",
    "observed",
    "scala_seq",
    "session",
]


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
