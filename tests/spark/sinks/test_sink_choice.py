"""The sink that the calls of a writer select, as in Spark: files, memory, tables, the console, functions and
formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.sinks import sink_choice
from riffle_spark.spark.sinks.sink_choice import Give, check_recovery, check_spark_query, side_sink, sink_of
from riffle_spark.spark.sinks.spark_sinks import is_files
from riffle_spark.spark.sinks.writer_settings import WriterCall, WriterSettings
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]


def writer_settings(path: str | None = None, table: str | None = None, **calls: object) -> WriterSettings:
    """Return the settings of a writer after one call of each of these methods."""
    noted = [
        WriterCall(name, (), argument) if isinstance(argument, dict) else WriterCall(name, (argument,), {})
        for name, argument in calls.items()
    ]
    return WriterSettings(tuple(noted), path, table)


def rows(spark: SparkSession, batch: int) -> DataFrame:
    """Return the three rows of a batch."""
    return spark.range(3).selectExpr("id", "id % 2 as k", f"{batch} as batch")


def deliver(spark: SparkSession, give: Give, *batches: int, rollbacks: int = 0, query: str = "query") -> None:
    """Deliver these batches to a sink."""
    for batch in batches:
        give(rows(spark, batch), Delivery(batch, f"{query}/{rollbacks}/{batch}"))


def by_batch(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return the number of rows of each batch in a table."""
    return [tuple(row) for row in frame.groupBy("batch").count().orderBy("batch").collect()]


PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
FILES = (pytest.param("xml", marks=pytest.mark.needs_spark4("xml")), PARQUET)


@pytest.mark.parametrize("source", FILES)
def test_files_are_one_table_with_each_batch_once(source: str, spark: SparkSession, tmp_path: Path) -> None:
    """Files are one table with each batch once. A repeated batch is skipped, and partition columns are found in any
    case.

    A format may be given by its name or by its class.
    """
    path = str(tmp_path / "out")
    settings = writer_settings(path, format=source, partitionBy="K", options={"maxRecordsPerFile": 1, "rowTag": "row"})
    deliver(spark, sink_of(rows(spark, 0), settings), 0, 1)
    deliver(spark, sink_of(rows(spark, 0), settings), 1, 2)
    seen = spark.read.format(source).option("rowTag", "row").load(path)
    assert by_batch(seen) == [(0, 3), (1, 3), (2, 3)]
    assert {each.name for each in Path(path).iterdir() if each.name.startswith("k=")} == {"k=0", "k=1"}


def test_files_from_before_a_rollback_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """After a rollback, files at the old path are refused, because Spark's sink would skip the repeated batches.

    A new path takes any first batch. The old path refuses a batch after a gap, because Spark could no longer read it.
    """
    settings = writer_settings(str(tmp_path / "out"), format="parquet")
    deliver(spark, sink_of(rows(spark, 0), settings), 0, 1, 2)
    for batch in (1, 2):
        with pytest.raises(ConflictError, match="RIFFLE-0365"):
            deliver(spark, sink_of(rows(spark, 0), settings), batch, rollbacks=1)
    deliver(spark, sink_of(rows(spark, 0), writer_settings(str(tmp_path / "new"), format="parquet")), 1, rollbacks=1)
    assert by_batch(spark.read.parquet(str(tmp_path / "new"))) == [(1, 3)]
    deliver(spark, sink_of(rows(spark, 0), settings), 3, 3, rollbacks=1)
    with pytest.raises(ConflictError, match="RIFFLE-0365"):
        deliver(spark, sink_of(rows(spark, 0), settings), 5, rollbacks=1)
    assert by_batch(spark.read.parquet(str(tmp_path / "out"))) == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.long
def test_files_that_spark_has_written_stay_in_its_list(spark: SparkSession, tmp_path: Path) -> None:
    """After files that Spark alone has written, a batch after a gap is refused, and the next batch is appended."""
    feed, path = Feed(tmp_path / "in", "id long, k long, batch int"), str(tmp_path / "out")
    for batch in range(3):
        feed.add([{"id": 0, "k": 0, "batch": batch}])
    plain = feed.stream(spark).writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert plain.trigger(availableNow=True).start(path).awaitTermination(QUERY_TIMEOUT_SECONDS)
    settings = writer_settings(path, format="parquet")
    for batch in (7, 10):
        with pytest.raises(ConflictError, match="RIFFLE-0365"):
            deliver(spark, sink_of(rows(spark, 0), settings), batch)
    deliver(spark, sink_of(rows(spark, 0), settings), 3)
    assert by_batch(spark.read.parquet(path)) == [(0, 1), (1, 1), (2, 1), (3, 3)]


@pytest.mark.parametrize("first", [9, 25])
@pytest.mark.sample(step=2)
def test_a_table_of_files_may_start_with_any_batch(first: int, spark: SparkSession, tmp_path: Path) -> None:
    """A table of files may start with any batch: Spark's list of files gets entries for the earlier ones, also after a
    crash.
    """
    settings = writer_settings(str(tmp_path / "out"), format="parquet")
    (listed := tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    (listed / "0").write_text("v1")
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "5")
    batches = range(first, first + 6)
    deliver(spark, sink_of(rows(spark, 0), settings), *batches[:2])
    deliver(spark, sink_of(rows(spark, 0), settings), *batches[1:])
    assert by_batch(spark.read.parquet(str(tmp_path / "out"))) == [(batch, 3) for batch in batches]
    with pytest.raises(ConflictError, match="RIFFLE-0365"):
        deliver(spark, sink_of(rows(spark, 0), settings), batches[-1] + 2, rollbacks=1)


def test_memory_is_a_live_table(spark: SparkSession) -> None:
    """A memory sink is a live table with each batch once. In complete mode it has only the newest batch."""
    deliver(spark, give := sink_of(rows(spark, 0), writer_settings(format="memory", queryName="seen")), 0, 1, 1)
    assert by_batch(spark.table("seen")) == [(0, 3), (1, 3)]
    deliver(spark, give, 2)
    assert spark.table("seen").count() == 9
    whole = writer_settings(format="memory", queryName="whole", outputMode="complete")
    deliver(spark, sink_of(rows(spark, 0), whole), 0, 1)
    assert by_batch(spark.table("whole")) == [(1, 3)]


def test_a_new_table_has_the_querys_columns_and_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    """A new table has the query's columns, all nullable, and each batch once."""
    settings = writer_settings(
        table="made", format="parquet", partitionBy=["k"], option={"key": "path", "value": str(tmp_path)}
    )
    deliver(spark, sink_of(rows(spark, 0), settings), 0, 1)
    deliver(spark, sink_of(rows(spark, 0), settings), 1)
    try:
        assert by_batch(spark.table("made")) == [(0, 3), (1, 3)]
        assert {field.name: field.nullable for field in spark.table("made").schema} == dict.fromkeys(
            ["id", "batch", "k"], True
        )
        with pytest.raises(ConfigError, match="RIFFLE-0362"):
            sink_of(rows(spark, 0), writer_settings(table="made", format="json"))
        assert [column.name for column in spark.catalog.listColumns("made") if column.isPartition] == ["k"]
    finally:
        spark.sql("drop table made")


@pytest.mark.long
def test_names_and_paths_may_have_quotes_in_them(spark: SparkSession, tmp_path: Path) -> None:
    """Column names with backticks and paths with quotes and backslashes work for tables and files."""
    odd = rows(spark, 0).withColumnRenamed("k", "it`s")
    path = str(tmp_path / "it's" / "a\\b")
    settings = writer_settings(
        table="quoted", format="parquet", partitionBy=["it`s"], option={"key": "path", "value": path}
    )
    try:
        sink_of(odd, settings)(odd, Delivery(0, "query/0/0"))
        assert by_batch(spark.table("quoted")) == [(0, 3)]
        assert [name.name for name in spark.catalog.listColumns("quoted") if name.isPartition] == ["it`s"]
    finally:
        spark.sql("drop table if exists quoted")
    sink_of(odd, writer_settings(str(tmp_path / "out"), format="parquet", partitionBy="IT`S"))(
        odd, Delivery(0, "query/0/0")
    )
    assert spark.read.parquet(str(tmp_path / "out")).columns == ["id", "batch", "it`s"]


@pytest.mark.needs_spark4("CLUSTER BY")
def test_a_table_is_clustered_by_the_writers_columns(spark: SparkSession) -> None:
    """A table is clustered by the writer's columns. Clustering together with partitions raises Spark's error."""
    try:
        deliver(
            spark,
            sink_of(rows(spark, 0), writer_settings(table="clustered", format="parquet", clusterBy=["K", "id"])),
            0,
        )
        facts = [row[0] for row in spark.sql("describe table extended clustered").collect()]
        start = facts.index("# Clustering Information")
        assert facts[start + 2 : start + 4] == ["k", "id"]
        assert by_batch(spark.table("clustered")) == [(0, 3)]
    finally:
        spark.sql("drop table if exists clustered")
    with pytest.raises(AnalysisException, match="CLUSTER BY"):
        sink_of(rows(spark, 0), writer_settings(table="both", format="parquet", clusterBy=["k"], partitionBy=["k"]))


def test_two_paths_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Two different paths are refused, unless the session's legacy setting selects the one of ``start``, as
    in Spark.
    """
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    settings = writer_settings(new, format="parquet", option={"key": "PATH", "value": old})
    with pytest.raises(ConfigError, match="RIFFLE-0363"):
        sink_of(rows(spark, 0), settings)
    spark.conf.set("spark.sql.legacy.pathOptionBehavior.enabled", "true")
    deliver(spark, sink_of(rows(spark, 0), settings), 0)
    assert [each.name for each in tmp_path.iterdir()] == ["new"]


@pytest.mark.long
def test_a_table_of_files_is_recognised_by_its_class(spark: SparkSession, tmp_path: Path) -> None:
    """A table of files is recognised if its provider is a class, and a delivery id can be one of its columns.

    Providers that are not file formats, or are unknown, are not recognised.
    """
    settings = writer_settings(
        table="of_a_class", format=PARQUET, options={"riffle.delivery_id": "by", "path": str(tmp_path)}
    )
    try:
        deliver(spark, sink_of(rows(spark, 0), settings), 0, 1)
        deliver(spark, sink_of(rows(spark, 0), settings), 1)
        assert by_batch(spark.table("of_a_class")) == [(0, 3), (1, 3)]
        assert {row.by for row in spark.table("of_a_class").collect()} == {"query/0/0", "query/0/1"}
        with pytest.raises(ConfigError, match="outputMode"):
            sink_of(rows(spark, 0), writer_settings(table="of_a_class", outputMode="update"))
    finally:
        spark.sql("drop table if exists of_a_class")
    assert [is_files(spark, name) for name in ("csv", "hive", "noop", "unknown")] == [True, False, False, False]


def test_the_console_is_written_as_spark_writes_it(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The console prints the batch number and the configured number of rows."""
    deliver(
        spark, sink_of(rows(spark, 0), writer_settings(format="console", options={"numRows": 2, "truncate": False})), 4
    )
    output = capsys.readouterr().out
    assert output.startswith(f"{'-' * 43}\nBatch: 4\n{'-' * 43}\n+---+---+-----+\n|id |k  |batch|\n")
    assert "only showing top 2 rows" in output


class RowWriter:
    """An object for ``foreach`` that writes a file for each row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition: int, epoch: int) -> bool:
        """Accept the partition."""
        self.name = f"{epoch}-{partition}"
        return True

    def process(self, row: Row) -> None:
        """Write a file for the row."""
        (self.folder / f"{self.name}-{row.id}").touch()


@pytest.mark.long
def test_foreach_takes_each_row(spark: SparkSession, tmp_path: Path) -> None:
    """``foreach`` passes each row to an object, which gets partition and batch, or to a function."""
    spark.sparkContext.setLocalProperty("streaming.sql.batchId", "5")
    try:
        deliver(spark, sink_of(rows(spark, 0).coalesce(1), writer_settings(foreach=RowWriter(tmp_path))), 5)
        folder = str(tmp_path)
        deliver(
            spark,
            sink_of(rows(spark, 0), writer_settings(foreach=lambda row: Path(folder, f"row {row.id}").touch())),
            5,
        )
    finally:
        spark.sparkContext.setLocalProperty("streaming.sql.batchId", None)  # type: ignore[arg-type]
    names = {each.name for each in tmp_path.iterdir()}
    assert {"row 0", "row 1", "row 2"} < names
    assert {name.partition("-")[0] for name in names if "-" in name} == {"5"}
    assert len(names) == 6


def test_other_formats_are_written_batch_by_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Other formats use Spark's batch writer. A column or a Kafka header can have the delivery id."""
    settings = writer_settings(
        str(tmp_path), format="noop", outputMode="complete", options={"riffle.delivery_id": "by"}
    )
    deliver(spark, sink_of(rows(spark, 0), settings), 0, 1)
    assert settings.sink_options == {}
    with_id = sink_choice._with_id(rows(spark, 0), "jdbc", "by", "query/0/0")
    assert {row.by for row in with_id.collect()} == {"query/0/0"}
    header = F.expr("array(named_struct('key', 'a', 'value', cast('b' as binary))) as headers")
    with_header = sink_choice._with_id(spark.range(1).select(header), "kafka", "by", "query/0/0")
    assert with_header.head() == ([("a", b"b"), ("by", b"query/0/0")],)
    none = F.expr("cast(null as array<struct<key: string, value: binary>>) as headers")
    without = sink_choice._with_id(spark.range(1).select(none), "kafka", "by", "query/0/0")
    assert without.head() == ([("by", b"query/0/0")],)
    assert sink_choice._with_id(spark.range(1), "kafka", "by", "query/0/0").columns == ["id", "headers"]


@pytest.mark.long
def test_a_database_has_a_repeated_batch_with_the_same_delivery_id(spark: SparkSession) -> None:
    """A JDBC table has a repeated batch twice, with the same delivery id. In complete mode it has only the newest
    batch.
    """
    place = {"url": "jdbc:derby:memory:sinks;create=true"}
    settings = writer_settings(format="jdbc", options={**place, "dbtable": "seen", "riffle.delivery_id": "delivery"})
    deliver(spark, sink_of(rows(spark, 0), settings), 0, 1, 1)
    seen = spark.read.format("jdbc").options(**place, dbtable="seen").load()
    assert by_batch(seen) == [(0, 3), (1, 6)]
    assert by_batch(seen.distinct()) == [(0, 3), (1, 3)]
    assert {row.delivery for row in seen.collect()} == {"query/0/0", "query/0/1"}
    whole = writer_settings(format="jdbc", outputMode="complete", options={**place, "dbtable": "whole"})
    deliver(spark, sink_of(rows(spark, 0), whole), 0, 1)
    assert by_batch(spark.read.format("jdbc").options(**place, dbtable="whole").load()) == [(1, 3)]


class RecordingWriter:
    """A stand-in for Spark's frame and batch writer that records options."""

    def __init__(self) -> None:
        self.recorded_options: dict[str, object] = {}
        self.write = self

    def options(self, **named: object) -> RecordingWriter:
        """Record the options."""
        self.recorded_options |= named
        return self

    def __getattr__(self, name: str) -> Callable[..., RecordingWriter]:
        """Accept any other call."""
        return lambda *_, **__: self


def test_delta_deliveries_keep_their_application_id_until_a_rollback() -> None:
    """Deliveries to Delta have the same application id until a rollback, and another one after it."""
    write, seen = sink_choice._batch_writer(writer_settings("/x", format="delta"), "delta"), list[tuple[object, ...]]()
    for batch, rollbacks in ((3, 0), (3, 0), (4, 0), (3, 1)):
        frame: Any = RecordingWriter()
        write(frame, Delivery(batch, f"query/{rollbacks}/{batch}"))
        seen.append((frame.recorded_options["txnAppId"], frame.recorded_options["txnVersion"]))
    assert seen == [("query/0", "3"), ("query/0", "3"), ("query/0", "4"), ("query/1", "3")]


class DeltaCatalog:
    """A stand-in for a session whose tables and default format are Delta."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.catalog = self.conf = self

    def tableExists(self, name: str) -> bool:  # noqa: N802 - Spark's name
        """Return whether the table exists."""
        return name in self.names

    def get(self, _: str) -> str:
        """Return the default format."""
        return "delta"

    def sql(self, text: str) -> DeltaCatalog:
        """Create or describe a table."""
        verb, _, name = text.partition("(")[0].strip().rpartition(" ")
        assert (verb, name in self.names) in {("create table", False), ("describe table extended", True)}
        assert verb != "create table" or text.endswith("using delta")
        self.names.add(name)
        return self

    def collect(self) -> list[tuple[str, str]]:
        """Return the description of a table."""
        return [("id", "bigint"), ("Provider", "delta")]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("names", "settings"),
    [((), writer_settings(table="seen", format="delta")), (("seen",), writer_settings(table="seen"))],
)
def test_deliveries_to_a_delta_table_have_an_application_id(names: Sequence[str], settings: WriterSettings) -> None:
    """Deliveries to a Delta table have application ids too, whether the table or only its format is given."""
    seen = list[tuple[object, ...]]()
    frame: Any = RecordingWriter()
    frame.sparkSession, frame.schema = DeltaCatalog(*names), StructType().add("id", LongType(), nullable=False)
    give = sink_of(frame, settings)
    for batch, rollbacks in ((3, 0), (3, 0), (4, 0), (3, 1)):
        give(frame, Delivery(batch, f"query/{rollbacks}/{batch}"))
        seen.append((frame.recorded_options["txnAppId"], frame.recorded_options["txnVersion"]))
    assert seen == [("query/0", "3"), ("query/0", "3"), ("query/0", "4"), ("query/1", "3")]


def test_update_mode_is_refused_for_delta() -> None:
    """Update mode is refused for a Delta table and a Delta path, as by Delta's own sink."""
    frame: Any = RecordingWriter()
    frame.sparkSession = DeltaCatalog("seen")
    with pytest.raises(ConfigError, match="RIFFLE-0361"):
        sink_of(frame, writer_settings(table="seen", outputMode="update"))
    with pytest.raises(ConfigError, match="RIFFLE-0361"):
        sink_choice._batch_writer(writer_settings("/x", format="delta", outputMode="update"), "delta")


def test_a_side_output_folder_has_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    """In a folder of a side output, a repeated batch overwrites its own rows, but not those of another query or before
    a rollback.

    Readers see the folder as one table.
    """
    give = side_sink(str(tmp_path))
    deliver(spark, give, 0, 1, 1)
    deliver(spark, give, 1, 1, rollbacks=1)
    deliver(spark, give, 1, 2, query="other")
    table = spark.read.parquet(str(tmp_path))
    assert table.columns == ["id", "k", "batch", "batch_id"]
    assert by_batch(table.where("batch = batch_id")) == [(0, 3), (1, 9), (2, 3)]


@pytest.mark.parametrize("table", [None, "made"])
def test_an_unknown_format_is_refused_at_the_start(table: str | None, spark: SparkSession) -> None:
    """An unknown format raises Spark's error before the first batch."""
    with pytest.raises(Exception, match="nonsense"):
        sink_of(rows(spark, 0), writer_settings(None if table else "/x", table, format="nonsense"))


def test_a_function_gets_two_or_three_arguments(spark: SparkSession) -> None:
    """A function may have a third parameter, which is the delivery id."""
    seen: list[Sequence[object]] = []
    deliver(spark, sink_of(rows(spark, 0), writer_settings(foreachBatch=lambda _, batch: seen.append((batch,)))), 7)
    deliver(
        spark, sink_of(rows(spark, 0), writer_settings(foreachBatch=lambda _, batch, by: seen.append((batch, by)))), 7
    )
    assert seen == [(7,), (7, "query/0/7")]


def test_the_last_of_several_calls_on_a_writer_counts() -> None:
    """Of several calls on a writer the last one counts, also for another spelling of an option."""
    call = WriterCall
    calls = (call("foreach", (print,), {}), call("option", ("Path", 1), {}), call("options", (), {"path": True}))
    settings = WriterSettings((*calls, call("format", ("Kafka",), {}), call("outputMode", ("UPDATE",), {})))
    assert settings.function is None
    assert WriterSettings(calls).function == ("foreach", print)
    assert (settings.options, settings.option("PATH")) == ({"path": "true"}, "true")
    assert (settings.format, settings.mode, settings.trigger, settings.name) == ("Kafka", "update", {}, None)


BY_ID = {"key": "riffle.delivery_id", "value": "by"}
REFUSED: dict[str, tuple[WriterSettings, str]] = {
    "update into files": (writer_settings("/x", format="JSON", outputMode="update"), "RIFFLE-0357"),
    "complete into files by a class": (writer_settings("/x", format=PARQUET, outputMode="complete"), "RIFFLE-0357"),
    "no path": (writer_settings(format="json"), "RIFFLE-0358"),
    "no name": (writer_settings(format="memory"), "RIFFLE-0359"),
    "parts of a function": (writer_settings(foreachBatch=lambda _, __: None, partitionBy="k"), "RIFFLE-0364"),
    "an id for a function": (writer_settings(foreachBatch=lambda _, __: None, option=BY_ID), "RIFFLE-0356"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_a_format_does_not_support_are_refused(name: str, spark: SparkSession) -> None:
    """A mode, path, name or option that the format does not support is refused with a remedy."""
    settings, error_id = REFUSED[name]
    with pytest.raises(ConfigError, match=error_id) as refused:
        sink_of(rows(spark, 0), settings)
    assert refused.value.remedy


def test_a_delivery_id_is_refused_if_spark_runs_the_query() -> None:
    """The option ``riffle.delivery_id`` is refused if Spark runs the query, because Spark would ignore it."""
    with pytest.raises(ConfigError, match="RIFFLE-0354"):
        check_spark_query(writer_settings(format="noop", option=BY_ID))
    check_spark_query(writer_settings(format="noop"))


def test_partition_by_without_columns_means_no_partitions() -> None:
    """``partitionBy`` without columns means no partitions, as in PySpark."""
    assert WriterSettings((WriterCall("partitionBy", (), {}),)).partition_by == ()


def test_a_memory_table_refuses_a_checkpoint_with_batches(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint with batches is refused for a memory table in append mode, which starts empty, as in Spark. Other
    sinks continue.
    """
    (tmp_path / "offsets").mkdir()
    with pytest.raises(ConfigError, match="RIFFLE-0353"):
        check_recovery(spark, writer_settings(format="memory", queryName="n"), str(tmp_path))
    check_recovery(spark, writer_settings(format="console"), str(tmp_path))
    check_recovery(spark, writer_settings(format="memory", queryName="n", outputMode="complete"), str(tmp_path))
    check_recovery(spark, writer_settings(format="noop"), str(tmp_path))
