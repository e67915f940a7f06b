"""When a snapshot is due, and what becomes of one that was taken. Pure; knows manifests only.

Theory of operation. A chain costs a restore its bytes and its links; a snapshot costs a put of the whole key-group.
One is due when the chain's bytes exceed ``share`` of the last snapshot's, or its links a count, or its oldest link is
``versions`` old. With a share of s the store takes at most 1 + 1/s times the bytes of the deltas and a restore reads
at most 1 + s times the snapshot; a floor keeps small key-groups from being written at every other batch. The count
differs a little by key-group, so that they do not all fall due together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from riffle_spark.state.manifest import Address, Entry, Manifest, Snapshot

__all__ = ["Policy", "due", "listed"]

_FLOOR_BYTES = 256 * 1024
_SPREAD_STEP = 7


@dataclass(frozen=True, slots=True)
class Policy:
    """``share`` of the last snapshot's bytes, ``links`` at most in a chain, ``versions`` at most since its oldest
    link.
    """

    share: float
    links: int
    versions: int


def due(policy: Policy, address: Address, entry: Entry, version: int) -> bool:
    """Tell whether a key-group needs a new snapshot at ``version``."""
    if not entry.chain:
        return False
    spread = max(1, policy.links // 2)
    most_links = policy.links - (address[1] * _SPREAD_STEP) % spread
    snapshot_bytes = entry.snapshot.length if entry.snapshot else 0
    return (
        len(entry.chain) >= most_links
        or entry.chain_bytes > max(_FLOOR_BYTES, policy.share * snapshot_bytes)
        or version - entry.chain[0].head.version >= policy.versions
    )


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
