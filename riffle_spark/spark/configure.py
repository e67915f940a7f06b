"""What a session needs at start, and executors whose Python is started before a query's first batch. Knows Spark's
settings that placement depends on. Does not know any job.
"""

import logging
import os
import threading
import time

import pyspark
from pyspark import SparkConf
from pyspark.sql import SparkSession

from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.spark.job_wiring import home_of, settings_of

__all__ = ["configure", "connector", "warm_up"]

_logger = logging.getLogger("riffle_spark")
_WANTED = {
    "spark.locality.wait": "3s",
    "spark.locality.wait.node": "0",
    "spark.locality.wait.rack": "0",
    "spark.scheduler.mode": "FAIR",
}
_PACKAGES = "spark.jars.packages"
_JARS = "spark.jars"
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_POLL_SECONDS = 0.2


def configure(builder: SparkSession.Builder, *, kafka: bool = True) -> SparkSession.Builder:
    """Set on ``builder`` what placement needs at context start, and add the matching Kafka connector.

    A setting of yours stays as it is; where it gets in the way of placement, a warning says so. The connector is
    added to ``spark.jars.packages`` unless a Kafka connector is named there or in ``spark.jars``. Under
    ``spark-submit`` packages must be given on its command line (``--packages``), which a warning repeats.

    >>> spark = configure(SparkSession.builder.appName("totals")).getOrCreate()  # doctest: +SKIP
    """
    present = _present(builder)
    for name, wanted in _WANTED.items():
        if name not in present:
            builder = builder.config(name, wanted)
        elif present[name] != wanted:
            _logger.warning(
                "[RIFFLE-0271] %s stays %s as you set it; riffle places best with %s", name, present[name], wanted
            )
    return _with_connector(builder, present) if kafka else builder


def _present(builder: SparkSession.Builder) -> dict[str, str]:
    """Return what is set already: on the builder, by ``spark-submit`` and in spark-defaults.conf."""
    conf = dict(SparkConf().getAll()) if _submitted() else {}
    options: dict[str, object] = getattr(builder, "_options", {})
    return {**conf, **{name: str(value) for name, value in options.items()}}


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _with_connector(builder: SparkSession.Builder, present: dict[str, str]) -> SparkSession.Builder:
    packages = present.get(_PACKAGES, "")
    if "spark-sql-kafka" in packages or "spark-sql-kafka" in present.get(_JARS, ""):
        return builder
    if _submitted():
        _logger.warning("[RIFFLE-0272] if this job reads Kafka, submit it with --packages %s", connector())
        return builder
    return builder.config(_PACKAGES, ",".join(filter(None, [packages, connector()])))


def connector(version: str = pyspark.__version__) -> str:
    """Return the Maven coordinate of the Kafka connector that matches a Spark version.

    Connectors of later patch releases of 4.0 do not resolve from Maven; the one of 4.0.0 works with all of 4.0.
    """
    matching = "4.0.0" if version.startswith("4.0.") else version
    return f"{_CONNECTOR}:{matching}"


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
