"""Why executors are gone. Knows what Spark's scheduler and status store say, through the JVM. Does not know what
follows from it.

Spark's words for an executor that was taken away on purpose are "Executor killed by driver." (dynamic allocation, or
somebody's ``killExecutors``), "Executor decommission: ..." (a cloud's notice, or dynamic allocation where
``spark.decommission.enabled`` is set) and, on YARN, "... exited from explicit termination request.". Any other is a
loss, as "Command exited with code 137".
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from riffle_spark.spark import jvm as handles

__all__ = ["planned", "reason_of", "was_planned"]

_PLANNED_WORDS = ("killed by driver", "decommission", "explicit termination request")
_LEAVING = "killed by driver or decommission, not gone yet"
_UNKNOWN = ""
_TOLD_AFTER_SECONDS = 1.0
_POLL_SECONDS = 0.05


def planned(spark: SparkSession, executors: Iterable[str]) -> frozenset[str]:
    """Return which of these executors, which get no tasks any more, were or are being taken away on purpose."""
    deadline = time.monotonic() + _TOLD_AFTER_SECONDS
    return frozenset(name for name in executors if was_planned(reason_of(spark, name, deadline)))


def was_planned(reason: str) -> bool:
    """Tell from Spark's words whether an executor was taken away on purpose, not lost."""
    return any(word in reason.lower() for word in _PLANNED_WORDS)


def reason_of(spark: SparkSession, executor: str, deadline: float) -> str:
    """Return why Spark gives an executor no tasks any more, in Spark's words; nothing where it does not tell.

    The reason comes a little after the executor went, so it is asked for until ``deadline`` (of ``time.monotonic``).
    """
    if not handles.is_classic(spark):
        return _UNKNOWN
    context = handles.context(spark)._jsc.sc()
    while True:
        try:
            found = _told(context, executor)
        except Exception:  # noqa: BLE001 - whatever a JVM may raise: the reason only hastens what happens anyway
            return _UNKNOWN
        if found is not None or time.monotonic() >= deadline:
            return found or _UNKNOWN
        time.sleep(_POLL_SECONDS)


def _told(context: Any, executor: str) -> str | None:
    backend, summary = context.schedulerBackend(), context.statusStore().executorSummary(executor)
    if summary.removeReason().isDefined():
        return str(summary.removeReason().get())
    leaving = backend.executorsPendingToRemove().contains(executor)
    return _LEAVING if leaving or backend.executorsPendingDecommission().contains(executor) else None
