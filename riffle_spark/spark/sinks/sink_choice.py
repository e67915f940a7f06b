"""Choose the sink that a writer's settings describe."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark import compat
from riffle_spark.spark.engine.routing import quoted
from riffle_spark.spark.engine.spark_batch import arity
from riffle_spark.spark.sinks import spark_sinks
from riffle_spark.spark.sinks.writer_settings import WriterSettings

Give = Callable[[DataFrame, Delivery], object]
"""A function that delivers rows to a sink."""
TEMPORARY: Final = ("console", "foreach", "foreachBatch", "memory", "noop")
"""Sinks whose query may have a temporary checkpoint, as in Spark."""
_DELTA: Final = ("delta", "org.apache.spark.sql.delta.sources.deltadatasource")
_APPEND_ONLY: Final = ("kafka", "noop")
DELIVERY_ID: Final = "riffle.delivery_id"
_SPARKS_ARGUMENTS: Final = 2
_CONSOLE_ROWS: Final = "20"
_LINE: Final = "-" * 43
_LEGACY_PATH_OPTION: Final = ("spark.sql.legacy.pathOptionBehavior.enabled", "false")


def sink_of(frame: DataFrame, writer_settings: WriterSettings) -> Give:
    """Return the function that delivers rows to the query's sink, and prepare the sink for the columns of ``frame``.

    Raises ``ConfigError`` for settings that the sink does not support.
    """
    _check_one_path(frame.sparkSession, writer_settings)
    if writer_settings.function is not None:
        if writer_settings.table is not None:
            raise ConfigError(
                f"Both {writer_settings.function[0]} and toTable are set.",
                remedy="Set only one of them.",
                where=writer_settings.table,
                id="RIFFLE-0351",
            )
        return _by_function(*writer_settings.function, writer_settings)
    id_name = writer_settings.option(DELIVERY_ID)
    if id_name is None:
        return _by_format(frame, writer_settings)
    if id_name.lower() in map(str.lower, frame.columns):
        raise ConfigError(
            f"The rows already have a column {id_name}.",
            remedy=f"Choose another name in option({DELIVERY_ID!r}, ...).",
            where=DELIVERY_ID,
            id="RIFFLE-0352",
        )
    source = writer_settings.source(frame.sparkSession)
    give = _by_format(_with_id(frame, source, id_name, ""), writer_settings)
    return lambda rows, delivery: give(_with_id(rows, source, id_name, delivery.id), delivery)


def _by_format(frame: DataFrame, writer_settings: WriterSettings) -> Give:
    """Return the function that delivers rows to the writer's table or format."""
    spark = frame.sparkSession
    source = writer_settings.source(spark)
    if writer_settings.table is not None:
        return _table(frame, writer_settings, writer_settings.table)
    if source == "memory":
        return _in_memory(frame, writer_settings)
    if source == "console":
        return _console(writer_settings)
    if spark_sinks.is_files(spark, source):
        return _files(frame, writer_settings, source, writer_settings.path or writer_settings.option("path"))
    spark_sinks.check_format(spark, source)
    return _batch_writer(writer_settings, source)


def side_sink(place: str | Callable[..., object]) -> Give:
    """Return the function that delivers the rows of a side output.

    ``place`` is a function as for ``foreachBatch``, or a folder for Parquet files. Each batch writes its own folder
    below that folder, and a new one after a rollback. A repeated batch has the same rows and overwrites its folder.
    Readers see the number of the batch as the column ``batch_id``.
    """
    if not isinstance(place, str):
        return _by_function("foreachBatch", place, WriterSettings(()))

    def write(frame: DataFrame, delivery: Delivery) -> None:
        folder = f"{place}/batch_id={delivery.batch_id}/{spark_sinks.line_folder(delivery)}"
        frame.write.mode("overwrite").parquet(folder)

    return write


def check_recovery(spark: SparkSession, writer_settings: WriterSettings, checkpoint: str) -> None:
    """Raise ``ConfigError`` if the query would continue from a checkpoint with a sink that lost its earlier rows."""
    source = None if writer_settings.function or writer_settings.table else writer_settings.source(spark)
    if (
        source == "memory"
        and writer_settings.mode != "complete"
        and spark_sinks.path_exists(spark, f"{checkpoint}/offsets")
    ):
        raise ConfigError(
            "The memory sink cannot resume from a checkpoint, because its rows are lost on restart.",
            remedy=f"Delete {checkpoint} to start over, or use another sink.",
            where="checkpointLocation",
            id="RIFFLE-0353",
        )


def check_spark_query(writer_settings: WriterSettings) -> None:
    """Raise ``ConfigError`` for settings that need a delivery id. Queries without stateful operators have none."""
    if writer_settings.option(DELIVERY_ID) is not None:
        raise ConfigError(
            f"Option {DELIVERY_ID} is set, but Spark itself runs this query, because it has no stateful operator.",
            remedy="Leave the option out.",
            where=DELIVERY_ID,
            id="RIFFLE-0354",
        )
    kind, function = writer_settings.function or ("", print)
    if kind == "foreachBatch" and arity(function) > _SPARKS_ARGUMENTS:
        raise ConfigError(
            "The function of foreachBatch takes a delivery id, but Spark itself runs this query, because it has no "
            "stateful operator.",
            remedy="Write it as function(frame, batch_id).",
            where="foreachBatch",
            id="RIFFLE-0355",
        )


def _by_function(method: str, function: Any, writer_settings: WriterSettings) -> Give:
    """Return the function that delivers rows to the user's function of ``foreach`` or ``foreachBatch``.

    ``method`` is the name of the method. Raises ``ConfigError`` for settings that it does not support.
    """
    _check_not_partitioned(writer_settings, method)
    if writer_settings.option(DELIVERY_ID) is not None:
        raise ConfigError(
            f"Option {DELIVERY_ID} is for formats and tables, not for {method}.",
            remedy="Leave the option out. foreachBatch passes the delivery id as third argument.",
            where=DELIVERY_ID,
            id="RIFFLE-0356",
        )
    if method == "foreach":
        return lambda frame, _: spark_sinks.call_for_each_row(frame, function)
    count = arity(function)
    return lambda frame, delivery: function(*(frame, delivery.batch_id, delivery.id)[:count])


def _files(frame: DataFrame, writer_settings: WriterSettings, source: str, path: str | None) -> Give:
    """Return the function that writes each batch once with Spark's own file sink.

    Raises ``ConfigError`` for other output modes than append, and without a path.
    """
    if writer_settings.mode != "append":
        raise ConfigError(
            f"outputMode({writer_settings.mode!r}) is not supported for {source} files, because written files "
            "are never replaced.",
            remedy="Use outputMode('append') with a watermark, or foreachBatch.",
            where="outputMode",
            id="RIFFLE-0357",
        )
    if not path:
        raise ConfigError(
            f"The {source} sink has no path.",
            remedy="Set it with start(path) or option('path', ...).",
            id="RIFFLE-0358",
        )
    options = {
        **{name: value for name, value in writer_settings.sink_options.items() if name.lower() != "path"},
        "path": path,
    }
    _check_columns(frame, writer_settings.partition_by)
    return spark_sinks.FileSink(frame, source, options, writer_settings.partition_by).give


def _check_columns(frame: DataFrame, columns: Sequence[str]) -> None:
    """Raise Spark's own error for an unknown column."""
    frame.select(*map(quoted, columns))


def _in_memory(frame: DataFrame, writer_settings: WriterSettings) -> Give:
    """Return the function that adds each batch to a table in the driver's memory.

    Raises ``ConfigError`` without a query name, or if an active query has the same one.
    """
    _check_not_partitioned(writer_settings, "memory")
    name = writer_settings.name
    if name is None:
        raise ConfigError(
            "The memory sink needs a query name for its table.",
            remedy="Set queryName(...).",
            where="queryName",
            id="RIFFLE-0359",
        )
    if any(query.name == name for query in frame.sparkSession.streams.active):
        raise ConfigError(
            f"An active query already writes the memory table {name}.",
            remedy="Stop that query, or choose another queryName.",
            id="RIFFLE-0360",
        )
    return spark_sinks.MemorySink(frame, name, is_complete=writer_settings.mode == "complete").give


def _console(writer_settings: WriterSettings) -> Give:
    """Return the function that prints each batch, as Spark's console sink does."""
    count = int(writer_settings.option("numRows") or _CONSOLE_ROWS)
    truncate = (writer_settings.option("truncate") or "true").lower() == "true"

    def show(frame: DataFrame, delivery: Delivery) -> None:
        print(f"{_LINE}\nBatch: {delivery.batch_id}\n{_LINE}")  # noqa: T201 - as Spark does
        frame.show(count, truncate)

    return show


def _batch_writer(writer_settings: WriterSettings, source: str) -> Give:
    """Return the function that appends each batch with a batch writer, or replaces all rows in complete mode."""
    _check_delta(writer_settings, source)
    mode = "overwrite" if writer_settings.mode == "complete" and source not in _APPEND_ONLY else "append"

    def write(frame: DataFrame, delivery: Delivery) -> None:
        writer = frame.write.format(source).options(**_delivery_options(writer_settings, source, delivery)).mode(mode)
        writer = writer.partitionBy(*writer_settings.partition_by) if writer_settings.partition_by else writer
        writer = writer.clusterBy(*writer_settings.cluster_by) if writer_settings.cluster_by else writer
        writer.save(writer_settings.path)

    return write


def _delivery_options(writer_settings: WriterSettings, source: str, delivery: Delivery) -> dict[str, str]:
    """Return the writer's options for a delivery. Those for Delta let it skip a transaction that it already has."""
    if source.lower() not in _DELTA:
        return writer_settings.sink_options
    return {**writer_settings.sink_options, "txnAppId": delivery.id_prefix, "txnVersion": str(delivery.batch_id)}


def _check_delta(writer_settings: WriterSettings, source: str) -> None:
    """Raise ``ConfigError`` for a Delta sink in update mode."""
    if source.lower() in _DELTA and writer_settings.mode == "update":
        raise ConfigError(
            "outputMode('update') is not supported for Delta, because a changed row would be added again.",
            remedy="Use outputMode('append') with a watermark, outputMode('complete'), or foreachBatch with MERGE.",
            where="outputMode",
            id="RIFFLE-0361",
        )


def _with_id(frame: DataFrame, source: str, name: str, delivery_id: str) -> DataFrame:
    """Return rows with their delivery id in the column ``name`` or, for Kafka, in a header of that name."""
    if source != "kafka":
        return frame.withColumn(name, F.lit(delivery_id))
    headers = F.array(F.struct(F.lit(name).alias("key"), F.lit(delivery_id).cast("binary").alias("value")))
    if "headers" in frame.columns:  # The column is null for records without headers.
        headers = F.coalesce(F.concat("headers", headers), headers)
    return frame.withColumn("headers", headers)


def _table(frame: DataFrame, writer_settings: WriterSettings, name: str) -> Give:
    """Return the function that writes to the table ``name``. Create a missing table as Spark's ``toTable`` does.

    Raises ``ConfigError`` for a view, and for a table of another format.
    """
    spark = frame.sparkSession
    if not spark.catalog.tableExists(name):
        _create_table(frame, writer_settings, name)
    properties = {row[0]: row[1] for row in spark.sql(f"describe table extended {name}").collect()}
    source = str(properties.get("Provider") or "")
    if not source or (writer_settings.format or source).lower() != source.lower():
        raise ConfigError(
            f"Table {name} has format {source}, but the writer has {writer_settings.format}."
            if source
            else f"{name} is a view, not a table.",
            remedy="Leave the format out, or name another table.",
            where=name,
            id="RIFFLE-0362",
        )
    _check_delta(writer_settings, source)
    if properties.get("Location") and spark_sinks.is_files(spark, source):
        location = compat.table_location(spark, name, str(properties["Location"]))
        return _files(frame, writer_settings, source, location)

    def write(rows: DataFrame, delivery: Delivery) -> None:
        writer = rows.writeTo(name).options(**_delivery_options(writer_settings, source, delivery))
        writer.overwrite(F.lit(True)) if writer_settings.mode == "complete" else writer.append()

    return write


def _create_table(frame: DataFrame, writer_settings: WriterSettings, name: str) -> None:
    spark = frame.sparkSession
    columns = compat.ddl_of(StructType([StructField(field.name, field.dataType) for field in frame.schema]))
    path = (writer_settings.option("path") or "").replace("\\", "\\\\").replace("'", "\\'")
    parts = [f"create table {name} ({columns}) using {writer_settings.source(spark)}"]
    clauses = (("partitioned", writer_settings.partition_by), ("cluster", writer_settings.cluster_by))
    for clause, names in clauses:
        if names:
            _check_columns(frame, names)
            parts.append(f"{clause} by ({', '.join(map(quoted, names))})")
    if path:
        parts.append(f"location '{path}'")
    spark.sql(" ".join(parts))


def _check_one_path(spark: SparkSession, writer_settings: WriterSettings) -> None:
    """Raise ``ConfigError`` for two output paths, unless Spark's legacy setting prefers that of ``start``."""
    option = writer_settings.option("path")
    if None not in (writer_settings.path, option) and spark.conf.get(*_LEGACY_PATH_OPTION) != "true":
        raise ConfigError(
            f"There are two output paths: option('path') is {option} and start() got {writer_settings.path}.",
            remedy="Set only one of them.",
            where="path",
            id="RIFFLE-0363",
        )


def _check_not_partitioned(writer_settings: WriterSettings, sink: str) -> None:
    """Raise ``ConfigError`` if ``partitionBy`` is set, which this sink does not support."""
    if writer_settings.partition_by:
        raise ConfigError(
            f"partitionBy is not supported for {sink}.",
            remedy="Leave it out, or partition the writes of a foreachBatch function.",
            where="partitionBy",
            id="RIFFLE-0364",
        )
