"""Tasks of a job with several stores die at many points: Spark runs them again, and every store counts each
row once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from apps.demo.servers import S3Server
from riffle_spark import Settings, Stateful, StatefulJob, arrow_function, read_state, together
from riffle_spark.spark.engine import inventory
from riffle_spark.state.log import paths
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.worker.member_folders import options_of
from tests.kit.streams.streaming import CollectingSink, executor_processes, job_group, settings_in, wait_for

pytestmark = pytest.mark.cluster
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

MASTER = "local-cluster[2,1,600]"
CONF = {
    "spark.executorEnv.AWS_ACCESS_KEY_ID": "demo",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "demo-secret",
    "spark.executorEnv.AWS_DEFAULT_REGION": "us-east-1",
}
STORES = ["first", "second", "third", "fourth"]
KEYS = 40
SLOTS = 2
STATE = pa.schema([("rows", pa.int64()), ("total", pa.int64())])
TOTALS = pa.schema([("k", pa.int64()), *STATE])
RowsByStore = dict[int, dict[str, int]]


def totalling(folder: Path, store: str, root: str, options: StoreOptions) -> Callable[..., object]:
    """Return a function that totals the rows of each key. Files in the folder say how a call dies."""

    def run(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        for file in sorted(folder.glob(f"{store}.*")):
            with suppress(FileNotFoundError):
                file.unlink()  # the next attempt succeeds
                _, manner, milliseconds = file.name.split(".")
                if manner == "put":
                    wait_for_delta(root, options, rows["version"][0].as_py())
                threading.Timer(int(milliseconds) / 1000, os.kill, [os.getpid(), signal.SIGKILL]).start()
                time.sleep(0 if manner == "later" else 60)
        ones = pa.array([1] * rows.num_rows, pa.int64())
        added = pa.table([rows["k"], ones, rows["v"]], schema=TOTALS)
        both = pa.concat_tables([state.select(TOTALS.names).cast(TOTALS), added]).group_by("k")
        totals = both.aggregate([("rows", "sum"), ("total", "sum")]).rename_columns(TOTALS.names)
        return totals, totals

    return run


def wait_for_delta(root: str, options: StoreOptions, version: int) -> None:
    """Wait until the slot has put the delta of its first store."""
    deadline = time.monotonic() + 30
    while not open_store(root, options).list(paths.delta_name(version, "")[:-1]) and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    """Set the server's credentials in this process."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)


class Totals:
    """A job of four stores, and the expected totals of its rows."""

    def __init__(self, spark: SparkSession, settings: Settings, folder: Path) -> None:
        self.spark = spark
        self.settings = settings
        self.options = options_of(settings)
        self.deaths = folder / "deaths"
        self.deaths.mkdir()
        self.sinks = {store: CollectingSink() for store in STORES}
        self.rows: Counter[int] = Counter()
        self.total: Counter[int] = Counter()
        self.version = -1
        inventory.await_executors(spark, settings, expected=2)
        self.job = together(*self._jobs(), settings=settings)

    def _jobs(self) -> Iterator[StatefulJob]:
        for store, sink in self.sinks.items():
            function = totalling(self.deaths, store, str(self.settings.root), self.options)
            yield Stateful(store, "k", arrow_function(function, state=STATE, output=TOTALS)).into(sink)

    def die(self, store: str, manner: str, milliseconds: int = 0) -> None:
        """Kill one attempt while it computes the store: ``now``, after the first ``put``, or ``later``."""
        (self.deaths / f"{store}.{manner}.{milliseconds}").touch()

    def batch(self) -> None:
        """Run a batch with three rows of each key."""
        self.version += 1
        for number in range(3 * KEYS):
            self.rows[number % KEYS] += 1
            self.total[number % KEYS] += number + self.version
        self.job(self._frame(), self.version)

    def _frame(self) -> DataFrame:
        """Return the rows as an RDD-based frame, as Spark passes those of a stream."""
        columns = [f"id % {KEYS} k", f"id + {self.version} v", f"{self.version} version"]
        rows = self.spark.range(3 * KEYS).selectExpr(*columns)._jdf
        frame = self.spark._jsparkSession.internalCreateDataFrame(rows.queryExecution().toRdd(), rows.schema(), False)
        return DataFrame(frame, self.spark)

    def check(self) -> None:
        """Check that each store delivered and stored the expected totals."""
        ledger = {key: {"rows": self.rows[key], "total": self.total[key]} for key in range(KEYS)}
        for store, sink in self.sinks.items():
            assert sink.latest("k") == ledger, store
            assert [len(rows) for rows in sink.deliveries.values()] == [KEYS] * (self.version + 1)
            table = read_state(str(self.settings.root), store, options=self.options).read_all()
            stored = {row["k"]: {"rows": row["rows"], "total": row["total"]} for row in table.to_pylist()}
            assert stored == ledger, store

    def count_deltas(self) -> int:
        """Return the number of delta objects of the newest batch."""
        objects = open_store(str(self.settings.root), self.options)
        return len(objects.list(paths.delta_name(self.version, "")[:-1]))


@pytest.fixture
def totals(spark: SparkSession, s3_server: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Totals:
    """A job with a new root in S3, after two batches."""
    root = f"s3://{s3_server.bucket}/{request.node.name.partition('[')[0]}-{tmp_path.name}"
    settings = settings_in(tmp_path, root=root, s3_endpoint=s3_server.endpoint, expected_executors=2)
    totals_query = Totals(spark, settings.but(status_interval=0), tmp_path)
    for _ in range(2):  # later batches reuse the plans
        totals_query.batch()
    return totals_query


@pytest.mark.long
@pytest.mark.parametrize("store", ["second", "fourth"])
def test_spark_reruns_a_task_that_dies_after_its_first_put(spark: SparkSession, totals: Totals, store: str) -> None:
    """A task whose Python worker is killed after its first put is run again by Spark. The log does not list the
    orphaned delta.
    """
    totals.die(store, "put")
    with job_group(spark, f"dies in {store}") as tasks:
        totals.batch()
    assert totals.job.reports[-1].runs == 1
    assert [task.taskId() for task in tasks() if task.status() == "FAILED"]
    assert totals.count_deltas() > len(STORES) * SLOTS
    totals.check()
    totals.batch()
    assert totals.count_deltas() == len(STORES) * SLOTS
    totals.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_dying_tasks_and_executors_lose_and_duplicate_no_row(spark: SparkSession, totals: Totals, seed: int) -> None:
    """Each row counts once although Python workers die at up to three points of a batch, and executors in
    some batches.
    """
    chance = random.Random(seed)
    kinds = ["now", "put", "later", "later", "later"]
    for _ in range(8):
        for _ in range(chance.randrange(4)):
            totals.die(chance.choice(STORES), chance.choice(kinds), chance.randrange(120))
        victim = chance.choice(inventory.executors(spark)).id if chance.random() < 0.3 else None
        killing: threading.Timer | None = None
        if victim is not None:
            killing = threading.Timer(chance.random(), os.kill, [executor_processes()[victim], signal.SIGKILL])
            killing.start()
        totals.batch()
        if killing is not None:
            killing.join()
            wait_for(lambda: len(inventory.executors(spark)) == 2, "the executor is replaced")
    totals.check()
