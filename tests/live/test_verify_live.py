"""`riffle verify --checkpoint` runs while a query in Spark commits batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count
from riffle_spark.offline.verify import verify
from tests.kit.streams.streaming import CollectingSink, settings_in, start, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_verify_finds_no_error_while_a_query_commits_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Verification of a running query finds no error, even if batches are committed while it reads state and
    checkpoint.
    """
    checkpoint = tmp_path / "checkpoint"
    rows = spark.readStream.format("rate").option("rowsPerSecond", 500).load().selectExpr("value % 80 as k")
    settings = settings_in(tmp_path, retained_for="1 h")
    job: StatefulJob = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    query = start(rows, job, checkpoint, processingTime="0 seconds")
    try:
        wait_for(lambda: len(job.reports) >= 3, "three batches")
        checks = 0
        while len(job.reports) < 40:
            before = len(job.reports)
            verified = verify(f"file://{tmp_path}/state", str(checkpoint))
            checks += len(job.reports) > before  # a batch was committed during the verification
            assert [finding for finding in verified.findings if finding.level == "state"] == []
        assert checks > 0
    finally:
        query.stop()
    assert verify(f"file://{tmp_path}/state", str(checkpoint)).is_whole
