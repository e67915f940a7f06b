"""Sinks that are Spark's own objects, given each batch: files that are one table, rows in memory, ``foreach``; and
where paths lie by Hadoop's file systems. Knows the JVM's classes. Does not know what a writer was told.

Spark's file sink keeps a list of its files, by batch, and takes no batch twice: a table has each batch's rows once. It
would take none either that come again after the state was rolled back, so that is refused here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.engine.jvm import context, frame_of, looked_up, scala_seq, session

__all__ = [
    "FileSink",
    "MemorySink",
    "check_format",
    "folder_of_line",
    "is_files",
    "is_there",
    "known_format",
    "qualified",
    "to_each",
]

_EXECUTION = "org.apache.spark.sql.execution"
_SOURCE = f"{_EXECUTION}.datasources.DataSource"
_FILES = (f"{_EXECUTION}.datasources.FileFormat", f"{_EXECUTION}.datasources.v2.FileDataSourceV2")
_UNKNOWN_FORMAT = re.compile(r"Failed to find (the )?data source")
_PACKAGES: Final[Mapping[str, str]] = {
    "avro": "org.apache.spark:spark-avro_2.13",
    "delta": "io.delta:delta-spark_2.13",
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13",
}
_HIVE = "hive"
_NO_SUCH = "does not exist"
_INTERVAL = ("spark.sql.streaming.fileSink.log.compactInterval", "10")
_EMPTY = b"v1"
"""What Spark's list has of a batch without files."""
_METADATA = "_spark_metadata"
_LINES = "_riffle"
"""Where a table's folder says which lines of which queries it has batches of; no reader takes it for rows."""


class FileSink:
    """Spark's own sink of files in a folder: it writes a batch once, however often it is given it."""

    def __init__(self, frame: DataFrame, source: str, options: Mapping[str, str], by: Sequence[str]) -> None:
        spark = frame.sparkSession
        jvm = context(spark)._jvm
        none, nothing = looked_up(jvm, "scala.None$", "MODULE$"), scala_seq(jvm, [])
        given = [session(spark), source, nothing, none, scala_seq(jvm, list(by)), none, _map(jvm, options), none]
        made = looked_up(jvm, "java.lang.Class", "forName")(_SOURCE)
        count = made.getConstructors()[0].getParameterCount()  # Spark 4.3 has one more, which may be nothing.
        told = looked_up(jvm, _SOURCE)(*given, *[none] * (count - len(given)))
        append = looked_up(jvm, "org.apache.spark.sql.streaming.OutputMode", "Append")()
        self._sink = _made(told, append, frame._jdf.schema())
        self._spark = spark
        self._folder = next(value for name, value in options.items() if name.lower() == "path")
        self._line = ""

    def give(self, frame: DataFrame, delivery: Delivery) -> None:
        """Write a batch. Raises ``ConflictError`` where the table has it by another query, or before a rollback."""
        line = folder_of_line(delivery)
        if line != self._line:
            self._check(line, delivery.batch_id)
            self._line = line
        self._sink.addBatch(delivery.batch_id, frame._jdf)

    def _check(self, line: str, batch_id: int) -> None:
        files, folder = _file_system(self._spark, self._folder)
        path = looked_up(context(self._spark)._jvm, "org.apache.hadoop.fs.Path")
        marker, listed = path(folder, f"{_LINES}/{line}"), path(folder, _METADATA)
        found = files.listStatus(listed) if files.exists(listed) else ()
        entries = [(str(one.getPath().getName()).partition(".")[0], one.getLen()) for one in found]
        has_line = files.exists(marker)
        has_any = files.exists(path(folder, _LINES)) or any(length > len(_EMPTY) for _, length in entries)
        newest = max((int(number) for number, _ in entries if number.isdigit()), default=-1)
        if (newest >= batch_id and not has_line) or (newest < batch_id - 1 and has_any):
            raise ConflictError(
                f"the files in {self._folder} go to batch {newest}, and batch {batch_id} comes now: they are of "
                "another query, or of before a rollback, and Spark's file sink would leave the batch out, or the "
                "folder could not be read",
                remedy="start the query with another path; what is written stays readable where it is",
                where=self._folder,
                id="RIFFLE-0365",
            )
        if newest < batch_id - 1:
            for name in _before(batch_id, int(self._spark.conf.get(*_INTERVAL) or 1)):
                _write(files, path(listed, name))
        files.mkdirs(marker)


def folder_of_line(delivery: Delivery) -> str:
    """Return the name of a folder that is one line's of one query."""
    return delivery.line.replace("/", "-")


def _before(batch_id: int, interval: int) -> Iterator[str]:
    """Yield what Spark's list is of before a table's first batch: without it the table cannot be read where that has
    another number than 0. Spark wants all from the last one that stands for those before it.
    """
    first = max(batch_id // interval * interval - 1, 0)
    for batch in range(first, batch_id):
        yield f"{batch}.compact" if (batch + 1) % interval == 0 else str(batch)


def _write(files: Any, place: Any) -> None:
    """Write an entry without files."""
    out = files.create(place, True)
    out.write(bytearray(_EMPTY))
    out.close()


def _made(source: Any, mode: Any, schema: Any) -> Any:
    """Return the sink of a source; Spark 4.3 wants to know its columns beforehand."""
    try:
        return source.createSink(mode)
    except Exception as error:  # what Py4J says where there is no such method has no class of its own
        if _NO_SUCH not in str(error):
            raise
    return source.createSink(mode, schema)


class MemorySink:
    """Rows in the driver's memory, a live table under a name of the session's."""

    def __init__(self, frame: DataFrame, name: str, *, is_complete: bool) -> None:
        spark = frame.sparkSession
        jvm = context(spark)._jvm
        self._sink = looked_up(jvm, f"{_EXECUTION}.streaming.sources.MemorySink")()
        self._is_complete = is_complete
        types = looked_up(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils$", "MODULE$")
        output = types.toAttributes(frame._jdf.schema())
        plan = looked_up(jvm, f"{_EXECUTION}.streaming.sources.MemoryPlan")(self._sink, output)
        frame_of(spark, plan).createOrReplaceTempView(name)

    def give(self, frame: DataFrame, delivery: Delivery) -> None:
        """Take a batch's rows, once, or instead of all others."""
        self._sink.write(delivery.batch_id, self._is_complete, frame._jdf.collect())


def is_files(spark: SparkSession, source: str) -> bool:
    """Tell whether a format's streams are written by Spark's sink of files, as Spark decides it: by the format's class.
    Tables of Hive are none, whose class alone cannot write.
    """
    jvm, conf = context(spark)._jvm, session(spark).sessionState().conf()
    named = looked_up(jvm, "java.lang.Class", "forName")
    try:
        found = looked_up(jvm, f"{_SOURCE}$", "MODULE$").lookupDataSource(source, conf)
    except Exception:  # noqa: BLE001 - whatever a JVM may raise: there is no such class, as for another catalog's tables
        return False
    return source.lower() != _HIVE and any(named(one).isAssignableFrom(found) for one in _FILES)


def check_format(spark: SparkSession, source: str) -> None:
    """Raise ``ConfigError`` if Spark finds no class for a format, neither Java's nor one of Python's."""
    state = session(spark).sessionState()
    if state.dataSourceManager().dataSourceExists(source):
        return
    with known_format(source):
        looked_up(context(spark)._jvm, f"{_SOURCE}$", "MODULE$").lookupDataSource(source, state.conf())


@contextmanager
def known_format(source: str) -> Iterator[None]:
    """Raise ``ConfigError`` instead of Spark's error if the block fails because Spark finds no class for a format."""
    try:
        yield
    except Exception as error:  # an error of the JVM's, which has no class of its own in Python
        if not _UNKNOWN_FORMAT.search(str(error)):
            raise
        package = _PACKAGES.get(source.lower(), "GROUP:ARTIFACT")
        raise ConfigError(
            f"Spark has no data source for the sink format {source!r}",
            remedy="correct the name in format(...), or add the package of the format when Spark starts: "
            f"spark-submit --packages {package}:VERSION, or spark.jars.packages on the session's builder",
            where="format",
            id="RIFFLE-0366",
        ) from error


def to_each(frame: DataFrame, function: Any) -> None:
    """Give each row to what ``foreach`` was given, as Spark's own writer does."""
    told: Any = DataStreamWriter._construct_foreach_function(function)
    frame.rdd.mapPartitionsWithIndex(told).count()


def qualified(spark: SparkSession, path: str) -> str:
    """Return a path with its scheme, as Spark takes it."""
    files, given = _file_system(spark, path)
    return str(files.makeQualified(given).toString())


def is_there(spark: SparkSession, path: str) -> bool:
    """Tell whether there is a file or a folder at a path."""
    files, given = _file_system(spark, path)
    return bool(files.exists(given))


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    given = looked_up(context(spark)._jvm, "org.apache.hadoop.fs.Path")(path)
    return given.getFileSystem(session(spark).sessionState().newHadoopConf()), given


def _map(jvm: Any, given: Mapping[str, str]) -> Any:
    """Return an immutable map of Scala's."""
    found = looked_up(jvm, "java.util.HashMap")()
    for name, value in given.items():
        found.put(name, value)
    made = looked_up(jvm, "scala.collection.immutable.Map$", "MODULE$")
    return getattr(made, "from")(looked_up(jvm, "scala.jdk.javaapi.CollectionConverters", "asScala")(found))
