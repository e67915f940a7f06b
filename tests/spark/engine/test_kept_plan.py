"""The plan of slots is made once and reused. Every batch has the results that its own plan would give."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, arrow_function, count, sum_, together
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.spark import compat
from riffle_spark.spark.compat.java import kind
from riffle_spark.spark.engine import jvm, kept_output, kept_plan
from riffle_spark.spark.engine.combined_rows import Reductions
from riffle_spark.spark.engine.stage_frames import StoredResult
from riffle_spark.worker.result_chunks import CHUNK_ROWS
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in, stored_rdds

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

ADAPTIVE = "spark.sql.adaptive.enabled"
SCHEMA = "k long, v long"
OUTPUT = pa.schema([("k", pa.int64()), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def compiled(spark: SparkSession) -> None:
    """Compile plans, as users' sessions do."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """The batches that reused a kept plan."""
    batches: list[DataFrame] = []
    planned = kept_plan._KeptPlan.plan_batch

    def planning(plan: kept_plan._KeptPlan, batch: DataFrame, *arguments: object) -> kept_plan.PlanFrame:
        made = planned(plan, batch, *arguments)  # type: ignore[arg-type]
        batches.append(batch)
        return made

    monkeypatch.setattr(kept_plan._KeptPlan, "plan_batch", planning)
    return batches


def rows_of(spark: SparkSession, number: int, columns: str = SCHEMA) -> DataFrame:
    """Return a batch of rows in memory, as a query passes it."""
    return spark.createDataFrame([(k, number) for k in range(5 + number)], columns)


def job_in(folder: Path, sink: CollectingSink, **changes: object) -> StatefulJob:
    """Return a job that computes running totals by key."""
    compute = aggregate(rows=count(), total=sum_("v"))
    return Stateful("totals", "k", compute, settings=settings_in(folder, **changes)).into(sink)


@pytest.mark.needs_spark4("cogroup().applyInArrow")
def test_python_is_called_on_a_leaf_with_the_exchanged_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python call reads a leaf node, so tasks get no plan below it. Between the batch and the leaf there are one
    projection and the exchange.
    """
    spark.conf.set(ADAPTIVE, "false")
    below: list[str] = []
    above: list[list[str]] = []
    copied, planned = compat.SlotCall.copied, kept_plan._KeptPlan.plan_batch

    def copying(call: compat.SlotCall, jvm: object, udf: object, slots: object, rows: Any) -> Any:
        below.append(kind(rows))
        return copied(call, jvm, udf, slots, rows)

    def planning(plan: kept_plan._KeptPlan, *arguments: Any) -> kept_plan.PlanFrame:
        above.append([kind(node) for node in plan._above])
        return planned(plan, *arguments)

    monkeypatch.setattr(compat.SlotCall, "copied", copying)
    monkeypatch.setattr(kept_plan._KeptPlan, "plan_batch", planning)
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(2):
        job(rows_of(spark, number), number)
    assert below == ["RDDScanExec"]
    assert [kinds.count("ProjectExec") for kinds in above] == [1]
    assert above[0][-1] == "ShuffleExchangeExec"


@pytest.mark.parametrize("adaptive", ["false", "true"])
@pytest.mark.sample("false")
def test_batches_after_the_first_reuse_the_plan(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame], adaptive: str
) -> None:
    """Batches after the first reuse the plan and get their own rows, function and counts, with and without adaptive
    execution.
    """
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    spark.conf.set(ADAPTIVE, adaptive)
    for number in range(3):
        job(rows_of(spark, number), number)
    assert len(reused) == 2
    assert [report.rows for report in job.reports] == [5, 6, 7]
    assert [report.plan_fallbacks for report in job.reports] == [0, 0, 0]
    assert rows.latest("k")[0] == {"rows": 3, "total": 3}
    assert rows.latest("k")[6] == {"rows": 1, "total": 2}


def read_rows(spark: SparkSession, number: int) -> tuple[DataFrame, Callable[[], int]]:
    """Return a batch, and a function that returns how many of its rows were read so far."""
    read = spark.sparkContext.accumulator(0)

    def counted(k: int) -> tuple[int, int, int]:
        read.add(1)
        return k, number, k % 2

    rows = spark.sparkContext.parallelize(range(10), 2).map(counted)
    return spark.createDataFrame(rows, "k long, v long, w long"), lambda: int(read.value)


@pytest.mark.parametrize("combines", [False, True])
@pytest.mark.sample("False")
def test_stores_of_one_key_read_the_input_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, combines: bool
) -> None:
    """Stores with the same key share one reading of the input, and each gets its columns.

    A store with another key, or that combines rows, reads the input itself. The sinks are called in the order of the
    jobs.
    """
    monkeypatch.setattr(Reductions, "combines", lambda _, store: combines and store == "by_k")
    by_k, other_of_k, by_w = CollectingSink(), CollectingSink(), CollectingSink()
    called: list[str] = []

    def noted(name: str, sink: CollectingSink) -> Callable[[DataFrame, int], None]:
        def write(rows: DataFrame, batch_id: int) -> None:
            called.append(name)
            sink(rows, batch_id, "")

        return write

    job = together(
        Stateful("by_k", "k", aggregate(total=sum_("v")), settings=settings_in(tmp_path)).into(noted("by_k", by_k)),
        Stateful("by_w", "w", aggregate(rows=count(), total=sum_("v"))).into(noted("by_w", by_w)),
        Stateful("other_of_k", "k", aggregate(rows=count(), total=sum_("w"))).into(noted("other_of_k", other_of_k)),
    )
    reads = []
    for number in range(3):
        rows, count_read = read_rows(spark, number)
        job(rows, number)
        reads.append(count_read() / 10)
    digest = 1  # one more reading for the digest of the rows, because the batch has no offsets
    assert reads == [digest + (3 if combines else 2)] * 3
    assert called == ["by_k", "by_w", "other_of_k"] * 3
    assert by_k.latest("k") == {k: {"total": 3} for k in range(10)}
    assert other_of_k.latest("k") == {k: {"rows": 3, "total": 3 * (k % 2)} for k in range(10)}
    assert by_w.latest("w") == {w: {"rows": 15, "total": 15} for w in range(2)}
    assert [report.rows for report in job.reports] == [30, 30, 30]
    assert [report.plan_fallbacks for report in job.reports] == [0, 0, 0]


OTHERS: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "what is left of a batch": lambda batch, number: batch.where(f"k > {number}"),
    "other columns": lambda batch, number: batch.sparkSession.createDataFrame(
        batch.selectExpr(*(["k", "v"] if number % 2 else ["v", "k"])).collect()
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.long
def test_a_transformed_batch_gets_its_own_plan(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame], other: str
) -> None:
    """A batch that the user has transformed, or that has other columns, gets its own plan."""
    rows = CollectingSink()
    job, expected = job_in(tmp_path, rows), dict[object, int]()
    for number in range(3):
        batch = OTHERS[other](rows_of(spark, number), number)
        job(batch, number)
        for row in batch.collect():
            expected[row.k] = expected.get(row.k, 0) + row.v
    assert not reused
    assert {k: values["total"] for k, values in rows.latest("k").items()} == expected


def test_a_plan_that_no_longer_works_is_counted_in_the_report(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Spark's plan nodes differ, each batch is planned anew with the same results, and the report counts these
    batches.
    """
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(4):
        if number == 2:
            monkeypatch.setattr(kept_plan, "_EXPRESSIONS", "org.apache.spark.no.such")
        job(rows_of(spark, number), number)
    assert [report.plan_fallbacks for report in job.reports] == [0, 0, 1, 1]
    assert rows.latest("k")[0] == {"rows": 4, "total": 6}


@pytest.mark.long
def test_a_plan_of_sink_rows_that_no_longer_works_is_counted_in_the_report(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the plan of a sink's rows fails, Spark analyses it in each batch, the sink gets the same rows, and the report
    counts these batches.
    """
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(5):
        if number == 2:
            monkeypatch.setattr(kept_output, "_EXPRESSIONS", "org.apache.spark.no.such")
        job(rows_of(spark, number), number)
    assert [report.plan_fallbacks for report in job.reports] == [0, 0, 1, 1, 1]
    assert rows.latest("k")[0] == {"rows": 5, "total": 10}


@pytest.mark.long
def test_another_layout_reuses_the_plan(spark: SparkSession, tmp_path: Path, reused: list[DataFrame]) -> None:
    """A layout with another number of slots reuses the plan with another exchange, and all rows are counted."""
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(5):
        if number == 2:
            job.remove_worker()
        if number == 4:
            job.add_worker()
        job(rows_of(spark, number), number)
    assert len(reused) == 4
    assert [report.rows for report in job.reports] == [5, 6, 7, 8, 9]
    assert rows.latest("k")[0] == {"rows": 5, "total": 10}


def test_slots_that_swap_their_key_groups_get_the_rows_of_these(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If slots swap their key-groups, the reused plan routes rows by the new layout."""
    layout_for = Ownership.layout_for

    def swapping(ownership: Ownership, *arguments: Any) -> SlotLayout:
        layout = layout_for(ownership, *arguments)
        first, second = layout.slots
        is_swapped = len(reused) == 1
        slots = replace(first, key_groups=second.key_groups), replace(second, key_groups=first.key_groups)
        return replace(layout, slots=slots) if is_swapped else layout

    monkeypatch.setattr(Ownership, "layout_for", swapping)
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(4):
        job(rows_of(spark, number), number)
    assert len(reused) == 3
    assert rows.latest("k")[0] == {"rows": 4, "total": 6}


@pytest.mark.long
def test_a_plan_for_one_slot_is_reused_for_two_slots(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame]
) -> None:
    """A plan that was made for one slot also routes rows to two slots."""
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(4):
        if number == 1:
            job.remove_worker()
        if number == 3:
            job.add_worker()
        job(rows_of(spark, number, SCHEMA if number else "v long, k long"), number)
    assert [report.slots for report in job.reports] == [2, 1, 1, 2]
    assert len(reused) == 2
    assert rows.latest("k")[1] == {"rows": 3, "total": 6}


@pytest.mark.long
def test_a_plan_by_partition_is_reused_until_the_topic_grows(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame]
) -> None:
    """With dispatch by partition the plan is reused until the topic gets another partition."""
    rows = CollectingSink()
    job = job_in(tmp_path, rows, dispatch="partition")
    for number in range(4):
        partitions = 2 + number // 2
        row_values = [(k, 1, "events", k % partitions) for k in range(12)]
        job(spark.createDataFrame(row_values, f"{SCHEMA}, topic string, partition int"), number)
    assert [report.rows for report in job.reports] == [12] * 4
    assert len(reused) == 2


def totals(rows: CollectingSink) -> dict[object, Any]:
    """Return the newest total of each key."""
    return {k: values["total"] for k, values in rows.latest("k").items()}


def nanoseconds(spark: SparkSession) -> DataFrame:
    """Return rows whose values differ each time they are computed."""
    made = spark.range(4).selectExpr("id k", "cast(java_method('java.lang.System', 'nanoTime') as long) v")
    rows = made._jdf.queryExecution().toRdd()
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rows, made._jdf.schema(), False), spark)


@pytest.mark.long
def test_a_cached_batch_is_read_from_the_cache_with_its_own_plan(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame]
) -> None:
    """A batch that the user cached is read from the cache with its own plan. The other batches reuse the kept plan."""
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(5):
        batch, seen = nanoseconds(spark), totals(rows)
        if number % 2:
            batch.collect()  # Spark looks a frame up in its cache only once, perhaps before this persist
            batch.persist()
            seen = {row.k: row.v + seen[row.k] for row in batch.select("k", "v").collect()}
        job(batch, number)
        if number % 2:
            assert totals(rows) == seen
            batch.unpersist()
    assert len(reused) == 2
    assert [report.plan_fallbacks for report in job.reports] == [0, 1, 0, 1, 0]


@pytest.mark.long
def test_a_job_in_a_users_thread_reuses_the_plan(spark: SparkSession, tmp_path: Path, reused: list[DataFrame]) -> None:
    """A job that is called in a user's thread without an active session reuses the plan, and leaves the thread without
    one.
    """
    job = job_in(tmp_path, CollectingSink())
    assert spark._jvm is not None
    sessions = getattr(spark._jvm, compat.CLASSIC).SparkSession

    def called(number: int, batch: DataFrame) -> None:
        sessions.clearActiveSession()
        job(batch, number)
        assert not sessions.getActiveSession().isDefined()

    for number in range(3):
        thread = threading.Thread(target=called, args=(number, rows_of(spark, number)))
        thread.start()
        thread.join()
    assert len(reused) == 2


def test_a_users_thread_has_its_active_session_again(spark: SparkSession) -> None:
    """A user's thread has its active session again after the plan was made in another session."""
    assert spark._jvm is not None
    sessions = getattr(spark._jvm, compat.CLASSIC).SparkSession
    other = spark.newSession()._jsparkSession
    sessions.setActiveSession(other)
    try:
        with jvm.active(spark):
            assert sessions.getActiveSession().get() == spark._jsparkSession
        assert sessions.getActiveSession().get() == other
    finally:
        sessions.setActiveSession(spark._jsparkSession)


@pytest.mark.needs_spark4("results that are stored without a plan")
def test_results_of_a_query_are_stored_without_a_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of a query's batches are stored without a plan, and all blocks are released. Outside of a query, results
    are stored as frames.
    """
    stored = stored_rdds(monkeypatch)
    persisted = spark.sparkContext._jsc.getPersistentRDDs
    before = set(persisted())
    feed, rows = Feed(tmp_path / "in", SCHEMA), CollectingSink()
    keys = range(20 * CHUNK_ROWS)
    for number in range(3):
        feed.add({"k": k, "v": number} for k in keys)
    job = job_in(tmp_path, rows)
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert len(stored) == 2
    assert [report.plan_fallbacks for report in job.reports] == [0, 0, 0]
    assert rows.latest("k") == {k: {"rows": 3, "total": 3} for k in keys}
    assert set(persisted()) <= before
    called = job_in(tmp_path / "called", CollectingSink())
    for number in range(2):
        called(rows_of(spark, number), number)
    assert len(stored) == 2


def test_lost_receipts_are_read_from_the_stored_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts that the accumulator lost are read from the stored rows, and no slot runs again."""
    receipts = StoredResult.receipts

    def losing(result: StoredResult, accumulated: list[str], slots: int) -> list[str]:
        assert len(accumulated) == 2 * slots
        return receipts(result, accumulated[:slots], slots)

    monkeypatch.setattr(StoredResult, "receipts", losing)
    feed, sinks = Feed(tmp_path / "in", SCHEMA), {"a": CollectingSink(), "b": CollectingSink()}
    for number in range(2):
        feed.add({"k": k, "v": number} for k in range(10))
    compute = aggregate(rows=count(), total=sum_("v"))
    job = together(
        *[Stateful(store, "k", compute).into(sink) for store, sink in sinks.items()], settings=settings_in(tmp_path)
    )
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert [report.runs for report in job.reports] == [1, 1]
    for sink in sinks.values():
        assert sink.latest("k") == {k: {"rows": 2, "total": 1} for k in range(10)}


def test_files_and_broadcasts_of_later_batches_reach_the_function(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python files and broadcasts that the user adds between batches reach the user's function, because such batches
    get a new plan.
    """
    context: Any = spark.sparkContext
    monkeypatch.setattr(context, "_python_includes", [*context._python_includes])
    monkeypatch.setattr(sys, "path", [*sys.path])
    sent: dict[str, Any] = {}

    def read(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        value = sent["broadcast"].value if "broadcast" in sent else 0
        value += importlib.import_module("riffle_sent_module").VALUE if "module" in sent else 0
        keys = rows["k"].unique()
        return pa.table({"k": keys, "n": [value] * len(keys)}, OUTPUT), state.slice(0, 0)

    rows = CollectingSink()
    compute = arrow_function(read, state=pa.schema([("nothing", pa.int64())]), output=OUTPUT)
    job = Stateful("sent", "k", compute, settings=settings_in(tmp_path)).into(rows)
    for number in range(4):
        if number == 2:
            with ZipFile(tmp_path / "sent.zip", "w") as archive:
                archive.writestr("riffle_sent_module.py", "VALUE = 1")
            context.addPyFile(str(tmp_path / "sent.zip"))
            sent["module"] = True
        if number == 3:
            sent["broadcast"] = context.broadcast(10)
        job(rows_of(spark, number), number)
    assert len(reused) == 1
    assert [delivery[0].n for delivery in rows.deliveries.values()] == [0, 0, 1, 11]
