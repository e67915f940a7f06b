"""Each part of a batch's rows is kept on two executors: a sink does not see one of them die, and both are a loss."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count
from riffle_spark.spark.engine import inventory
from tests.kit.streams.streaming import Kept, committed, executor_processes, settings_in, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.newer_spark]

MASTER = "local-cluster[2,1,600]"
CONF = {"spark.storage.cachedPeersTtl": "100"}  # Spark sends the second copy to whom it knew so many ms ago.
KEYS = 40


def kill(victims: list[str]) -> None:
    """SIGKILL to some executors."""
    for victim in victims:
        os.kill(executor_processes()[victim], signal.SIGKILL)


@pytest.mark.long  # That two executors have each row, and that both are a loss, is seen in test_sink_losses.py, too.
@pytest.mark.parametrize(("dying", "runs"), [(1, 1), (2, 2)], ids=["one holder", "both holders"])
def test_rows_are_lost_only_with_all_who_hold_them(spark: SparkSession, tmp_path: Path, dying: int, runs: int) -> None:
    """One dead holder costs nothing, and the sink reads on; when both are dead, the batch comes again, and is exact."""
    kept, calls = Kept(), list[str]()
    settings = settings_in(tmp_path, expected_executors=2)
    inventory.await_executors(spark, settings, expected=2)

    def sink(rows: DataFrame, batch_id: int, delivery_id: str) -> None:
        calls.append(delivery_id)
        if len(calls) == 1:
            kept_rdds = spark.sparkContext._jsc.sc().getRDDStorageInfo()
            assert {rdd.storageLevel().replication() for rdd in kept_rdds} == {2}
            victims = [executor.id for executor in inventory.executors(spark)][:dying]
            kill(victims)
            wait_for(lambda: not {each.id for each in inventory.executors(spark)} & {*victims}, "Spark has noticed")
        rows.union(rows).count()
        kept(rows, batch_id, delivery_id)

    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(sink)
    for number in range(2):
        job(spark.range(KEYS).selectExpr("id k"), number)
    assert kept.latest("k") == {k: {"rows": 2} for k in range(KEYS)}
    assert [report.runs for report in job.reports] == [runs, 1]
    assert len(calls) == runs + 1
    assert committed(f"file://{tmp_path}/state") == [0, 1]
