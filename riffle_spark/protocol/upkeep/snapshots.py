"""When a snapshot is due, what becomes of one that was taken, and chains that nobody cuts. Pure; knows manifests
only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from riffle_spark.state.log.manifest import Address, Entry, Manifest, Snapshot
from riffle_spark.state.log.record import Record

__all__ = ["TIMES", "LongChains", "SnapshotPolicy", "due", "listed"]

_FLOOR_BYTES = 256 * 1024
_SPREAD_STEP = 7
_PATIENCE = 4
"""How many times more links a chain may have while its bytes are less than this part of the snapshot's."""


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """``share`` of the last snapshot's bytes, ``links`` at most in a chain, ``versions`` at most since its oldest
    link; fewer than ``floor_bytes`` are never too many.
    """

    share: float
    links: int
    versions: int
    floor_bytes: int = _FLOOR_BYTES

    def times(self, factor: int) -> SnapshotPolicy:
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


TIMES = 4
"""A chain so many times longer than its rule allows is told of."""
_TELL_AGAIN_MS = 600_000
_NAMED = 8


class LongChains:
    """Since which record each chain has been too long; tells of them when they are twice as many, and now and then."""

    def __init__(self) -> None:
        self._since: dict[Address, Record] = {}
        self._told = 0
        self._next_ms = 0

    def forget(self) -> None:
        """Forget all: another driver may have been at work."""
        self._since.clear()
        self._told = self._next_ms = 0

    def seen(self, addresses: Iterable[Address], record: Record) -> list[str]:
        """Take those that are too long at a record; return what is to be said of them now."""
        self._since = {address: self._since.get(address, record) for address in sorted(addresses)}
        if not self._since:
            self._told = self._next_ms = 0
        elif len(self._since) >= 2 * self._told + 1 or record.written_ms >= self._next_ms:
            self._told, self._next_ms = len(self._since), record.written_ms + _TELL_AGAIN_MS
            return [self._warning()]
        return []

    def _warning(self) -> str:
        first = min(self._since.values(), key=lambda record: record.sequence)
        named = ", ".join(f"{store} {key_group}" for store, key_group in list(self._since)[:_NAMED])
        more = f" and {len(self._since) - _NAMED} more" if len(self._since) > _NAMED else ""
        at = datetime.fromtimestamp(first.written_ms / 1000, timezone.utc).isoformat(" ", "seconds")
        return (
            f"the chains of {len(self._since)} key-groups ({named}{more}) are {TIMES} times longer than they should "
            f"be, the first since batch {first.version} ({at}): no snapshots of them are taken\n"
            "  What to do: look at earlier warnings of upkeep and at the executors; a restore of them takes long"
        )
