"""Combine the rows of each input partition by key before the shuffle, if that reduces them.

Theory of operation. ``CanCombine`` computations accept one row for many rows of a key
(``process/blocks/combining.py``). Grouping by key normally needs a shuffle of its own. So Spark gets the rows of a
batch as a frame that claims to be partitioned by key. Spark then groups within each partition only. The slots merge the
rows that a key has in several partitions.

Grouping saves nothing if most keys are different. So the previous batch decides, per store:

1. Slots count how many rows combining would leave (``Receipt.combined_rows``). If the rows are combined, this is the
   number of rows that they got.
2. Combining starts if it would remove at least 40 % of the rows, and ends if it removes less than 30 %. If it removes a
    third, it costs as much time as it saves.
3. Spark groups up to 65,536 keys of a partition in a fast hash map, and further keys in a slower one. This module sizes
   the fast map for the rows that a partition had after combining, up to a million. If there are more, combining starts
   at two thirds of the rows, and ends below one half.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.messages.slot_orders import LETTER, Order, Receipt
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.blocks.combining import (
    ROWS,
    CanCombine,
    Combined,
    CombinedColumn,
    decoded_schema,
    encoded_names,
)
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine import routing
from riffle_spark.spark.engine.kept_plan import plain_plan

_MIN_ROWS: Final = 10_000
"""Smaller batches are not combined, because that would cost more than it saves."""
_FAST_KEY_BITS: Final = 20
"""Spark's fast hash map gets room for at most 2**20 keys. It then takes 8 MB even if it is empty."""
_DEFAULT_KEY_BITS: Final = 16
_KEY_BITS: Final = "spark.sql.codegen.aggregate.fastHashMap.capacityBit"
_BATCHES_PER_COUNT: Final = 32
"""The number of batches after which the number of input partitions is read again."""
_IS_KEY_TYPE: Final = (
    types.is_signed_integer,
    types.is_string,
    types.is_binary,
    types.is_boolean,
    types.is_date32,
    types.is_timestamp,
)
"""The types of keys that Spark and the slots group alike. Floats, decimals and structs are not among them."""


class _Shares(NamedTuple):
    """Combining starts if at most the share ``start`` of the rows remains. It continues while at most the share ``end``
    remains.
    """

    start: float
    end: float


_FAST: Final = _Shares(0.6, 0.7)
_SLOW: Final = _Shares(1 / 3, 1 / 2)


class Reductions:
    """Decides which stores' rows are combined, from the counts of the previous batch."""

    def __init__(self) -> None:
        self._combines: set[str] = set()
        self._rows: dict[str, int] = {}
        self._key_bits: dict[str, int] = {}
        self._partitions: dict[str, tuple[int, int]] = {}

    def combines(self, store: str) -> bool:
        """Return whether the rows of a store are combined in the next batch."""
        return store in self._combines

    def partitions(self, store: str, frame: DataFrame) -> int:
        """Return the number of partitions of a store's input; 0 if it is unknown or the last batch was too small."""
        if self._rows.get(store, 0) < _MIN_ROWS:
            return 0
        number, uses = self._partitions.get(store, (0, 0))
        if not uses:
            number = _partition_count(frame)
            uses = _BATCHES_PER_COUNT
        self._partitions[store] = number, uses - 1
        return number

    @contextmanager
    def room_for_keys(self, store: str, spark: SparkSession) -> Iterator[None]:
        """Size Spark's fast hash map for the keys of a partition of the store's input, unless the user has set a size.

        The size holds for plans that are made within the block.
        """
        bits = min(self._key_bits.get(store, _DEFAULT_KEY_BITS), _FAST_KEY_BITS)
        if bits == _DEFAULT_KEY_BITS:
            yield
        else:
            with handles.setting(spark, _KEY_BITS, str(bits), keeps_users=True):
                yield

    def record(self, receipts: Sequence[Receipt]) -> None:
        """Decide for the next batch, from the receipts of all slots of a batch."""
        for store in {receipt.store for receipt in receipts}:
            of_store = [receipt for receipt in receipts if receipt.store == store]
            rows = sum(receipt.rows for receipt in of_store)
            remaining = sum(receipt.combined_rows for receipt in of_store)
            self._rows[store] = rows
            partitions, _ = self._partitions.get(store, (0, 0))
            self._key_bits[store] = _key_bits(remaining, partitions)
            shares = _FAST if self._key_bits[store] <= _FAST_KEY_BITS else _SLOW
            limit = shares.end if store in self._combines else shares.start
            if rows >= _MIN_ROWS and 0 < remaining <= limit * rows:
                self._combines.add(store)
            else:
                self._combines.discard(store)


def _key_bits(rows: int, partitions: int) -> int:
    """Return the logarithm to base two of the size of the hash map for the keys of a partition. A quarter is spare.

    ``rows`` is the number of combined rows in all partitions. A partition has one combined row per key.
    """
    return max(_DEFAULT_KEY_BITS, (rows * 5 // (4 * max(partitions, 1))).bit_length())


def _partition_count(frame: DataFrame) -> int:
    """Return the number of partitions of a batch, or 0 if the batch is not a plain RDD."""
    try:
        return int(plain_plan(frame).rdd().getNumPartitions())
    except LookupError:
        return 0


def combinable(order: Order, compute: Computation, layout: SlotLayout) -> Combined | None:
    """Return how the rows of an order are combined, or ``None`` if a slot needs each row."""
    is_plain = order.initial is None and layout.shards is None and LETTER not in order.output.names
    counts_partitions = order.read_by is not None
    counts_late_rows = order.late_rule is not None and order.late_rule.by == "rows"
    if not is_plain or counts_partitions or counts_late_rows or not isinstance(compute, CanCombine):
        return None
    if not all(any(is_type(order.rows.field(name).type) for is_type in _IS_KEY_TYPE) for name in order.key):
        return None
    combined = compute.combine(order.key, order.rows)
    if combined is None:
        return None
    needed = {*order.key, *(column.source for column in combined.columns if column.source is not None)}
    return combined if needed == set(order.rows.names) else None


def combined_order(order: Order, combined: Combined) -> Order:
    """Return the order for slots that get combined rows."""
    key = pa.schema([order.rows.field(name) for name in order.key])
    sums = tuple(column.name for column in combined.columns if column.function == "sum")
    names = tuple(column.name for column in combined.columns)
    rows = decoded_schema(key, combined.columns)
    return replace(order, rows=rows, is_combined=True, combined=names, sums=sums)


def combined_rows(batch: DataFrame, order: Order, combined: Combined) -> tuple[DataFrame, Order]:
    """Return a batch with one row per key and partition, and an order that routes these rows.

    ``order`` is the order of the uncombined rows. Raise ``LookupError`` if the batch is not a plain RDD.
    """
    frame = _as_partitioned(batch, order.key)
    aggregates = [F.expr(sql).alias(name) for column in combined.columns for name, sql in _aggregates(column)]
    grouped = frame.groupBy(*[F.col(routing.quoted(name)) for name in order.key])
    rows = grouped.agg(*aggregates, F.expr("count(1)").alias(ROWS))
    slot_order = combined_order(order, combined)
    names = encoded_names(slot_order.rows.names, slot_order.sums)
    return rows, replace(slot_order, rows=pa.schema([pa.field(name, pa.int64()) for name in names]))


def _as_partitioned(batch: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows of a batch as a frame that claims to be partitioned by ``key``."""
    spark = batch.sparkSession
    plan = plain_plan(batch)
    jvm = handles.context(spark)._jvm
    output = plan.output()
    columns = [output.apply(batch.columns.index(name)) for name in key]
    hashing = handles.looked_up(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
    partitioning = hashing(handles.scala_seq(jvm, columns), plan.rdd().getNumPartitions())
    partitioned_plan = handles.logical_rdd(jvm, output, plan.rdd(), partitioning, handles.session(spark))
    return handles.frame_of(spark, partitioned_plan)


def _aggregates(column: CombinedColumn) -> list[tuple[str, str]]:
    """Return the names and the SQL of the columns in the shuffle for a combined column."""
    source = "1" if column.source is None else routing.quoted(column.source)
    if column.function != "sum":
        function = "sum" if column.function == "add" else column.function
        return [(column.name, f"{function}({source})")]
    high, low = encoded_names([column.name], [column.name])
    return [(high, f"sum(shiftright({source}, 32))"), (low, f"sum({source} & 4294967295)")]
