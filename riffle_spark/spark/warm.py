"""Python on executors, started beside a query's start instead of inside its first batch. Knows threads and executors as
they come. Does not know any job.
"""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import SparkSession

from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.spark.job import home_of, settings_of

__all__ = ["warm_up"]

_logger = logging.getLogger("riffle_spark")
_POLL_SECONDS = 0.2


def warm_up(spark: SparkSession, settings: Settings | None = None) -> threading.Thread:
    """Start Python workers on the executors as they come, beside what the caller does next; return at once.

    Call it as soon as there is a session: while the driver prepares its query, executors are idle, and the first batch
    then finds workers that have imported all they need and hold a client of the store. It ends when as many executors
    are ready as a start waits for, or after ``initial_rebalance_delay``. Nothing depends on it: what fails is logged at
    level debug, and the first batch does it then. The thread is returned for those who want to wait.

    >>> warm_up(spark)  # doctest: +SKIP
    """
    thread = threading.Thread(target=_warm_up, args=(spark, settings), name="riffle-warm-up", daemon=True)
    thread.start()
    return thread


def _warm_up(spark: SparkSession, given: Settings | None) -> None:
    try:
        settings = settings_of(spark, given)
        home, expected = home_of(spark, settings), inventory.expected_executors(spark, settings)
        cluster, ready = SparkCluster(spark), set[str]()
        deadline = time.monotonic() + settings.initial_rebalance_delay
        while len(ready) < expected and time.monotonic() < deadline:
            new = [executor for executor in inventory.executors(spark) if executor.id not in ready]
            cluster.warm(new, home, settings.upkeep_timeout)
            ready.update(executor.id for executor in new)
            time.sleep(0 if new else _POLL_SECONDS)
    except Exception as error:  # nothing depends on it
        _logger.debug("executors were not warmed up: %s", error, exc_info=error)
