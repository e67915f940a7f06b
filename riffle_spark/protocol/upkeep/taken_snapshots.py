"""What snapshots upkeep was answered with. Knows calls that are under way, and receipts. Does not know what becomes of
snapshots.

Theory of operation. An object that a piece of upkeep put can be listed only if its receipt comes. A receipt comes with
the call that ordered the piece, so where no call is under way, a snapshot of this driver's that no receipt named and no
record lists is given up (I5): its answer was lost. A task that outlives its call may put one more; it is not there yet
when it is asked which are given up, and is found the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from riffle_spark.messages.census_orders import Census, CensusOrder
from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ports import Cluster, Executor, Lock
from riffle_spark.state.log import paths

__all__ = ["TakenSnapshots"]


class TakenSnapshots:
    """A cluster that remembers which snapshots its receipts named. Implements ``protocol.ports.Cluster``.

    ``lost`` counts the snapshots that were ordered and neither named nor left for later.
    """

    def __init__(self, cluster: Cluster, lock: Lock) -> None:
        self._cluster = cluster
        self._lock = lock
        self._under_way = 0
        self._named: set[str] = set()
        self.lost = 0

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """See ``Cluster.upkeep``."""
        receipts: list[UpkeepReceipt] = []
        with self._lock:
            self._under_way += 1
        try:
            receipts = self._cluster.upkeep(orders)
        finally:
            self._note(orders, receipts)
        return receipts

    def _note(self, orders: Mapping[str, UpkeepOrder], receipts: Sequence[UpkeepReceipt]) -> None:
        with self._lock:
            self._under_way -= 1
            self._named |= {paths.snapshot(store, kg, s.id) for r in receipts for store, kg, s in r.taken}
            ordered = sum(len(order.snapshots) for order in orders.values())
            self.lost += max(0, ordered - sum(len(receipt.taken) + receipt.snapshots_left for receipt in receipts))

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """See ``Cluster.census``."""
        return self._cluster.census(executors, order)

    def planned(self, executors: Sequence[str]) -> frozenset[str]:
        """See ``Cluster.planned``."""
        return self._cluster.planned(executors)

    def named(self) -> frozenset[str] | None:
        """Return the snapshots that may still be listed, or ``None`` while a call may name more."""
        with self._lock:
            return None if self._under_way else frozenset(self._named)

    def settled(self, names: Iterable[str]) -> None:
        """Note that a record lists these, or that no record ever will."""
        with self._lock:
            self._named.difference_update(names)

    def only_of(self, epoch: int) -> None:
        """Forget what was named under earlier epochs: nothing of it is listed any more."""
        with self._lock:
            self._named = {name for name in self._named if (said := paths.parse(name)) and said.epoch >= epoch}
