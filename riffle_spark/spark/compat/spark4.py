"""Implement for Spark 4.0 to 4.3 what differs between versions. ``spark35`` implements the same for Spark 3.5."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyspark
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import StructType, VariantType
from pyspark.util import PythonEvalType

from riffle_spark.spark.compat.heartbeat_source import EVERY_MS, Heartbeat
from riffle_spark.spark.compat.java import cache_of, checked, looked_up, opened_field, scala_seq

__all__ = [
    "CLASSIC",
    "LOST_BLOCK",
    "PARTITION_METRICS",
    "RAISED",
    "REPLACING_RULES",
    "STREAM_PARTITIONS",
    "TO_PANDAS",
    "ClassicFrame",
    "ExpiredTimerInfo",
    "ListState",
    "MapState",
    "SlotCall",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "TimerValues",
    "ValueState",
    "VariantType",
    "beats",
    "cogrouped",
    "cogrouped_in_jvm",
    "conf_of",
    "ddl_of",
    "error_of_class",
    "expects_large_types",
    "has_python_source",
    "kept_without_rows",
    "local_checkpoint",
    "no_stream",
    "prepare_for_commits",
    "progress_of",
    "replace_executed_plan",
    "row_copier",
    "slot_udf",
    "table_location",
    "to_arrow",
]

CLASSIC: Final = "org.apache.spark.sql.classic"
"""The Java package of ``SparkSession`` and ``Dataset``."""
STREAM_PARTITIONS: Final[tuple[int, ...]] = ()
"""The number of partitions of the ticks' stream, if it is passed to Spark: ``prepare_for_commits`` needs it."""
LOST_BLOCK: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""A part of the message of Spark's error for a lost block of a local checkpoint."""
PARTITION_METRICS: Final[tuple[str, ...]] = ()
"""The metrics of a state operator that hold the number of its partitions. Since Spark 4 it has no such metric."""
RAISED: Final = "[USER_RAISED_EXCEPTION] "
"""The text before that of ``raise_error`` in Spark's message."""
REPLACING_RULES: Final = ("ReplaceExpressions", "RewriteWithExpression")
"""The optimiser's rules that replace functions such as ``count_if`` by others."""
TO_PANDAS: Final[Mapping[str, bool]] = {"date_as_object": True, "coerce_temporal_nanoseconds": True}
"""The options with which PySpark converts Arrow columns to pandas for a user's function."""
_PYTHON: Final = "org.apache.spark.sql.execution.python"
_LARGE_TYPES: Final = "spark.sql.execution.arrow.useLargeVarTypes"
_CHECKS_LARGE_TYPES: Final = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)
"""Whether this version applies the setting to results of functions. Earlier ones require the usual types."""
_COGROUP: Final = "FlatMapCoGroupsInArrowExec"
_Error = TypeVar("_Error", bound=PySparkException)


def slot_udf(function: Any) -> Any:
    """Return the function that Spark's workers call for a slot, with its key, its number and its rows."""
    return function


def cogrouped(left: DataFrame, right: DataFrame, by: str, function: Any, output: StructType) -> DataFrame:
    """Return the frame of a ``slot_udf``'s results, called per value of column ``by`` with the rows of both frames."""
    return left.groupBy(by).cogroup(right.groupBy(by)).applyInArrow(function, output)


def cogrouped_in_jvm(jvm: Any, left: DataFrame, right: DataFrame, by: str, function: Any, output: StructType) -> Any:
    """Return the result of ``cogrouped`` as the JVM's frame, in fewer calls.

    Raise the JVM's error if it has no such method.
    """
    eval_type = PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF
    udf: Any = F.pandas_udf(function, returnType=output, functionType=eval_type)  # type: ignore[call-overload]
    columns = [frame._jdf.apply(name) for frame in (left, right) for name in frame.columns]
    call = udf._unwrapped._judf.apply(scala_seq(jvm, columns))
    groups = [frame._jdf.groupBy(scala_seq(jvm, [frame._jdf.apply(by)])) for frame in (left, right)]
    return groups[0].flatMapCoGroupsInArrow(groups[1], call)


class SlotCall:
    """The node that calls Python in the physical plan of ``cogrouped``, and the nodes below it.

    Raise ``LookupError`` if the plan has another form.
    """

    def __init__(self, node: Any) -> None:
        self.slots = checked(node, _COGROUP).left()
        self.rows = node.right()
        self.udf = node.func()
        self.output = node.output()
        self._groups = node.leftGroup(), node.rightGroup()

    def copied(self, jvm: Any, udf: Any, slots: Any, rows: Any) -> Any:
        """Return a copy of the node with another function and other nodes below it."""
        return looked_up(jvm, f"{_PYTHON}.{_COGROUP}")(*self._groups, udf, self.output, slots, rows)


def ddl_of(schema: StructType) -> str:
    """Return a schema as DDL."""
    return schema.toDDL()


def has_python_source(state: Any, name: str) -> bool:
    """Return whether a Python data source ``name`` is registered. ``state`` is the JVM's state of a session."""
    return bool(state.dataSourceManager().dataSourceExists(name))


def kept_without_rows(frame: DataFrame) -> DataFrame:
    """Return the frame. Spark 4 counts the source's rows even in a batch in which it has none."""
    return frame


def prepare_for_commits(spark: SparkSession, stream: Any, number: int, ahead: int) -> None:
    """Do nothing. A stream in memory of Spark 4 accepts commits of any later offset."""


def progress_of(progress: dict[str, Any]) -> StreamingQueryProgress:
    """Return a batch's progress as PySpark's ``StreamingQuery`` does. ``progress`` is that of Spark's JSON."""
    return StreamingQueryProgress.fromJson(progress)


def expects_large_types(spark: SparkSession) -> bool:
    """Return whether Spark requires Arrow's large types of strings and binaries in the results of slots."""
    return _CHECKS_LARGE_TYPES and spark.conf.get(_LARGE_TYPES, "false") == "true"


def no_stream(none: Any) -> list[Any]:
    """Return the arguments of a ``LogicalRDD`` for its stream, if its constructor has any."""
    return [none]


def local_checkpoint(frame: DataFrame, level: StorageLevel, *, eager: bool) -> DataFrame:
    """Return a frame whose rows are stored on the executors at a storage level.

    With ``eager`` they are computed now. Spark's default level is not passed, which saves two calls.
    """
    if level == StorageLevel.MEMORY_AND_DISK:
        return frame.localCheckpoint(eager=eager)
    return frame.localCheckpoint(eager=eager, storageLevel=level)


def row_copier(jvm: Any, frame: DataFrame) -> Any:
    """Return the JVM's function that copies the rows of a local checkpoint. It is read once per JVM.

    ``frame`` may be any frame. It is not computed.
    """
    cache = cache_of(jvm)
    if "row copier" not in cache:
        rdd = frame.localCheckpoint(eager=False)._jdf.queryExecution().analyzed().rdd()
        rdd.unpersist(False)
        cache["row copier"] = opened_field(jvm, "org.apache.spark.rdd.MapPartitionsRDD", "f").get(rdd)
    return cache["row copier"]


def table_location(spark: SparkSession, name: str, described: str) -> str:  # noqa: ARG001 - the signature of all lines
    """Return the location of a table's files. ``described`` is what DESCRIBE TABLE shows."""
    return described


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame as an Arrow table. Runs a job."""
    return frame.toArrow()


def conf_of(spark: SparkSession) -> dict[str, str]:
    """Return a session's configuration by name, without its JVM."""
    return dict(spark.conf.getAll)


def error_of_class(error: type[_Error], name: str, parameters: Mapping[str, str]) -> _Error:
    """Return a PySpark error of class ``error`` with the message of Spark's error class ``name``."""
    return error(errorClass=name, messageParameters=dict(parameters))


def beats(spark: SparkSession, schema: StructType | str, every_ms: int) -> DataFrame:
    """Return a stream without rows that has a new offset every ``every_ms`` milliseconds."""
    spark.dataSource.register(Heartbeat)
    return spark.readStream.format(Heartbeat.name()).schema(schema).option(EVERY_MS, every_ms).load()


def replace_executed_plan(jvm: Any, execution: Any, plan: Any) -> None:
    """Make a plan the physical plan of a JVM's execution that was planned before."""
    holder = opened_field(jvm, "org.apache.spark.sql.execution.QueryExecution", "lazyExecutedPlan").get(execution)
    planned = looked_up(jvm, "scala.util.Success")(plan)
    opened_field(jvm, "org.apache.spark.util.LazyTry", "tryT").set(holder, planned)
