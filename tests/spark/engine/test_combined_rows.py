"""Rows are combined by key before the shuffle if that reduces them, and the results stay the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import Stateful, StatefulJob, aggregate, count, max_, min_, sum_
from riffle_spark.messages.slot_orders import LateRule, Order, Receipt, letter_field
from riffle_spark.process.blocks.combining import Combined
from riffle_spark.protocol.ports import SlotLayout, SlotPlace
from riffle_spark.protocol.shards import Shards
from riffle_spark.spark.compat.java import kind
from riffle_spark.spark.engine import combined_rows, kept_plan
from riffle_spark.spark.engine.combined_rows import Reductions, _as_partitioned, combinable
from tests.kit.streams.streaming import CollectingSink, Feed, settings_in
from tests.kit.worker.slot_member import Member

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

SCHEMA = "k string, v long"


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the minimum of rows for combining."""
    monkeypatch.setattr(combined_rows, "_MIN_ROWS", 10)


@pytest.fixture
def combined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions of the batches whose rows were combined."""
    batches: list[int] = []

    def ordering(order: Order, how: Combined) -> Order:
        batches.append(order.version)
        return combined_rows.combined_order(order, how)

    monkeypatch.setattr("riffle_spark.spark.engine.spark_batch.combined_order", ordering)
    return batches


def rows_of(number: int, keys: int) -> list[tuple[str | None, int | None]]:
    """Return the 40 rows of a batch."""
    return [(f"k{n % keys}" if n % keys else None, (number + 1) * n if n % 7 else None) for n in range(40)]


def batch_of(spark: SparkSession, number: int, keys: int) -> DataFrame:
    """Return a batch of 40 rows in two partitions, as a query passes it on."""
    return spark.createDataFrame(spark.sparkContext.parallelize(rows_of(number, keys), 2), SCHEMA)


def job_in(folder: Path, sink: CollectingSink) -> StatefulJob:
    """Return a job that computes running totals by key."""
    compute = aggregate(rows=count(), values=count("v"), total=sum_("v"), least=min_("v"), most=max_("v"))
    return Stateful("totals", "k", compute, settings=settings_in(folder)).into(sink)


def totals_of(values: list[int | None]) -> dict[str, int | None]:
    """Return the running totals of a key that had these values."""
    some = [value for value in values if value is not None]
    return {
        "rows": len(values),
        "values": len(some),
        "total": sum(some) if some else None,
        "least": min(some, default=None),
        "most": max(some, default=None),
    }


@pytest.mark.smoke
def test_rows_are_combined_if_the_batch_before_had_many_rows_of_a_key(
    spark: SparkSession, tmp_path: Path, combined: list[int]
) -> None:
    """Batches have the right results, and reports count all rows, whether their rows were combined or not."""
    rows, seen = CollectingSink(), dict[str | None, list[int | None]]()
    job = job_in(tmp_path, rows)
    for number, keys in enumerate([4, 4, 4, 40, 40, 4]):
        job(batch_of(spark, number, keys), number)
        for key, value in rows_of(number, keys):
            seen.setdefault(key, []).append(value)
        assert rows.latest("k") == {key: totals_of(values) for key, values in seen.items()}
    assert combined == [2, 3]
    assert [report.rows for report in job.reports] == [40] * 6
    assert [report.plan_fallbacks for report in job.reports] == [0] * 6


@pytest.mark.long
def test_a_sum_that_exceeds_int64_in_a_partition_is_exact(
    spark: SparkSession, tmp_path: Path, combined: list[int]
) -> None:
    """A sum is exact if it exceeds int64 in one input partition, and another partition compensates for it."""
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    values = [2**63 - 1] * 20 + [-(2**63) + 1] * 19 + [-(2**63) + 2]
    for number in range(3):
        rows_of_a = [("a", value) for value in values]
        job(spark.createDataFrame(spark.sparkContext.parallelize(rows_of_a, 2), SCHEMA), number)
    assert combined == [2]
    assert rows.latest("k")["a"]["total"] == 3
    assert rows.latest("k")["a"]["rows"] == 120


@pytest.mark.long
def test_another_layout_reuses_the_plan_of_combined_rows(
    spark: SparkSession, tmp_path: Path, combined: list[int]
) -> None:
    """A layout with another number of slots reuses the kept plan of combined rows."""
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(5):
        if number == 3:
            job.remove_worker()
        job(batch_of(spark, number, 4), number)
    assert combined == [2, 3, 4]
    assert [report.slots for report in job.reports] == [2, 2, 2, 1, 1]
    assert [report.plan_fallbacks for report in job.reports] == [0] * 5
    assert rows.latest("k")["k1"]["rows"] == 50


@pytest.mark.parametrize("mode", ["update", "append"])
@pytest.mark.long
def test_windows_of_a_wrapped_query_are_combined(
    spark: SparkSession, tmp_path: Path, combined: list[int], mode: str
) -> None:
    """Windowed counts, sums and minima of combined rows are those of Spark, and late rows are dropped."""
    feed = Feed(tmp_path / "in", "k string, at timestamp, v long")
    for number in range(4):
        feed.add([{"k": f"k{n % 3}", "at": f"2026-01-01T00:{number * 10 + n % 2:02d}:00Z", "v": n} for n in range(40)])

    def query(frame: object, folder: Path) -> list[tuple[object, ...]]:
        window = F.window("at", "5 minutes")
        totals = [F.count("*").alias("rows"), F.sum("v").alias("total"), F.min("v").alias("least")]
        grouped = frame.withWatermark("at", "1 minute").groupBy(window, "k").agg(*totals)  # type: ignore[attr-defined]
        seen: list[tuple[object, ...]] = []

        def sink(rows: DataFrame, _: int) -> None:
            seen.extend(tuple(row) for row in rows.collect())

        writer = grouped.writeStream.outputMode(mode).foreachBatch(sink).option("checkpointLocation", str(folder))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        return sorted(seen, key=str)

    ours = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    assert query(ours, tmp_path / "ours") == query(feed.stream(spark), tmp_path / "spark")
    assert combined


M = 1_000_000


@pytest.mark.parametrize(
    "steps",
    [
        [(100, 61, False), (100, 60, True), (100, 70, True), (100, 71, False), (100, 0, False), (9, 1, False)],
        [(30 * M, 11 * M, False), (30 * M, 10 * M, True), (30 * M, 15 * M, True), (30 * M, 16 * M, False)],
        [(2_790_000, 1_670_000, True), (2_810_000, 1_680_000, False)],
    ],
    ids=["few keys", "many keys", "increasingly many keys"],
)
def test_combining_starts_and_ends_at_its_thresholds(spark: SparkSession, steps: list[tuple[int, int, bool]]) -> None:
    """Combining starts if it would remove 40 % of the rows, and ends below 30 %. Small batches do not count.

    If an input partition has more keys than Spark's fast hash map holds, it starts at two thirds and ends below half.
    """

    def receipt(store: str, rows: int, remaining: int) -> Receipt:
        return Receipt(store, 0, "1-ab", 1, "member", "1", rows=rows, combined_rows=remaining)

    reductions = Reductions()
    reductions.record([receipt("a", 100, 0)])
    assert reductions.partitions("a", batch_of(spark, 0, 4)) == 2
    for rows, remaining, expected in steps:
        half = remaining // 2
        reductions.record([receipt("a", rows - 1, remaining - half), receipt("a", 1, half), receipt("b", 100, 100)])
        assert (reductions.combines("a"), reductions.combines("b")) == (expected, False)


def test_input_partitions_are_counted_again_while_a_query_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of input partitions is counted again while a query runs, because a topic may grow."""
    monkeypatch.setattr(combined_rows, "_BATCHES_PER_COUNT", 2)
    reductions = Reductions()
    reductions.record([Receipt("a", 0, "1-ab", 1, "member", "1", rows=100, combined_rows=0)])
    assert reductions.partitions("a", batch_of(spark, 0, 4)) == 2
    other = spark.createDataFrame(spark.sparkContext.parallelize([("a", 1)], 3), SCHEMA)
    assert [reductions.partitions("a", other) for _ in range(2)] == [2, 3]


@pytest.mark.parametrize("compiled", ["true", "false"])
@pytest.mark.sample("true")
@pytest.mark.smoke
def test_rows_are_grouped_once_before_the_shuffle(
    spark: SparkSession, tmp_path: Path, combined: list[int], monkeypatch: pytest.MonkeyPatch, compiled: str
) -> None:
    """The kept plan groups each partition once before the shuffle. It is also compiled in a session with adaptive
    execution.
    """
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    spark.conf.set("spark.sql.codegen.wholeStage", compiled)
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    above: list[list[str]] = []
    planned = kept_plan._KeptPlan.plan_batch

    def planning(plan: kept_plan._KeptPlan, *arguments: Any) -> kept_plan.PlanFrame:
        above.append([kind(node) for node in plan._above])
        return planned(plan, *arguments)

    monkeypatch.setattr(kept_plan._KeptPlan, "plan_batch", planning)
    rows = CollectingSink()
    job = job_in(tmp_path, rows)
    for number in range(5):
        job(batch_of(spark, number, 4), number)
    assert combined == [2, 3, 4]
    assert [kinds.count("HashAggregateExec") for kinds in above] == [0, 1, 1]
    assert ("WholeStageCodegenExec" in above[-1]) == (compiled == "true")
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert [report.plan_fallbacks for report in job.reports] == [0] * 5
    assert rows.latest("k")["k1"] == totals_of([value for n in range(5) for key, value in rows_of(n, 4) if key == "k1"])


def test_a_second_grouping_stays_if_a_function_keeps_several_columns(spark: SparkSession) -> None:
    """The second grouping is kept for an average, because its first result is a sum and a count."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")

    def groupings(function: str) -> list[Any]:
        frame = _as_partitioned(batch_of(spark, 0, 4), ["k"]).groupBy("k").agg(F.expr(f"{function}(v)"))
        nodes = kept_plan._nodes_from_leaf(frame._jdf.queryExecution().executedPlan())
        return [node for node in nodes if kind(node) == "HashAggregateExec"]

    if len(groupings("avg")) == 1:
        pytest.skip("this Spark groups once by itself")
    assert kept_plan._results_of_first(*groupings("avg")) is None
    assert kept_plan._results_of_first(*groupings("max")) is not None


@pytest.mark.parametrize(("remaining", "bits"), [(80_000, "16"), (120_000, "17"), (300_000, "18"), (9_000_000, "20")])
def test_the_hash_map_has_room_for_the_keys_of_a_partition(spark: SparkSession, remaining: int, bits: str) -> None:
    """Spark's fast hash map gets room for the keys of a partition while the plan is made. A size that the user set is
    kept.
    """
    name = "spark.sql.codegen.aggregate.fastHashMap.capacityBit"
    reductions = Reductions()
    reductions.record([Receipt("a", 0, "1-ab", 1, "member", "1", rows=10_000_000, combined_rows=remaining)])
    reductions.partitions("a", batch_of(spark, 0, 4))
    reductions.record([Receipt("a", 0, "2-ab", 2, "member", "1", rows=10_000_000, combined_rows=remaining)])
    with reductions.room_for_keys("a", spark):
        assert spark.conf.get(name) == bits
    assert spark.conf.get(name) == "16"
    spark.conf.set(name, "12")
    try:
        with reductions.room_for_keys("a", spark):
            assert spark.conf.get(name) == "12"
    finally:
        spark.conf.unset(name)


TIMES = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("x", pa.float64())])
LAYOUT = SlotLayout((SlotPlace(0, "1", "host", (0,)),))


def test_rows_that_a_slot_needs_one_by_one_are_not_combined(tmp_path: Path) -> None:
    """Rows are not combined if a slot needs each of them: for dead letters, initial state, late rows, counts or routing
    by partition, or an order.

    Rows with floating-point keys are not combined either, because Spark may group these differently.
    """
    compute = aggregate(rows=count(), latest=max_("at"), least=min_("v"))
    order = Member(tmp_path, compute, TIMES).order()
    late_keys = replace(order, late=LateRule("k", by="keys"))
    assert combinable(order, compute, LAYOUT) is not None
    assert combinable(late_keys, compute, LAYOUT) is not None
    each = {
        "dead letters": replace(order, output=order.output.append(letter_field(TIMES))),
        "initial state": replace(order, initial=pa.schema([("rows", pa.int64())])),
        "late rows": replace(order, late=LateRule("at")),
        "rows by partition": replace(order, read_by="v"),
        "rows in an order": replace(order, rows=pa.schema([*order.rows, TIMES.field("x")])),
        "floating-point keys": Member(tmp_path, compute, TIMES, ("x",)).order(),
    }
    assert [name for name, other in each.items() if combinable(other, compute, LAYOUT) is not None] == []
    assert combinable(order, compute, replace(LAYOUT, shards=Shards((("topic", 0),)))) is None
