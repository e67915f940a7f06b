"""Create an archive of the classes that Spark's JVMs load. Each JVM then starts in about half the time.

``python -m apps.demo.classes`` makes it in the environment in which Spark is installed. The archive is valid only
there: Java silently ignores an archive of other paths or of another Java.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

__all__ = ["JVM_OPTIONS", "make"]

ARCHIVE = Path(sys.prefix) / "riffle-classes.jsa"
# For short JVMs on few cores, the second compiler costs more time than it saves.
_SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
JVM_OPTIONS = f"{_SMALL} -XX:SharedArchiveFile={ARCHIVE} {_SILENT}"
"""The options of Spark's JVMs for a fast start. They use the archive if it exists."""


def make() -> None:
    """Create the archive of the classes that a small wrapped query loads, unless it exists."""
    if ARCHIVE.exists():
        return
    fresh = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options = f"{_SMALL} -XX:ArchiveClassesAtExit={fresh} {_SILENT}"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{options}' pyspark-shell"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import riffle_spark

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = riffle_spark.configure(builder.config("spark.sql.shuffle.partitions", "1"), kafka=False)
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        spark.range(9).selectExpr("id", "timestamp_seconds(id) as at").write.parquet(f"{folder}/in")
        settings = riffle_spark.Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=1)
        rows = spark.readStream.schema("id long, at timestamp").parquet(f"{folder}/in")
        rows = riffle_spark.on(rows, settings=settings)
        counts = rows.withWatermark("at", "1 second").groupBy(F.window("at", "2 seconds")).count()
        writer = counts.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if fresh.exists():
        fresh.replace(ARCHIVE)


if __name__ == "__main__":
    make()
