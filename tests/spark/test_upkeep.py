"""Snapshots that executors take beside the batches, on a cluster with speculation: listed, used, in nobody's way."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from streaming import Kept, committed, job_group, records, settings_in

from riffle_spark import Stateful, aggregate, arrow_function, count, sum_
from riffle_spark.spark import inventory
from riffle_spark.spark.jvm import observed

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::ResourceWarning")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

MASTER = "local-cluster[2,1,600]"
CONF = {
    "spark.locality.wait": "500ms",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
}
KEYS = 24
SEEN = pa.schema([("k", pa.int64()), ("rows", pa.int64())])


@pytest.fixture(autouse=True)
def two_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Wait for both."""
    assert len(inventory.await_executors(spark, settings_in(tmp_path), expected=2)) == 2


def batch(spark: SparkSession) -> DataFrame:
    """Return one row a key."""
    return spark.range(KEYS).selectExpr("id k", "id v")


def test_snapshots_are_taken_beside_the_batches_and_restored_from(spark: SparkSession, tmp_path: Path) -> None:
    """Short chains make snapshots due: executors take them, commits list them, and empty members start from them."""
    compute, kept = aggregate(rows=count(), total=sum_("v")), Kept()
    job = Stateful("totals", "k", compute, settings=settings_in(tmp_path, snapshot_chain_links=3)).into(kept)
    for number in range(6):
        job(batch(spark), number)
        time.sleep(0.3)
    assert sum(report.snapshots for report in job.reports) >= 8
    assert [warning for report in job.reports for warning in report.warnings if "snapshot" in warning] == []
    entries = records(f"file://{tmp_path}/state")[-1].entries
    assert all(len(entry.chain) <= 4 for entry in entries.values())
    moved = settings_in(tmp_path, snapshot_chain_links=3, local_dir=f"{tmp_path}/elsewhere")
    again = Stateful("totals", "k", compute, settings=moved).into(kept)
    again(batch(spark), 6)
    assert kept.latest("k") == {k: {"rows": 7, "total": 7 * k} for k in range(KEYS)}
    assert again.reports[-1].restores == 8


def uneven(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Count a key's rows; take long where key 0 is, so that Spark starts a second attempt of that slot."""
    if 0 in rows["k"].to_pylist():
        time.sleep(3)
    added = rows.select(["k"]).append_column("rows", pa.repeat(1, rows.num_rows)).cast(SEEN)
    both = pa.concat_tables([state.cast(SEEN), added])
    totals = both.group_by("k").aggregate([("rows", "sum")]).rename_columns(["k", "rows"]).cast(SEEN)
    return totals, totals


def test_two_attempts_of_a_slot_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """With speculation on, a slow slot is started twice; its rows are delivered and committed once."""
    compute, kept = arrow_function(uneven, state=pa.schema([("rows", pa.int64())]), output=SEEN), Kept()
    job = Stateful("totals", "k", compute, settings=settings_in(tmp_path)).into(kept)
    frame = batch(spark).select("k")
    with job_group(spark, "twice") as tasks:
        for number in range(2):
            job(frame, number)
    assert kept.latest("k") == {k: {"rows": 2} for k in range(KEYS)}
    assert [len(rows) for rows in kept.deliveries.values()] == [KEYS] * 2
    assert committed(f"file://{tmp_path}/state") == [0, 1]
    assert any(task.speculative() for task in tasks())


def test_what_spark_does_not_tell_is_not_waited_for(spark: SparkSession) -> None:
    """An observation whose event never comes is given up after its tries; one that comes is returned."""
    count = Observation("never")
    frame = spark.range(3).observe(count, F.count(F.lit(1)).alias("rows"))
    assert observed(count, tries=2) is None
    frame.collect()
    assert observed(count) == {"rows": 3}
