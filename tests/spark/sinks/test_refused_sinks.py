"""Calls of a writer that riffle refuses at the start of the query, with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import register_state_source
from riffle_spark.errors import ConfigError
from riffle_spark.spark.sinks.sink_choice import sink_of
from riffle_spark.spark.sinks.spark_sinks import check_format
from riffle_spark.spark.sinks.writer_settings import WriterSettings
from tests.spark.sinks.test_sink_choice import rows, writer_settings

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


@pytest.mark.parametrize(
    ("settings", "error_id"),
    [
        (writer_settings(table="made", foreachBatch=lambda *_: None), "RIFFLE-0351"),
        (writer_settings("/x", format="noop", options={"riffle.delivery_id": "K"}), "RIFFLE-0352"),
        (writer_settings(foreachBatch=lambda *_: None, options={"riffle.delivery_id": "by"}), "RIFFLE-0356"),
    ],
    ids=["a function and a table", "a delivery id in a column of the rows", "a delivery id for a function"],
)
def test_calls_of_a_writer_that_exclude_each_other_are_refused(
    settings: WriterSettings, error_id: str, spark: SparkSession
) -> None:
    """Calls of a writer that exclude each other are refused with a remedy."""
    with pytest.raises(ConfigError, match=error_id) as refused:
        sink_of(rows(spark, 0), settings)
    assert refused.value.remedy


def test_a_memory_table_of_an_active_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A memory table is refused if an active query has its name, because both would write the same view."""
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName("taken")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        with pytest.raises(ConfigError, match="RIFFLE-0360"):
            sink_of(rows(spark, 0), writer_settings(format="memory", queryName="taken"))
    finally:
        query.stop()


@pytest.mark.needs_spark4("data sources in Python")
def test_a_data_source_in_python_is_found_as_a_format(spark: SparkSession) -> None:
    """A registered data source in Python is a known format. Without registration it is refused with a remedy."""
    with pytest.raises(ConfigError, match="RIFFLE-1127"):
        check_format(spark, "riffle_state_of_nobody")
    register_state_source(spark)
    check_format(spark, "riffle_state")
