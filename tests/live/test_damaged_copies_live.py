"""Local files are damaged between the batches of a real query, while its Python workers stay alive."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count, sum_, transform_with_state
from riffle_spark.spark.engine import inventory
from tests.kit.damage.damager import Damager
from tests.kit.processors.visit_processors import Visits
from tests.kit.streams.streaming import CollectingSink, rest, settings_in

pytestmark = pytest.mark.cluster

MASTER = "local-cluster[2,1,600]"
KEYS = 400
BATCHES, DAMAGES = 5, 5


def workers(spark: SparkSession) -> set[int]:
    """Return the ids of the executors' Python processes."""
    return set(spark.sparkContext.parallelize(range(4), 4).map(lambda _: os.getpid()).collect())


@pytest.mark.parametrize("kind", ["columns", pytest.param("variables", marks=pytest.mark.long)])
def test_damaged_local_files_change_no_total_and_end_no_worker(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """All totals are right and no Python worker dies if files of owners and standbys are damaged before each batch."""
    settings = settings_in(tmp_path, num_standbys=1, snapshot_chain_links=4)
    assert len(inventory.await_executors(spark, settings, expected=2)) == 2
    computed = Stateful("visits", "user", aggregate(visits=count(), total=sum_("amount")), settings=settings)
    processed = transform_with_state(
        Visits(), key="user", output="user long, visits long, total long", time_mode="None", settings=settings
    )
    sink = CollectingSink()
    job = (computed if kind == "columns" else processed).into(sink)
    damager, before = Damager(tmp_path / "local", random.Random(5)), workers(spark)
    for batch in range(BATCHES):
        damager.remember()
        damages = [damager.damage() for _ in range(DAMAGES)]
        print(damages)
        job(spark.range(KEYS).selectExpr("id user", "id amount"), batch)
        rest(job)
        expected = {key: {"visits": batch + 1, "total": (batch + 1) * key} for key in range(KEYS)}
        assert sink.latest("user") == expected
        # A journal lists all copies of a store.
        copy_was_lost = any("removed" in damage or ".journal" in damage for damage in damages)
        assert job.reports[-1].runs == 1 or copy_was_lost, "only a key-group whose copy was lost may move"
    fetched = [report.fetched_bytes + report.upkeep_fetched_bytes for report in job.reports]
    print(f"fetched {fetched}, snapshots {sum(report.snapshots for report in job.reports)}")
    assert before <= workers(spark)
