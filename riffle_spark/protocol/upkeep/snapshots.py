"""When a snapshot is due, what becomes of one that was taken, and chains that nobody cuts. Pure; knows manifests and
receipts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ports import Cluster, Executor, Lock
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry, Manifest, Snapshot
from riffle_spark.state.log.record import Record

__all__ = ["CHAIN_SHARE", "LongChains", "SnapshotPolicy", "TakenSnapshots", "due", "listed", "too_long"]

CHAIN_SHARE = 2.0
"""A snapshot is due once the changes exceed so many times the bytes of the one before."""
_FLOOR_BYTES = 256 * 1024
_SPREAD_STEP = 7
_PATIENCE = 4
"""How many times more links a chain may have while its bytes are less than this part of the snapshot's."""
_TOO_LONG_TIMES = 4
"""A chain so many times longer than its rule allows is warned of."""
_LEFT_VERSIONS = 16
"""But not before its oldest link is so many versions old: a first batch alone may write as many bytes."""
_WARN_AGAIN_MS = 600_000
_NAMED_MOST = 8


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """``share`` of the last snapshot's bytes, ``links`` at most in a chain, ``versions`` at most since its oldest
    link; fewer than ``floor_bytes`` are never too many.
    """

    share: float
    links: int
    versions: int
    floor_bytes: int = _FLOOR_BYTES

    def times(self, factor: int) -> "SnapshotPolicy":
        """Return the policy by which snapshots are due so much later."""
        return SnapshotPolicy(
            self.share * factor, self.links * factor, self.versions * factor, self.floor_bytes * factor
        )


def due(policy: SnapshotPolicy, address: Address, entry: Entry, version: int) -> bool:
    """Tell whether a key-group needs a new snapshot at ``version``."""
    if not entry.chain:
        return False
    size = entry.chain_bytes
    snapshot_size = entry.snapshot.length if entry.snapshot else 0
    patience = _PATIENCE if size * _PATIENCE < snapshot_size else 1
    return (
        len(entry.chain) >= patience * _links_allowed(policy, address)
        or size > max(policy.floor_bytes, policy.share * snapshot_size)
        or version - entry.chain[0].head.version >= policy.versions
    )


def too_long(policy: SnapshotPolicy, address: Address, entry: Entry, version: int) -> bool:
    """Tell whether a key-group's chain is so long at ``version`` that no snapshots of it can have been taken."""
    left = bool(entry.chain) and version - entry.chain[0].head.version >= _LEFT_VERSIONS
    return left and due(policy.times(_TOO_LONG_TIMES), address, entry, version)


def _links_allowed(policy: SnapshotPolicy, address: Address) -> int:
    return policy.links - (address[1] * _SPREAD_STEP) % max(1, policy.links // 2)


def listed(manifest: Manifest, taken: Iterable[tuple[Address, Snapshot]]) -> tuple[dict[Address, Entry], list[Address]]:
    """Return the entries that list the snapshots taken, and those addresses whose snapshot fits no link (any more)."""
    changes: dict[Address, Entry] = {}
    refused: list[Address] = []
    for address, snapshot in taken:
        replaced = changes.get(address, manifest.entry(*address)).replaced(snapshot)
        if replaced is None:
            refused.append(address)
        else:
            changes[address] = replaced
    return changes, refused


class LongChains:
    """Since which record each chain has been too long; warns of them when they are twice as many, and now and then."""

    def __init__(self) -> None:
        self._since: dict[Address, Record] = {}
        self._warned = 0
        self._next_ms = 0

    def forget(self) -> None:
        """Forget all: another driver may have been at work."""
        self._since.clear()
        self._warned = self._next_ms = 0

    def seen(self, addresses: Iterable[Address], record: Record) -> list[str]:
        """Take those that are too long at a record; return what is to be said of them now."""
        self._since = {address: self._since.get(address, record) for address in sorted(addresses)}
        if not self._since:
            self._warned = self._next_ms = 0
        elif len(self._since) >= 2 * self._warned + 1 or record.written_ms >= self._next_ms:
            self._warned, self._next_ms = len(self._since), record.written_ms + _WARN_AGAIN_MS
            return [self._warning()]
        return []

    def _warning(self) -> str:
        first = min(self._since.values(), key=lambda record: record.sequence)
        named = ", ".join(f"{store} {key_group}" for store, key_group in list(self._since)[:_NAMED_MOST])
        more = f" and {len(self._since) - _NAMED_MOST} more" if len(self._since) > _NAMED_MOST else ""
        at = datetime.fromtimestamp(first.written_ms / 1000, timezone.utc).isoformat(" ", "seconds")
        return (
            f"the chains of {len(self._since)} key-groups ({named}{more}) are {_TOO_LONG_TIMES} times longer than they "
            f"should be, the first since batch {first.version} ({at}): no snapshots of them are taken\n"
            "  What to do: look at earlier warnings of upkeep and at the executors; a restore of them takes long"
        )


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
            self._named |= {paths.snapshot(store, kg, s.id) for r in receipts for store, kg, s in r.snapshots}
            ordered = sum(len(order.snapshots) for order in orders.values())
            self.lost += max(0, ordered - sum(len(receipt.snapshots) + receipt.snapshots_left for receipt in receipts))

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

    def forget(self, names: Iterable[str]) -> None:
        """Forget those that a record lists, or that none ever will."""
        with self._lock:
            self._named.difference_update(names)

    def only_of(self, epoch: int) -> None:
        """Forget what was named under earlier epochs: nothing of it is listed any more."""
        with self._lock:
            self._named = {name for name in self._named if (said := paths.parse(name)) and said.epoch >= epoch}
