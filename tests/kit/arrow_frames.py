"""Spark frames that hold the rows of an Arrow table, in all versions of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.spark.engine.routing import spark_schema

__all__ = ["frame_of_table"]


def frame_of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a frame with the rows of an Arrow table in one partition.

    Spark 3.5 has no ``createDataFrame`` for Arrow tables.
    """

    def rows(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()

    return spark.range(0, 1, 1, 1).mapInArrow(rows, spark_schema(table.schema))
