"""The assignment as a DataFrame whose partition i is slot i and prefers slot i's executor. Knows Spark's plans,
through the JVM.

Three facts it rests on: ``makeRDD`` takes locations, and ``executor_<host>_<id>`` names one executor;
HashPartitioning(slot, n) sends a row to pmod(murmur3(slot), n), so slot numbers are chosen to land on their own
partition; a LogicalRDD may state its partitioning. A cogroup with it then shuffles only the batch, and its tasks take
the location of the assignment's partitions.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.protocol.ports import Layout
from riffle_spark.spark import jvm as handles
from riffle_spark.worker.order import SLOT
from riffle_spark.worker.place import LOCAL_EXECUTOR

__all__ = ["hashed", "placed"]


def placed(spark: SparkSession, layout: Layout) -> DataFrame:
    """Return the layout as a one-column DataFrame, each partition preferring its slot's executor.

    Raises whatever the JVM raises if this version of Spark has no such plan; the caller then falls back to ``hashed``.
    """
    context = handles.context(spark)
    jvm = context._jvm
    rdd = _located_rdd(context, jvm, layout)
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL(f"{SLOT} int")
    types = getattr(jvm.org.apache.spark.sql.catalyst.types, "DataTypeUtils$")
    output = handles.module(types).toAttributes(schema)
    partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning(output, len(layout.slots))
    return handles.frame_of(spark, handles.logical_rdd(jvm, output, rdd, partitioning, handles.session(spark)))


def _located_rdd(context: Any, jvm: Any, layout: Layout) -> Any:
    pairs = []
    for slot in layout.slots:
        values = context._gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = slot.number
        row = jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(values)
        wanted = [] if slot.executor == LOCAL_EXECUTOR else [f"executor_{slot.host}_{slot.executor}"]
        pairs.append(jvm.scala.Tuple2(row, handles.scala_seq(jvm, wanted)))
    row_class = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
    return context._jsc.sc().makeRDD(handles.scala_seq(jvm, pairs), jvm.scala.reflect.ClassTag.apply(row_class))


def hashed(spark: SparkSession, layout: Layout) -> DataFrame:
    """Return the layout as a DataFrame with the same partitions and no preference: plain hash placement."""
    numbers = [(slot.number,) for slot in layout.slots]
    return spark.createDataFrame(numbers, f"{SLOT} int").repartition(len(numbers), F.col(SLOT))
