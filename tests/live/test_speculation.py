"""Spark's speculation starts two attempts of a slot on a cluster of three hosts, and its rows count once."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from apps.demo.servers import StandaloneCluster
from riffle_spark import Stateful, arrow_function
from riffle_spark.spark.engine import inventory
from tests.kit.streams.streaming import CollectingSink, committed, job_group, rest, settings_in

pytestmark = pytest.mark.cluster
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

CONF = {
    "spark.locality.wait": "500ms",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
}
KEYS = 24
MOST_SECONDS = 90
ROWS_OF_KEY = pa.schema([("k", pa.int64()), ("rows", pa.int64())])


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start three workers with different host addresses, because Spark starts no second attempt on the first attempt's
    host.
    """
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=3) as cluster:
        yield cluster.url


def uneven(folder: Path) -> Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]]:
    """Return a function that counts the rows of each key. In the first batch, the slot of key 0 waits for a second
    attempt.
    """

    def run(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if 0 in rows["k"].to_pylist() and state.num_rows == 0:
            (folder / uuid.uuid4().hex).touch()
            give_up = time.monotonic() + MOST_SECONDS
            while len(list(folder.iterdir())) < 2 and time.monotonic() < give_up:
                time.sleep(0.02)
        return count_rows(rows, state)

    return run


def count_rows(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the number of rows of each key, as state and as output."""
    added = rows.select(["k"]).append_column("rows", pa.repeat(1, rows.num_rows)).cast(ROWS_OF_KEY)
    both = pa.concat_tables([state.cast(ROWS_OF_KEY), added])
    totals = both.group_by("k").aggregate([("rows", "sum")]).rename_columns(["k", "rows"]).cast(ROWS_OF_KEY)
    return totals, totals


def test_two_attempts_of_a_slot_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """With speculation Spark starts a slow slot twice, and its rows are delivered and committed once."""
    (attempts := tmp_path / "attempts").mkdir()
    compute = arrow_function(uneven(attempts), state=pa.schema([("rows", pa.int64())]), output=ROWS_OF_KEY)
    sink = CollectingSink()
    job = Stateful("totals", "k", compute, settings=settings_in(tmp_path)).into(sink)
    executors = inventory.await_executors(spark, settings_in(tmp_path), expected=3)
    assert len({executor.host for executor in executors}) == 3
    frame = spark.range(KEYS).selectExpr("id k")
    with job_group(spark, "twice") as tasks:
        for number in range(2):
            job(frame, number)
    assert sink.latest("k") == {k: {"rows": 2} for k in range(KEYS)}
    assert [len(rows) for rows in sink.deliveries.values()] == [KEYS] * 2
    assert committed(f"file://{tmp_path}/state") == [0, 1]
    assert any(task.speculative() for task in tasks())


def slow_once(folder: Path) -> Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]]:
    """Return a function that counts the rows of each key. Once ``slow`` exists, the first slot of key 0 takes 6 s."""

    def run(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if 0 in rows["k"].to_pylist() and (folder / "slow").exists():
            try:
                (folder / "started").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                time.sleep(6)
        return count_rows(rows, state)

    return run


def test_a_second_attempt_without_a_copy_does_not_repeat_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A second attempt on an executor without copies restores them, although standbys exist. The batch runs once."""
    compute = arrow_function(slow_once(tmp_path), state=pa.schema([("rows", pa.int64())]), output=ROWS_OF_KEY)
    sink, settings = CollectingSink(), settings_in(tmp_path, num_standbys=1, expected_executors=3)
    job = Stateful("totals", "k", compute, settings=settings).into(sink)
    frame = spark.range(KEYS).selectExpr("id k")
    for number in range(3):
        job(frame, number)
        rest(job)
    (tmp_path / "slow").touch()
    with job_group(spark, "slow") as tasks:
        job(frame, 3)
    assert any(task.speculative() for task in tasks())
    assert job.reports[-1].runs == 1, job.reports[-1].warnings
    assert sink.latest("k") == {k: {"rows": 4} for k in range(KEYS)}
