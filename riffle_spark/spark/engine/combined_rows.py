"""Combine the rows of each input partition by key before the shuffle, where that reduces them.

Theory of operation. ``CanCombine`` computations accept one row for many rows of a key
(``process/blocks/combining.py``). Grouping by key normally needs a shuffle of its own. So Spark gets the rows of a
batch as a frame that claims to be partitioned by key. Spark then groups within each partition only. The slots merge the
rows that a key has in several partitions.

Grouping takes time on rows that are all different. So it depends on the batch before, per store:

1. Slots count how many rows would remain (``Receipt.combined_rows``), or after combining how many they got.
2. Combining starts if at least 40 % of the rows would go, and ends if less than 30 % of them goes. If a third goes,
   combining takes as long as it saves.
3. Spark groups up to 65,536 keys of a partition in a fast hash map, and further keys in a slower one. The fast map is
   given room for as many rows as remained in a partition, up to a million. If more remain, combining starts if two
   thirds of the rows would go, and ends if less than half of them goes.
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

__all__ = ["Reductions", "combinable", "combined_order", "combined_rows"]

_MIN_ROWS: Final = 10_000
"""Batches of fewer rows are not combined, because that would save less than it costs."""
_FAST_KEY_BITS: Final = 20
"""Spark's fast hash map gets room for at most 2**20 keys. Empty, it then takes 8 MB."""
_DEFAULT_KEY_BITS: Final = 16
_KEY_BITS: Final = "spark.sql.codegen.aggregate.fastHashMap.capacityBit"
_PARTITIONS_FOR: Final = 32
"""For so many batches the number of input partitions is taken as unchanged."""
_IS_KEY_TYPE: Final = (
    types.is_signed_integer,
    types.is_string,
    types.is_binary,
    types.is_boolean,
    types.is_date32,
    types.is_timestamp,
)
"""Types of keys that Spark groups as slots do: not floats, decimals and structs."""


class _Shares(NamedTuple):
    """The largest shares of remaining rows at which combining starts, and at which it does not end."""

    start: float
    end: float


_FAST: Final = _Shares(0.6, 0.7)
_SLOW: Final = _Shares(1 / 3, 1 / 2)


class Reductions:
    """Whether the rows of stores are combined, by what was measured in the batch before."""

    def __init__(self) -> None:
        self._combines: set[str] = set()
        self._rows: dict[str, int] = {}
        self._key_bits: dict[str, int] = {}
        self._partitions: dict[str, tuple[int, int]] = {}

    def combines(self, store: str) -> bool:
        """Return whether the rows of a store are combined in the next batch."""
        return store in self._combines

    def partitions(self, store: str, frame: DataFrame) -> int:
        """Return the number of partitions of a store's input; 0 if nothing is to be measured, or if it is unknown."""
        if self._rows.get(store, 0) < _MIN_ROWS:
            return 0
        number, uses = self._partitions.get(store, (0, 0))
        if not uses:
            number = _partition_count(frame)
            uses = _PARTITIONS_FOR
        self._partitions[store] = number, uses - 1
        return number

    @contextmanager
    def room_for_keys(self, store: str, spark: SparkSession) -> Iterator[None]:
        """Give Spark's fast hash map room for the keys of a partition of the store's input, if the block groups them.

        A size that the user has set remains.
        """
        bits = min(self._key_bits.get(store, _DEFAULT_KEY_BITS), _FAST_KEY_BITS)
        if bits == _DEFAULT_KEY_BITS:
            yield
        else:
            with handles.default_setting(spark, _KEY_BITS, str(bits)):
                yield

    def record(self, receipts: Sequence[Receipt]) -> None:
        """Decide for the next batch by the receipts of all slots of a batch's stores."""
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
    """Return the size of the hash map for the keys of a partition, as a power of two. A quarter is spare.

    ``rows`` are the rows that remain in all partitions. Each has one key of one partition.
    """
    return max(_DEFAULT_KEY_BITS, (rows * 5 // (4 * max(partitions, 1))).bit_length())


def _partition_count(frame: DataFrame) -> int:
    """Return the number of partitions of a batch, or 0 if it is more than the rows of a query."""
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

    ``order`` is that of the rows as they are. Raise ``LookupError`` if the batch is more than the rows of a query.
    """
    frame = _as_partitioned(batch, order.key)
    aggregates = [F.expr(sql).alias(name) for column in combined.columns for name, sql in _aggregates(column)]
    grouped = frame.groupBy(*[F.col(routing.quoted(name)) for name in order.key])
    rows = grouped.agg(*aggregates, F.expr("count(1)").alias(ROWS))
    slot_order = combined_order(order, combined)
    names = encoded_names(slot_order.rows.names, slot_order.sums)
    return rows, replace(slot_order, rows=pa.schema([pa.field(name, pa.int64()) for name in names]))


def _as_partitioned(batch: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows of a batch as a frame that Spark takes as partitioned by ``key``."""
    spark = batch.sparkSession
    plan = plain_plan(batch)
    jvm = handles.context(spark)._jvm
    output = plan.output()
    columns = [output.apply(batch.columns.index(name)) for name in key]
    hashing = handles.looked_up(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
    partitioning = hashing(handles.scala_seq(jvm, columns), plan.rdd().getNumPartitions())
    taken = handles.logical_rdd(jvm, output, plan.rdd(), partitioning, handles.session(spark))
    return handles.frame_of(spark, taken)


def _aggregates(column: CombinedColumn) -> list[tuple[str, str]]:
    """Return the names and the SQL of the columns in the shuffle for a combined column."""
    source = "1" if column.source is None else routing.quoted(column.source)
    if column.function != "sum":
        function = "sum" if column.function == "add" else column.function
        return [(column.name, f"{function}({source})")]
    high, low = encoded_names([column.name], [column.name])
    return [(high, f"sum(shiftright({source}, 32))"), (low, f"sum({source} & 4294967295)")]
