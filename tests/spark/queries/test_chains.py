"""Several stateful operators in one wrapped query: each has its store, and they share batches, commits and requests."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import riffle_spark
from riffle_spark import Settings
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.plans.cut_query import cut_query
from riffle_spark.spark.queries import planned_stages, stage_rows
from riffle_spark.spark.queries.stream_query import StreamQuery
from tests.kit.streams.streaming import Feed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
FILES = 4
FIVES, TENS = "aggregate.window-page", "aggregate.window"


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """Four files of events that close windows one after the other."""
    chance = random.Random(8)
    made = Feed(tmp_path_factory.mktemp("events"), "at timestamp, page string, n long")
    for batch in range(FILES):
        made.add([_event(batch, chance) for _ in range(20)])
    return made


def _event(batch: int, chance: random.Random) -> Mapping[str, object]:
    at = BEGIN + timedelta(seconds=20 * batch + chance.uniform(-25, 9))
    return {"at": at.isoformat(), "page": chance.choice("abc"), "n": chance.randrange(100)}


def timed(feed: Feed, spark: SparkSession) -> DataFrame:
    """Return the feed's stream with a watermark."""
    return feed.stream(spark).withWatermark("at", "10 seconds")


def in_fives(events: DataFrame) -> DataFrame:
    """Count in five-second windows by page."""
    return events.groupBy(F.window("at", "5 seconds"), "page").agg(F.count("*").alias("c"))


def in_tens(events: DataFrame) -> DataFrame:
    """Count in ten-second windows of those windows, with a filter in between."""
    some = in_fives(events).where("c > 1")
    return some.groupBy(F.window("window", "10 seconds")).agg(F.sum("c").alias("c"), F.max("page").alias("last"))


def played(frame: DataFrame, checkpoint: Path, results: dict[int, list[Row]] | None = None) -> StreamingQuery:
    """Run a query over all files and keep the output of each batch."""
    kept = {} if results is None else results

    def keep(rows: DataFrame, batch_id: int) -> None:
        kept[batch_id] = sorted(rows.collect())

    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def facts(query: StreamingQuery) -> dict[int, list[tuple[int, int, int]]]:
    """Return the updated keys, removed keys and late rows of each operator, by batch, from Spark's progress."""
    return {
        each["batchId"]: [
            (operator["numRowsUpdated"], operator["numRowsRemoved"], operator["numRowsDroppedByWatermark"])
            for operator in each["stateOperators"]
        ]
        for each in query.recentProgress
    }


def test_each_stage_has_its_state_operator_as_in_spark(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A chain has Spark's output in every batch, and Spark's figures for both operators in its progress."""
    expected, results = dict[int, list[Row]](), dict[int, list[Row]]()
    theirs = played(in_tens(timed(feed, spark)), tmp_path / "spark", expected)
    ours = played(in_tens(riffle_spark.on(timed(feed, spark), settings=settings_in(tmp_path))), tmp_path / "c", results)
    assert results == expected
    assert sum(map(len, results.values())) > FILES
    assert facts(ours) == facts(theirs)
    assert {sum(map(sum, operators)) > 0 for operators in zip(*facts(ours).values(), strict=True)} == {True}


@pytest.mark.long
def test_a_batch_of_a_chain_sends_a_fixed_number_of_requests(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """After the first batch, a batch of a chain sends one request per slot and stage that wrote, and two more."""
    settings, results = settings_in(tmp_path), dict[int, list[Row]]()
    query = played(in_tens(riffle_spark.on(timed(feed, spark), settings=settings)), tmp_path / "c", results)
    assert isinstance(query, StreamQuery)
    reports = list(query.reports)[1:]
    assert [sum(report.requests.values()) for report in reports] == [report.slots_that_wrote + 2 for report in reports]
    assert {tuple(report.by_store) for report in reports} == {(FIVES, TENS)}
    assert any(min(store.slots_that_wrote for store in report.by_store.values()) > 0 for report in reports)
    batches = [record for record in records(settings.root or "") if record.kind == "batch"]
    assert len(batches) == len(results) > FILES


@pytest.mark.long
def test_adding_a_stage_does_not_change_the_stores_of_other_stages(
    spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stage that is added between others starts empty, and the others keep their state. A removed stage causes a
    warning.

    With ``deliver_after_commit`` only the rows of the last stage are sealed.
    """
    some, settings = Feed(tmp_path / "in", feed.schema), settings_in(tmp_path, deliver_after_commit=True)

    def run(seconds: int, more: bool) -> tuple[set[str], set[str]]:
        some.add([{"at": (BEGIN + timedelta(seconds=seconds)).isoformat(), "page": "a", "n": n} for n in range(9)])
        events = riffle_spark.on(timed(some, spark), settings=settings)
        played(in_tens(events.dropDuplicates(["page", "n"]) if more else events), tmp_path / "c")
        newest = [record for record in records(settings.root or "") if record.kind == "batch"][-1]
        return set(newest.schemas), {store for store, _ in newest.outputs}

    assert run(0, more=False) == ({FIVES, TENS}, set())
    assert run(60, more=True) == ({FIVES, TENS, "distinct.page-n"}, {TENS})
    with caplog.at_level(logging.WARNING, "riffle_spark"):
        run(90, more=False)
    assert any("RIFFLE-0329" in record.getMessage() for record in caplog.records)


@pytest.mark.long
def test_a_batch_runs_again_if_a_stage_reads_stale_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """If a stage reads stale rows, all stages of the batch run again, and the results are the same."""
    stale = "raise_error('riffle: a row of an attempt that was given up')"
    once = F.expr(f"if(reflect('java.lang.System', 'clearProperty', 'riffle.stale') = 'null', c, {stale})")
    answers = list[dict[int, list[Row]]]()
    for name in ("none", "riffle.stale"):
        spark.sql(f"SELECT reflect('java.lang.System', 'setProperty', '{name}', '1')").collect()
        fives = in_fives(riffle_spark.on(timed(feed, spark), settings=settings_in(tmp_path / name)))
        query = fives.withColumn("c", once).groupBy(F.window("window", "10 seconds")).agg(F.sum("c").alias("c"))
        answers.append({})
        ran = played(query, tmp_path / name / "c", answers[-1])
        assert isinstance(ran, StreamQuery)
        assert sum(report.runs - 1 for report in ran.reports) == (name == "riffle.stale")
    assert answers[0] == answers[1]


def test_the_watermark_of_a_stage_is_reduced_by_earlier_time_shifts(spark: SparkSession, feed: Feed) -> None:
    """The watermark of a stage is reduced by the shifts of all stages before it."""
    frame = in_tens(riffle_spark.on(timed(feed, spark)).dropDuplicates(["page", "n"]))
    planned = planned_stages.planned_stages(cut_query(frame), None)
    moved = [replace(stage, shift_ms=shift) for stage, shift in zip(planned, (-5_000, -1, 0), strict=True)]
    made = stage_rows.operators_of(moved, "append", NoSink())
    assert [stage.shift_ms for stage in made] == [0, -5_000, -5_001]
    assert [stage.sink is None for stage in made] == [True, True, False]


def test_a_join_reduces_the_watermark_by_its_longest_wait(spark: SparkSession, feed: Feed) -> None:
    """The watermark after a join is reduced by the longest time that it keeps rows."""
    left = riffle_spark.on(timed(feed, spark))
    right = left.toDF("seen", "other", "m")
    bound = F.expr("page = other AND seen >= at AND seen <= at + interval 1 minute")
    cut = cut_query(left.join(right, bound).groupBy(F.window("at", "5 seconds")).count())
    joined, counted = planned_stages.planned_stages(cut, None)
    assert (joined.shift_ms, counted.shift_ms) == (-60_001, 0)


class NoSink:
    """A sink that is never called."""

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Do nothing."""


def test_explain_prints_each_stage_of_a_chain(
    spark: SparkSession, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    """``explain`` prints Spark's plan of the input, and each stage with the stages that it reads."""
    in_tens(riffle_spark.on(timed(feed, spark))).explain()
    output = capsys.readouterr().out
    assert output.count("== Physical Plan ==") == 1
    assert f"== Stage 1: {TENS} ==\nreads the results of {FIVES}\n" in output


def test_results_that_a_batch_cannot_combine_are_refused(spark: SparkSession, feed: Feed) -> None:
    """Two stores' results at one sink are refused, and so is a join of results with their own input."""
    left, right = (riffle_spark.on(timed(feed, spark), settings=Settings(root="file:///nowhere")) for _ in range(2))
    with pytest.raises(ConfigError, match="RIFFLE-0603"):
        in_fives(left).union(in_fives(right)).writeStream.format("noop").start()
    with pytest.raises(ConfigError, match="RIFFLE-0604"):
        in_fives(left).select(F.window_time("window").alias("end"), "c").join(right, F.expr("end = at")).explain()


@pytest.mark.parametrize(
    ("bound", "closes"),
    [("", False), ("AND v > at", True), ("AND v < at + INTERVAL 1 MINUTE", True), ("AND c > n", False)],
)
def test_a_join_requests_batches_if_rows_of_either_side_expire(
    bound: str, closes: bool, spark: SparkSession, feed: Feed
) -> None:
    """A join requests batches without rows if rows of either side expire, as in Spark."""
    left, right = (riffle_spark.on(timed(feed, spark)) for _ in range(2))
    both = left.join(right.toDF("v", "p", "c"), F.expr(f"page = p {bound}"))
    (planned,) = planned_stages.planned_stages(cut_query(both), None)
    assert planned.closes is closes


def test_the_option_of_store_names_follows_the_order_of_explain(spark: SparkSession, feed: Feed) -> None:
    """The option of store names applies to the stages in the order of ``explain``. A stage without a name keeps its
    default.
    """
    cut = cut_query(in_tens(riffle_spark.on(timed(feed, spark))))
    for names, stores in (("one", ["one", TENS]), (" one , two", ["one", "two"]), (",two", [FIVES, "two"])):
        assert [stage.store for stage in planned_stages.planned_stages(cut, names)] == stores
    for names in ("one,one", f",{FIVES}"):
        with pytest.raises(ConfigError, match="RIFFLE-0324"):
            planned_stages.planned_stages(cut, names)
    with pytest.raises(ConfigError, match=r"RIFFLE-0323.*names 3 stores, but the query has 2 stateful operators"):
        planned_stages.planned_stages(cut, "one,two,three")


def test_explain_prints_both_inputs_of_a_join_of_results(
    spark: SparkSession, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    """A join of results reads two stages, and each gets its own rows. Its watermark is the earlier of the two."""
    left, right = (in_fives(riffle_spark.on(timed(feed, spark))) for _ in range(2))
    both = left.join(right.toDF("v", "p", "d"), F.expr("window = v AND page = p"))
    both.explain()
    output = capsys.readouterr().out
    assert output.count("== Physical Plan ==") == 2
    assert f"reads the results of {FIVES} and {FIVES}-2\n" in output
    planned = planned_stages.planned_stages(cut_query(both), None)
    moved = [replace(stage, shift_ms=shift) for stage, shift in zip(planned, (-1, -5_000, 0), strict=True)]
    made = stage_rows.operators_of(moved, "append", NoSink())
    assert [stage.shift_ms for stage in made] == [0, 0, -5_000]
    schema = stage_rows.input_of(planned).schema
    nulls = [(None,) * len(kind.names) for kind in (field.dataType for field in schema) if isinstance(kind, StructType)]
    batch = spark.createDataFrame([(nulls[0], None), (None, nulls[1]), (None, nulls[1])], schema, verifySchema=False)
    assert [stage.reads.frame(batch, {}, 0).count() for stage in made[:2] if stage.reads] == [1, 2]
