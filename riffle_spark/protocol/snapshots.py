"""When a snapshot is due, and what becomes of one that was taken. Pure; knows manifests only.

Theory of operation. A chain costs a restore its bytes and its links; a snapshot costs a put of the whole key-group.
One is due when the chain's bytes exceed ``share`` of the last snapshot's, or its links a count, or its oldest link is
``versions`` old. While bytes decide, a share of s makes the store take at most 1 + 1/s times the bytes of the deltas
and a restore read at most 1 + s times the snapshot. The count bounds the gets of a restore; where the deltas are small
beside the snapshot it waits four times as long, so that a large key-group is not written whole for a few rows. A floor
keeps small key-groups from being written at every other batch. The count differs a little by key-group, so that they
do not all fall due together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from riffle_spark.state.manifest import Address, Entry, Manifest, Snapshot

__all__ = ["Policy", "due", "listed"]

_FLOOR_BYTES = 256 * 1024
_SPREAD_STEP = 7
_PATIENCE = 4
"""How many times more links a chain may have while its bytes are less than this part of the snapshot's."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``share`` of the last snapshot's bytes, ``links`` at most in a chain, ``versions`` at most since its oldest
    link; fewer than ``floor_bytes`` are never too many.
    """

    share: float
    links: int
    versions: int
    floor_bytes: int = _FLOOR_BYTES

    def times(self, factor: int) -> Policy:
        """Return the policy by which snapshots are due so much later."""
        return Policy(self.share * factor, self.links * factor, self.versions * factor, self.floor_bytes * factor)


def due(policy: Policy, address: Address, entry: Entry, version: int) -> bool:
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


def _links_allowed(policy: Policy, address: Address) -> int:
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
