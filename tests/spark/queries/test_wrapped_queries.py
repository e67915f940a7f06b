"""A wrapped query returns, batch by batch, the results of Spark's own query on the same files, and has its API."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

import riffle_spark
from riffle_spark import Settings
from riffle_spark.errors import ConfigError
from riffle_spark.spark.queries import query_start
from riffle_spark.spark.queries.stream_query import StreamQuery
from riffle_spark.spark.sinks.writer_settings import WriterCall, WriterSettings
from tests.kit.queries.played_query import configured
from tests.kit.streams.streaming import Feed, records, settings_in, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
FILES = 6
Batches = dict[int, list[Row]]


def events_of(batch: int, chance: random.Random) -> list[Mapping[str, object]]:
    """Return the events of a batch. Event times advance by seven seconds per batch, and some events are late."""
    return [
        {
            "at": (BEGIN + timedelta(seconds=7 * batch + chance.uniform(-25, 9))).isoformat(),
            "page": chance.choice("abc"),
            "n": chance.choice([None, *range(100)]),
        }
        for _ in range(25)
    ]


def feed_of(folder: Path, files: int) -> Feed:
    """Return a feed with ``files`` files of events."""
    chance = random.Random(3)
    made = Feed(folder, "at timestamp, page string, n long")
    for batch in range(files):
        made.add(events_of(batch, chance))
    return made


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """A feed with six files of events."""
    return feed_of(tmp_path_factory.mktemp("events"), FILES)


def in_windows(events: DataFrame) -> DataFrame:
    """Count and sum by window and page, with a condition and a projection."""
    groups = events.withWatermark("at", "10 seconds").groupBy(F.window("at", "10 seconds"), "page")
    counted = groups.agg(F.count("*").alias("c"), F.sum("n").alias("t"))
    return counted.where("c > 1").select("window.start", "window", "page", "c", (F.col("t") * 2).alias("tt"))


def once(events: DataFrame) -> DataFrame:
    """Keep the first row of each page within the watermark."""
    return events.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["page"])


def by_page(events: DataFrame) -> DataFrame:
    """Count and sum by page."""
    return events.groupBy("page").agg(F.count("*").alias("c"), F.sum("n").alias("t"))


def keeping(frame: DataFrame, results: Batches, checkpoint: Path | str, mode: str = "update") -> DataStreamWriter:
    """Return a writer that keeps the rows of each batch that is not empty."""

    def keep(rows: DataFrame, batch_id: int) -> None:
        if kept := sorted(rows.collect()):
            results[batch_id] = kept

    return frame.writeStream.outputMode(mode).foreachBatch(keep).option("checkpointLocation", str(checkpoint))


def played(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query over all files."""
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


@pytest.mark.long
def test_empty_maps_and_lists_without_an_offsets_buffer_are_processed(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """Rows with maps and nested lists are processed although the JVM writes empty ones without an offsets buffer."""
    nested = (
        "map('k', n) AS m", "array(array(page)) AS ll", "array(map(page, array(n))) AS lm",
        "cast(array(array()) AS array<array<string>>) AS no",
    )  # fmt: skip
    source = Feed(tmp_path / "in", feed.schema)
    source.add([{"at": BEGIN.isoformat(), "page": "a", "n": 1}])

    def query(events: DataFrame) -> DataFrame:
        return events.selectExpr("page", "n", *nested, "struct(*) AS all").dropDuplicates(["page"])

    expected, results = Batches(), Batches()
    played(keeping(query(source.stream(spark)), expected, tmp_path / "spark", "append"))
    wrapped = riffle_spark.on(source.stream(spark), settings=settings_in(tmp_path))
    played(keeping(query(wrapped), results, tmp_path / "ours", "append"))
    assert results == expected
    assert results[0][0].m == {"k": 1}


@pytest.mark.smoke
@pytest.mark.long
def test_a_restarted_query_writes_sparks_results_once(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A query that is restarted writes Spark's results to files, each batch once. Its root is beside the checkpoint."""
    some = Feed(tmp_path / "in", feed.schema)
    chance = random.Random(5)
    for more in range(2):
        some.add(events_of(3 * more, chance))
        some.add(events_of(3 * more + 2, chance))
        wrapped = riffle_spark.on(some.stream(spark), settings=Settings(key_groups=8))
        for name, events in {"spark": some.stream(spark), "ours": wrapped}.items():
            writer = in_windows(events).writeStream.format("parquet").partitionBy("page").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / "c" / name)).start(str(tmp_path / name))
            assert query.awaitTermination(120)
    written, expected = (spark.read.parquet(str(tmp_path / name)) for name in ("ours", "spark"))
    assert written.columns == expected.columns
    assert sorted(written.collect()) == sorted(expected.collect())
    assert written.count() > 4
    assert [each.kind for each in records(f"file://{tmp_path}/c/ours/riffle")].count("claim") == 2


@pytest.mark.long
def test_files_after_a_rollback_need_another_path(spark: SparkSession, tmp_path: Path) -> None:
    """After a rollback, the old output path is refused at each start and stays unchanged. A new path gets all batches
    from there on once.
    """
    feed, checkpoint = Feed(tmp_path / "in", "at timestamp, page string, n long"), tmp_path / "c"

    def count_into(name: str) -> list[tuple[object, ...]]:
        counts = riffle_spark.on(feed.stream(spark)).withWatermark("at", "0 seconds").groupBy("at").count()
        writer = counts.writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start(str(tmp_path / name))
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return rows_in(name)

    def rows_in(name: str) -> list[tuple[object, ...]]:
        return sorted((row.at.minute, row["count"]) for row in spark.read.parquet(str(tmp_path / name)).collect())

    def add(minute: int) -> None:
        feed.add([{"at": (BEGIN + timedelta(minutes=minute)).isoformat(), "page": "a", "n": 1}])

    for minute in range(3):
        add(minute)
    assert count_into("old") == [(0, 1), (1, 1), (2, 1)]
    riffle_spark.rollback(f"file://{checkpoint}/riffle", 1, str(checkpoint), execute=True)
    add(3)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="RIFFLE-0365"):
            count_into("old")
    assert rows_in("old") == [(0, 1), (1, 1), (2, 1)]
    assert count_into("new") == [(1, 1), (2, 1), (3, 1)]
    add(4)
    assert count_into("new") == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_a_query_without_a_stateful_operator_runs_in_spark(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A wrapped query without a stateful operator runs as Spark's own query, without a root."""
    results = Batches()
    frame = riffle_spark.on(feed.stream(spark)).where("n > 90").select("page")
    writer = keeping(frame, results, tmp_path / "c", "append").queryName("plain").trigger(processingTime="0 seconds")
    query = played(writer)
    assert type(query) is StreamingQuery
    assert query.name == "plain"
    assert sum(map(len, results.values())) == feed.table(spark).where("n > 90").count()
    assert not (tmp_path / "c" / "riffle").exists()


def test_a_query_without_a_stateful_operator_writes_sparks_table(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """A wrapped query without a stateful operator writes to a table as Spark's own query does."""
    writer = riffle_spark.on(feed.stream(spark)).select("page").writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).option("path", str(tmp_path / "table"))
    try:
        query = writer.toTable("pages_of_events", format="parquet")
        assert query.awaitTermination(120)
        assert sorted(spark.table("pages_of_events").collect()) == sorted(feed.table(spark).select("page").collect())
    finally:
        spark.sql("drop table if exists pages_of_events")


@pytest.mark.smoke
def test_a_query_is_stopped_in_the_middle_of_a_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that is stopped inside a batch ends at once without a failure, and runs the same batch again after a
    restart.

    The current time in results is the time of their batch. Progress without a new batch shows the total of rows, and
    no updated rows.
    """
    monkeypatch.setattr("riffle_spark.spark.stateful._STOP_SECONDS", 1.0)
    files, feed = 3, feed_of(tmp_path / "in", 3)
    entered, seen, times = threading.Event(), list[int](), dict[int, set[int]]()

    def wait(rows: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        times[batch_id] = {row.now for row in rows.collect()}
        entered.set()
        if len(seen) == 1:
            spark.range(1).where("reflect('java.lang.Thread', 'sleep', 60000L) is null").count()

    wrapped = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    timed = by_page(wrapped).withColumn("now", F.unix_millis(F.current_timestamp()))
    writer = timed.writeStream.outputMode("update").foreachBatch(wait)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).queryName("waits")
    query = writer.start()
    assert isinstance(query, StreamQuery)
    assert (query.name, query.isActive, query.lastProgress) == ("waits", True, None)
    assert entered.wait(60)
    assert query.status["isTriggerActive"]
    query.stop()
    assert (query.isActive, query.exception(), query.awaitTermination(1)) == (False, None, True)
    again = played(writer)
    assert seen == [0, *range(files)]
    assert isinstance(again, StreamQuery)
    assert [report.version for report in again.reports] == list(range(files))
    progress = json.loads(again._jsq.lastProgress().json())
    (kept,), (idle,) = (
        again._progress({**progress, "batchId": files - distance})["stateOperators"] for distance in (1, 0)
    )
    assert (kept["numRowsUpdated"], idle["numRowsUpdated"], idle["numRowsTotal"]) == (3, 0, kept["numRowsTotal"])
    batches = [record for record in records(f"file://{tmp_path}/state") if record.kind == "batch"]
    assert times == {record.version: {record.time_ms} for record in batches}


def test_threads_end_with_a_query_that_spark_stops(spark: SparkSession, tmp_path: Path) -> None:
    """If Spark stops a query, for example because it is started again, its threads end without a call of ``stop``."""
    earlier = {*threading.enumerate()}

    def own_threads() -> set[str]:
        return {thread.name for thread in {*threading.enumerate()} - earlier if thread.name.startswith("riffle-")}

    wrapped = riffle_spark.on(feed_of(tmp_path / "in", 1).stream(spark), settings=settings_in(tmp_path))
    writer = by_page(wrapped).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    query.processAllAvailable()
    assert "riffle-upkeep" in own_threads()
    next(active for active in spark.streams.active if active.id == query.id).stop()
    wait_for(lambda: not own_threads(), "the threads end")


@pytest.mark.long
def test_dates_use_the_time_zone_of_the_querys_definition(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Local dates use the time zone that the session had when the query was defined, whatever is set later."""
    hours = dict[int, set[tuple[int, int]]]()

    def note(rows: DataFrame, batch_id: int) -> None:
        hours[batch_id] = {(row.here, row.today) for row in rows.collect()}
        spark.conf.set("spark.sql.session.timeZone", "Pacific/Niue")

    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    spark.conf.set("spark.sql.session.timeZone", "Etc/GMT-14")
    local = "timestampdiff(hour, timestamp_ntz'1970-01-01', localtimestamp())"
    made = by_page(events).selectExpr(
        f"{local} - unix_seconds(current_timestamp()) div 3600 as here",
        "cast(unix_date(current_date()) - (unix_seconds(now()) + 14 * 3600) div 86400 as int) as today",
    )
    spark.conf.set("spark.sql.session.timeZone", "Etc/GMT+12")
    try:
        played(made.writeStream.outputMode("update").foreachBatch(note).option("checkpointLocation", f"{tmp_path}/c"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert hours == {number: {(14, 0)} for number in range(FILES)}


def test_an_unknown_riffle_option_is_refused(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """An unknown option that starts with ``riffle.`` is refused, with the nearest known name."""
    query = by_page(riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path)))
    with pytest.raises(ConfigError, match=r"Unknown option 'riffle.acept'(?s:.)*Did you mean 'riffle.accept'"):
        keeping(query, {}, tmp_path / "c").option("riffle.acept", "c").start()
    assert not (tmp_path / "c").exists()


@pytest.mark.long
def test_a_result_whose_meaning_changes_under_its_name_is_refused(
    spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A result whose meaning changes under its name is refused. Warnings name new and removed results."""
    some = Feed(tmp_path / "in", feed.schema)

    def run(*columns: Any, **options: str) -> list[Row]:
        some.add(events_of(0, random.Random(1)))
        results = Batches()
        frame = riffle_spark.on(some.stream(spark), settings=settings_in(tmp_path)).groupBy("page").agg(*columns)
        played(keeping(frame, results, tmp_path / "c").options(**options))
        return results[max(results)]

    first = run(F.count("*").alias("c"), F.sum("n").alias("t"))
    with pytest.raises(ConfigError, match="RIFFLE-0334"):
        run(F.count("*").alias("c"), F.max("n").alias("t"))
    with caplog.at_level(logging.WARNING, "riffle_spark"):
        second = run(F.count("*").alias("c"), F.min("n").alias("least"))
    assert [(row.page, row.c) for row in second] == [(row.page, 3 * row.c) for row in first]
    warnings = [record.getMessage() for record in caplog.records]
    assert any("RIFFLE-0336" in text and "least" in text for text in warnings)
    assert any("RIFFLE-0337" in text and "sum(n)" in text for text in warnings)
    with pytest.raises(ConfigError, match="RIFFLE-0338"):
        run(F.count("*").alias("c"), F.min("n").alias("lowest"))
    accepted = run(F.count("n").alias("c"), **{"riffle.accept": "c"})
    assert sum(row.c for row in accepted) > sum(row.c for row in second)
    named = run(F.count("n").alias("c"), **{"riffle.stores": "visits"})
    assert sum(row.c for row in named) <= sum(row.c for row in first)
    assert {"aggregate.page", "visits"} == records(f"file://{tmp_path}/state")[-1].schemas.keys()


@pytest.mark.long
def test_a_changed_join_is_refused_if_buffered_rows_lack_a_column(spark: SparkSession, tmp_path: Path) -> None:
    """A changed join is refused if its buffered rows lack a column, or do not record whether they had a partner."""
    clicks = Feed(tmp_path / "clicks", "at timestamp, page string, n long")
    views = Feed(tmp_path / "views", "bt timestamp, view string, m long")
    clicks.add([{"at": BEGIN.isoformat(), "page": "a", "n": 1}])

    def run(how: str, *columns: str, **options: str) -> list[Row]:
        views.add([{"bt": BEGIN.isoformat(), "view": "a", "m": 5}])
        left, right = (
            riffle_spark.on(source.stream(spark), settings=settings_in(tmp_path)).withWatermark(time, "1 minute")
            for source, time in ((clicks, "at"), (views, "bt"))
        )
        condition = "page = view AND bt BETWEEN at AND at + INTERVAL 1 HOUR"
        results, joined = Batches(), left.join(right, F.expr(condition), how).select(*columns)
        played(keeping(joined, results, tmp_path / "c", "append").options(**options))
        return [row for _, rows in sorted(results.items()) for row in rows]

    assert run("inner", "page", "m") == [Row(page="a", m=5)]
    with pytest.raises(ConfigError, match="RIFFLE-0335"):
        run("inner", "page", "m", "n")
    with pytest.raises(ConfigError, match="RIFFLE-0334"):
        run("left_outer", "page", "m")
    assert run("inner", "page", "bt") == [Row(page="a", bt=BEGIN.astimezone().replace(tzinfo=None))] * 3
    assert run("inner", "n", "page", **{"riffle.accept": "n"}) == [Row(n=None, page="a")]


def test_explain_shows_each_part_of_a_query(
    spark: SparkSession, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    """``explain`` shows the part that Spark runs, each stage with its keys and columns, and the part after it."""
    in_windows(riffle_spark.on(feed.stream(spark))).explain()
    output = capsys.readouterr().out
    lines = [
        "== Run by Spark ==", "== Physical Plan ==", "== Stage 0: aggregate.window-page ==",
        "keys: window_start timestamp[us, tz=UTC], window_end timestamp[us, tz=UTC], page string",
        "Count: c int64; count(1)", "Sum: t int64; sum(n)", "late and due by window_end, 10000 ms behind",
        "== Then, on each batch's results ==", "Filter (c",
    ]  # fmt: skip
    assert [line for line in lines if line not in output] == []
    riffle_spark.on(feed.stream(spark)).where("n > 1").explain(True)
    output = capsys.readouterr().out
    assert "Analyzed Logical Plan" in output
    assert "RIFFLE-" not in output


REFUSED: dict[str, tuple[Callable[[DataFrame], DataStreamWriter], str]] = {
    "no checkpoint": (lambda e: by_page(e).writeStream.format("noop2").outputMode("update"), "RIFFLE-0340"),
    "a root that has to be set": (
        lambda e: (
            by_page(e).writeStream.format("noop").outputMode("update").option("checkpointLocation", "hdfs://none/x")
        ),
        "RIFFLE-0341",
    ),
    "continuous": (
        lambda e: by_page(e).writeStream.format("noop").outputMode("update").trigger(continuous="1 second"),
        "RIFFLE-0339",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_query_without_a_checkpoint_or_usable_root_is_refused(name: str, spark: SparkSession, feed: Feed) -> None:
    """A query without a checkpoint or usable root, or with a continuous trigger, is refused with a remedy."""
    writer, error_id = REFUSED[name]
    with pytest.raises(ConfigError, match=error_id) as refused:
        writer(riffle_spark.on(feed.stream(spark))).start()
    assert refused.value.remedy


@pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark writes names of sources since 4.2")
@pytest.mark.parametrize("name", ["offsetLog.formatVersion", "queryEvolution.enableSourceEvolution"])
def test_an_offset_log_with_names_of_sources_is_refused(name: str, spark: SparkSession, feed: Feed) -> None:
    """A query whose offset log would have sources by name is refused. Its tick would not be found."""
    value = "2" if name.endswith("Version") else "true"
    writer = by_page(riffle_spark.on(feed.stream(spark))).writeStream.format("noop").outputMode("update")
    with configured(spark, {f"spark.sql.streaming.{name}": value}), pytest.raises(ConfigError, match="RIFFLE-1841"):
        writer.option("checkpointLocation", "/unused").start()


def test_arguments_of_start_count_like_earlier_calls_of_the_writer(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """Arguments of ``start`` count like earlier calls of the writer.

    A default checkpoint location of the session is used with the query's name, and the root is beside the checkpoint.
    """
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    writer = in_windows(events).writeStream
    cases: list[tuple[dict[str, Any], str]] = [
        ({"partitionBy": "nothing"}, "UNRESOLVED_COLUMN.*nothing"), ({"partitionBy": ["page", "none"]}, "none"),
        ({"outputMode": "complete", "format": "json"}, "complete"),
        ({"format": "memory", "partitionBy": []}, "RIFFLE-0359"),
    ]  # fmt: skip
    for options, message in cases:
        with pytest.raises((AnalysisException, ConfigError), match=message):
            writer.start(str(tmp_path / "out"), **{"format": "parquet", **options}, checkpointLocation=str(tmp_path))
    spark.conf.set("spark.sql.streaming.checkpointLocation", f"{tmp_path}/all/")
    named = WriterSettings((WriterCall("queryName", ("visits",), {}),))
    assert query_start._checkpoint(spark, named) == f"{tmp_path}/all/visits"
    assert query_start._checkpoint(spark, WriterSettings(())) != query_start._checkpoint(spark, WriterSettings(()))
    spark.conf.unset("spark.sql.streaming.checkpointLocation")
    for checkpoint, root in (
        ("s3a://b/c/", "s3://b/c/riffle"),
        ("s3://b/c", "s3://b/c/riffle"),
        ("/c", "file:///c/riffle"),
    ):
        assert query_start._root_in(spark, checkpoint) == root


@pytest.mark.long
def test_metrics_are_observed_before_the_operator(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Metrics of ``observe`` before the operator are in Spark's progress, and those after it are not."""
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    rows = F.count("*").alias("rows")
    results = Batches()
    query = played(keeping(by_page(events.observe("before", rows)).observe("after", rows), results, tmp_path / "ours"))
    metrics = [dict(each["observedMetrics"]) for each in query.recentProgress]
    assert sum(each["before"]["rows"] for each in metrics if each) == 25 * FILES
    assert not any("after" in each for each in metrics)
    assert len(results) == FILES


def test_a_third_parameter_is_refused_if_spark_runs_the_query(spark: SparkSession, feed: Feed) -> None:
    """A ``foreachBatch`` function with a third parameter is refused if Spark runs the query, which has no
    delivery ids.
    """
    writer = riffle_spark.on(feed.stream(spark)).writeStream.foreachBatch(lambda _, __, ___: None)
    with pytest.raises(ConfigError, match="RIFFLE-0355"):
        writer.start()


def test_modes_and_arguments_that_spark_refuses_raise_its_error(spark: SparkSession, feed: Feed) -> None:
    """Modes and arguments that Spark refuses raise Spark's errors."""
    events = riffle_spark.on(feed.stream(spark), settings=Settings(root="file:///nowhere"))
    with pytest.raises(AnalysisException, match=r"STREAMING_OUTPUT_MODE|Append output mode not supported"):
        by_page(events).writeStream.format("noop").start()
    with pytest.raises(Exception, match="outputMode"):
        events.writeStream.outputMode("")
    with pytest.raises(Exception, match="TRIGGER"):
        events.writeStream.trigger()  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match="process"):
        events.writeStream.foreach(object())
