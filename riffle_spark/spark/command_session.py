"""The Spark session of commands that run Spark."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

from riffle_spark.spark.configure import configure

__all__ = ["command_session"]


@contextmanager
def command_session(name: str) -> Iterator[SparkSession]:
    """Yield the active session, or a new one that is stopped at the end.

    A new session has the settings of ``spark-defaults.conf`` or of ``spark-submit``, and without a master runs on this
    machine. ``name`` is the name of its application.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.appName(name)
    if not SparkConf().contains("spark.master"):
        builder = builder.master("local[*]")
    spark = configure(builder, kafka=False).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
