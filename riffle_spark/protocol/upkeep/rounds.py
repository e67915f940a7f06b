"""Run plans of upkeep in rounds of short pieces on the executors.

Theory of operation.

1. Spark cannot interrupt a task, so upkeep is cut into pieces. An executor runs one at a time, bounded in time and
   fetched bytes. A round is one piece on each executor.
2. A plan continues, round after round, while pieces make progress and are not finished. A newer plan replaces it after
   the present round.
3. A failure does not count as progress. The failed work leaves the plan, and later plans for a while (``setbacks``).
4. While a batch runs, pieces are shorter, and upkeep pauses between them.
5. The driver submits plans, and the background takes them. Both use one lock, so a new plan is either seen by the run
   that is about to end, or starts the next run.
"""

from collections import deque
from collections.abc import Mapping, Set
from dataclasses import replace

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ports import Background, Clock, Cluster
from riffle_spark.protocol.upkeep.setbacks import Setbacks
from riffle_spark.protocol.upkeep.snapshots import TakenSnapshots
from riffle_spark.state.log.manifest import Address

_PIECE_SECONDS = 1.0
_BUSY_PIECE_SECONDS = 0.25
_BUSY_SHARE = 0.1
"""The share of its time that upkeep runs while a batch runs."""
_BUSY_SHARE_FOLLOWING = 0.2
"""The same while copies follow the log, because an executor with warm copies relieves the others."""
_LONGEST_REST_SECONDS = 2.0
_MOST_ROUNDS = 10_000
_TRIES = 20
_RETRY_SECONDS = 0.5


class Rounds:
    """Runs one plan at a time in the background.

    ``arrived`` holds the receipts that the driver has not read. ``taken_snapshots`` holds the snapshots and merged
    deltas that receipts name. The driver sets ``in_batch`` while a batch runs.
    """

    def __init__(self, cluster: Cluster, background: Background, clock: Clock) -> None:
        """Create rounds on the executors of ``cluster``, which run in ``background``."""
        self.taken_snapshots = TakenSnapshots(cluster, background.lock())
        self._cluster: Cluster = self.taken_snapshots
        self._background = background
        self._clock = clock
        self._lock = background.lock()
        self._next: tuple[dict[str, UpkeepOrder], int] | None = None
        """The orders and the bandwidth of the plan that is not started yet."""
        self._running = False
        self.setbacks = Setbacks(background.lock())
        self.in_batch = False
        self.arrived: deque[UpkeepReceipt] = deque()

    def submit(self, orders: Mapping[str, UpkeepOrder], bandwidth: int) -> None:
        """Submit a plan: an order for each executor.

        It replaces a plan that is not started, and a running plan after its present round. ``bandwidth`` limits the
        bytes per second that an executor fetches; 0 for no limit.
        """
        orders = self.setbacks.without_delayed(orders, self._clock.seconds())
        with self._lock:
            waiting = self._next[0] if self._next else {}
            if orders or waiting:
                self._next = (_with_drops_of(waiting, orders), bandwidth)
            starts = self._next is not None and not self._running
            self._running = self._running or starts
        if starts:
            self._background.submit(self._run)

    def forget(self) -> None:
        """Abandon the plans and the failures of an earlier run. The present round ends first."""
        with self._lock:
            self._next = ({}, 0) if self._running else None
        self.setbacks.forget()

    def is_running(self) -> bool:
        """Return whether a plan runs or is about to run."""
        with self._lock:
            return self._running

    def run_now(self, orders: Mapping[str, UpkeepOrder]) -> None:
        """Run one round on the caller's thread. Its receipts are added to ``arrived``."""
        self.arrived.extend(self._cluster.upkeep(orders) if orders else [])

    def run_alone(self, orders: Mapping[str, UpkeepOrder]) -> None:
        """Abandon all plans and run one round on the caller's thread, once the present round has ended.

        Raises ``UnavailableError`` if an executor does not run its order.
        """
        with self._lock:
            self._next = ({}, 0)
        self.setbacks.retry_all()
        remaining = dict(orders)
        for _ in range(_TRIES):
            receipts = self._cluster.upkeep(remaining)
            self.arrived.extend(receipts)
            finished = {receipt.executor for receipt in receipts if not receipt.errors}
            remaining = {executor: order for executor, order in remaining.items() if executor not in finished}
            if not remaining:
                return
            if any(receipt.overdue for receipt in receipts):
                break
            self._background.rest(_RETRY_SECONDS)
        # Cause: The executors were lost, do not answer, or reported failures of upkeep.
        raise UnavailableError(
            f"Upkeep did not run on executors {', '.join(sorted(remaining))}.",
            remedy="Read their warnings, and call clean_up() again.",
            id="RIFFLE-0243",
        )

    def _run(self, taken_addresses: Set[Address] = frozenset()) -> None:
        """Run the next plan, and submit the run of the plan after it, so that other background work gets its turn."""
        try:
            plan = self._take_plan()
            if plan is None:
                return
            orders, bandwidth = plan
            taken_addresses = self._run_plan(_without_taken(orders, taken_addresses), bandwidth)
        except BaseException:
            with self._lock:
                self._running = False  # the next submitted plan includes a plan that is not started
            raise
        self._background.submit(lambda: self._run(taken_addresses))

    def _take_plan(self) -> tuple[dict[str, UpkeepOrder], int] | None:
        """Take the next plan, as orders and bandwidth. If there is none, mark the run as ended and return ``None``."""
        with self._lock:
            plan = self._next
            self._next = None
            self._running = plan is not None
            return plan

    def _run_plan(self, orders: dict[str, UpkeepOrder], bandwidth: int) -> set[Address]:
        """Run rounds until the plan is finished, makes no progress, or a newer plan exists.

        Return the key-groups of which the last round took snapshots or merged links. A plan that was made during the
        run may order them again.
        """
        period = _PIECE_SECONDS
        taken_addresses = set[Address]()
        try:
            for _ in range(_MOST_ROUNDS):
                started = self._clock.seconds()
                receipts = self._cluster.upkeep(self._limit_piece(orders, bandwidth, period)) if orders else []
                self.arrived.extend(receipts)
                taken_addresses = {
                    (store, key_group)
                    for receipt in receipts
                    for store, key_group, _ in (*receipt.snapshots, *receipt.merges)
                }
                self.setbacks.record_results(orders, receipts, self._clock.seconds())
                rest_seconds = self._rest_seconds(self._clock.seconds() - started, orders)
                orders = _unfinished_orders(orders, receipts)
                self._background.rest(rest_seconds)
                if not orders or self._next:
                    break
                period = self._clock.seconds() - started
        finally:
            self.setbacks.keep_drops(orders)  # after a round without answers, which no newer plan repeats
        return taken_addresses

    def _rest_seconds(self, round_seconds: float, orders: Mapping[str, UpkeepOrder]) -> float:
        """Return the pause after a round of these orders that took ``round_seconds``, 0 while no batch runs."""
        share = _BUSY_SHARE_FOLLOWING if any(order.follows for order in orders.values()) else _BUSY_SHARE
        return min(round_seconds * (1 / share - 1), _LONGEST_REST_SECONDS) if self.in_batch else 0.0

    def _limit_piece(self, orders: Mapping[str, UpkeepOrder], bandwidth: int, period: float) -> dict[str, UpkeepOrder]:
        """Return the orders with the limits of the next piece. ``period`` is the time since the last piece started."""
        seconds = _BUSY_PIECE_SECONDS if self.in_batch else _PIECE_SECONDS
        fetch_bytes = int(bandwidth * max(period, seconds)) if bandwidth else None
        return {e: replace(order, seconds=seconds, fetch_bytes=fetch_bytes) for e, order in orders.items()}


def _with_drops_of(waiting: Mapping[str, UpkeepOrder], orders: Mapping[str, UpkeepOrder]) -> dict[str, UpkeepOrder]:
    """Return the new orders with the drops of the replaced orders, because nothing else remembers these copies.

    If an executor has another folder now, its old drops are left out: the copies there may be needed.
    """
    merged_orders = dict(orders)
    for executor, old_order in waiting.items():
        new_order = merged_orders.get(executor, replace(old_order, follows=(), snapshots=(), merges=(), drops=()))
        if old_order.drops and new_order.member == old_order.member:
            merged_orders[executor] = replace(new_order, drops=(*old_order.drops, *new_order.drops))
    return merged_orders


def _without_taken(orders: Mapping[str, UpkeepOrder], taken_addresses: Set[Address]) -> dict[str, UpkeepOrder]:
    """Return the orders without snapshots and merges of these key-groups, whose entries change with the next commit."""
    if not taken_addresses:
        return dict(orders)
    remaining = {
        executor: replace(
            order,
            snapshots=tuple(s for s in order.snapshots if (s.store, s.key_group) not in taken_addresses),
            merges=tuple(m for m in order.merges if (m.store, m.key_group) not in taken_addresses),
        )
        for executor, order in orders.items()
    }
    return {executor: order for executor, order in remaining.items() if order.has_work}


def _unfinished_orders(orders: Mapping[str, UpkeepOrder], receipts: list[UpkeepReceipt]) -> dict[str, UpkeepOrder]:
    """Return the orders that remain after a round: of executors that made progress and are not finished.

    Failed work is left out, so every round fetches, folds or shortens the plan. If a piece was overdue, the receipts of
    other executors are lost, and their orders remain.
    """
    answered = {receipt.executor for receipt in receipts}
    has_lost_receipts = any(receipt.overdue for receipt in receipts)
    remaining = {
        executor: order for executor, order in orders.items() if has_lost_receipts and executor not in answered
    }
    for receipt in receipts:
        order = orders.get(receipt.executor)
        if order is None or not (_made_progress(order, receipt) or receipt.failed):
            continue
        unfinished_copies = {(store, key_group) for store, key_group, _, _ in receipt.unfinished} - set(receipt.failed)
        follows = tuple(follow for follow in order.follows if (follow.store, follow.key_group) in unfinished_copies)
        snapshots = order.snapshots[len(order.snapshots) - receipt.snapshots_left :] if receipt.snapshots_left else ()
        merges = order.merges[len(order.merges) - receipt.merges_left :] if receipt.merges_left else ()
        if follows or snapshots or merges:
            remaining[receipt.executor] = replace(order, drops=(), follows=follows, snapshots=snapshots, merges=merges)
    return remaining


def _made_progress(order: UpkeepOrder, receipt: UpkeepReceipt) -> bool:
    """Return whether a piece fetched, merged, restored, removed or took anything."""
    has_fetched = receipt.snapshot_bytes or receipt.delta_bytes
    has_dropped = not {(drop.store, drop.key_group) for drop in order.drops}.isdisjoint(receipt.missing)
    has_put = receipt.snapshots or receipt.merges
    return bool(has_fetched or receipt.folds or receipt.restores or has_dropped or has_put)
