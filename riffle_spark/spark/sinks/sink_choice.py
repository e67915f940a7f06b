"""The sink that a writer's settings mean: what is done with the rows of each delivery. Knows the formats of Spark's
writers. Does not know where rows come from.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.engine.routing import quoted
from riffle_spark.spark.engine.spark_batch import arity
from riffle_spark.spark.sinks import spark_sinks
from riffle_spark.spark.sinks.writer_settings import WriterSettings

__all__ = ["DELIVERY_ID", "TEMPORARY", "Give", "check_recovery", "check_sparks_own", "side_sink", "sink_of"]

Give = Callable[[DataFrame, Delivery], object]
"""What a sink does with a delivery's rows."""
TEMPORARY: Final = ("console", "foreach", "foreachBatch", "memory", "noop")
"""Sinks whose query may have no checkpoint that stays, as in Spark."""
_DELTA: Final = ("delta", "org.apache.spark.sql.delta.sources.deltadatasource")
_ONLY_APPEND: Final = ("kafka", "noop")
DELIVERY_ID: Final = "riffle.delivery_id"
_SPARKS_ARGUMENTS: Final = 2
_CONSOLE_ROWS: Final = "20"
_LINE: Final = "-" * 43
_TAKES_LAST_PATH: Final = ("spark.sql.legacy.pathOptionBehavior.enabled", "false")


def sink_of(frame: DataFrame, told: WriterSettings) -> Give:
    """Return what takes the rows of each delivery, which have a frame's columns; it is made ready for them.

    Raises ``ConfigError`` for what a format cannot do.
    """
    _check_one_path(frame.sparkSession, told)
    if told.function is not None:
        if told.table is not None:
            raise ConfigError(
                f"{told.function[0]} and toTable are both told",
                remedy="leave one out",
                where=told.table,
                id="RIFFLE-0351",
            )
        return _by_function(*told.function, told)
    marked_by = told.option(DELIVERY_ID)
    if marked_by is None:
        return _by_format(frame, told)
    if marked_by.lower() in map(str.lower, frame.columns):
        raise ConfigError(
            f"rows have a column {marked_by} already", remedy="choose another one", where=DELIVERY_ID, id="RIFFLE-0352"
        )
    source = told.source(frame.sparkSession)
    give = _by_format(_with_id(frame, source, marked_by, ""), told)
    return lambda rows, delivery: give(_with_id(rows, source, marked_by, delivery.id), delivery)


def _by_format(frame: DataFrame, told: WriterSettings) -> Give:
    spark = frame.sparkSession
    source = told.source(spark)
    if told.table is not None:
        return _table(frame, told, told.table)
    if source == "memory":
        return _in_memory(frame, told)
    if source == "console":
        return _console(told)
    if spark_sinks.is_files(spark, source):
        return _files(frame, told, source, told.path or told.option("path"))
    spark_sinks.check_format(spark, source)
    return _batch_writer(told, source)


def side_sink(given: str | Callable[..., object]) -> Give:
    """Return what takes the rows of a side output: a function as of ``foreachBatch``, or Parquet in a folder, in which
    each batch of each line of a query has one of its own. One that comes again writes over it, since it has the same
    rows. Readers take the batch for a column, and the line for none.
    """
    if not isinstance(given, str):
        return _by_function("foreachBatch", given, WriterSettings(()))

    def write(frame: DataFrame, delivery: Delivery) -> None:
        folder = f"{given}/batch_id={delivery.batch_id}/{spark_sinks.folder_of_line(delivery)}"
        frame.write.mode("overwrite").parquet(folder)

    return write


def check_recovery(spark: SparkSession, told: WriterSettings, checkpoint: str) -> None:
    """Raise ``ConfigError`` for a sink that has lost what it was given, where the query would go on behind that."""
    source = None if told.function or told.table else told.source(spark)
    if source == "memory" and told.mode != "complete" and spark_sinks.is_there(spark, f"{checkpoint}/offsets"):
        raise ConfigError(
            "a query with the sink memory does not go on from a checkpoint: what it was given is gone",
            remedy=f"delete {checkpoint} to start over, or use another sink",
            where="checkpointLocation",
            id="RIFFLE-0353",
        )


def check_sparks_own(told: WriterSettings) -> None:
    """Raise ``ConfigError`` for a function, or an option, that wants what only our batches have."""
    if told.option(DELIVERY_ID) is not None:
        raise ConfigError(
            "the query has no stateful operator: Spark itself runs it, and knows no delivery ids",
            remedy="leave the option out, and write the query without riffle_spark.on",
            where=DELIVERY_ID,
            id="RIFFLE-0354",
        )
    kind, function = told.function or ("", print)
    if kind == "foreachBatch" and arity(function) > _SPARKS_ARGUMENTS:
        raise ConfigError(
            "the function of foreachBatch wants a delivery id, and the query has no stateful operator: Spark itself "
            "runs it, and gives frame and batch id",
            remedy="write it as function(frame, batch_id)",
            where="foreachBatch",
            id="RIFFLE-0355",
        )


def _by_function(kind: str, function: Any, told: WriterSettings) -> Give:
    _check_not_parted(told, kind)
    if told.option(DELIVERY_ID) is not None:
        raise ConfigError(
            f"{kind} gets rows as they are: {DELIVERY_ID} is for formats and tables",
            remedy="leave the option out: foreachBatch gives a third parameter without a default the delivery id",
            where=DELIVERY_ID,
            id="RIFFLE-0356",
        )
    if kind == "foreach":
        return lambda frame, _: spark_sinks.to_each(frame, function)
    count = arity(function)
    return lambda frame, delivery: function(*(frame, delivery.batch_id, delivery.id)[:count])


def _files(frame: DataFrame, told: WriterSettings, source: str, path: str | None) -> Give:
    """Return Spark's own sink of files, which has each batch once."""
    if told.mode != "append":
        raise ConfigError(
            f"outputMode({told.mode!r}) is not there for files of {source}: what is written stays",
            remedy="use outputMode('append') with a watermark, or foreachBatch",
            where="outputMode",
            id="RIFFLE-0357",
        )
    if not path:
        raise ConfigError(
            f"files of {source} have no path", remedy="name it: start(path), or option('path', ...)", id="RIFFLE-0358"
        )
    options = {**{name: value for name, value in told.of_sink.items() if name.lower() != "path"}, "path": path}
    _check_columns(frame, told.partition_by)
    return spark_sinks.FileSink(frame, source, options, told.partition_by).give


def _check_columns(frame: DataFrame, columns: Sequence[str]) -> None:
    """Raise Spark's own error for a column that is not there."""
    frame.select(*map(quoted, columns))


def _in_memory(frame: DataFrame, told: WriterSettings) -> Give:
    _check_not_parted(told, "memory")
    if told.name is None:
        raise ConfigError(
            "the memory sink has no name for its table",
            remedy="name the query: queryName(...)",
            where="queryName",
            id="RIFFLE-0359",
        )
    if any(query.name == told.name for query in frame.sparkSession.streams.active):
        raise ConfigError(
            f"an active query has its rows in the table {told.name}",
            remedy="stop it, or choose another queryName",
            id="RIFFLE-0360",
        )
    return spark_sinks.MemorySink(frame, told.name, is_complete=told.mode == "complete").give


def _console(told: WriterSettings) -> Give:
    """Return what prints each batch as Spark's console sink does."""
    count, short = int(told.option("numRows") or _CONSOLE_ROWS), (told.option("truncate") or "true").lower()

    def show(frame: DataFrame, delivery: Delivery) -> None:
        print(f"{_LINE}\nBatch: {delivery.batch_id}\n{_LINE}")  # noqa: T201 - as Spark does
        frame.show(count, short == "true")

    return show


def _batch_writer(told: WriterSettings, source: str) -> Give:
    """Return what appends each batch, or in complete mode puts it in the place of the one before."""
    _check_delta(told, source)
    mode = "overwrite" if told.mode == "complete" and source not in _ONLY_APPEND else "append"

    def write(frame: DataFrame, delivery: Delivery) -> None:
        writer = frame.write.format(source).options(**_options_at(told, source, delivery)).mode(mode)
        writer = writer.partitionBy(*told.partition_by) if told.partition_by else writer
        writer = writer.clusterBy(*told.cluster_by) if told.cluster_by else writer
        writer.save(told.path)

    return write


def _options_at(told: WriterSettings, source: str, delivery: Delivery) -> dict[str, str]:
    """Return the options for a delivery: Delta leaves out a transaction of an application that it has."""
    if source.lower() not in _DELTA:
        return told.of_sink
    return {**told.of_sink, "txnAppId": delivery.line, "txnVersion": str(delivery.batch_id)}


def _check_delta(told: WriterSettings, source: str) -> None:
    if source.lower() in _DELTA and told.mode == "update":
        raise ConfigError(
            "outputMode('update') is not there for Delta: a row that changes would be there once more",
            remedy="use outputMode('append') with a watermark, outputMode('complete'), or foreachBatch with a MERGE",
            where="outputMode",
            id="RIFFLE-0361",
        )


def _with_id(frame: DataFrame, source: str, name: str, delivery_id: str) -> DataFrame:
    """Return rows that say which delivery they are of: in a column or, for Kafka, in a header."""
    if source != "kafka":
        return frame.withColumn(name, F.lit(delivery_id))
    mine = F.array(F.struct(F.lit(name).alias("key"), F.lit(delivery_id).cast("binary").alias("value")))
    has_headers = "headers" in frame.columns  # null where a record has none
    return frame.withColumn("headers", F.coalesce(F.concat("headers", mine), mine) if has_headers else mine)


def _table(frame: DataFrame, told: WriterSettings, name: str) -> Give:
    """Return what writes into a table, which is made if it is not there, as Spark's ``toTable`` makes it."""
    spark = frame.sparkSession
    if not spark.catalog.tableExists(name):
        _make_table(frame, told, name)
    facts = {row[0]: row[1] for row in spark.sql(f"describe table extended {name}").collect()}
    source = str(facts.get("Provider") or "")
    if not source or (told.format or source).lower() != source.lower():
        raise ConfigError(
            f"{name} is " + (f"a table of {source}, and the format is {told.format}" if source else "no table"),
            remedy="leave the format out, or name another table",
            where=name,
            id="RIFFLE-0362",
        )
    _check_delta(told, source)
    if facts.get("Location") and spark_sinks.is_files(spark, source):
        return _files(frame, told, source, str(facts["Location"]))

    def write(rows: DataFrame, delivery: Delivery) -> None:
        writer = rows.writeTo(name).options(**_options_at(told, source, delivery))
        writer.overwrite(F.lit(True)) if told.mode == "complete" else writer.append()

    return write


def _make_table(frame: DataFrame, told: WriterSettings, name: str) -> None:
    spark = frame.sparkSession
    columns = StructType([StructField(field.name, field.dataType) for field in frame.schema]).toDDL()
    path = (told.option("path") or "").replace("\\", "\\\\").replace("'", "\\'")
    parts = [f"create table {name} ({columns}) using {told.source(spark)}"]
    for kind, given in (("partitioned", told.partition_by), ("cluster", told.cluster_by)):
        if given:
            _check_columns(frame, given)
            parts.append(f"{kind} by ({', '.join(map(quoted, given))})")
    if path:
        parts.append(f"location '{path}'")
    with spark_sinks.known_format(told.source(spark)):
        spark.sql(" ".join(parts))


def _check_one_path(spark: SparkSession, told: WriterSettings) -> None:
    """Raise ``ConfigError`` for two paths, where Spark does not take the one that ``start`` was given."""
    given = told.option("path")
    if None not in (told.path, given) and spark.conf.get(*_TAKES_LAST_PATH) != "true":
        raise ConfigError(
            f"there are two paths: {given} is an option, and start was given {told.path}",
            remedy="leave one out",
            where="path",
            id="RIFFLE-0363",
        )


def _check_not_parted(told: WriterSettings, kind: str) -> None:
    if told.partition_by:
        raise ConfigError(
            f"partitionBy is not there for {kind}",
            remedy="leave it out, or part what a function of foreachBatch writes",
            where="partitionBy",
            id="RIFFLE-0364",
        )
