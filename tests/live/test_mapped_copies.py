"""Local copies are memory-mapped, so state fits a small limit of the Python worker's address space."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count, last
from tests.kit.streams.streaming import CollectingSink, committed, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[1,1,1400]"
CONF = {"spark.executor.memory": "1400m", "spark.executor.pyspark.memory": "1500m"}
BATCHES = 10
KEYS_PER_BATCH = 13_000
TEXT = "concat_ws('', transform(sequence(1, 8), i -> sha2(cast(id * 8 + i as string), 512))) AS v"
"""A value of one kilobyte for each key."""
STATE_BYTES = 129 << 20


def rows_of(spark: SparkSession, batch: int) -> DataFrame:
    """Return new keys with a kilobyte each."""
    return spark.range(batch * KEYS_PER_BATCH, (batch + 1) * KEYS_PER_BATCH).selectExpr("id AS k", TEXT)


def copied_bytes(folder: Path) -> int:
    """Return the size of all local copies in bytes."""
    return sum(file.stat().st_size for file in (folder / "local").rglob("*") if file.is_file())


def test_a_query_runs_with_a_state_of_a_tenth_of_the_limit(spark: SparkSession, tmp_path: Path) -> None:
    """A query runs with a state of a tenth of the limit: while the state grows, in batches that change all key-groups,
    and after a restart without local copies.
    """
    sink = CollectingSink()
    lasts = aggregate(rows=count(), v=last("v"))
    settings = settings_in(tmp_path, key_groups=8)
    job = Stateful("large", "k", lasts, settings=settings).into(sink)
    for batch in range(BATCHES):
        job(rows_of(spark, batch), batch)
    assert copied_bytes(tmp_path) >= STATE_BYTES
    every_tenth = spark.range(0, BATCHES * KEYS_PER_BATCH, 10).selectExpr("id AS k", "'short' AS v")
    job(every_tenth, BATCHES)
    shutil.rmtree(tmp_path / "local")
    restarted = Stateful("large", "k", lasts, settings=settings).into(sink)
    restarted(every_tenth, BATCHES + 1)
    latest = sink.latest("k")
    assert all(latest[k] == {"rows": 3, "v": "short"} for k in range(0, BATCHES * KEYS_PER_BATCH, 10))
    assert committed(f"file://{tmp_path}/state")[-1] == BATCHES + 1
