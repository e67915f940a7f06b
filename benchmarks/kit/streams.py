"""Streaming queries to measure, each in a process of its own. Knows sources, sinks and progress. Does not know what
is compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

__all__ = ["in_process", "measure", "peak_kb", "peak_memory_mb", "session", "source"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(master: str = "local[2]", **conf: str) -> SparkSession:
    """Return a session with the same settings for every side: RocksDB with changelog, two shuffle partitions."""
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
        **conf,
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def source(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """Return a stream of ``rows`` a batch: ``key`` uniform over ``keys``, ``amount``."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    return stream.selectExpr(f"pmod(xxhash64(value), {keys}) as key", "value as amount")


def measure(writer: DataStreamWriter, checkpoint: Path, batches: int, warm_up: int, seconds: float) -> list[float]:
    """Run a query until enough batches are done; return seconds a batch (trigger to trigger) after the warm-up ones."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        _wait(query, batches + warm_up, seconds)
        progress = [p for p in query.recentProgress if p["numInputRows"] > 0]
    finally:
        query.stop()
    return [p["durationMs"]["triggerExecution"] / 1000 for p in progress[warm_up:]]


def _wait(query: StreamingQuery, batches: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while query.isActive and time.monotonic() < deadline:
        last = query.lastProgress
        if last is not None and last["batchId"] >= batches:
            return
        time.sleep(0.1)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))


def peak_memory_mb() -> float:
    """Return the sum of the peak resident sizes of this process and all below it."""
    return sum(peak_kb(pid) for pid in _below(os.getpid())) / 1024


def _below(pid: int) -> Iterable[int]:
    yield pid
    children = Path(f"/proc/{pid}/task").glob("*/children")
    for child in [int(c) for path in children for c in path.read_text().split()]:
        yield from _below(child)


def peak_kb(pid: int) -> int:
    """Return the largest resident size that a process has had, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def in_process(module: str, arguments: dict[str, Any], seconds: float, environment: dict[str, str]) -> dict[str, Any]:
    """Run ``python -m module --side JSON`` and return the JSON object of its last line."""
    command = [sys.executable, "-m", module, "--side", json.dumps(arguments)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


Side = Callable[[dict[str, Any]], dict[str, Any]]
