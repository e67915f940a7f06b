"""One job object is used in two Spark sessions of the same process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count
from tests.kit.shared_session import SharedSession
from tests.kit.streams.streaming import CollectingSink, rest, settings_in

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_a_job_outlives_its_session(shared_session: SharedSession, tmp_path: Path) -> None:
    """A job continues its state in a second session, and upkeep runs on the new executors."""
    shared_session.stop()
    sink = CollectingSink()
    settings = settings_in(tmp_path, key_groups=2, snapshot_chain_links=2)
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(sink)
    for start in (0, 4):
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for number in range(start, start + 4):
                job(spark.range(10).selectExpr("id k"), number)
                rest(job)
        finally:
            spark.stop()
    assert sink.latest("k") == {k: {"rows": 8} for k in range(10)}
    assert sum(report.snapshots for report in list(job.reports)[4:]) > 0
    assert [warning for report in job.reports for warning in report.warnings if "later" in warning] == []
