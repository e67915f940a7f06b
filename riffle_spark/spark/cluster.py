"""Upkeep on executors: ordinary Spark tasks pinned to them. Knows frames and pools. Does not know what is due."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from riffle_spark.keygroups import slot_numbers
from riffle_spark.protocol.ports import Executor, Layout, SlotPlace
from riffle_spark.spark import inventory
from riffle_spark.spark.frames import PlacedFrames
from riffle_spark.spark.jvm import context, is_classic
from riffle_spark.spark.task import snapshot_function
from riffle_spark.state.manifest import Head, Snapshot
from riffle_spark.worker.snapshot import SnapshotOrder, SnapshotReceipt

__all__ = ["UPKEEP_POOL", "SparkCluster"]

UPKEEP_POOL = "riffle-upkeep"
_POOL = "spark.scheduler.pool"


class SparkCluster:
    """Implements ``protocol.ports.Cluster``. Runs in a scheduler pool of its own, on whichever thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._frames = PlacedFrames()

    def snapshot(self, orders: Mapping[str, Sequence[SnapshotOrder]]) -> list[SnapshotReceipt]:
        """Run each live executor's snapshot orders on it and return what was taken."""
        live = {executor.id: executor for executor in inventory.executors(self._spark)}
        wanted = [(live[name], list(mine)) for name, mine in sorted(orders.items()) if name in live]
        if not wanted:
            return []
        with self._own_pool():
            return self._run(wanted)

    @contextmanager
    def _own_pool(self) -> Iterator[None]:
        """Run the block's jobs in our pool. The thread may be a batch's, whose jobs go back to theirs."""
        if not is_classic(self._spark):
            yield
            return
        spark = context(self._spark)
        before = spark.getLocalProperty(_POOL)
        spark.setLocalProperty(_POOL, UPKEEP_POOL)
        try:
            yield
        finally:
            spark.setLocalProperty(_POOL, before)

    def _run(self, wanted: Sequence[tuple[Executor, list[SnapshotOrder]]]) -> list[SnapshotReceipt]:
        numbers = slot_numbers(len(wanted))
        layout = _layout([executor for executor, _ in wanted], numbers)
        frame = self._frames.frame(self._spark, layout)
        by_slot = dict(zip(numbers, [mine for _, mine in wanted], strict=True))
        rows = frame.mapInArrow(snapshot_function(by_slot), "receipt string").collect()  # type: ignore[arg-type]
        return [_receipt(row[0]) for row in rows]


def _layout(executors: Sequence[Executor], numbers: Sequence[int]) -> Layout:
    places = (SlotPlace(n, e.id, e.host, ()) for n, e in zip(numbers, executors, strict=True))
    return Layout(tuple(places))


def _receipt(text: str) -> SnapshotReceipt:
    body = json.loads(text)
    taken = [(store, group, Snapshot(snap[0], Head(*snap[1]), *snap[2:])) for store, group, snap in body["taken"]]
    return SnapshotReceipt(taken, body["requests"], body["error"])
