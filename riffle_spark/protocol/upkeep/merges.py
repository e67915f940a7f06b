"""Choose the links that are merged into merged deltas, and list the merged deltas that were put.

Theory of operation.

1. Links have levels. A delta has level 0, and a merged delta one more than what was merged. Levels never rise along a
   chain. Once a chain ends with ``fan_in`` links of one level, they are merged, together with all later links. So every
   row is written at most once per level, and a chain has fewer than ``fan_in`` links per level.
2. If one key-group of an executor is due, those that are half-way due are merged too. So there are few objects.
3. A delta that is as old as retention keeps records is merged, however few links its chain has. Otherwise one idle
   key-group would keep the parts of all others in the delta.
4. A merged delta of which less than half is listed is merged again, for the same reason. So the bytes that no record
   needs are at most as many as those that are listed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from math import ceil

from riffle_spark.assign.model import MemberId
from riffle_spark.messages.upkeep_orders import MergeOrder
from riffle_spark.state.log.manifest import Address, Entry, Manifest, MergedDelta, Replacement

_FAN_IN_MAX = 16
_LEVELS = 4
"""A chain may have links of this many levels, so the fan-in is this fraction of the longest chain."""
_FAN_IN_MIN = 4
"""Chains that are too short for this fan-in are not merged: snapshots write less."""
_DEAD_BYTES_MIN = 64 * 1024
"""Merged deltas with fewer bytes that are not listed are left alone."""
_KEY_GROUPS_PER_EXECUTOR = 1024
_BYTES_PER_EXECUTOR = 64 << 20
"""A plan merges about this many bytes on each executor."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """``fan_in`` links of one level are merged, 0 for never. So is a delta that is ``versions`` old."""

    fan_in: int
    versions: int

    @classmethod
    def of_chains(cls, links: int, versions: int) -> "MergePolicy":
        """Return the policy for chains of at most ``links`` links, if ``versions`` records are retained."""
        fan_in = min(_FAN_IN_MAX, links // _LEVELS)
        return cls(fan_in if fan_in >= _FAN_IN_MIN else 0, versions)

    def times(self, factor: int) -> "MergePolicy":
        """Return the policy with all limits multiplied by ``factor``."""
        return MergePolicy(self.fan_in * factor, self.versions * factor)

    def has_due(self, entry: Entry, version: int, share: float = 1.0) -> bool:
        """Return whether the deltas at the end of a chain have reached this ``share`` of a limit."""
        chain = entry.chain
        if not self.fan_in or not chain or chain[-1].merged is not None:
            return False
        enough = ceil(share * self.fan_in)
        if len(chain) >= enough and chain[-enough].merged is None:
            return True
        if version - chain[0].head.version < share * self.versions:
            return False  # no delta is older than the first link
        first = bisect_left(chain, 0, key=lambda link: -link.level)
        return version - chain[first].head.version >= share * self.versions

    def find_start(self, entry: Entry) -> tuple[int, int]:
        """Return the index of the first link to merge, and the level of the result.

        The deltas at the end are merged, and the links of each level that is full with the result.
        """
        start = len(entry.chain) - _count_level(entry, len(entry.chain), 0)
        level = 1
        while (count := _count_level(entry, start, level)) + 1 >= max(self.fan_in, 2):
            start -= count
            level += 1
        return start, level


def _count_level(entry: Entry, end: int, level: int) -> int:
    """Return how many successive links before the index ``end`` have at most this level."""
    chain = entry.chain
    start = end
    while start and ((merged := chain[start - 1].merged) is None or merged.level <= level):
        start -= 1
    return end - start


def find_sparse(manifest: Manifest) -> frozenset[MergedDelta]:
    """Return the merged deltas of which less than half is listed."""
    listed_bytes: Counter[MergedDelta] = Counter()
    for entry in manifest.entries.values():
        for link in entry.chain:
            if link.merged is not None:
                listed_bytes[link.merged] += link.length
    return frozenset(
        merged_delta
        for merged_delta, size in listed_bytes.items()
        if 2 * size < merged_delta.size and merged_delta.size - size > _DEAD_BYTES_MIN
    )


def choose_merges(
    policy: MergePolicy,
    entries: Mapping[Address, Entry],
    find_owner: Callable[[Address], MemberId | None],
    version: int,
    sparse: Set[MergedDelta] = frozenset(),
) -> dict[MemberId, list[MergeOrder]]:
    """Return the merges that the owners make next, of these whole entries by (store, key-group).

    ``sparse`` are merged deltas to merge again. Key-groups without an owner are left out.
    """
    by_owner: dict[MemberId, list[Address]] = {}
    due_owners: set[MemberId] = set()
    for address, entry in entries.items():
        is_sparse = bool(sparse) and not sparse.isdisjoint(link.merged for link in entry.chain)
        owner = find_owner(address) if is_sparse or policy.has_due(entry, version, 0.5) else None
        if owner is not None:
            by_owner.setdefault(owner, []).append(address)
            if is_sparse or policy.has_due(entry, version):
                due_owners.add(owner)
    orders: dict[MemberId, list[MergeOrder]] = {}
    for owner in sorted(due_owners):
        of_owner = [_order(policy, address, entries[address], sparse) for address in by_owner[owner]]
        orders[owner] = _limit(sorted(of_owner, key=_place))
    return orders


def _order(policy: MergePolicy, address: Address, entry: Entry, sparse: Set[MergedDelta]) -> MergeOrder:
    """Return the order to merge the end of a chain."""
    start, level = policy.find_start(entry)
    first_sparse = next((n for n, link in enumerate(entry.chain) if link.merged in sparse), start) if sparse else start
    if first_sparse < start:
        start = first_sparse
        level = max(level, *(link.level for link in entry.chain[start:]))
    cut = entry.chain[start - 1].head if start else entry.base
    return MergeOrder(*address, Entry(None, entry.chain[start:], entry.timer_ms, cut=cut), level)


def _place(order: MergeOrder) -> tuple[str, int, int]:
    """Return the place of an order: those of one store and level are next to each other."""
    return order.store, order.level, order.key_group


def _limit(orders: Iterable[MergeOrder]) -> list[MergeOrder]:
    """Return the first orders, as many as one plan may have."""
    chosen: list[MergeOrder] = []
    size = 0
    for order in orders:
        if chosen and (len(chosen) >= _KEY_GROUPS_PER_EXECUTOR or size >= _BYTES_PER_EXECUTOR):
            break
        chosen.append(order)
        size += order.entry.chain_bytes
    return chosen


def list_merges(
    manifest: Manifest, changes: Mapping[Address, Entry], merges: Iterable[tuple[Address, Replacement]]
) -> dict[Address, Entry]:
    """Return the manifest entries that list the merged deltas, by (store, key-group).

    ``changes`` are entries that the next record changes anyway. A merged delta whose links are not in the chain any
    more is left out.
    """
    listed = dict(changes)
    for address, replacement in merges:
        entry = listed.get(address, manifest.entry(*address)).replace_by_merged(replacement)
        if entry is not None:
            listed[address] = entry
    return listed
