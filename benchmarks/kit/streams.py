"""Streaming queries to measure."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from benchmarks.kit.cpu import BatchCpu

__all__ = ["HEAP", "measure", "median", "peak_kb", "session", "source", "wait_for_rows"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HEAP = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
}
"""The configuration for ``session`` that selects Spark's default store, whose state is on the heap."""
Builder = SparkSession.Builder
POLL_SECONDS = 0.1
FAILURE_TEXT = 3_000


def session(
    master: str = "local[2]", configured: Callable[[Builder], Builder] = lambda builder: builder, /, **conf: str
) -> SparkSession:
    """Return a session with the same settings for every side: RocksDB with changelog, and two shuffle partitions.

    ``configured`` adds further settings.
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
    """Return a stream with ``rows`` rows per batch: ``key``, uniform over ``keys``, and ``amount``.

    The first ``named_first`` rows have the keys 0, 1, 2 and so on.
    """
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    drawn = f"pmod(xxhash64(value), {keys})"
    return stream.selectExpr(f"if(value < {named_first}, value, {drawn}) as key", "value as amount")


def measure(
    writer: DataStreamWriter, checkpoint: Path, batches: int, seconds: float, cpu: BatchCpu | None = None
) -> list[float]:
    """Run a query until ``batches`` batches are completed, or for ``seconds``.

    Return the time from trigger to trigger of each batch with rows. ``cpu`` measures the CPU time of these batches.
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
        finished_batches = 0 if last is None or first is None else last["batchId"] - first
        if cpu is not None:
            cpu.record_batches(finished_batches, is_last=finished_batches >= batches)
        if finished_batches >= batches > 0:
            return
        time.sleep(POLL_SECONDS)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))


def wait_for_rows(query: StreamingQuery, batches: int, seconds: float, cpu: BatchCpu) -> list[Any]:
    """Wait for this number of batches with rows, and return their progress. Raise ``RuntimeError`` if there are fewer.

    Spark runs batches without rows between them when it has read all files. All progress is read only at the end, or if
    a batch was missed, because that takes about 20 ms of CPU.
    """
    deadline = time.monotonic() + seconds
    newest = -1
    done_rows = 0
    while query.isActive and time.monotonic() < deadline:
        last = query.lastProgress
        if last is not None and last["batchId"] != newest:
            done_rows = (
                done_rows + (last["numInputRows"] > 0) if last["batchId"] == newest + 1 else len(_with_rows(query))
            )
            newest = last["batchId"]
        cpu.record_batches(done_rows, is_last=done_rows >= batches)
        if done_rows >= batches:
            return _with_rows(query)
        time.sleep(POLL_SECONDS)
    failure = query.exception()
    # The cause is first, followed by hundreds of lines of Spark.
    raise RuntimeError(str(failure)[:FAILURE_TEXT] if failure is not None else f"no {batches} batches in {seconds:g} s")


def _with_rows(query: StreamingQuery) -> list[Any]:
    return [entry for entry in query.recentProgress if entry["numInputRows"] > 0]


def peak_kb(pid: int) -> int:
    """Return the peak resident size of a process, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)
