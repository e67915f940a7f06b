"""Spark's own sinks, called with each batch: files, rows in memory, and ``foreach``.

Spark's file sink lists its files by batch and skips a batch that it has already written. After a rollback it would
also skip new batches with repeated numbers, so they are refused here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark import compat
from riffle_spark.spark.compat.java import parameter_count
from riffle_spark.spark.engine.jvm import context, frame_of, looked_up, scala_seq, session
from riffle_spark.spark.engine.jvm_errors import mentions

_EXECUTION = "org.apache.spark.sql.execution"
_SOURCE = f"{_EXECUTION}.datasources.DataSource"
_FILES = (f"{_EXECUTION}.datasources.FileFormat", f"{_EXECUTION}.datasources.v2.FileDataSourceV2")
_NO_SOURCE = ("DATA_SOURCE_NOT_FOUND", "Failed to find data source")
_NO_FILE_SYSTEM = ("UNSUPPORTED_FILE_SYSTEM", "UnsupportedFileSystemException", "FileSystem not found", "No FileSystem")
"""Spark's and Hadoop's words for a scheme without a file system."""
_CONNECTORS: Mapping[str, str] = {
    "delta": "Add Delta Lake: pip install delta-spark, and configure_spark_with_delta_pip(builder).",
    "kafka": "Add the Kafka connector: riffle_spark.configure(builder), or --packages of spark-submit.",
}
"""How to add a data source that Spark does not include."""
_HIVE = "hive"
_NO_METHOD = "does not exist"
"""Py4J's words for an unknown overload."""
_COMPACT_INTERVAL = ("spark.sql.streaming.fileSink.log.compactInterval", "10")
_EMPTY = b"v1"
"""Spark's list entry of a batch without files."""
_METADATA = "_spark_metadata"
_LINES = "_riffle"
"""The folder that marks the lines of queries whose batches a table has. Readers skip it."""


class FileSink:
    """Spark's own file sink. It writes a repeated batch once."""

    def __init__(self, frame: DataFrame, source: str, options: Mapping[str, str], partition_by: Sequence[str]) -> None:
        """Create Spark's sink for files of the format ``source``. ``options`` include the path."""
        spark = frame.sparkSession
        jvm = context(spark)._jvm
        none = looked_up(jvm, "scala.None$", "MODULE$")
        columns = scala_seq(jvm, list(partition_by))
        arguments = [session(spark), source, scala_seq(jvm, []), none, columns, none, _scala_map(jvm, options), none]
        count = parameter_count(jvm, _SOURCE)  # Spark 4.3 has one more, which is optional.
        data_source = looked_up(jvm, _SOURCE)(*arguments, *[none] * (count - len(arguments)))
        append = looked_up(jvm, "org.apache.spark.sql.streaming.OutputMode", "Append")()
        self._sink = _create_sink(data_source, append, frame._jdf.schema())
        self._spark = spark
        self._folder = next(value for name, value in options.items() if name.lower() == "path")
        self._line = ""

    def give(self, frame: DataFrame, delivery: Delivery) -> None:
        """Write a batch.

        Raises ``ConflictError`` if another query, or a run that was rolled back, wrote batches of this table.
        """
        line = line_folder(delivery)
        if line != self._line:
            self._claim_table(line, delivery.batch_id)
            self._line = line
        self._sink.addBatch(delivery.batch_id, frame._jdf)

    def _claim_table(self, line: str, batch_id: int) -> None:
        """Check that a batch can follow the newest one of the table, and claim the table for the query.

        Writes empty entries for earlier batches that the table's list lacks, and the folder ``_riffle/<line>`` in the
        table's folder. Raises ``ConflictError`` if the files belong to another query or were written before a rollback.

        ``line`` is the result of ``line_folder`` for the query. It changes when the query is rolled back.
        """
        files, folder = _file_system(self._spark, self._folder)
        path_class = looked_up(context(self._spark)._jvm, "org.apache.hadoop.fs.Path")
        marker = path_class(folder, f"{_LINES}/{line}")
        metadata = path_class(folder, _METADATA)
        statuses = files.listStatus(metadata) if files.exists(metadata) else ()
        entries = [(str(status.getPath().getName()).partition(".")[0], status.getLen()) for status in statuses]
        has_line = files.exists(marker)
        has_rows = files.exists(path_class(folder, _LINES)) or any(length > len(_EMPTY) for _, length in entries)
        newest = max((int(number) for number, _ in entries if number.isdigit()), default=-1)
        if (newest >= batch_id and not has_line) or (newest < batch_id - 1 and has_rows):
            raise ConflictError(
                f"The newest batch of the files in {self._folder} is {newest}, so batch {batch_id} cannot follow. The "
                "files belong to another query, or were written before a rollback.",
                remedy="Start the query with another path. The written files stay readable. If the query was just "
                "imported, another path would repeat the rows of the batch. Then remove the root and the new "
                "checkpoint, start the Spark query until it has committed the batch, and run riffle import again.",
                where=self._folder,
                id="RIFFLE-0365",
            )
        if newest < batch_id - 1:
            for name in _earlier_entries(batch_id, int(self._spark.conf.get(*_COMPACT_INTERVAL) or 1)):
                _write_empty(files, path_class(metadata, name))
        files.mkdirs(marker)


def line_folder(delivery: Delivery) -> str:
    """Return the folder name for the deliveries of a query until it is rolled back."""
    return delivery.id_prefix.replace("/", "-")


def _earlier_entries(batch_id: int, interval: int) -> Iterator[str]:
    """Yield the names of the list entries that must exist before the entry of ``batch_id``, the table's first batch.

    Spark reads the last compacted entry and all entries after it. Every ``interval`` batches an entry is compacted.
    """
    first = max(batch_id // interval * interval - 1, 0)
    for batch in range(first, batch_id):
        yield f"{batch}.compact" if (batch + 1) % interval == 0 else str(batch)


def _write_empty(files: Any, path: Any) -> None:
    """Write the list entry of a batch without files."""
    stream = files.create(path, True)
    stream.write(bytearray(_EMPTY))
    stream.close()


def _create_sink(data_source: Any, mode: Any, schema: Any) -> Any:
    """Return the sink of a data source. Spark 4.3 also needs its columns."""
    try:
        return data_source.createSink(mode)
    except Exception as error:  # Py4J has no own class for a missing method.
        if _NO_METHOD not in str(error):
            raise
    return data_source.createSink(mode, schema)


class MemorySink:
    """Rows of a query in the driver's memory, as a temporary view ``name`` that is always current."""

    def __init__(self, frame: DataFrame, name: str, *, is_complete: bool) -> None:
        """Create the sink and its view ``name``. With ``is_complete`` each batch replaces all rows."""
        spark = frame.sparkSession
        jvm = context(spark)._jvm
        self._sink = looked_up(jvm, f"{_EXECUTION}.streaming.sources.MemorySink")()
        self._is_complete = is_complete
        types = looked_up(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils$", "MODULE$")
        output = types.toAttributes(frame._jdf.schema())
        plan = looked_up(jvm, f"{_EXECUTION}.streaming.sources.MemoryPlan")(self._sink, output)
        frame_of(spark, plan).createOrReplaceTempView(name)

    def give(self, frame: DataFrame, delivery: Delivery) -> None:
        """Add a batch's rows once, or replace all rows in complete mode."""
        self._sink.write(delivery.batch_id, self._is_complete, frame._jdf.collect())


def is_files(spark: SparkSession, source: str) -> bool:
    """Return whether Spark's own file sink writes the format ``source``. False for Hive tables.

    As in Spark, the class of the format decides.
    """
    jvm, conf = context(spark)._jvm, session(spark).sessionState().conf()
    class_named = looked_up(jvm, "java.lang.Class", "forName")
    try:
        source_class = looked_up(jvm, f"{_SOURCE}$", "MODULE$").lookupDataSource(source, conf)
    except Exception:  # noqa: BLE001 - The JVM has no such class, for example for another catalog's tables.
        return False
    return source.lower() != _HIVE and any(class_named(name).isAssignableFrom(source_class) for name in _FILES)


def check_format(spark: SparkSession, source: str) -> None:
    """Raise ``ConfigError`` if Spark finds neither a Java class nor a Python data source for a format."""
    state = session(spark).sessionState()
    if compat.has_python_source(state, source):
        return
    try:
        looked_up(context(spark)._jvm, f"{_SOURCE}$", "MODULE$").lookupDataSource(source, state.conf())
    except Exception as error:
        if not mentions(error, *_NO_SOURCE):
            raise
        how_to_add = _CONNECTORS.get(source)
        # Cause: The format's jar is not on Spark's class path, or the format is misspelt.
        raise ConfigError(
            f"Spark has no data source {source!r}.",
            remedy=how_to_add or "Correct format(...), or add the jar of the data source (--packages).",
            where="format",
            id="RIFFLE-1127",
        ) from error


def check_file_system(spark: SparkSession, path: str) -> None:
    """Raise ``ConfigError`` if Spark has no file system for the scheme of a path."""
    try:
        _file_system(spark, path)
    except Exception as error:
        if not mentions(error, *_NO_FILE_SYSTEM):
            return  # For example an unknown host: reading the checkpoint raises it again.
        scheme = path.partition(":")[0]
        version = looked_up(context(spark)._jvm, "org.apache.hadoop.util.VersionInfo", "getVersion")()
        remedy = "Add the Hadoop connector of this scheme to Spark (--packages), or use another location."
        if scheme.startswith("s3"):
            remedy = f"Add --packages org.apache.hadoop:hadoop-aws:{version}, and write the location as s3a://."
        # Cause: The jar of the scheme's file system is not on Spark's class path.
        raise ConfigError(
            f"Spark cannot open {scheme}:// locations.", remedy=remedy, where=path, id="RIFFLE-1128"
        ) from error


def call_for_each_row(frame: DataFrame, function: Any) -> None:
    """Call the function or object of ``foreach`` for each row, as Spark's own writer does."""
    partition_function: Any = DataStreamWriter._construct_foreach_function(function)
    frame.rdd.mapPartitionsWithIndex(partition_function).count()


def qualified_path(spark: SparkSession, path: str) -> str:
    """Return a path as Spark's file system shows it, with its scheme."""
    files, hadoop_path = _file_system(spark, path)
    return str(files.makeQualified(hadoop_path).toString())


def path_exists(spark: SparkSession, path: str) -> bool:
    """Return whether a file or folder exists."""
    files, hadoop_path = _file_system(spark, path)
    return bool(files.exists(hadoop_path))


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a path, and the path as its object."""
    hadoop_path = looked_up(context(spark)._jvm, "org.apache.hadoop.fs.Path")(path)
    return hadoop_path.getFileSystem(session(spark).sessionState().newHadoopConf()), hadoop_path


def _scala_map(jvm: Any, items: Mapping[str, str]) -> Any:
    java_map = looked_up(jvm, "java.util.HashMap")()
    for name, value in items.items():
        java_map.put(name, value)
    return looked_up(jvm, "org.apache.spark.api.python.PythonUtils", "toScalaMap")(java_map)
