"""Output rows that were sealed with a committed batch, as a DataFrame. Knows how executors read them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.spark.routing import arrow_of, spark_schema
from riffle_spark.state.manifest import Head, Link
from riffle_spark.state.parts import Reader
from riffle_spark.worker.homes import store_of
from riffle_spark.worker.order import Home

if TYPE_CHECKING:
    Batches = Iterable[pa.RecordBatch]

__all__ = ["sealed_rows"]

_LINK = "version long, attempt string, start long, length long, checksum string, rows long"


def sealed_rows(spark: SparkSession, home: Home, links: Sequence[Link], output: pa.Schema) -> DataFrame:
    """Return the rows of the parts that ``links`` name, read by executors, one task a part."""
    schema = spark_schema(output)
    if not links:
        return spark.createDataFrame([], schema)
    rows = [(k.head.version, k.head.attempt, k.start, k.length, f"{k.checksum:016x}", k.rows) for k in links]
    named = spark.createDataFrame(rows, _LINK).repartition(len(rows))
    return named.mapInArrow(_read_function(home, arrow_of(schema)), schema)


def _read_function(home: Home, schema: pa.Schema) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        reader = Reader(store_of(home), None)
        for batch in batches:
            for row in batch.to_pylist():
                head = Head(row["version"], row["attempt"])
                link = Link(head, row["start"], row["length"], int(row["checksum"], 16), row["rows"])
                yield from reader.links([link])[link].cast(schema).to_batches()

    return read
