"""What upkeep failed at, and when it is tried again. Knows orders, receipts and times as it is told. Does not know
rounds.

Theory of operation. What fails is not progress: it is left out of the plan that runs, and of the plans that follow
until a delay is over, which doubles with every failure. After so many failures in a row it is given up: nothing but a
change makes another try worth its cost. That is another head of its key-group (tried at most every longest delay),
another member, a changed setting or an operator who asks, as with Elasticsearch's ``retry_failed``. An executor that
does not come to its work at all is only delayed: it comes back by itself, and what it was to remove is kept for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from riffle_spark.messages.upkeep_orders import Drop, Follow, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.ports import Lock
from riffle_spark.state.log.manifest import Head

__all__ = ["Setbacks"]

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 300.0
_OVERDUE_SECONDS = 60.0
_LONGEST_OVERDUE_SECONDS = 900.0
"""A piece that does not end holds all others up until its deadline, so its executor is left alone for longer."""
_TRIES = 10
_NAMED = 5


class _Piece(NamedTuple):
    """One thing that a member is to do."""

    member: str
    kind: str
    store: str
    key_group: int


class Setbacks:
    """What failed beside the batches. Asked on one thread and told on another."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._pieces: Delays[_Piece] = Delays(_FIRST_SECONDS, _LONGEST_SECONDS)
        self._heads: dict[_Piece, Head] = {}
        self._executors: Delays[str] = Delays(_FIRST_SECONDS, _LONGEST_SECONDS)
        self._overdue: Delays[str] = Delays(_OVERDUE_SECONDS, _LONGEST_OVERDUE_SECONDS)
        self._owed: dict[str, tuple[int, str, tuple[Drop, ...]]] = {}
        """Of each executor: in which epoch, and as which member, it was told to remove what it did not come to."""
        self._warnings: list[str] = []

    def start_over(self) -> None:
        """Try everything again: somebody asked, or a setting changed."""
        with self._lock:
            self._clear()

    def forget(self) -> None:
        """Forget all, what is still to be removed, too: another run asks anew."""
        with self._lock:
            self._clear()
            self._owed.clear()

    def _clear(self) -> None:
        self._heads.clear()
        for delays in (self._pieces, self._executors, self._overdue):
            delays.clear()

    def only_of(self, live: Mapping[str, str]) -> None:
        """Forget what others than the live members failed at, whose executors these are: who returns begins anew."""
        executors = set(live.values())
        with self._lock:
            self._pieces.keep_only(lambda piece: piece.member in live)
            for delays in (self._executors, self._overdue):
                delays.keep_only(lambda executor: executor in executors)
            self._heads = {piece: head for piece, head in self._heads.items() if piece.member in live}
            self._owed = {executor: drops for executor, drops in self._owed.items() if executor in executors}

    def without(self, orders: Mapping[str, UpkeepOrder], now: float) -> dict[str, UpkeepOrder]:
        """Return what of these orders is to be done now; of snapshots only those that are ``ready`` were ordered."""
        with self._lock:
            kept = {executor: self._kept(executor, order, now) for executor, order in orders.items()}
        return {executor: order for executor, order in kept.items() if order.has_work}

    def _kept(self, executor: str, order: UpkeepOrder, now: float) -> UpkeepOrder:
        drops = (*self._taken_owed(executor, order), *order.drops)
        if self._executors.is_delayed(executor, now) or self._overdue.is_delayed(executor, now):
            self._owed[executor] = (order.epoch, order.member, drops)
            return replace(order, drops=(), follows=(), snapshots=(), measure=False)
        member = order.member or executor
        follows = tuple(f for f in order.follows if not self._waits(_follow(member, f), f.entry.head, now))
        return replace(order, drops=drops, follows=follows)

    def ready(self, member: str, due: Iterable[SnapshotOrder], now: float) -> list[SnapshotOrder]:
        """Return the snapshots that a member is to take now: but those that it failed to take and that wait."""
        with self._lock:
            return [one for one in due if not self._waits(_snapshot(member, one), one.entry.head, now)]

    def _waits(self, piece: _Piece, head: Head, now: float) -> bool:
        given_up = self._pieces.failures(piece) >= _TRIES and self._heads.get(piece) == head
        return given_up or self._pieces.is_delayed(piece, now)

    def note(self, orders: Mapping[str, UpkeepOrder], receipts: Iterable[UpkeepReceipt], now: float) -> None:
        """Take what became of these orders."""
        with self._lock:
            for receipt in receipts:
                order = orders.get(receipt.executor)
                if order is not None and receipt.ran:
                    self._executors.forget(receipt.executor)
                    self._overdue.forget(receipt.executor)
                    self._note(order, receipt, now)
                    self._owe(receipt.executor, order, receipt.drops_left)
                elif order is not None:
                    (self._overdue if receipt.overdue else self._executors).record_failure(receipt.executor, now)
                    self._owe(receipt.executor, order, len(order.drops))

    def owe(self, orders: Mapping[str, UpkeepOrder]) -> None:
        """Keep for a later plan what these orders were to remove: nobody else remembers those copies any more."""
        with self._lock:
            for executor, order in orders.items():
                self._owe(executor, order, len(order.drops))

    def _owe(self, executor: str, order: UpkeepOrder, last: int) -> None:
        if last:
            drops = order.drops[len(order.drops) - last :]
            self._owed[executor] = (order.epoch, order.member, (*self._taken_owed(executor, order), *drops))

    def _taken_owed(self, executor: str, order: UpkeepOrder) -> tuple[Drop, ...]:
        """Return what an executor is still to remove. What an earlier run wanted gone may be needed by now, and so may
        what was to go from another folder that it had.
        """
        *owed_to, drops = self._owed.pop(executor, (order.epoch, order.member, ()))
        return drops if owed_to == [order.epoch, order.member] else ()

    def _note(self, order: UpkeepOrder, receipt: UpkeepReceipt, now: float) -> None:
        member, given_up = order.member or receipt.executor, list[_Piece]()
        failed, open_ones = set(receipt.failed), {(store, group) for store, group, _, _ in receipt.unfinished}
        for follow in order.follows:
            address = (follow.store, follow.key_group)
            if address in failed:
                given_up += self._failed(_follow(member, follow), follow.entry.head, now)
            elif address not in open_ones:
                self._done(_follow(member, follow))
        unable, taken = set(receipt.failed_snapshots), {(store, group) for store, group, _ in receipt.snapshots}
        for due in order.snapshots:
            address = (due.store, due.key_group)
            if address in unable:
                given_up += self._failed(_snapshot(member, due), due.entry.head, now)
            elif address in taken:
                self._done(_snapshot(member, due))
        if given_up:
            self._warnings.append(_given_up(receipt.executor, given_up))

    def _failed(self, piece: _Piece, head: Head, now: float) -> list[_Piece]:
        """Note a failure; return the piece if it is given up with it."""
        self._pieces.record_failure(piece, now)
        self._heads[piece] = head
        return [piece] if self._pieces.failures(piece) == _TRIES else []

    def _done(self, piece: _Piece) -> None:
        self._pieces.forget(piece)
        self._heads.pop(piece, None)

    def take_warnings(self) -> list[str]:
        """Return what was given up since the last call."""
        with self._lock:
            told, self._warnings = self._warnings, []
        return told


def _follow(member: str, follow: Follow) -> _Piece:
    return _Piece(member, "copy", follow.store, follow.key_group)


def _snapshot(member: str, due: SnapshotOrder) -> _Piece:
    return _Piece(member, "snapshot", due.store, due.key_group)


def _given_up(executor: str, pieces: list[_Piece]) -> str:
    """Say what is given up, of one kind after the other."""
    named = [f"{piece.kind} of {piece.store}, key-group {piece.key_group}" for piece in pieces[:_NAMED]]
    more = f" and {len(pieces) - _NAMED} more" if len(pieces) > _NAMED else ""
    return (
        f"upkeep on executor {executor} failed {_TRIES} times and is given up until something changes: "
        f"{'; '.join(named)}{more}\n"
        "  What to do: mend what its warnings say, then ask for another try (`job.request_rebalance()`)"
    )
