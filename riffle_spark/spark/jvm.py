"""The way to Spark's JVM, behind one getter. Knows whether there is one. Does not know what it is used for.

The one module without types: py4j has none. Objects of the JVM itself are used only in ``placement``, ``inventory``,
``departures``, ``overdue`` and ``kafka_source``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import Observation, SparkSession

__all__ = ["NoJvm", "context", "is_classic", "is_same", "module", "observed", "scala_seq", "session"]

_OBSERVED_TRIES = 100
_TRY_SECONDS = 0.1


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


def observed(count: Observation, tries: int = _OBSERVED_TRIES) -> Mapping[str, int] | None:
    """Return what was observed in an action, or ``None`` if Spark does not tell within a tenth of a second a try.

    It comes over Spark's listener bus, which drops events under load; ``Observation.get`` would then wait for ever.
    Spark Connect tells nothing of what lies below a kept result.
    """
    answer = getattr(count, "_jo", None)
    if answer is not None and not any(_is_told(answer) for _ in range(tries)):
        return None
    return count.get or None


def _is_told(answer: Any) -> bool:
    """Wait a tenth of a second at most for what was observed. Spark 4.1 and newer have a future in place of a wait."""
    try:
        return not answer.getOrEmpty().isEmpty()
    except Py4JError:
        told = bool(answer.future().isCompleted())
        if not told:
            time.sleep(_TRY_SECONDS)
        return told


def module(cls: Any) -> Any:
    """Return the instance of a Scala object."""
    return getattr(cls, "MODULE$")


def scala_seq(jvm: Any, items: list[Any]) -> Any:
    """Return a Scala Seq of the items."""
    java_list = jvm.java.util.ArrayList()
    for item in items:
        java_list.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(java_list).toSeq()
