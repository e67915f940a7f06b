"""Streaming queries to measure."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from benchmarks.kit.cpu import BatchCpu

__all__ = ["HEAP", "measure", "median", "peak_kb", "session", "source"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HEAP = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
}
"""Spark's default store, whose state is on the heap; for ``session``."""
Builder = SparkSession.Builder


def session(
    master: str = "local[2]", configured: Callable[[Builder], Builder] = lambda builder: builder, /, **conf: str
) -> SparkSession:
    """Return a session with the same settings for every side: RocksDB with changelog, two shuffle partitions; and with
    those that ``configured`` adds.
    """
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "2000",
        **conf,
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return configured(builder).getOrCreate()


def source(spark: SparkSession, rows: int, keys: int, named_first: int = 0) -> DataFrame:
    """Return a stream of ``rows`` a batch: ``key`` uniform over ``keys``, ``amount``.

    Its first ``named_first`` rows name the keys from 0 on, one after the other.
    """
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    drawn = f"pmod(xxhash64(value), {keys})"
    return stream.selectExpr(f"if(value < {named_first}, value, {drawn}) as key", "value as amount")


def measure(
    writer: DataStreamWriter, checkpoint: Path, batches: int, seconds: float, cpu: BatchCpu | None = None
) -> list[float]:
    """Run a query until so many batches are done, or its time is over; return the seconds of each that had rows,
    trigger to trigger. ``cpu`` is told how many batches are done.
    """
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        _wait(query, batches, seconds, cpu)
        progress = [p for p in query.recentProgress if p["numInputRows"] > 0]
    finally:
        query.stop()
    return [p["durationMs"]["triggerExecution"] / 1000 for p in progress]


def _wait(query: StreamingQuery, batches: int, seconds: float, cpu: BatchCpu | None) -> None:
    """Wait for the batches of this query, without those of an earlier query that it continues."""
    deadline = time.monotonic() + seconds
    first = None
    while query.isActive and time.monotonic() < deadline:
        last = query.lastProgress
        if last is not None and first is None:
            first = last["batchId"]
        done = 0 if last is None or first is None else last["batchId"] - first
        if cpu is not None:
            cpu.saw(done, is_last=done >= batches)
        if done >= batches > 0:
            return
        time.sleep(0.1)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))


def peak_kb(pid: int) -> int:
    """Return the largest resident size that a process has had, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)
