"""Failed work of upkeep, and its next tries.

Theory of operation.

1. A failed piece of work is left out of the plan that runs, and of later plans until a delay is over. The delay doubles
   with every failure.
2. After ten failures in a row the work is given up. It is tried again only after a change: a new head of its key-group
   (at most once per longest delay), another member, a changed setting, or a request of an operator.
3. An executor that does not run its piece at all is delayed, and never given up. Copies that it was ordered to remove
   are kept for its next order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from riffle_spark.messages.upkeep_orders import Drop, Follow, MergeOrder, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.ports import Lock
from riffle_spark.state.log.manifest import Head

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 300.0
_OVERDUE_SECONDS = 60.0
_LONGEST_OVERDUE_SECONDS = 900.0
"""A piece that does not end holds up all others until its deadline, so its executor is left alone for longer."""
_TRIES = 10
_NAMES_SHOWN = 5


class _Work(NamedTuple):
    """A copy that a member was ordered to bring up to date, a snapshot to take, or links to merge."""

    member: str
    kind: str
    store: str
    key_group: int


class Setbacks:
    """Records failures of upkeep and holds back work that failed. Used by two threads."""

    def __init__(self, lock: Lock) -> None:
        """Start without failures. ``lock`` guards all fields, because two threads use them."""
        self._lock = lock
        self._work: Delays[_Work] = Delays(_FIRST_SECONDS, _LONGEST_SECONDS)
        self._heads: dict[_Work, Head] = {}
        """The head of the key-group at the last failure."""
        self._executors: Delays[str] = Delays(_FIRST_SECONDS, _LONGEST_SECONDS)
        self._overdue: Delays[str] = Delays(_OVERDUE_SECONDS, _LONGEST_OVERDUE_SECONDS)
        self._open_drops: dict[str, tuple[int, str, tuple[Drop, ...]]] = {}
        """By executor: the epoch, the member, and the copies that it was ordered to remove and did not."""
        self._warnings: list[str] = []

    def retry_all(self) -> None:
        """Forget all failures, so that everything may be tried again now."""
        with self._lock:
            self._clear()

    def forget(self) -> None:
        """Forget all failures and all drops that were not run, because a new run makes new plans."""
        with self._lock:
            self._clear()
            self._open_drops.clear()

    def _clear(self) -> None:
        """Forget all failures. The lock must be held."""
        self._heads.clear()
        for delays in (self._work, self._executors, self._overdue):
            delays.clear()

    def keep_members(self, live: Mapping[str, str]) -> None:
        """Forget the failures of members other than ``live`` ones, which are given with their executors."""
        executors = set(live.values())
        with self._lock:
            self._work.keep_only(lambda work: work.member in live)
            for delays in (self._executors, self._overdue):
                delays.keep_only(lambda executor: executor in executors)
            self._heads = {work: head for work, head in self._heads.items() if work.member in live}
            self._open_drops = {
                executor: drops for executor, drops in self._open_drops.items() if executor in executors
            }

    def without_delayed(self, orders: Mapping[str, UpkeepOrder], clock_seconds: float) -> dict[str, UpkeepOrder]:
        """Return the orders without delayed work, and with open drops.

        Orders without work are left out. Delayed snapshots and merges were left out by ``ready_snapshots`` and
        ``ready_merges``.
        """
        with self._lock:
            allowed = {
                executor: self._without_delayed_work(executor, order, clock_seconds)
                for executor, order in orders.items()
            }
        return {executor: order for executor, order in allowed.items() if order.has_work}

    def _without_delayed_work(self, executor: str, order: UpkeepOrder, clock_seconds: float) -> UpkeepOrder:
        """Return an executor's order without delayed work, with open drops first. A delayed executor gets no work."""
        drops = (*self._take_open_drops(executor, order), *order.drops)
        if self._executors.is_delayed(executor, clock_seconds) or self._overdue.is_delayed(executor, clock_seconds):
            self._open_drops[executor] = (order.epoch, order.member, drops)
            return replace(order, drops=(), follows=(), snapshots=(), merges=(), measure=False)
        if not self._work:
            return order if len(drops) == len(order.drops) else replace(order, drops=drops)
        member = order.member or executor
        follows = tuple(
            follow
            for follow in order.follows
            if not self._is_delayed(_copy_work(member, follow), follow.entry.head, clock_seconds)
        )
        return replace(order, drops=drops, follows=follows)

    def ready_snapshots(
        self, member: str, snapshots: Iterable[SnapshotOrder], clock_seconds: float
    ) -> list[SnapshotOrder]:
        """Return which of these snapshots of a member may be tried now, because no failure delays them."""
        with self._lock:
            return [
                s for s in snapshots if not self._is_delayed(_snapshot_work(member, s), s.entry.head, clock_seconds)
            ]

    def ready_merges(self, member: str, merges: Iterable[MergeOrder], clock_seconds: float) -> list[MergeOrder]:
        """Return which of these merges of a member may be tried now, because no failure delays them."""
        with self._lock:
            if not self._work:
                return list(merges)
            return [m for m in merges if not self._is_delayed(_merge_work(member, m), m.entry.head, clock_seconds)]

    def _is_delayed(self, work: _Work, head: Head, clock_seconds: float) -> bool:
        """Return whether work on a key-group with this head may not be tried yet, or is given up."""
        is_given_up = self._work.failures(work) >= _TRIES and self._heads.get(work) == head
        return is_given_up or self._work.is_delayed(work, clock_seconds)

    def record_results(
        self, orders: Mapping[str, UpkeepOrder], receipts: Iterable[UpkeepReceipt], clock_seconds: float
    ) -> None:
        """Record by the receipts of a round which work of its orders succeeded or failed."""
        with self._lock:
            for receipt in receipts:
                order = orders.get(receipt.executor)
                if order is not None and receipt.ran:
                    self._executors.forget(receipt.executor)
                    self._overdue.forget(receipt.executor)
                    self._record_result(order, receipt, clock_seconds)
                    self._keep_drops(receipt.executor, order, receipt.drops_left)
                elif order is not None:
                    (self._overdue if receipt.overdue else self._executors).record_failure(
                        receipt.executor, clock_seconds
                    )
                    self._keep_drops(receipt.executor, order, len(order.drops))

    def keep_drops(self, orders: Mapping[str, UpkeepOrder]) -> None:
        """Keep the drops of these orders for a later plan, because nothing else remembers these copies."""
        with self._lock:
            for executor, order in orders.items():
                self._keep_drops(executor, order, len(order.drops))

    def _keep_drops(self, executor: str, order: UpkeepOrder, remaining: int) -> None:
        """Keep the last ``remaining`` drops of an order for the executor's next order. The lock must be held."""
        if remaining:
            drops = (*self._take_open_drops(executor, order), *order.drops[len(order.drops) - remaining :])
            self._open_drops[executor] = (order.epoch, order.member, drops)

    def _take_open_drops(self, executor: str, order: UpkeepOrder) -> tuple[Drop, ...]:
        """Remove and return an executor's open drops.

        Drops of another epoch or member are forgotten and not returned, because those copies may be needed now. The
        lock must be held.
        """
        epoch, member, drops = self._open_drops.pop(executor, (order.epoch, order.member, ()))
        return drops if (epoch, member) == (order.epoch, order.member) else ()

    def _record_result(self, order: UpkeepOrder, receipt: UpkeepReceipt, clock_seconds: float) -> None:
        """Record by an executor's receipt which work of its order succeeded or failed. The lock must be held."""
        member = order.member or receipt.executor
        given_up: list[_Work] = []
        failed_copies = set(receipt.failed)
        unfinished_copies = {(store, key_group) for store, key_group, _, _ in receipt.unfinished}
        for follow in order.follows if self._work or failed_copies else ():
            address = (follow.store, follow.key_group)
            if address in failed_copies:
                given_up += self._record_failure(_copy_work(member, follow), follow.entry.head, clock_seconds)
            elif address not in unfinished_copies:
                self._record_success(_copy_work(member, follow))
        failures = {_Work(member, "snapshot", *address) for address in receipt.failed_snapshots}
        failures |= {_Work(member, "merge", *address) for address in receipt.failed_merges}
        successes = {_Work(member, "snapshot", store, key_group) for store, key_group, _ in receipt.snapshots}
        successes |= {_Work(member, "merge", store, key_group) for store, key_group, _ in receipt.merges}
        heads = {_snapshot_work(member, snapshot): snapshot.entry.head for snapshot in order.snapshots}
        heads |= {_merge_work(member, merge): merge.entry.head for merge in order.merges}
        for work, head in heads.items():
            if work in failures:
                given_up += self._record_failure(work, head, clock_seconds)
            elif work in successes:
                self._record_success(work)
        if given_up:
            self._warnings.append(_given_up_warning(receipt.executor, given_up))

    def _record_failure(self, work: _Work, head: Head, clock_seconds: float) -> list[_Work]:
        """Record a failure; return the work in a list if it is given up now, else an empty list."""
        self._work.record_failure(work, clock_seconds)
        self._heads[work] = head
        return [work] if self._work.failures(work) == _TRIES else []

    def _record_success(self, work: _Work) -> None:
        """Forget the failures of work that succeeded."""
        self._work.forget(work)
        self._heads.pop(work, None)

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        with self._lock:
            warnings = self._warnings
            self._warnings = []
        return warnings


def _copy_work(member: str, follow: Follow) -> _Work:
    return _Work(member, "copy", follow.store, follow.key_group)


def _snapshot_work(member: str, snapshot: SnapshotOrder) -> _Work:
    return _Work(member, "snapshot", snapshot.store, snapshot.key_group)


def _merge_work(member: str, order: MergeOrder) -> _Work:
    return _Work(member, "merge", order.store, order.key_group)


def _given_up_warning(executor: str, given_up: list[_Work]) -> str:
    names = [f"{work.kind} of {work.store}, key-group {work.key_group}" for work in given_up[:_NAMES_SHOWN]]
    hidden = len(given_up) - _NAMES_SHOWN
    suffix = f" and {hidden} more" if hidden > 0 else ""
    # Cause: Every retry of this work failed. The errors are in earlier warnings of the same executor.
    return (
        f"[RIFFLE-0816] Upkeep on executor {executor} failed {_TRIES} times in a row and is not retried: "
        f"{'; '.join(names)}{suffix}.\n"
        "  What to do: Fix the cause in its warnings, then call `job.request_rebalance()` to try again."
    )
