"""Simulated executors. They answer a driver at once with receipts, and have no rows, copies or objects.

Their messages have the size and the content of real messages. Their CPU time is not counted as the driver's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

from riffle_spark.messages.slot_orders import Order, Part, Receipt
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, MergeOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ports import Delivery, Executor, SlotLayout, SlotPlace
from riffle_spark.protocol.shards import Partition
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Block, Link, MergedDelta, Replacement, Snapshot, link_in_block

__all__ = ["CORES", "CpuMeter", "SimulatedExecutors", "SimulatedWork"]

CORES = 4
"""Cores of an executor, and so its slots."""
CHANGED_ROWS = 40
PART_BYTES = 2_000
SNAPSHOT_BYTES = 200_000
SNAPSHOT_ROWS = 4_000
DISK = (0.1, 1 << 40)
MEMORY = (300 << 20, 8 << 30)
STEPS = ("touch", "fold", "read", "compute", "user", "seal", "put")


class CpuMeter:
    """Measures the CPU seconds of this process, without those of blocks under ``aside``."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._aside_s = 0.0

    def seconds(self) -> float:
        """Return the counted CPU seconds so far."""
        return self._clock() - self._aside_s

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run a block whose CPU time does not count."""
        started = self._clock()
        try:
            yield
        finally:
            self._aside_s += self._clock() - started


@dataclass
class MessageBytes:
    """Bytes of the messages that the driver encoded (``sent``) and decoded (``received``)."""

    sent: int = 0
    received: int = 0


class SimulatedExecutors:
    """A number of executors of ``CORES`` cores each. Implements ``protocol.ports.Cluster``.

    Executor ``n`` has the folder of the member with the same number. Upkeep does at once all that is ordered.
    """

    def __init__(self, count: int, meter: CpuMeter) -> None:
        self.meter = meter
        self.messages = MessageBytes()
        self.live = tuple(sorted(Executor(str(number), f"host-{number}.internal", CORES) for number in range(count)))
        self._attempts = 0

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return the census of each executor: a folder without copies."""
        self.messages.sent += len(order.to_json())
        with self.meter.aside():
            texts = [Census(e.id, member_of(e.id), disk=DISK, memory=MEMORY).to_json() for e in executors]
        return [Census.from_json(self._receive(text)) for text in texts]

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Encode the orders, and return receipts that report all of their work as done."""
        self.messages.sent += sum(len(order.to_json()) for order in orders.values())
        with self.meter.aside():
            texts = [self._upkeep_receipt(executor, order).to_json() for executor, order in orders.items()]
        return [UpkeepReceipt.from_json(self._receive(text)) for text in texts]

    def find_planned_removals(self, executors: Sequence[str]) -> frozenset[str]:  # noqa: ARG002
        """Return no executor."""
        return frozenset()

    def slot_receipts(self, layout: SlotLayout, orders: Sequence[Order]) -> list[Receipt]:
        """Encode the orders of a batch, and return a receipt of each slot: all of its key-groups changed."""
        self.messages.sent += sum(len(order.to_json()) for order in orders)
        with self.meter.aside():
            texts = [
                self._slot_receipt(order, place).to_json() for order in orders for place in layout.of(order.store).slots
            ]
        return [Receipt.from_json(self._receive(text)) for text in texts]

    def _receive(self, text: str) -> str:
        self.messages.received += len(text)
        return text

    def _attempt(self, epoch: int) -> str:
        self._attempts += 1
        return f"{epoch}-{self._attempts:032x}"

    def _slot_receipt(self, order: Order, place: SlotPlace) -> Receipt:
        rows = CHANGED_ROWS * len(place.key_groups)
        block = Block(PART_BYTES * len(place.key_groups), rows)
        checksum = (order.version << 32) + place.number
        parts = tuple(
            Part(key_group, 0, block.share_of(CHANGED_ROWS), checksum, CHANGED_ROWS) for key_group in place.key_groups
        )
        return Receipt(
            order.store,
            place.number,
            self._attempt(order.epoch),
            order.version,
            member_of(place.executor),
            place.executor,
            rows=rows,
            keys=rows,
            output_rows=rows,
            rows_updated=rows,
            parts=parts,
            block=block,
            sealed_bytes=block.size,
            hits=len(parts),
            folds=len(parts),
            received=(place.key_groups, (CHANGED_ROWS,) * len(parts)),
            input_bytes=16 * rows,
            disk=DISK,
            memory=MEMORY,
            requests={"put": 1},
            seconds=dict.fromkeys(STEPS, 0.01),
            peak_memory_mb=300.0,
        )

    def _upkeep_receipt(self, executor: str, order: UpkeepOrder) -> UpkeepReceipt:
        snapshots = []
        for due in order.snapshots:
            head = due.entry.head
            snapshot_id = paths.snapshot_id(head.version, self._attempt(order.epoch))
            snapshot = Snapshot(snapshot_id, head, SNAPSHOT_BYTES, head.version + due.key_group, SNAPSHOT_ROWS)
            snapshots.append((due.store, due.key_group, snapshot))
        merged = [
            (store, link.start, Replacement(due.entry.base, link))
            for (store, level), dues in groupby(order.merges, key=lambda due: (due.store, due.level))
            for due, link in self._merged_links(list(dues), level, order.epoch)
        ]
        return UpkeepReceipt(
            executor,
            order.member,
            copies=tuple((follow.store, follow.key_group, *follow.entry.head) for follow in order.follows),
            missing=tuple((drop.store, drop.key_group) for drop in order.drops),
            snapshots=tuple(snapshots),
            merges=tuple(merged),
            delta_bytes=PART_BYTES * len(order.follows),
            folds=len(order.follows),
            requests={"put": len(snapshots), "get": len(order.follows)},
            seconds=0.1,
            disk=DISK,
            memory=MEMORY,
        )

    def _merged_links(self, dues: Sequence[MergeOrder], level: int, epoch: int) -> Iterator[tuple[MergeOrder, Link]]:
        """Yield each order with its link in one merged delta, a block. Half of the changed rows are of other keys."""
        merged_id = paths.snapshot_id(max(due.entry.head.version for due in dues), self._attempt(epoch))
        rows = [max(CHANGED_ROWS, due.entry.chain_size[0] // 2) for due in dues]
        block = Block(sum(rows) * PART_BYTES // CHANGED_ROWS, sum(rows))
        merged = MergedDelta(merged_id, level, block.size)
        for due, count in zip(dues, rows, strict=True):
            yield due, link_in_block(due.entry.head, due.key_group, self._attempts, count, block, merged)


class SimulatedWork:
    """A batch on made-up executors, whose sink does nothing. Implements ``protocol.ports.Work``."""

    def __init__(self, executors: SimulatedExecutors) -> None:
        self._executors = executors
        self._rows: dict[str, int | None] = {}

    def executors(self) -> Sequence[Executor]:
        """Return all executors."""
        return self._executors.live

    def is_placed(self) -> bool:
        """Return true."""
        return True

    def partitions(self, limit: int) -> Sequence[Partition]:  # noqa: ARG002
        """Return no partitions."""
        return ()

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:  # noqa: ARG002
        """Return no event times."""
        return {}

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Return the receipts of all slots."""
        receipts = self._executors.slot_receipts(layout, orders)
        with self._executors.meter.aside():
            self._rows = {order.store: sum(r.rows for r in receipts if r.store == order.store) for order in orders}
        return receipts

    def plan_fallbacks(self) -> int:
        """Return 0."""
        return 0

    def count_routed_rows(self) -> Mapping[str, int | None]:
        """Return the numbers of rows in the receipts."""
        return self._rows

    def recount(self, store: str) -> int:
        """Return the rows of a store."""
        return self._rows[store] or 0

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:  # noqa: ARG002
        """Call ``check``, as before a sink."""
        check()

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Do nothing."""

    def drain(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


def member_of(executor: str) -> str:
    """Return the member whose folder an executor has."""
    return f"{int(executor):012x}"
