"""Build the DataFrame of a layout: partition i is slot i, and Spark prefers the executor of slot i for its task."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.messages.slot_orders import SLOT
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.spark import compat
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.combined_rows import Reductions
from riffle_spark.spark.engine.kept_output import KeptOutputs
from riffle_spark.spark.engine.kept_plan import KeptPlans
from riffle_spark.worker.member_folders import LOCAL_EXECUTOR

_logger = logging.getLogger("riffle_spark")


def placed(spark: SparkSession, layout: SlotLayout) -> DataFrame:
    """Return a layout as a DataFrame: partition i holds the number of slot i, and prefers its executor.

    The number of calls to the JVM does not depend on the number of slots. Raise the JVM's error if this version of
    Spark lacks such a plan. The caller then uses ``hash_placed``.
    """
    jvm = handles.context(spark)._jvm
    rdd = _located_rdd(spark, jvm, layout)
    schema = handles.looked_up(jvm, "org.apache.spark.sql.types.StructType", "fromDDL")(f"{SLOT} int")
    types = handles.looked_up(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils$", "MODULE$")
    output = types.toAttributes(schema)
    hashing = handles.looked_up(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
    partitioning = hashing(output, len(layout.slots))
    return handles.frame_of(spark, handles.logical_rdd(jvm, output, rdd, partitioning, handles.session(spark)))


def _located_rdd(spark: SparkSession, jvm: Any, layout: SlotLayout) -> Any:
    """Return an RDD with one row per partition. All slot numbers are one text, and so are all executors."""
    rows = _wrapped(jvm, _number_rows(spark, jvm, [slot.number for slot in layout.slots]))
    tag = handles.row_tag(jvm)
    context = handles.context(spark)._jsc.sc()
    if any(slot.executor == LOCAL_EXECUTOR for slot in layout.slots):
        return context.makeRDD(rows.toSeq(), len(layout.slots), tag)
    names = _lines(jvm, [f"executor_{slot.host}_{slot.executor}" for slot in layout.slots])
    return context.makeRDD(rows.iterator().zip(names.grouped(1)).toList(), tag)


def _number_rows(spark: SparkSession, jvm: Any, numbers: Sequence[int]) -> Any:
    """Return a Java array of Spark's internal rows, each with one of the numbers."""
    text = handles.looked_up(jvm, "org.apache.spark.sql.Encoders", "STRING")()
    lines = handles.session(spark).createDataset(_lines(jvm, list(map(str, numbers))), text)
    frame = lines.selectExpr(handles.scala_seq(jvm, ["cast(value as int)"]))
    return frame.queryExecution().executedPlan().executeCollect()


def _lines(jvm: Any, lines: Sequence[str]) -> Any:
    """Return a Scala Seq of texts that have no line break and are not empty."""
    newline = handles.looked_up(jvm, "java.util.regex.Pattern", "compile")("\n")
    return _wrapped(jvm, newline.split("\n".join(lines))).toSeq()


def _wrapped(jvm: Any, array: Any) -> Any:
    """Return a Java array as a mutable Scala sequence."""
    return handles.looked_up(jvm, "scala.Predef", "genericWrapArray")(array)


def hash_placed(spark: SparkSession, layout: SlotLayout) -> DataFrame:
    """Return the layout as a DataFrame whose partitions have no preferred executor."""
    numbers = [(slot.number,) for slot in layout.slots]
    return spark.createDataFrame(numbers, f"{SLOT} int").repartition(len(numbers), F.col(SLOT))


class PlacedFrames:
    """Caches the frames of the last layouts of a session, and the kept plans of a job.

    ``placeable`` is false once placement on executors has failed. ``large_types`` is whether slots return Arrow's large
    types of strings and binaries. ``has_speculation`` is whether Spark starts slow tasks a second time on another
    executor. All are known once ``frame`` was called.
    """

    def __init__(self, capacity: int = 1, *, silent: bool = False) -> None:
        """Create a cache for ``capacity`` layouts. ``silent`` logs a failed placement at level debug."""
        self._capacity = capacity
        self._silent = silent
        self._spark: SparkSession | None = None
        self._frames: OrderedDict[SlotLayout, DataFrame] = OrderedDict()
        self.plans = KeptPlans()
        self.outputs = KeptOutputs()
        self.reductions = Reductions()
        self.placeable = True
        self.large_types = False
        self.has_speculation = False

    def frame(self, spark: SparkSession, layout: SlotLayout) -> DataFrame:
        """Return the layout as a frame, from the cache if possible. A new session empties the cache."""
        if not handles.is_same(spark, self._spark):
            self._frames.clear()
            self.plans = KeptPlans()
            self.outputs = KeptOutputs()
            self._spark = spark
            self.large_types = compat.expects_large_types(spark)
            self.has_speculation = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
        frame = self._frames.pop(layout, None) or self._build(spark, layout)
        self._frames[layout] = frame
        while len(self._frames) > self._capacity:
            self._frames.popitem(last=False)
        return frame

    def _build(self, spark: SparkSession, layout: SlotLayout) -> DataFrame:
        """Return a new frame of a layout, placed on executors if possible, else by hash."""
        if self.placeable and not handles.is_classic(spark):
            self._disable_placement("Spark Connect has no JVM handle")
        if self.placeable:
            try:
                return placed(spark, layout)
            except Exception as error:  # noqa: BLE001 - the JVM may raise any error, and placement is an optimisation
                self._disable_placement(str(error).splitlines()[0])
        return hash_placed(spark, layout)

    def _disable_placement(self, reason: str) -> None:
        """Place all later layouts by hash, and log the ``reason``."""
        self.placeable = False
        level = logging.DEBUG if self._silent else logging.WARNING
        # Cause: Spark Connect has no JVM handle, or this version of Spark lacks a private class that placement needs.
        _logger.log(
            level,
            "[RIFFLE-0653] Slots are placed by hash, which costs time but keeps results: %s\n"
            "  What to do: Use a classic session of a supported version of Spark, or do nothing.",
            reason,
        )
