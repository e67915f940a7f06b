"""The frame that a sink gets can be used in plans any number of times, like any other frame."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import StorageLevel, cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count, sum_, transform_with_state
from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.messages.slot_orders import ATTEMPT, LETTER, RECEIPT, attempt_number, letter_field
from riffle_spark.protocol.ports import StaleRows
from riffle_spark.spark import compat
from riffle_spark.spark.engine import jvm, spark_batch
from riffle_spark.spark.engine.kept_plan import PlanFrame
from riffle_spark.spark.engine.stage_frames import StoredResult, raising_stale_rows
from riffle_spark.spark.engine.stage_frames import rows_of as rows_of_result
from riffle_spark.worker.result_chunks import rows_column
from tests.kit.processors.visit_processors import Visits
from tests.kit.simulated.world import World, rows_of
from tests.kit.streams import sink_idioms
from tests.kit.streams.sink_idioms import IDIOMS, idiom_result
from tests.kit.streams.streaming import CollectingSink, rest, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]
cloudpickle.register_pickle_by_value(sink_idioms)  # Python workers cannot import a test's module.

SCHEMA = "user string, amount long"
OUTPUT = "user string, visits long, total long"
ADAPTIVE = "spark.sql.adaptive.enabled"


def amounts() -> list[dict[str, object]]:
    """Return a batch of five rows, one per user."""
    return [{"user": user, "amount": at + 1} for at, user in enumerate("abcde")]


def batch(spark: SparkSession) -> DataFrame:
    """Return the batch as a frame."""
    return spark.createDataFrame([tuple(row.values()) for row in amounts()], SCHEMA)


def operator(kind: str, folder: Path, **arguments: object) -> Stateful:
    """Return an operator for running totals, as aggregates or as a processor."""
    settings = settings_in(folder, **arguments)
    if kind == "processor":
        return transform_with_state(Visits(), key="user", output=OUTPUT, settings=settings)
    return Stateful("totals", "user", aggregate(visits=count(), total=sum_("amount")), settings=settings)


class IdiomSink:
    """A sink that uses its frame in each idiom and keeps the results."""

    def __init__(self, idioms: list[str]) -> None:
        self._idioms = idioms
        self.calls: list[int] = []
        self.ours: dict[str, str] = {}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Run all idioms on the frame."""
        self.calls.append(batch_id)
        for idiom in self._idioms:
            try:
                self.ours[idiom] = idiom_result(idiom, rows)
            except Exception:  # noqa: BLE001 - whatever went wrong belongs to this idiom alone
                self.ours[idiom] = traceback.format_exc(limit=1)


OFTEN = ["union with itself, filtered", "view and scalar subquery", "cached, then released"]
WAYS = ["processor, adaptive", "aggregate, not adaptive", "sealed, not adaptive"]


@pytest.mark.parametrize(
    ("way", "idioms"),
    [(WAYS[0], OFTEN), *[pytest.param(way, list(IDIOMS), marks=pytest.mark.long) for way in WAYS]],
)
def test_operations_on_a_sinks_frame_work_as_on_an_ordinary_frame(
    spark: SparkSession, tmp_path: Path, way: str, idioms: list[str]
) -> None:
    """Unions, joins, views, writes and cleared caches return the rows of an ordinary frame, and the slots run once."""
    kind, planning = way.split(", ")
    trying = IdiomSink(idioms)
    job = operator(kind, tmp_path, deliver_after_commit=kind == "sealed").into(trying)
    spark.conf.set(ADAPTIVE, str(planning == "adaptive").lower())
    job(batch(spark), 0)
    plain = spark.createDataFrame([(row["user"], 1, row["amount"]) for row in amounts()], OUTPUT)
    assert trying.ours == {idiom: idiom_result(idiom, plain) for idiom in idioms}
    assert trying.calls == [0]
    assert [report.runs for report in job.reports] == [1]


def drop_all_rdds(spark: SparkSession) -> None:
    """Release all RDDs that Spark has persisted."""
    for rdd in spark.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist(True)


def test_a_batch_with_lost_rows_reruns_even_if_the_sink_wraps_the_error(spark: SparkSession, tmp_path: Path) -> None:
    """If stored rows are lost, the batch runs again until the sink succeeds, even if the sink wraps Spark's error in
    its own.
    """
    calls: list[str] = []

    def sink(rows: DataFrame, batch_id: int, delivery_id: str) -> None:
        calls.append(delivery_id)
        if len(calls) < 3:
            drop_all_rdds(spark)
        try:
            rows.write.format("noop").mode("append").save()
        except Exception as error:
            if len(calls) == 2:
                raise RuntimeError("the table could not be written") from error
            raise

    job = operator("aggregate", tmp_path).into(sink)
    job(batch(spark), 0)
    assert [report.runs for report in job.reports] == [3]
    assert len(calls) == 3
    assert len(set(calls)) == 1


@pytest.mark.long
def test_a_sink_that_releases_all_cached_rdds_fails_with_this_cause(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that releases all cached RDDs fails with an error that names this cause and not lost executors."""
    kept = CollectingSink()

    def sink(rows: DataFrame, batch_id: int) -> None:
        drop_all_rdds(spark)
        rows.collect()

    with pytest.raises(UnavailableError, match="RIFFLE-0515") as caught:
        operator("aggregate", tmp_path, batch_attempts=2).into(sink)(batch(spark), 0)
    assert "2 runs" in caught.value.problem
    assert "releases cached RDDs" in caught.value.remedy
    operator("aggregate", tmp_path).into(kept)(batch(spark), 0)
    assert kept.latest("user")["b"] == {"visits": 1, "total": 2}


@pytest.mark.long
def test_a_sinks_frame_is_released_when_the_sink_returns(spark: SparkSession, tmp_path: Path) -> None:
    """Stored results are released when the sink returns. A frame that the sink kept fails later, and computes nothing
    again.
    """
    frames: list[DataFrame] = []
    persisted = spark.sparkContext._jsc.getPersistentRDDs
    before, sealed = set(persisted()), tmp_path / "state"
    job = operator("aggregate", tmp_path).into(lambda rows, _: frames.append(rows))
    for number in range(2):
        job(batch(spark), number)
    assert len(frames) == 2
    assert set(persisted()) <= before
    rest(job)
    objects = sorted(path for path in sealed.rglob("*") if path.is_file())
    for frame in frames:
        with pytest.raises(Exception, match=re.escape(compat.LOST_BLOCK)):
            frame.collect()
    assert sorted(path for path in sealed.rglob("*") if path.is_file()) == objects


@pytest.mark.parametrize("wrapped", [False, True], ids=["raised by Spark", "wrapped by the sink"])
@pytest.mark.sample("wrapped by the sink")
def test_an_analysis_error_in_a_sink_fails_with_sparks_message(
    spark: SparkSession, tmp_path: Path, *, wrapped: bool
) -> None:
    """An analysis error in a sink, such as an unknown column, fails the batch at once with Spark's message."""
    calls: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        try:
            rows.orderBy("usr").collect()
        except AnalysisException as error:
            if wrapped:
                raise RuntimeError(f"the table could not be written: {error}") from None
            raise

    with pytest.raises(RuntimeError if wrapped else AnalysisException, match="UNRESOLVED_COLUMN"):
        operator("aggregate", tmp_path).into(sink)(batch(spark), 0)
    assert calls == [0]


def test_a_row_of_an_attempt_without_a_receipt_fails_its_reader(spark: SparkSession) -> None:
    """A row of an attempt without a receipt fails its reader with StaleRows."""
    frame = spark.createDataFrame(
        [(attempt_number("theirs"), None, [("ann",)])],
        f"{ATTEMPT} long, {RECEIPT} string, {rows_column(0)} array<struct<user string>>",
    )
    rows = rows_of_result(frame, rows_column(0), ["ours"])
    with pytest.raises(StaleRows), raising_stale_rows():
        rows.collect()


def test_sealed_dead_letters_are_never_dropped_silently() -> None:
    """Sealed rows are read whether the query has dead letters now or had them then. Sealed dead letters are never
    dropped silently.
    """
    rows = pa.schema([("n", pa.int64())])
    dead = rows.append(letter_field(rows))
    plain, none = pa.table({"n": [1]}, rows), pa.table({"n": [1], LETTER: [None]}, dead)
    adapt = spark_batch._with_letter_column
    some = pa.table({"n": [None], LETTER: [{"error": "ValueError", "row": {"n": 1}}]}, dead)
    assert adapt(plain, dead).cast(dead) == adapt(none, dead) == none
    assert adapt(none, rows) == adapt(plain, rows) == plain
    assert adapt(some, dead) == some
    with pytest.raises(ConfigError, match="RIFFLE-0290"):
        adapt(some, rows)


def test_sealed_rows_are_read_by_the_links_in_the_record(tmp_path: Path) -> None:
    """A task reads the sealed rows that the record of a committed batch links. Rows with other columns are refused."""
    world = World(tmp_path, root=f"file://{tmp_path}/state", deliver_after_commit=True)
    world.batch(0, rows_of(("a", 1, 1), ("b", 2, 2), ("a", 3, 3)))
    tail = world.log().tail
    assert tail is not None
    links = pa.RecordBatch.from_pylist(
        [
            {
                "version": link.head.version,
                "attempt": link.head.attempt,
                "start": link.start,
                "length": link.length,
                "checksum": f"{link.checksum:016x}",
                "rows": link.rows,
            }
            for _, link in tail.outputs
        ]
    )
    schema = pa.schema([("k", pa.string()), ("count", pa.int64()), ("total", pa.int64())])
    read = spark_batch.read_function(world.home, "totals", schema)
    rows = [row for batch in read(iter([links])) for row in batch.to_pylist()]
    delivered = [{name: row[name] for name in schema.names} for row in world.delivered("totals")]
    assert sorted(rows, key=str) == sorted(delivered, key=str)
    other = spark_batch.read_function(world.home, "totals", schema.append(pa.field("mean", pa.float64())))
    with pytest.raises(ConfigError, match="RIFFLE-0289") as refused:
        list(other(iter([links])))
    assert "previous version of the query" in refused.value.remedy


@pytest.mark.parametrize("level", [StorageLevel.MEMORY_AND_DISK, StorageLevel.MEMORY_AND_DISK_2])
def test_a_result_is_stored_at_once_with_the_copies_of_its_level(spark: SparkSession, level: StorageLevel) -> None:
    """The RDD of a result is stored at once and without lineage, with the copies of its storage level."""
    rdd = batch(spark)._jdf.queryExecution().toRdd()
    jvm.store_rdd(spark, rdd, level)
    try:
        assert rdd.isCheckpointed()
        assert rdd.getStorageLevel().replication() == level.replication
    finally:
        jvm.release(spark, rdd)


def test_a_result_that_cannot_be_stored_leaves_nothing_behind(spark: SparkSession) -> None:
    """If a task fails while a result is stored, the blocks of the other tasks are released at once."""
    before = set(spark.sparkContext._jsc.getPersistentRDDs())
    frame = spark.range(2, numPartitions=2).selectExpr("if(id = 1, raise_error('a task failed'), id)")
    with pytest.raises(Exception, match="a task failed"):
        jvm.store_rdd(spark, frame._jdf.queryExecution().toRdd(), StorageLevel.MEMORY_AND_DISK)
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= before


def test_a_query_stopped_while_its_result_is_released_logs_no_warning(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that is stopped while its result is released logs no warning."""
    kept = StoredResult(PlanFrame(batch(spark), lambda: None), {}, is_replicated=False)
    thread = spark.sparkContext._jvm.Thread  # type: ignore[union-attr]
    thread.currentThread().interrupt()
    try:
        kept.release()
    finally:
        thread.interrupted()  # release() does not wait: the interruption would fail the next call that waits
    assert caplog.records == []
