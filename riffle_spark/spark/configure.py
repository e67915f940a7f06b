"""Configure a Spark session for placement, and start Python workers before a query's first batch."""

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
_PLACEMENT_CONF = {
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
    """Set the Spark configuration that placement needs, and add the matching Kafka connector.

    Values that you have set are kept. If such a value hinders placement, a warning names it. Under ``spark-submit``,
    packages must be passed on its command line (``--packages``); a warning prints the argument.

    Args:
        builder: The builder of the session.
        kafka: Whether to add the connector to ``spark.jars.packages``. It is not added if ``spark.jars.packages`` or
            ``spark.jars`` names a Kafka connector.

    Returns:
        The builder.

    >>> from pyspark.sql import SparkSession
    >>> from riffle_spark import configure
    >>> builder = configure(SparkSession.builder.appName("totals"))
    >>> spark = builder.getOrCreate()  # doctest: +SKIP
    """
    conf = _present_conf(builder)
    for name, value in _PLACEMENT_CONF.items():
        if name not in conf:
            builder = builder.config(name, value)
        elif conf[name] != value:
            # Cause: With another value Spark may run slots on other executors than planned, or upkeep may delay
            # batches.
            _logger.warning("[RIFFLE-0271] %s = %s hinders placement. Set it to %s.", name, conf[name], value)
    return _add_connector(builder, conf) if kafka else builder


def _present_conf(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the configuration of the builder, ``spark-submit`` and spark-defaults.conf."""
    submitted = dict(SparkConf().getAll()) if _is_submitted() else {}
    options: dict[str, object] = getattr(builder, "_options", {})
    return {**submitted, **{name: str(value) for name, value in options.items()}}


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _add_connector(builder: SparkSession.Builder, conf: dict[str, str]) -> SparkSession.Builder:
    packages = conf.get(_PACKAGES, "")
    if "spark-sql-kafka" in packages or "spark-sql-kafka" in conf.get(_JARS, ""):
        return builder
    if _is_submitted():
        # Cause: spark-submit starts the JVM before configure runs, so configure cannot add packages.
        _logger.warning("[RIFFLE-0272] Kafka needs the argument --packages %s of spark-submit.", connector())
        return builder
    return builder.config(_PACKAGES, ",".join(filter(None, [packages, connector()])))


def connector(version: str = pyspark.__version__) -> str:
    """Return the Maven coordinate of the Kafka connector that matches a Spark version.

    Connectors of later patch releases of 4.0 do not resolve from Maven. The connector of 4.0.0 works with all of 4.0.
    """
    matching = "4.0.0" if version.startswith("4.0.") else version
    return f"{_CONNECTOR}:{matching}"


def warm_up(spark: SparkSession, settings: Settings | None = None) -> threading.Thread:
    """Start Python workers on the executors in the background, so that the first batch need not wait for them.

    Call it as soon as there is a session. Each worker imports the modules of a slot and opens a client of the store.
    The thread ends when as many executors are ready as a start waits for, or after ``initial_rebalance_delay`` seconds.
    Errors are logged at level debug and have no effect on the query.

    Args:
        spark: The session of the query.
        settings: Settings of the query. Unset settings are read from ``spark.riffle.*`` and ``conf/riffle.toml``.

    Returns:
        The thread. Join it to wait for the workers.

    >>> from riffle_spark import Settings, warm_up
    >>> warm_up(spark, Settings(root=root)).join()
    """
    thread = threading.Thread(target=_warm_up, args=(spark, settings), name="riffle-warm-up", daemon=True)
    thread.start()
    return thread


def _warm_up(spark: SparkSession, code_settings: Settings | None) -> None:
    try:
        settings = settings_of(spark, code_settings)
        home = home_of(spark, settings)
        expected = inventory.expected_executors(spark, settings)
        cluster = SparkCluster(spark)
        ready = set[str]()
        deadline = time.monotonic() + settings.initial_rebalance_delay
        while len(ready) < expected and time.monotonic() < deadline:
            new = [executor for executor in inventory.executors(spark) if executor.id not in ready]
            cluster.warm(new, home, settings.upkeep_timeout)
            ready.update(executor.id for executor in new)
            time.sleep(0 if new else _POLL_SECONDS)
    except Exception as error:  # a warm-up is optional
        _logger.debug("executors were not warmed up: %s", error, exc_info=error)
