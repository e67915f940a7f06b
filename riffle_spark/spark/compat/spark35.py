# mypy: disable-error-code="attr-defined,call-arg,arg-type,operator"
"""Implement for Spark 3.5 what ``spark4`` implements for Spark 4. mypy checks that both have the same signatures."""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark import SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import DataFrame as ClassicFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.spark.compat.java import checked, kind, looked_up, opened_field
from riffle_spark.spark.compat.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

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

CLASSIC: Final = "org.apache.spark.sql"
LOST_BLOCK: Final = "Checkpoint block rdd_"
PARTITION_METRICS: Final[tuple[str, ...]] = ("numShufflePartitions",)
RAISED: Final = "java.lang.RuntimeException: "
REPLACING_RULES: Final = ("ReplaceExpressions",)
STREAM_PARTITIONS: Final[tuple[int, ...]] = (1,)
TO_PANDAS: Final[Mapping[str, bool]] = {"date_as_object": True}
_BEAT_MS: Final = 1000
_KEPT: Final = "__riffle_kept"
_PLACE: Final = "__riffle_place"
_ROUTED: Final = "__riffle_routed"
_MESSAGES: Final = {
    "FIELD_DATA_TYPE_UNACCEPTABLE_WITH_NAME": "{field_name}: {data_type} can not accept object {obj} in "
    "type {obj_type}.",
    "FIELD_NOT_NULLABLE_WITH_NAME": "{field_name}: This field is not nullable, but got None.",
    "RESULT_COLUMN_SCHEMA_MISMATCH": "Number of columns of the returned data doesn't match specified schema. "
    "Expected: {expected} Actual: {actual}",
    "UDF_RETURN_TYPE": "Return type of the user-defined function should be {expected}, but is {actual}.",
}
"""The messages of the error classes that ``error_of_class`` accepts. Spark 3.5 lacks most of them."""
_EXECUTION: Final = "org.apache.spark.sql.execution"
_COMPILED: Final = "WholeStageCodegenExec"
"""The node above a join that Spark compiles. Spark adds it to an adaptive plan only when it runs the plan."""
_JOIN: Final = "ShuffledHashJoinExec"
_MAP: Final = "PythonMapInArrowExec"
_logger = logging.getLogger("riffle_spark")
_Error = TypeVar("_Error", bound=PySparkException)


class VariantType:
    """Stands in for the type ``VARIANT``, which Spark 3.5 does not have. Nothing is an instance of it."""


def slot_udf(function: Any) -> Any:
    """Return a slot's function as a function for ``mapInArrow``. ``cogrouped`` calls it with the rows of a slot."""
    return partial(_call_on_partition, function)


def _call_on_partition(function: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call a slot's function with the rows of a partition of ``cogrouped``, and yield its result.

    The first column has the slot. A slot without rows has a single row in which all other columns are null.
    """
    joined = pa.Table.from_batches(batches)
    rows = joined.select(range(1, joined.num_columns))
    if rows.num_rows == 1 and rows.column(0).null_count:
        rows = rows.slice(0, 0)
    yield from function((joined.column(0)[0],), None, rows).to_batches()


def cogrouped(left: DataFrame, right: DataFrame, by: str, function: Any, output: StructType) -> DataFrame:
    """Return the frame of a ``slot_udf``'s results, called per value of column ``by`` with the rows of both frames.

    Spark 3.5 cannot cogroup in Arrow, so the frames are joined. ``left`` has one row per partition, so the join leaves
    each slot in its partition, with its preferred executor.

    A join has the preferred executors of its direct inputs, and a finished shuffle prefers hosts. So a column of
    ``right`` is renamed, which puts a node between the shuffle and the join. See also ``_prefer_slots``.

    The join is a full outer one, although a left one would have the same rows, because each row has a slot. For a left
    join Spark infers filters from all constraints of the rows, which can grow exponentially with the columns.
    """
    places = left.withColumnRenamed(by, _PLACE).hint("shuffle_hash")
    rows = right.withColumnRenamed(by, _ROUTED)
    joined = places.join(rows, F.col(_PLACE) == F.col(_ROUTED), "full")
    return joined.mapInArrow(function, output)


def cogrouped_in_jvm(jvm: Any, left: DataFrame, right: DataFrame, by: str, function: Any, output: StructType) -> Any:
    """Return the result of ``cogrouped`` as the JVM's frame."""
    del jvm
    return cogrouped(left, right, by, function, output)._jdf


class SlotCall:
    """The node that calls Python in the physical plan of ``cogrouped``, and the nodes below it.

    Raise ``LookupError`` if the plan has another form.
    """

    def __init__(self, node: Any) -> None:
        below = checked(node, _MAP).child()
        join = checked(below.child() if kind(below) == _COMPILED else below, _JOIN)
        self.slots = join.left()
        self.rows = join.right()
        self.udf = node.func()
        self.output = node.output()
        self._join = join.leftKeys(), join.rightKeys(), join.joinType(), join.buildSide(), join.condition()

    def copied(self, jvm: Any, udf: Any, slots: Any, rows: Any) -> Any:
        """Return a copy of the node with another function and other nodes below it."""
        join = looked_up(jvm, f"{_EXECUTION}.joins.{_JOIN}")(*self._join, slots, rows, False)
        return looked_up(jvm, f"{_EXECUTION}.python.{_MAP}")(udf, self.output, join, False)


def ddl_of(schema: StructType) -> str:
    """Return a schema as DDL, as PySpark 4 writes it."""
    context: Any = SparkContext._active_spark_context
    return str(looked_up(context._jvm, "org.apache.spark.sql.types.DataType", "fromJson")(schema.json()).toDDL())


def has_python_source(state: Any, name: str) -> bool:  # noqa: ARG001 - the signature of all lines
    """Return whether a Python data source ``name`` is registered. Spark 3.5 has none."""
    return False


def kept_without_rows(frame: DataFrame) -> DataFrame:
    """Return a frame that stays in the plan of a batch in which it has no rows.

    Spark 3.5 finds the figures of a source by the position of the source's leaf in the plan. The optimiser removes a
    leaf without rows, and then the batch has no figures. It keeps a leaf below a generator (``stack``).
    """
    return frame.selectExpr("*", f"stack(1, 0) AS {_KEPT}").drop(_KEPT)


def prepare_for_commits(spark: SparkSession, stream: Any, number: int, ahead: int) -> None:
    """Let a stream in memory without rows accept commits of the offsets ``number`` to ``number + ahead``.

    Spark commits the checkpoint's offset to the stream in the first batch after a restart. The stream of Spark 3.5 then
    removes one block for each offset since the last commit. In Scala 2.12 it fails if it has fewer blocks.
    """
    context: Any = spark.sparkContext
    jvm = context._jvm
    block = context._gateway.new_array(looked_up(jvm, "org.apache.spark.sql.catalyst.expressions.UnsafeRow"), 0)
    blocks = looked_up(jvm, "java.util.Collections", "nCopies")(ahead, block)
    stream.batches().appendAll(looked_up(jvm, "org.apache.spark.api.python.PythonUtils", "toSeq")(blocks))
    offset = looked_up(jvm, "org.apache.spark.sql.execution.streaming.LongOffset")(number)
    getattr(stream, "lastOffsetCommitted_$eq")(offset)


def progress_of(progress: dict[str, Any]) -> Any:
    """Return a batch's progress in the form of PySpark 3.5's ``StreamingQuery``: the values of Spark's JSON."""
    return progress


def expects_large_types(spark: SparkSession) -> bool:  # noqa: ARG001 - the signature of all lines
    """Return whether Spark requires Arrow's large types of strings and binaries in the results of slots."""
    return False


def no_stream(none: Any) -> list[Any]:  # noqa: ARG001 - the signature of all lines
    """Return the arguments of a ``LogicalRDD`` for its stream, if its constructor has any."""
    return []


def local_checkpoint(frame: DataFrame, level: StorageLevel, *, eager: bool) -> DataFrame:
    """Return a frame whose rows are stored on the executors. With ``eager`` they are computed now.

    Spark 3.5 has no argument for the level, but an RDD that is marked for a local checkpoint accepts another level.

    The checkpoint's plan has the partitioning of ``cogrouped``, by a column that the frame does not have. Spark 3.5
    cannot join such a frame with itself, so the returned frame has a new plan for the same RDD.
    """
    spark = frame.sparkSession
    plan = frame.localCheckpoint(eager=False)._jdf
    rdd = plan.queryExecution().analyzed().rdd()
    _prefer_slots(spark, rdd)
    if level != StorageLevel.MEMORY_AND_DISK:
        rdd.persist(spark.sparkContext._getJavaStorageLevel(level))
    if eager:
        rdd.doCheckpoint()
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, plan.schema(), False), spark)


def row_copier(jvm: Any, frame: DataFrame) -> Any:  # noqa: ARG001 - the signature of all lines
    """Return ``None``. Only ``local_checkpoint`` may store a result, because it changes the result's RDD and plan."""
    return None


def _prefer_slots(spark: SparkSession, rdd: Any) -> None:
    """Make each task of a result of ``cogrouped`` prefer the executor of its slot.

    A task has the preferred executors of its first input. The first input of the join is the shuffled rows, and a
    shuffle prefers the hosts of its map tasks. So the order of the join's dependencies is reversed. Only the scheduler
    reads this order.
    """
    jvm: Any = spark.sparkContext._jvm
    try:
        dependencies = rdd.dependencies()
        while dependencies.size() == 1:
            rdd = dependencies.apply(0).rdd()
            dependencies = rdd.dependencies()
        opened_field(jvm, "org.apache.spark.rdd.RDD", "dependencies_").set(rdd, dependencies.reverse())
    except Exception as error:  # noqa: BLE001 - the JVM may raise any error, and placement is an optimisation
        _logger.debug("Spark may run slots on other executors: %s", error)


def table_location(spark: SparkSession, name: str, described: str) -> str:  # noqa: ARG001 - the signature of all lines
    """Return the location of a table's files.

    ``described`` is what DESCRIBE TABLE shows. Spark 3.5.0 shows spaces and other characters as in a URI (``%20``).
    """
    state = spark._jsparkSession.sessionState()
    table = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(name))
    return str(looked_up(spark.sparkContext._jvm, "org.apache.hadoop.fs.Path")(table.location()).toString())


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame as an Arrow table. Runs a job."""
    return pa.Table.from_batches(frame._collect_as_arrow())


def conf_of(spark: SparkSession) -> dict[str, str]:
    """Refuse a session of Spark Connect."""
    # Cause: The result of a batch is stored as a local checkpoint, which Spark Connect has since Spark 4.
    raise ConfigError(
        f"Spark Connect of Spark {spark.version} cannot store the result of a batch.",
        remedy="Use a classic session, or Spark 4.",
        where="spark",
        id="RIFFLE-1001",
    )


def error_of_class(error: type[_Error], name: str, parameters: Mapping[str, str]) -> _Error:
    """Return a PySpark error of class ``error`` with the message that Spark 4 has for the error class ``name``."""
    return error(f"[{name}] {_MESSAGES[name].format_map(parameters)}")


def beats(spark: SparkSession, schema: StructType | str, every_ms: int) -> DataFrame:
    """Return a stream without rows that has a new offset each second: Spark's source ``rate`` without its rows.

    Raise ``ConfigError`` for another interval.
    """
    if every_ms != _BEAT_MS:
        # Cause: Spark 3.5 has no data sources in Python, and its source `rate` has an offset per second.
        raise ConfigError(
            f"On Spark 3.5 a heartbeat cannot have an interval of {every_ms} ms.",
            remedy='Use every="1 second". To run batches less often, set trigger(processingTime=...).',
            where="heartbeat",
            id="RIFFLE-1000",
        )
    fields = spark.createDataFrame([], schema).schema.fields
    rate = spark.readStream.format("rate").option("numPartitions", 1).load()
    return rate.where("value < 0").select(*[F.lit(None).cast(field.dataType).alias(field.name) for field in fields])


def replace_executed_plan(jvm: Any, execution: Any, plan: Any) -> None:
    """Make a plan the physical plan of a JVM's execution that was planned before."""
    opened_field(jvm, "org.apache.spark.sql.execution.QueryExecution", "executedPlan").set(execution, plan)
