"""The assignment as a DataFrame whose partition i is slot i and prefers slot i's executor, built once a layout. Knows
Spark's plans, through the JVM, and when to fall back to hash placement. Does not know what runs on it.
"""

import logging
from collections import OrderedDict
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.messages.slot_orders import SLOT
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.kept_plan import KeptPlans
from riffle_spark.worker.member_folders import LOCAL_EXECUTOR

__all__ = ["PlacedFrames", "hash_placed", "placed"]

_logger = logging.getLogger("riffle_spark")


def placed(spark: SparkSession, layout: SlotLayout) -> DataFrame:
    """Return the layout as a one-column DataFrame, each partition preferring its slot's executor.

    Raises whatever the JVM raises if this version of Spark has no such plan; the caller then falls back to
    ``hash_placed``.
    """
    context = handles.context(spark)
    jvm = context._jvm
    rdd = _located_rdd(context, jvm, layout)
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL(f"{SLOT} int")
    types = handles.looked_up(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils$", "MODULE$")
    output = types.toAttributes(schema)
    partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning(output, len(layout.slots))
    return handles.frame_of(spark, handles.logical_rdd(jvm, output, rdd, partitioning, handles.session(spark)))


def _located_rdd(context: Any, jvm: Any, layout: SlotLayout) -> Any:
    pairs = []
    for slot in layout.slots:
        values = context._gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = slot.number
        row = jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(values)
        wanted = [] if slot.executor == LOCAL_EXECUTOR else [f"executor_{slot.host}_{slot.executor}"]
        pairs.append(jvm.scala.Tuple2(row, handles.scala_seq(jvm, wanted)))
    row_class = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
    return context._jsc.sc().makeRDD(handles.scala_seq(jvm, pairs), jvm.scala.reflect.ClassTag.apply(row_class))


def hash_placed(spark: SparkSession, layout: SlotLayout) -> DataFrame:
    """Return the layout as a DataFrame with the same partitions and no preference: plain hash placement."""
    numbers = [(slot.number,) for slot in layout.slots]
    return spark.createDataFrame(numbers, f"{SLOT} int").repartition(len(numbers), F.col(SLOT))


class PlacedFrames:
    """Keeps the frames of the last ``kept`` layouts for the session they were built in. ``silent`` for those whose
    fallback is told by others.
    """

    def __init__(self, kept: int = 1, *, silent: bool = False) -> None:
        self._kept = kept
        self._silent = silent
        self._spark: SparkSession | None = None
        self._frames: OrderedDict[SlotLayout, DataFrame] = OrderedDict()
        self.plans = KeptPlans()
        self.placeable = True

    def frame(self, spark: SparkSession, layout: SlotLayout) -> DataFrame:
        """Return the layout as a frame; the same one as long as an equal layout is kept and the session stays."""
        if not handles.is_same(spark, self._spark):
            self._frames.clear()
            self.plans = KeptPlans()
            self._spark = spark
        frame = self._frames.pop(layout, None) or self._build(spark, layout)
        self._frames[layout] = frame
        while len(self._frames) > self._kept:
            self._frames.popitem(last=False)
        return frame

    def _build(self, spark: SparkSession, layout: SlotLayout) -> DataFrame:
        if self.placeable and not handles.is_classic(spark):
            self._give_up("Spark Connect has no JVM handle")
        if self.placeable:
            try:
                return placed(spark, layout)
            except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: placement is never a condition
                self._give_up(str(error).splitlines()[0])
        return hash_placed(spark, layout)

    def _give_up(self, reason: str) -> None:
        self.placeable = False
        level = logging.DEBUG if self._silent else logging.WARNING
        _logger.log(level, "slots are hash-placed from now on, results are the same: %s", reason)
