"""More slots than partitions: 16 partitions on 32 slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count
from tests.kit.streams.streaming import Kept, settings_in

pytestmark = pytest.mark.spark

MASTER = "local[32]"
DISPATCHES = {"partition": range(16, 17), "hashed": range(2, 17), "key_group": range(32, 33)}


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.long
def test_sixteen_partitions_work_on_thirty_two_slots(spark: SparkSession, tmp_path: Path, dispatch: str) -> None:
    """By partition, as many slots have work as there are partitions; by key, all of them have; results are equal."""
    frame = spark.range(320).selectExpr("id % 64 k", "'events' topic", "cast(id % 16 as int) partition")
    kept = Kept()
    settings = settings_in(tmp_path, dispatch=dispatch, key_groups=128)
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(kept)
    job(frame, 0)
    job(frame, 1)
    assert kept.latest("k") == {k: {"rows": 10} for k in range(64)}
    assert {report.slots for report in job.reports} <= set(DISPATCHES[dispatch])
    assert all(report.slots_that_wrote <= report.slots for report in job.reports)
