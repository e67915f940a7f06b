"""Rows are routed from their topic and partition to their shard and slot by Spark expressions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import HASH, KEY_GROUP, SLOT, Order
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.operator import operator_of
from riffle_spark.protocol.ports import SlotLayout, SlotPlace
from riffle_spark.protocol.shards import Partition, Shards
from riffle_spark.spark.engine import routing
from riffle_spark.testing import home_of

pytestmark = pytest.mark.spark

STRANGE = 'it\'s `a` \\ "topic" é'
REGISTERED: list[Partition] = [("b", 0), ("b", 2), ("a", 0), ("a", 1), (STRANGE, 5), ("", 0)]


def layout_of(partitions: list[Partition], slots: int = 3) -> SlotLayout:
    """Return a layout that deals the shards over the slots in turn."""
    shards = Shards(tuple(partitions))
    places = (SlotPlace(n + 10, "1", "", tuple(range(len(shards)))[n::slots]) for n in range(slots))
    return SlotLayout(tuple(places), shards)


def order_of(rows: pa.Schema) -> Order:
    """Return an order for rows of a schema, keyed by ``k``."""
    operator = operator_of("totals", ["k"], aggregate(rows=count()), (), rows)
    return Order(
        home=home_of("memory://none", Path("/nowhere")), store="totals", key=("k",),
        schema=operator.schema.to_text(), output=operator.declared.output, rows=operator.rows,
        per_key_group=False, order_by=(), total=8, epoch=1,
        version=0, time_ms=0, watermark_ms=None, slots={}, entries={}, sequence=0, by_key=False,
    )  # fmt: skip


def rows_of(spark: SparkSession, rows: list[tuple[str, str | None, int | None]], kind: str = "int") -> DataFrame:
    """Return a batch of keys, topics and partitions."""
    return spark.createDataFrame(rows, f"k string, topic string, partition {kind}")


@pytest.mark.parametrize("kind", ["tinyint", "bigint"])
def test_every_row_gets_the_shard_of_its_partition_and_its_slot(spark: SparkSession, kind: str) -> None:
    """The key-group of a row is the number of its partition's shard, and its slot is the one with that shard, for any
    topic name.
    """
    rows: list[tuple[str, str | None, int | None]] = [(f"k{n}", *REGISTERED[n % len(REGISTERED)]) for n in range(20)]
    batch = rows_of(spark, rows, kind)
    order = order_of(routing.arrow_schema(batch))
    routed = routing.routed(batch, order, layout_of(REGISTERED)).collect()
    assert [row[KEY_GROUP] for row in routed] == [n % len(REGISTERED) for n in range(20)]
    assert [row[SLOT] for row in routed] == [10 + (n % len(REGISTERED)) % 3 for n in range(20)]


def test_unused_topic_and_partition_are_not_shuffled(spark: SparkSession) -> None:
    """Topic and partition are not shuffled unless the operator needs them."""
    batch = rows_of(spark, [("k", "a", 0)])
    order = order_of(routing.arrow_schema(batch))
    assert routing.routed(batch, order, layout_of(REGISTERED)).columns == [SLOT, KEY_GROUP, HASH, "__riffle_0"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (("k", "c", 0), "c/0"),
        (("k", "b", 1), "b/1"),
        (("k", "b", 3), "b/3"),
        (("k", "b", -1), "b/-1"),
        (("k", "b", 2**40), f"b/{2**40}"),
        (("k", None, 0), "no topic/0"),
        (("k", "b", None), "b/no partition"),
    ],
)
@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.long)])
@pytest.mark.sample(step=4)
def test_a_row_of_an_unknown_partition_fails_the_batch(
    spark: SparkSession, row: tuple[str, str | None, int | None], named: str, ansi: str
) -> None:
    """A row of an unknown partition fails the batch, and the error names its topic and partition."""
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        batch = rows_of(spark, [("k", "b", 0), row], "bigint")
        order = order_of(routing.arrow_schema(batch))
        # PySpark 3.5 does not convert an error of a task.
        with pytest.raises(
            (PySparkException, Py4JJavaError), match=f"riffle: dispatch is by partition.*The row has {named}"
        ):
            routing.routed(batch, order, layout_of(REGISTERED)).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_an_empty_batch_is_routed_before_any_shard_exists(spark: SparkSession) -> None:
    """An empty batch can be routed before any shard exists."""
    batch = rows_of(spark, [])
    order = order_of(routing.arrow_schema(batch))
    layout = SlotLayout((SlotPlace(0, "1", "", ()),), Shards())
    assert routing.routed(batch, order, layout).collect() == []


def test_partitions_are_read_from_the_rows(spark: SparkSession) -> None:
    """Each distinct (topic, partition) is read once, up to the requested number."""
    batch = rows_of(spark, [(f"k{n}", f"t{n % 2}", n % 3) for n in range(30)])
    assert sorted(routing.partitions_of(batch, 100)) == [(f"t{t}", p) for t in range(2) for p in range(3)]
    assert len(routing.partitions_of(batch, 4)) == 4


def test_topic_and_partition_are_found_in_any_case_unless_case_counts(spark: SparkSession) -> None:
    """The columns topic and partition are found in any case, unless the session is case-sensitive."""
    batch = rows_of(spark, [("k", "a", 0), ("k", "b", 0)]).toDF("k", "TOPIC", "Partition")
    assert sorted(routing.partitions_of(batch, 9)) == [("a", 0), ("b", 0)]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(ConfigError, match="RIFFLE-0284"):
            routing.partitions_of(batch, 9)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_two_keys_that_are_struct_fields_of_one_name_are_refused(spark: SparkSession) -> None:
    """Two operators whose keys are struct fields of the same name are refused, because their columns would collide."""
    frame = spark.range(1).selectExpr("struct(id as x) as s", "struct(id as x) as t")
    rows = routing.arrow_schema(frame)
    built = [operator_of(name, [f"{name}.x"], aggregate(rows=count()), (), rows) for name in ("s", "t")]
    assert routing.prepared(frame, built[:1]).columns == ["s", "t", "x"]
    with pytest.raises(ConfigError, match="RIFFLE-0228"):
        routing.prepared(frame, built)


@pytest.mark.parametrize("row", [("k", None, 0), ("k", "b", None)])
def test_a_row_without_topic_or_partition_is_refused(
    spark: SparkSession, row: tuple[str, str | None, int | None]
) -> None:
    """A row whose topic or partition is NULL is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0285"):
        routing.partitions_of(rows_of(spark, [row]), 10)


@pytest.mark.parametrize("schema", ["k string, topic string", "k string, topic binary, partition int"])
def test_a_batch_without_the_topic_or_partition_column_is_refused(spark: SparkSession, schema: str) -> None:
    """A batch that lacks topic or partition, or has them with other types, is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0284"):
        routing.partition_columns(spark.createDataFrame([], schema))
