"""The Spark session of commands that run Spark, and the call of their query function."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.spark.configure import configure, packages
from riffle_spark.spark.engine.jvm_errors import first_line, is_unwrapped

_Made = TypeVar("_Made")


@contextmanager
def command_session(name: str, locations: Iterable[str | None] = ()) -> Iterator[SparkSession]:
    """Yield the active session, or a new one that is stopped at the end.

    A new session has the settings of ``spark-defaults.conf`` and of ``PYSPARK_SUBMIT_ARGS``, and without a master runs
    on this machine. ``name`` is the name of its application. Spark's connector for S3 is added if one of the
    ``locations`` needs it.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    s3a = any(location is not None and location.startswith("s3a://") for location in locations)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    spark = configure(builder, kafka=False, s3a=s3a).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def made_by(query: Callable[[SparkSession], _Made], spark: SparkSession) -> _Made:
    """Return what the query function makes. Raises ``ConfigError`` if Spark refuses its frames."""
    try:
        return query(spark)
    except Exception as error:
        if not isinstance(error, PySparkException) and not is_unwrapped(error):
            raise
        message = first_line(error).removesuffix(";")  # Spark appends the plan.
        connectors = packages()
        raise ConfigError(
            f"The function fails: {message}",
            remedy="Correct the function. If Spark has no connector for a source, set PYSPARK_SUBMIT_ARGS='--packages "
            f"CONNECTOR pyspark-shell'. For Kafka CONNECTOR is {connectors}.",
            where="query",
            id="RIFFLE-1745",
        ) from error
