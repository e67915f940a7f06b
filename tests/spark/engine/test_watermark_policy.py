"""Several watermarks in one query: which of them counts, as Spark's configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from riffle_spark import Stateful, aggregate, count, together
from riffle_spark.spark.engine.routing import policy_in
from tests.kit.streams.streaming import Feed, Kept, records, settings_in, start

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
TIMES = [(5, None), (5, 9), (60, None), (60, 30), (61, 90)]


@pytest.mark.parametrize("policy", [pytest.param("min", marks=pytest.mark.long), "MAX"])
@pytest.mark.long
def test_of_several_watermarks_spark_and_riffle_choose_the_same(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    """Two sources with a watermark each, and two operators with the same: batch by batch they are as far."""
    left, right = (Feed(tmp_path / name, "k string, at timestamp") for name in ("left", "right"))
    for one, other in TIMES:
        for feed, second in ((left, one), (right, other)):
            feed.add([{"k": "a", "at": second and f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000Z"}])
    events = left.stream(spark).select("k", F.col("at").alias("x"), F.lit(None).cast("timestamp").alias("y"))
    others = right.stream(spark).select("k", F.lit(None).cast("timestamp").alias("x"), F.col("at").alias("y"))
    both = events.withWatermark("x", "10 seconds").unionByName(others.withWatermark("y", "1 second"))
    operators = [
        Stateful(store, "k", aggregate(rows=count()), watermark=watermark)
        for store, watermark in (("one", ("x", "10 seconds")), ("other", ("y", "1 second")))
    ]
    job = together(*(operator.into(Kept()) for operator in operators), settings=settings_in(tmp_path))
    spark.conf.set(POLICY, policy)
    try:
        query = start(both, job, tmp_path / "checkpoint", processingTime="0 seconds")
        query.processAllAvailable()
        query.stop()
    finally:
        spark.conf.unset(POLICY)
    told = [record for record in records(f"file://{tmp_path}/state") if record.kind == "batch"]
    assert len(told) == len(TIMES)
    sparks = [int(record.offsets.split('"batchWatermarkMs":')[1].split(",")[0]) for record in told if record.offsets]
    assert [0, *(record.watermark_ms for record in told)][: len(TIMES)] == sparks
    assert (max(sparks) > 1_767_225_600_000 + 50_000 - 1) == (policy == "MAX")
    assert policy_in(spark) == "min"
