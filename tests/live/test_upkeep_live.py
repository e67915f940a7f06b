"""Executors take snapshots as upkeep. The log lists them, and other executors restore from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark import Stateful, aggregate, count, sum_
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.jvm import observed
from tests.kit.streams.streaming import CollectingSink, records, rest, settings_in

pytestmark = pytest.mark.cluster

MASTER = "local-cluster[2,1,600]"
KEYS = 24


@pytest.fixture(autouse=True)
def two_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Wait for both executors."""
    assert len(inventory.await_executors(spark, settings_in(tmp_path), expected=2)) == 2


def batch(spark: SparkSession) -> DataFrame:
    """Return one row per key."""
    return spark.range(KEYS).selectExpr("id k", "id v")


def test_executors_take_snapshots_and_new_members_restore_from_them(spark: SparkSession, tmp_path: Path) -> None:
    """Executors take snapshots when chains are long, commits list them, and members without copies restore
    from them.
    """
    compute, sink = aggregate(rows=count(), total=sum_("v")), CollectingSink()
    job = Stateful("totals", "k", compute, settings=settings_in(tmp_path, snapshot_chain_links=3)).into(sink)
    for number in range(6):
        job(batch(spark), number)
        rest(job)
    assert sum(report.snapshots for report in job.reports) >= 8
    assert [warning for report in job.reports for warning in report.warnings if "snapshot" in warning] == []
    entries = records(f"file://{tmp_path}/state")[-1].entries
    assert all(len(entry.chain) <= 4 for entry in entries.values())
    moved = settings_in(tmp_path, snapshot_chain_links=3, local_dir=f"{tmp_path}/elsewhere")
    moved_job = Stateful("totals", "k", compute, settings=moved).into(sink)
    moved_job(batch(spark), 6)
    assert sink.latest("k") == {k: {"rows": 7, "total": 7 * k} for k in range(KEYS)}
    assert moved_job.reports[-1].restores == 8


def test_observed_returns_the_metric_of_a_frame(spark: SparkSession) -> None:
    """``observed`` returns the metric of a frame after an action, and None for a name that the frame does not
    observe.
    """
    frame = spark.range(3).observe("seen", F.count(F.lit(1)).alias("rows"))
    frame.collect()
    assert observed(frame, "seen") == 3
    assert observed(frame, "other") is None
