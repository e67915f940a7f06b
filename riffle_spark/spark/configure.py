"""Configure a Spark session for placement, and start Python workers before a query's first batch."""

import logging
import os
import sys
import threading
import time
from importlib.util import find_spec

from pyspark import SparkConf
from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from riffle_spark.spark.checkpoint_files import MANAGER, manager_for
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.spark.job_wiring import home_of, settings_of
from riffle_spark.spark_installation import find_spark, python_problem

_logger = logging.getLogger("riffle_spark")
_PLACEMENT_CONF = {
    "spark.locality.wait": "3s",
    "spark.locality.wait.node": "0",
    "spark.locality.wait.rack": "0",
    "spark.scheduler.mode": "FAIR",
}
_PACKAGES = "spark.jars.packages"
_JARS = "spark.jars"
_POLL_SECONDS = 0.2


def configure(builder: SparkSession.Builder, *, kafka: bool = True, s3a: bool = False) -> SparkSession.Builder:
    """Set the Spark configuration that placement needs, and add connectors in the versions of the installed Spark.

    For checkpoints on a local disk it also sets ``spark.sql.streaming.checkpointFileManagerClass`` to a faster class.
    It does not with ``s3a=True`` or if another file system is configured, because that class needs an atomic rename.

    Values that you have set are kept. If such a value hinders placement, a warning names it. Under ``spark-submit``,
    packages must be passed on its command line (``--packages``); a warning prints the argument. Raises ``ConfigError``
    if this Spark does not run on this version of Python.

    Args:
        builder: The builder of the session.
        kafka: Whether to add the Kafka connector.
        s3a: Whether to add the ``s3a://`` file system, for checkpoints and files in S3. ``root`` does not need it.

    A connector is not added if it is among Spark's jars, or if ``spark.jars.packages`` or ``spark.jars`` names it.

    Returns:
        The builder.

    >>> from pyspark.sql import SparkSession
    >>> from riffle_spark import configure
    >>> builder = configure(SparkSession.builder.appName("totals"))
    >>> spark = builder.getOrCreate()  # doctest: +SKIP
    """
    _check_python()
    conf = _present_conf(builder)
    for name, value in _PLACEMENT_CONF.items():
        present = conf.get(name)
        if present is None:
            builder = builder.config(name, value)
        elif present != value:
            # Cause: With another value Spark may run slots on other executors than planned, or upkeep may delay
            # batches.
            _logger.warning(
                "[RIFFLE-0271] %s = %s hinders placement.\n  What to do: Set it to %s.", name, present, value
            )
    spark = find_spark(os.environ)
    manager = None if spark is None or MANAGER in conf else manager_for(spark, conf, os.environ, s3a=s3a)
    if manager is not None:
        builder = builder.config(MANAGER, manager)
    return _add_packages(builder, conf, kafka=kafka, s3a=s3a)


def _check_python() -> None:
    """Raise ``ConfigError`` if Spark does not support the version of this Python."""
    spark = find_spark(os.environ)
    assert spark is not None
    problem = python_problem(spark.line, sys.version_info[:2], has_setuptools=find_spec("setuptools") is not None)
    if problem:
        # Cause: Spark itself does not support this version of Python.
        raise ConfigError(
            f"{problem}.",
            remedy="Use Python 3.10 to 3.13. For Spark 4.3 use 3.11 or newer. For Spark 3.5 use 3.10 or 3.11, or 3.12 "
            "with setuptools.",
            where=sys.executable,
            id="RIFFLE-1160",
        )


def _present_conf(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the configuration of the builder, ``spark-submit`` and spark-defaults.conf."""
    submitted = dict(SparkConf().getAll()) if _is_submitted() else {}
    options: dict[str, object] = getattr(builder, "_options", {})
    return {**submitted, **{name: str(value) for name, value in options.items()}}


def _is_submitted() -> bool:
    """Return whether ``spark-submit`` runs this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _add_packages(
    builder: SparkSession.Builder, conf: dict[str, str], *, kafka: bool, s3a: bool
) -> SparkSession.Builder:
    """Return the builder with the packages that are missing. Under ``spark-submit`` warn of them instead."""
    present = f"{conf.get(_PACKAGES, '')},{conf.get(_JARS, '')}"
    missing = packages(
        kafka=kafka and "spark-sql-kafka" not in present,
        s3a=s3a and "hadoop-aws" not in present,
    )
    if not missing:
        return builder
    if _is_submitted():
        # Cause: spark-submit starts the JVM before configure runs, so configure cannot add packages.
        _logger.warning(
            "[RIFFLE-0272] configure cannot add connectors, because spark-submit has already started the JVM.\n"
            "  What to do: Add the argument --packages %s to spark-submit.",
            missing,
        )
        return builder
    return builder.config(_PACKAGES, ",".join(filter(None, [conf.get(_PACKAGES), missing])))


def packages(*, kafka: bool = True, s3a: bool = False) -> str:
    """Return the Maven coordinates of connectors in the versions of the installed Spark, separated by commas.

    Connectors that are among Spark's jars are left out. ``--packages`` of ``spark-submit`` takes the result.
    """
    spark = find_spark(os.environ)
    assert spark is not None
    coordinates = [
        spark.kafka_connector if kafka and not spark.has_jar("spark-sql-kafka-0-10") else "",
        spark.hadoop_aws if s3a and not spark.has_jar("hadoop-aws") else "",
    ]
    return ",".join(filter(None, coordinates))


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
    """Start Python workers until enough executors are ready or the time is over. Errors are only logged."""
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
