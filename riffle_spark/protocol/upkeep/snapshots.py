"""Choose the snapshots that are due, track the taken ones, and warn of chains that no snapshot shortens in time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ports import Cluster, Executor, Lock
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry, Manifest, Snapshot
from riffle_spark.state.log.record import Record

CHAIN_SHARE = 2.0
"""A snapshot is due once the changes exceed this multiple of the last snapshot's bytes, if links are not merged."""
_MERGED_SHARE = 1.0
"""The multiple if links are merged. It bounds the bytes in the store to twice the state's."""
_FLOOR_BYTES = 256 * 1024
_MERGED_FLOOR_BYTES = 32 * 1024
_NO_AGE = 1 << 40
_SPREAD_STEP = 7
_PATIENCE = 4
"""While its bytes are less than this fraction of the snapshot's, a chain may have this many times more links."""
_TOO_LONG_FACTOR = 8
"""A chain this many times longer than the policy allows causes a warning."""
_TOO_LONG_VERSIONS = 16
"""The oldest link of such a chain is at least this many versions old, because a first batch may write many bytes."""
_WARN_AGAIN_MS = 600_000
_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """Limits of a chain: ``share`` of the last snapshot's bytes, ``links``, and ``versions`` since its oldest link.

    Fewer than ``floor_bytes`` are always allowed. ``spreads_links`` lowers the limit on links by key-group, so that
    snapshots are not due at the same time.
    """

    share: float
    links: int
    versions: int
    floor_bytes: int = _FLOOR_BYTES
    spreads_links: bool = True

    @classmethod
    def of_chains(cls, links: int, versions: int, *, are_merged: bool) -> "SnapshotPolicy":
        """Return the policy for chains of at most ``links`` links, if ``versions`` records are retained.

        If links are merged, only their bytes make a snapshot due, and their number if merges fail.
        """
        if are_merged:
            return cls(_MERGED_SHARE, links, _NO_AGE, _MERGED_FLOOR_BYTES, spreads_links=False)
        return cls(CHAIN_SHARE, links, versions)

    def times(self, factor: int) -> "SnapshotPolicy":
        """Return the policy with all limits multiplied by ``factor``."""
        return SnapshotPolicy(
            self.share * factor,
            self.links * factor,
            self.versions * factor,
            self.floor_bytes * factor,
            self.spreads_links,
        )


def needs_snapshot(policy: SnapshotPolicy, address: Address, entry: Entry, version: int) -> bool:
    """Return whether the chain of ``entry`` exceeds a limit at ``version``, so that its key-group needs a snapshot.

    Without a snapshot the first link is the whole state at its head, so it counts as the last snapshot.
    """
    if not entry.chain:
        return False
    base_size = entry.snapshot.length if entry.snapshot else entry.chain[0].length
    size = entry.chain_bytes if entry.snapshot else entry.chain_bytes - base_size
    patience = _PATIENCE if size * _PATIENCE < base_size else 1
    return (
        len(entry.chain) >= patience * _links_allowed(policy, address)
        or size > max(policy.floor_bytes, policy.share * base_size)
        or version - entry.chain[0].head.version >= policy.versions
    )


def is_too_long(policy: SnapshotPolicy, address: Address, entry: Entry, version: int) -> bool:
    """Return whether the chain of ``entry`` is so long at ``version`` that its snapshots failed or are late."""
    is_old = bool(entry.chain) and version - entry.chain[0].head.version >= _TOO_LONG_VERSIONS
    return is_old and needs_snapshot(policy.times(_TOO_LONG_FACTOR), address, entry, version)


def _links_allowed(policy: SnapshotPolicy, address: Address) -> int:
    """Return the limit on links of a key-group."""
    if not policy.spreads_links:
        return policy.links
    return policy.links - (address[1] * _SPREAD_STEP) % max(1, policy.links // 2)


def list_snapshots(manifest: Manifest, taken_snapshots: Iterable[tuple[Address, Snapshot]]) -> dict[Address, Entry]:
    """Return the manifest entries that list the snapshots taken, by (store, key-group).

    A snapshot whose head is not in the chain any more is left out.
    """
    changes: dict[Address, Entry] = {}
    for address, snapshot in taken_snapshots:
        entry = changes.get(address, manifest.entry(*address)).replace_by_snapshot(snapshot)
        if entry is not None:
            changes[address] = entry
    return changes


class LongChains:
    """Warns of chains that are too long: when they appear, when their number has doubled, and every ten minutes.

    Chains that disappear and appear again within ten minutes count as the same.
    """

    def __init__(self) -> None:
        self._since_version: dict[Address, int] = {}
        self._warned_count = 0
        self._next_ms = 0

    def forget(self) -> None:
        """Forget all chains, because another driver may have run."""
        self._since_version.clear()
        self._warned_count = 0
        self._next_ms = 0

    def update(self, addresses: Iterable[Address], record: Record) -> list[str]:
        """Record the key-groups whose chains are too long at a record; return the warnings that are due."""
        self._since_version = {a: self._since_version.get(a, record.version) for a in sorted(addresses)}
        if not self._since_version:
            return []
        if len(self._since_version) <= 2 * self._warned_count and record.written_ms < self._next_ms:
            return []
        count = len(self._since_version)
        self._warned_count = count
        self._next_ms = record.written_ms + _WARN_AGAIN_MS
        names = [f"{store} {key_group}" for store, key_group in list(self._since_version)[:_NAMES_SHOWN]]
        first_version = min(self._since_version.values())
        suffix = ", ..." if len(self._since_version) > _NAMES_SHOWN else ""
        # Cause: Snapshots of these key-groups failed, or batches follow each other so fast that upkeep, which gets a
        # tenth or a fifth of the time during batches, takes snapshots more slowly than they become due. Restores read
        # many deltas.
        return [
            f"[RIFFLE-0815] {count} key-groups have chains {_TOO_LONG_FACTOR} times longer than "
            f"allowed, the first since batch {first_version}: {', '.join(names)}{suffix}.\n"
            "  What to do: If earlier warnings say that upkeep failed, remove the cause. Otherwise set a longer "
            "trigger interval, or give the query more executor cores."
        ]


class TakenSnapshots:
    """A cluster that records the snapshots and merged deltas that its receipts name. Implements
    ``protocol.ports.Cluster``.

    ``lost`` counts those that were ordered and that no receipt names or leaves for later.
    """

    def __init__(self, cluster: Cluster, lock: Lock) -> None:
        """Wrap a cluster, whose ``upkeep`` is observed."""
        self._cluster = cluster
        self._lock = lock
        self._running_calls = 0
        self._names: set[str] = set()
        self.lost = 0

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run upkeep, and record the objects that its receipts name."""
        receipts: list[UpkeepReceipt] = []
        with self._lock:
            self._running_calls += 1
        try:
            receipts = self._cluster.upkeep(orders)
        finally:
            self._call_ended(orders, receipts)
        return receipts

    def _call_ended(self, orders: Mapping[str, UpkeepOrder], receipts: Sequence[UpkeepReceipt]) -> None:
        """Record the objects that the receipts name, and count ordered ones that they do not name as lost."""
        with self._lock:
            self._running_calls -= 1
            self._names |= {paths.snapshot_name(store, kg, s.id) for r in receipts for store, kg, s in r.snapshots}
            self._names |= {replacement.link.object for r in receipts for _, _, replacement in r.merges}
            ordered_count = sum(len(order.snapshots) + len(order.merges) for order in orders.values())
            answered_count = sum(
                len(r.snapshots) + r.snapshots_left + len(r.merges) + r.merges_left + len(r.failed_merges)
                for r in receipts
            )
            self.lost += max(0, ordered_count - answered_count)

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return the censuses of the executors that answered."""
        return self._cluster.census(executors, order)

    def find_planned_removals(self, executors: Sequence[str]) -> frozenset[str]:
        """Return the lost executors that were removed on purpose."""
        return self._cluster.find_planned_removals(executors)

    def listable_names(self) -> frozenset[str] | None:
        """Return the names of the objects that a record may still list, ``None`` while a call may report more."""
        with self._lock:
            return None if self._running_calls else frozenset(self._names)

    def forget(self, names: Iterable[str]) -> None:
        """Forget objects, because a record lists them or no record will."""
        with self._lock:
            self._names.difference_update(names)

    def forget_before(self, epoch: int) -> None:
        """Forget objects of earlier epochs: no record will list them."""
        with self._lock:
            self._names = {
                name for name in self._names if (parsed := paths.parse_object_name(name)) and parsed.epoch >= epoch
            }
