"""Rows to slots. Knows the key's hash in SQL and the layout. Does not know who runs what."""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from riffle_spark import keygroups
from riffle_spark.protocol.ports import Layout
from riffle_spark.worker.order import KEY_GROUP, SLOT, Order

__all__ = ["arrow_of", "arrow_schema", "quoted", "routed", "spark_schema"]


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema in which a frame's rows reach a Python worker."""
    return to_arrow_schema(frame.schema)


def arrow_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows of a Spark schema."""
    return to_arrow_schema(schema)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of rows of an Arrow schema."""
    return from_arrow_schema(schema)


def routed(batch: DataFrame, order: Order, layout: Layout) -> DataFrame:
    """Return each row's slot, its key-group and the needed columns, in their order but under plain names.

    Spark's way to Python looks columns up by name, and fails where there is a dot or a backtick in it.
    """
    key_group = keygroups.spark_expression(order.schema.key.names, order.total)
    plain = [F.col(quoted(name)).alias(f"__riffle_{at}") for at, name in enumerate(order.rows.names)]
    rows = batch.select(F.expr(f"cast({key_group} as int)").alias(KEY_GROUP), *plain)
    return rows.select(_slot(order.total, layout).alias(SLOT), "*")


def _slot(total: int, layout: Layout) -> Column:
    """Return the slot of a key-group: one literal array, folded once a query, so that no call is made per key-group."""
    numbers = [0] * total
    for slot in layout.slots:
        for key_group in slot.key_groups:
            numbers[key_group] = slot.number
    return F.element_at(F.from_json(F.lit(json.dumps(numbers)), "array<int>"), F.col(KEY_GROUP) + 1)


def quoted(name: str) -> str:
    """Return a column name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
