"""Running aggregates have the types and values of Spark's aggregates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from riffle_spark.process.merging.aggregates import aggregate, count, first, last, max_, mean, min_, sum_
from tests.kit.process.process_calls import KeyedComputation

pytestmark = pytest.mark.spark

ROWS, KEYS, BATCH = 400, 60, 90
SPECIAL_FLOATS = [float("nan"), float("inf"), -float("inf"), 0.1, 0.7, -1.5, 3e30]


def _decimals(digits: int, scale: int) -> Callable[[random.Random], Any]:
    return lambda chance: Decimal(chance.randint(-(10**digits), 10**digits)).scaleb(-scale)


VALUES: dict[pa.DataType, Callable[[random.Random], Any]] = {
    pa.int8(): lambda chance: chance.randint(-128, 127),
    pa.int64(): lambda chance: chance.randint(-(2**59), 2**59),
    pa.float32(): lambda chance: chance.choice(SPECIAL_FLOATS),
    pa.decimal128(38, 18): _decimals(27, 18),
    pa.decimal128(38, 37): _decimals(12, 37),
    pa.string(): lambda chance: chance.choice(["", "a", "B", "é", "zz", "\U0001f600", "\uffee"]),
    pa.timestamp("us", tz="UTC"): lambda chance: datetime(1900 + chance.randint(0, 200), 1, 1, tzinfo=timezone.utc),
}


def _table(type: pa.DataType) -> pa.Table:
    chance = random.Random(f"{type}")
    values = [VALUES[type](chance) if chance.random() > 0.3 else None for _ in range(ROWS)]
    keys = [chance.randrange(KEYS) for _ in range(ROWS)]
    return pa.table({"at": range(ROWS), "k": pa.array(keys, pa.int64()), "v": pa.array(values, type)})


def _spark_columns(sums: bool) -> list[Column]:
    columns = {
        "rows": F.count("*"), "present": F.count("v"), "least": F.min("v"), "greatest": F.max("v"),
        "first": F.first("v"), "last": F.last("v"),
        "first_present": F.first("v", ignorenulls=True), "last_present": F.last("v", ignorenulls=True),
    }  # fmt: skip
    columns |= {"total": F.sum("v"), "average": F.avg("v")} if sums else {}
    return [column.alias(name) for name, column in columns.items()]


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: "NaN" if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


@pytest.mark.parametrize("type", VALUES, ids=str)
@pytest.mark.sample(step=2)
def test_running_aggregates_equal_sparks(spark: SparkSession, type: pa.DataType) -> None:
    """After several batches every aggregate has Spark's type and value, also the last bit of floats."""
    rows = _table(type)
    sums = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    compute = aggregate(
        rows=count(), present=count("v"), least=min_("v"), greatest=max_("v"), first=first("v"), last=last("v"),
        first_present=first("v", ignore_nulls=True), last_present=last("v", ignore_nulls=True),
        **({"total": sum_("v"), "average": mean("v")} if sums else {}),
    )  # fmt: skip
    keyed = KeyedComputation(compute, rows.schema)
    ours: dict[object, object] = {}
    for start in range(0, ROWS, BATCH):
        ours |= {row["k"]: _comparable(row) for row in keyed.feed(rows.slice(start, BATCH))}
    ordered = spark.createDataFrame(rows).coalesce(1).sortWithinPartitions("at")
    theirs = ordered.groupBy("k").agg(*_spark_columns(sums)).toArrow()
    assert theirs.schema.types == keyed.declared.output.types
    assert {row["k"]: _comparable(row) for row in theirs.to_pylist()} == ours
