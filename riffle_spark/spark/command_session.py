"""The Spark session of commands that run Spark."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from riffle_spark.spark.configure import configure


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
