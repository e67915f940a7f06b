"""Slots return strings and binaries in the Arrow types that Spark's setting requires."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed, settings_in

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


@pytest.mark.spark
@pytest.mark.newer_spark
def test_a_query_runs_with_large_types_of_arrow(spark: SparkSession, tmp_path: Path) -> None:
    """A query with strings and binaries in its key, state and output runs with Arrow's large types. Spark 4.3 checks
    the types.
    """
    feed = Feed(tmp_path / "in", "page string, n long")
    feed.add([{"page": "a", "n": 5}, {"page": "b", "n": 3}])
    rows: list[Row] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(batch.collect())

    spark.conf.set(LARGE_TYPES, "true")
    try:
        pages = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path)).groupBy("page")
        listed = pages.agg(F.collect_list("page").alias("l"), F.max(F.col("page").cast("binary")).alias("m"))
        writer = listed.writeStream.outputMode("update").foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    finally:
        spark.conf.unset(LARGE_TYPES)
    assert sorted((row.page, row.l, bytes(row.m)) for row in rows) == [("a", ["a"], b"a"), ("b", ["b"], b"b")]
