"""Pieces of upkeep, round after round, until a plan is done. Knows orders and receipts. Does not know threads or why a
copy is wanted.

Theory of operation. Nothing in Spark pre-empts a task, so work beside the batches is cut into short pieces: at most one
an executor at a time, each bounded in time and in bytes. A plan goes on, round after round, while pieces say that they
have not come to their end and get on with it; a newer plan ends it after the piece that runs. What failed is not
progress: it leaves the plan, and the plans to come for a while (``setbacks``). While a batch runs, pieces are shorter
and rest between. The driver makes plans, the background takes them up: under one lock, so that a plan is either seen by
the run that is ending or begins the next one.
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

__all__ = ["Rounds"]

_PIECE_SECONDS = 1.0
_BUSY_PIECE_SECONDS = 0.25
_BUSY_SHARE = 0.2
"""The share of its time that upkeep takes while a batch runs."""
_LONGEST_REST_SECONDS = 2.0
_MOST_ROUNDS = 10_000
_TRIES = 20
_TRY_AGAIN_SECONDS = 0.5


class Rounds:
    """Runs one plan at a time on a background. ``arrived`` holds the receipts that have come, ``taken`` the snapshots
    that they name. ``in_batch`` is set while a batch runs.
    """

    def __init__(self, cluster: Cluster, background: Background, clock: Clock) -> None:
        self.taken = TakenSnapshots(cluster, background.lock())
        self._cluster: Cluster = self.taken
        self._background = background
        self._clock = clock
        self._lock = background.lock()
        self._next: tuple[dict[str, UpkeepOrder], int] | None = None
        self._running = False
        self.setbacks = Setbacks(background.lock())
        self.in_batch = False
        self.arrived: deque[UpkeepReceipt] = deque()

    def begin(self, orders: Mapping[str, UpkeepOrder], bandwidth: int) -> None:
        """Take a plan: it replaces one that waits, and follows the piece of the one that runs.

        ``bandwidth`` bounds what an executor fetches, in bytes a second; 0 for no bound.
        """
        orders = self.setbacks.without(orders, self._clock.seconds())
        with self._lock:
            waiting = self._next[0] if self._next else {}
            if orders or waiting:
                self._next = (_with_drops_of(waiting, orders), bandwidth)
            begins = self._next is not None and not self._running
            self._running = self._running or begins
        if begins:
            self._background.submit(self._run)

    def forget(self) -> None:
        """Give up the plan that waits, and that runs after its piece: who is a member, and who needs what, is asked
        anew.
        """
        with self._lock:
            self._next = ({}, 0) if self._running else None
        self.setbacks.forget()

    def at_work(self) -> bool:
        """Tell whether a plan runs, or is about to."""
        with self._lock:
            return self._running

    def now(self, orders: Mapping[str, UpkeepOrder]) -> None:
        """Run one round at once."""
        self.arrived.extend(self._cluster.upkeep(orders) if orders else [])

    def at_once(self, orders: Mapping[str, UpkeepOrder]) -> None:
        """Run one round as soon as the piece that runs has ended; what else was planned is given up.

        Raises ``UnavailableError`` if an executor does not come to it.
        """
        with self._lock:
            self._next = ({}, 0)
        self.setbacks.start_over()
        left = dict(orders)
        for _ in range(_TRIES):
            receipts = self._cluster.upkeep(left)
            self.arrived.extend(receipts)
            done = {receipt.executor for receipt in receipts if not receipt.errors}
            left = {executor: order for executor, order in left.items() if executor not in done}
            if not left:
                return
            if any(receipt.overdue for receipt in receipts):
                break
            self._background.rest(_TRY_AGAIN_SECONDS)
        raise UnavailableError(
            f"executors {', '.join(sorted(left))} did not come to it",
            remedy="look at their warnings, and ask again",
            id="RIFFLE-0243",
        )

    def _run(self, taken: Set[Address] = frozenset()) -> None:
        """Go through the plan that waits; one that comes meanwhile follows once other work has had its turn."""
        try:
            plan = self._take_up()
            if plan is None:
                return
            taken = self._go_through(_without_taken(plan[0], taken), plan[1])
        except BaseException:
            with self._lock:
                self._running = False  # a plan that came meanwhile waits for the next one
            raise
        self._background.submit(lambda: self._run(taken))

    def _take_up(self) -> tuple[dict[str, UpkeepOrder], int] | None:
        """Take the plan that waits; where none does, the run has ended with the same look."""
        with self._lock:
            plan, self._next = self._next, None
            self._running = plan is not None
            return plan

    def _go_through(self, orders: dict[str, UpkeepOrder], bandwidth: int) -> set[Address]:
        """Run rounds until nothing is left, nothing gets on, or a newer plan waits.

        Returned are the snapshots of the last round: a plan made while it ran does not know of them.
        """
        period, taken = _PIECE_SECONDS, set[Address]()
        try:
            for _ in range(_MOST_ROUNDS):
                began = self._clock.seconds()
                receipts = self._cluster.upkeep(self._cut(orders, bandwidth, period)) if orders else []
                self.arrived.extend(receipts)
                taken = {(store, key_group) for receipt in receipts for store, key_group, _ in receipt.snapshots}
                self.setbacks.note(orders, receipts, self._clock.seconds())
                orders = _left(orders, receipts)
                took = self._clock.seconds() - began
                self._background.rest(self._rest_after(took))
                if not orders or self._next:
                    break
                period = self._clock.seconds() - began
        finally:
            self.setbacks.owe(orders)  # what a round without answers did not remove, no newer plan knows of
        return taken

    def _rest_after(self, took: float) -> float:
        return min(took * (1 / _BUSY_SHARE - 1), _LONGEST_REST_SECONDS) if self.in_batch else 0.0

    def _cut(self, orders: Mapping[str, UpkeepOrder], bandwidth: int, period: float) -> dict[str, UpkeepOrder]:
        """Return the orders with the bounds of the next piece: bytes for the time since the last one began."""
        seconds = _BUSY_PIECE_SECONDS if self.in_batch else _PIECE_SECONDS
        most = int(bandwidth * max(period, seconds)) if bandwidth else None
        return {executor: replace(order, seconds=seconds, fetch_bytes=most) for executor, order in orders.items()}


def _with_drops_of(waiting: Mapping[str, UpkeepOrder], orders: Mapping[str, UpkeepOrder]) -> dict[str, UpkeepOrder]:
    """Return the new orders, and of those that waited the drops: nobody remembers these copies any more. What was to go
    from another folder that an executor had may be needed in the one it has.
    """
    merged = dict(orders)
    for executor, old in waiting.items():
        new = merged.get(executor, replace(old, follows=(), snapshots=(), drops=()))
        if old.drops and new.member == old.member:
            merged[executor] = replace(new, drops=(*old.drops, *new.drops))
    return merged


def _without_taken(orders: Mapping[str, UpkeepOrder], taken: Set[Address]) -> dict[str, UpkeepOrder]:
    """Return the orders without the snapshots that were taken while the plan was made."""
    left = {
        executor: replace(order, snapshots=tuple(s for s in order.snapshots if (s.store, s.key_group) not in taken))
        for executor, order in orders.items()
    }
    return {executor: order for executor, order in left.items() if order.has_work}


def _left(orders: Mapping[str, UpkeepOrder], receipts: list[UpkeepReceipt]) -> dict[str, UpkeepOrder]:
    """Return what is left of the orders of those executors that got on with theirs and have not come to the end.

    What failed is not left; so every round fetches, folds or shortens the plan. Where a piece did not end in its time,
    the answers of others are lost with it: they go on.
    """
    answered = {receipt.executor for receipt in receipts}
    lost = any(receipt.overdue for receipt in receipts)
    left = {executor: order for executor, order in orders.items() if lost and executor not in answered}
    for receipt in receipts:
        order = orders.get(receipt.executor)
        if order is None or not (_got_on(order, receipt) or receipt.failed):
            continue
        open_ones = {(store, key_group) for store, key_group, _, _ in receipt.unfinished} - set(receipt.failed)
        follows = tuple(follow for follow in order.follows if (follow.store, follow.key_group) in open_ones)
        snapshots = order.snapshots[len(order.snapshots) - receipt.snapshots_left :] if receipt.snapshots_left else ()
        if follows or snapshots:
            left[receipt.executor] = replace(order, drops=(), follows=follows, snapshots=snapshots)
    return left


def _got_on(order: UpkeepOrder, receipt: UpkeepReceipt) -> bool:
    fetched = receipt.snapshot_bytes or receipt.delta_bytes
    dropped = not {(drop.store, drop.key_group) for drop in order.drops}.isdisjoint(receipt.missing)
    return bool(fetched or receipt.folds or receipt.restores or dropped or receipt.snapshots)
