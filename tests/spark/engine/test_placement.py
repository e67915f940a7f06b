"""Slots run on the executors that the layout names, over random layouts, by receipts and by Spark's own task list."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count
from riffle_spark.errors import FencedError
from riffle_spark.messages.slot_orders import Order, Receipt
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.protocol.ownership.groups import ONE_GROUP, task
from riffle_spark.protocol.ownership.membership import LiveMember
from riffle_spark.protocol.ownership.slots import layout_of
from riffle_spark.protocol.ports import Delivery, Executor, SlotLayout, StaleRows
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.routing import arrow_schema
from riffle_spark.spark.engine.spark_batch import Sinks, SparkWork
from riffle_spark.spark.job_wiring import home_of
from riffle_spark.state.log import paths
from tests.kit.streams.placed_frames import built_frames
from tests.kit.streams.streaming import CollectingSink, job_group, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.newer_spark]
MASTER = "local-cluster[3,1,600]"
MOST_BATCHES = 20
TOTAL, ROWS = 32, 500


@pytest.fixture(scope="module")
def executors(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Executor, ...]:
    """Wait for all three executors."""
    found = inventory.await_executors(spark, settings_in(tmp_path_factory.mktemp("none")), expected=3)
    assert len(found) == 3
    return found


def rows(spark: SparkSession) -> DataFrame:
    """Return rows for every key-group."""
    return spark.range(ROWS).selectExpr("id k")


class Slots:
    """Batches of one operator that run on the layouts of a test."""

    def __init__(self, spark: SparkSession, executors: tuple[Executor, ...], folder: Path) -> None:
        self._settings = settings_in(folder)
        home = home_of(spark, self._settings)
        # A new member may take over the folder of an executor that is not listed as live.
        self._home = replace(home, live=frozenset(f"{home.application}/{executor.id}" for executor in executors))
        self._operator: Operator = operator_of("totals", ["k"], aggregate(rows=count()), (), arrow_schema(rows(spark)))
        log = folder / "state" / paths.LOG
        log.mkdir(parents=True)
        (log / "record").touch()  # slots write nothing to a folder without a log
        self._frames = PlacedFrames()
        self.kept = CollectingSink()

    def work(self, batch: DataFrame) -> SparkWork:
        """Return the work of one batch."""
        sinks = Sinks({"totals": self.kept})
        return SparkWork(batch, [self._operator], sinks, self._frames, self._home, self._settings)

    def order(self, layout: SlotLayout, version: int) -> Order:
        """Return the order for the slots of a layout. The state is always empty."""
        operator = self._operator
        return Order(
            home=self._home, store="totals", key=("k",), schema=operator.schema.to_text(),
            output=operator.declared.output, rows=operator.rows,
            per_key_group=False, order_by=(), total=TOTAL, epoch=1, sequence=version,
            version=version, time_ms=0, watermark_ms=None, slots=layout.key_groups_by_slot(), entries={},
        )  # fmt: skip


def random_layout(chance: random.Random, executors: tuple[Executor, ...]) -> SlotLayout:
    """Return a layout in which each key-group has a random owner."""
    members = {executor.id: LiveMember(executor.id, executor) for executor in executors}
    owners = {task(key_group): chance.choice(executors).id for key_group in range(TOTAL)}
    return layout_of(members, owners, ONE_GROUP)


def failed(receipts: Sequence[Receipt]) -> list[object]:
    """Return the errors in the receipts of slots."""
    return [receipt.error for receipt in receipts if receipt.error is not None]


def ran_elsewhere(layout: SlotLayout, receipts: list[Receipt]) -> list[Receipt]:
    """Return the receipts of slots that ran on another executor than the one in the layout."""
    wanted = {slot.number: slot.executor for slot in layout.slots}
    return [receipt for receipt in receipts if receipt.executor != wanted[receipt.slot]]


@pytest.mark.smoke
@pytest.mark.promise("slots run where they are placed")
@pytest.mark.parametrize("batches", [3, 20])
@pytest.mark.sample("3")
def test_every_slot_runs_on_the_executor_of_its_owner(
    spark: SparkSession, executors: tuple[Executor, ...], tmp_path: Path, batches: int
) -> None:
    """With a new random owner for every key-group in each batch, all slots run on their owners' executors."""
    chance, slots, seen = random.Random(20), Slots(spark, executors, tmp_path), 0
    for version in range(batches):
        layout = random_layout(chance, executors)
        work = slots.work(rows(spark))
        receipts = list(work.run(layout, [slots.order(layout, version)]))
        assert {receipt.slot for receipt in receipts} == set(layout.key_groups_by_slot())
        assert failed(receipts) == []
        assert ran_elsewhere(layout, receipts) == []
        assert work.is_placed()
        seen += len(receipts)
        work.release()
    assert seen == batches * len(executors)


def test_sparks_status_store_has_the_executor_of_each_receipt(
    spark: SparkSession, executors: tuple[Executor, ...], tmp_path: Path
) -> None:
    """For each slot, Spark's status store lists a task on the same executor as the receipt."""
    slots, layout = Slots(spark, executors, tmp_path), random_layout(random.Random(3), executors)
    with job_group(spark, "who-ran-what") as tasks:
        receipts = slots.work(rows(spark)).run(layout, [slots.order(layout, 0)])
    listed = [task for task in tasks() if task.taskMetrics().get().shuffleReadMetrics().recordsRead() > 0]
    executors_of_slots = {layout.slots[task.index()].number: task.executorId() for task in listed}
    assert executors_of_slots == {receipt.slot: receipt.executor for receipt in receipts}
    assert {task.taskLocality() for task in listed} == {"PROCESS_LOCAL"}


def test_rows_are_counted_on_both_sides_of_the_shuffle(
    spark: SparkSession, executors: tuple[Executor, ...], tmp_path: Path
) -> None:
    """Spark's metric counts the rows before the shuffle, and receipts count them after it. Both agree."""
    slots, layout = Slots(spark, executors, tmp_path), random_layout(random.Random(4), executors)
    work = slots.work(rows(spark).where("k < 321"))
    receipts = work.run(layout, [slots.order(layout, 0)])
    assert work.count_routed_rows() == {"totals": 321}
    assert work.recount("totals") == sum(receipt.rows for receipt in receipts) == 321


def test_rows_of_another_attempt_are_never_delivered(
    spark: SparkSession, executors: tuple[Executor, ...], tmp_path: Path
) -> None:
    """A stored row of an attempt without a receipt stops the sink with StaleRows, and nothing is delivered."""
    slots, layout = Slots(spark, executors, tmp_path), random_layout(random.Random(5), executors)
    work = slots.work(rows(spark))
    first, *others = work.run(layout, [slots.order(layout, 0)])
    assert failed([first, *others]) == []
    with pytest.raises(StaleRows):
        work.deliver([replace(first, attempt="1-lost"), *others], Delivery(0, "d"), lambda: None)
    assert slots.kept.deliveries == {}
    work.deliver([first, *others], Delivery(0, "d"), lambda: None)
    assert len(slots.kept.deliveries["d"]) == ROWS


def test_a_fenced_driver_calls_no_sink(spark: SparkSession, executors: tuple[Executor, ...], tmp_path: Path) -> None:
    """A fenced driver calls no sink: the sink waits for the check of the log, which runs while its frame is built."""
    slots, layout = Slots(spark, executors, tmp_path), random_layout(random.Random(6), executors)
    work = slots.work(rows(spark))
    receipts = work.run(layout, [slots.order(layout, 0)])

    def fenced() -> None:
        time.sleep(1)
        raise FencedError("another driver has appended")

    with pytest.raises(FencedError):
        work.deliver(receipts, Delivery(0, "d"), fenced)
    assert slots.kept.deliveries == {}


def test_a_job_follows_its_executors(
    spark: SparkSession, executors: tuple[Executor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job follows changes of its executors without a missed slot, and keeps its state.

    New executors get slots after a census. One frame is built per assignment.
    """
    chance, live = random.Random(6), [executors]
    built = built_frames(monkeypatch)
    monkeypatch.setattr(inventory, "executors", lambda _: live[-1])
    sink = CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(sink)
    for _ in range(4):
        others = [e for e in (executors, executors[:2], executors[1:], executors[::2]) if e != live[-1]]
        live.append(chance.choice(others))
        for _ in range(MOST_BATCHES):
            job(rows(spark).selectExpr("k % 50 k"), len(job.reports))
            assert set(job.reports[-1].owners) <= {executor.id for executor in live[-1]}
            if set(job.reports[-1].owners) == {executor.id for executor in live[-1]}:
                break
        assert set(job.reports[-1].owners) == {executor.id for executor in live[-1]}
    assert [report.misses for report in job.reports] == [0] * len(job.reports)
    assert all(report.placed for report in job.reports)
    assert sink.latest("k") == {k: {"rows": 10 * len(job.reports)} for k in range(50)}
    of_batches = [layout for layout in built if any(slot.key_groups for slot in layout.slots)]
    assert len(of_batches) == sum(bool(report.moves) for report in job.reports)
