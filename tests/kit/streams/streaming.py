"""Helpers of streaming tests: an input of files, a sink that keeps rows, and readers of the log."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from apps.demo.servers.guard import descendants
from riffle_spark import Settings, Stateful, StatefulJob, aggregate, count, max_
from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine import jvm
from riffle_spark.spark.job import RunningJob
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store

QUERY_TIMEOUT_SECONDS = 180
PATIENCE_SECONDS = 90.0
"""The time that a test waits for a condition on a busy machine."""


class Feed:
    """A folder of JSON files. Each file is one micro-batch, in the order in which it was added."""

    def __init__(self, folder: Path, schema: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.schema = schema
        self._next = itertools.count(len(list(folder.iterdir())))

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add a file with the rows of one micro-batch."""
        number = next(self._next)
        path = self.folder / f"{number:04d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.replace(path)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the files as a stream with one file per batch."""
        return spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.folder))

    def table(self, spark: SparkSession) -> DataFrame:
        """Return the rows of all files as a static frame."""
        return spark.read.schema(self.schema).json(str(self.folder))


class CollectingSink:
    """A sink that keeps the rows of each delivery, by delivery id."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []
        self.deliveries: dict[str, list[Row]] = {}

    def __call__(self, frame: DataFrame, batch_id: int, delivery_id: str) -> None:
        """Keep the rows of one delivery."""
        self.calls.append((batch_id, delivery_id))
        self.deliveries[delivery_id] = frame.collect()

    def latest(self, *key: str) -> dict[object, dict[str, object]]:
        """Return the newest row of each key, without the key columns. If the key has one column, it is not a tuple."""
        rows = [row.asDict() for delivery in self.deliveries.values() for row in delivery]
        named = [(tuple(row.pop(name) for name in key), row) for row in rows]
        return {key_values[0] if len(key) == 1 else key_values: row for key_values, row in named}


def stored_rdds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the id of each RDD is added that the product stores without a frame."""
    stored: list[int] = []
    store_rdd = jvm.store_rdd

    def storing(spark: SparkSession, rdd: Any, level: StorageLevel) -> None:
        stored.append(rdd.id())
        store_rdd(spark, rdd, level)

    monkeypatch.setattr(jvm, "store_rdd", storing)
    return stored


def settings_in(folder: Path, **changes: Any) -> Settings:
    """Return settings with root and local copies below ``folder``, few key-groups, and a long wait for executors.

    The local disk is never treated as full.
    """
    usual: dict[str, Any] = {"root": f"file://{folder}/state", "local_dir": f"{folder}/local", "key_groups": 8}
    usual |= {"initial_rebalance_delay": PATIENCE_SECONDS, "local_disk_limit": 1.0}
    return Settings(**{**usual, **changes})


def run_to_end(stream: DataFrame, job: Callable[..., None], checkpoint: Path) -> StreamingQuery:
    """Run a query to the end of its input, and raise its error if it fails."""
    query = start(stream, job, checkpoint, availableNow=True)
    if not query.awaitTermination(QUERY_TIMEOUT_SECONDS):
        query.stop()
        raise TimeoutError(f"the query did not end: {query.status}")
    return query


def start(stream: DataFrame, job: Callable[..., None], checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query with a trigger."""
    writer = stream.writeStream.foreachBatch(job).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


def wait_for(reached: Callable[[], object], description: str, poll_seconds: float = 0.05) -> None:
    """Wait until ``reached`` returns true, for at most ``PATIENCE_SECONDS``."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"not in {PATIENCE_SECONDS:g} s: {description}"
        time.sleep(poll_seconds)


def running(job: StatefulJob) -> RunningJob:
    """Return the running driver of a job after its first batch."""
    assert job._running is not None  # private: the only place that reads it
    return job._running  # private: as above


def rest(job: StatefulJob) -> None:
    """Wait until no background work of the job runs: neither upkeep nor a census."""
    wait_for(lambda: not running(job)._background.is_busy(), "no background work")  # private: the waiting work


def records(root: str) -> list[Record]:
    """Return the retained records of a root's log, oldest first."""
    root = only_root(root)
    log = Log(open_store(root), root)
    newest = log.open()
    return [log.read(sequence) for sequence in range(log.first, newest.sequence + 1)] if newest else []


def committed(root: str) -> list[int]:
    """Return the versions of the batches in a root's log, in order."""
    return [record.version for record in records(root) if record.kind == "batch"]


def refused_between(spark: SparkSession, folder: Path, rows: int, match: str) -> tuple[ConfigError, StatefulJob]:
    """Run a small batch, a large one, which is refused and commits nothing, and a small one again.

    The large batch has ``rows`` rows with long texts. Return its error and the job.
    """
    sink = CollectingSink()
    longest = aggregate(rows=count(), longest=max_("v"))
    job = Stateful("much", "k", longest, settings=settings_in(folder)).into(sink)
    short_texts, long_texts = "cast(id as string) v", "repeat(cast(id % 10 as string), 2000) v"
    job(spark.range(100).selectExpr("id % 10 k", short_texts), 0)
    with pytest.raises(ConfigError, match=match) as refused:
        job(spark.range(rows).selectExpr("id % 10 k", long_texts), 1)
    assert committed(f"file://{folder}/state") == [0]
    job(spark.range(100).selectExpr("id % 10 k", short_texts), 1)
    assert sink.latest("k") == {k: {"rows": 20, "longest": f"{90 + k}"} for k in range(10)}
    return refused.value, job


@contextmanager
def job_group(spark: SparkSession, name: str) -> Iterator[Callable[[], list[JavaObject]]]:
    """Name the Spark jobs of the block. Yield a function that returns their tasks from Spark's status store."""
    context, jvm = spark.sparkContext, spark.sparkContext._jsc.sc()

    def tasks() -> list[JavaObject]:
        jvm.listenerBus().waitUntilEmpty(10_000)
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(name)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        lists = [jvm.statusStore().taskList(stage, 0, 100) for stage in sorted(stages)]
        return [tasks_of_stage.apply(index) for tasks_of_stage in lists for index in range(tasks_of_stage.size())]

    context.setJobGroup(name, name)
    try:
        yield tasks
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def run_app(app: Path, *arguments: str, seconds: float) -> list[dict[str, Any]]:
    """Run an application in a separate process, and return the JSON objects that it prints, in order."""
    path = os.pathsep.join([str(app.parent), os.environ["PYTHONPATH"]])
    completed = subprocess.run(
        [sys.executable, str(app), *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-4000:]
    return [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]


def executor_processes() -> dict[str, int]:
    """Return the process ids of the executors that this process's session started on this machine, by executor id."""
    processes = {}
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "--executor-id" in words and "java" in words[0]:
                processes[words[words.index("--executor-id") + 1]] = pid
    return processes
