"""From owners to slots: which slot serves which key-group. Knows members and cores. Does not know batches or rules of
placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from riffle_spark.keygroups import slot_numbers
from riffle_spark.protocol.members import Seat
from riffle_spark.protocol.ports import Layout, SlotPlace
from riffle_spark.protocol.shards import Shards

__all__ = ["Cut", "cut_into_slots", "hands_of", "laid_out"]

Cut: TypeAlias = tuple[Seat, tuple[int, ...]]
"""A slot to be: its member, and the key-groups it serves."""


def laid_out(
    members: Mapping[str, Seat], owners: Mapping[int, str], most: int | None = None, shards: Shards | None = None
) -> Layout:
    """Return slots for the owners' key-groups: no more on an executor than it has cores, or key-groups, or ``most``."""
    owned: dict[str, list[int]] = {}
    for key_group, owner in sorted(owners.items()):
        owned.setdefault(owner, []).append(key_group)
    parts = ((seat, _dealt(owned.get(seat.id, []), hands_of(seat, most))) for seat in members.values())
    return cut_into_slots(members, ((seat, part) for seat, mine in parts for part in mine), shards)


def cut_into_slots(members: Mapping[str, Seat], cuts: Iterable[Cut], shards: Shards | None) -> Layout:
    """Return the layout of those that serve something; where nothing is served, of one slot."""
    serving = [(seat, part) for seat, part in cuts if part]
    if not serving:
        serving = [(min(members.values(), key=lambda seat: seat.executor), ())]
    serving.sort(key=lambda cut: cut[0].executor)
    numbers = slot_numbers(len(serving))
    places = ((n, seat.executor, part) for n, (seat, part) in zip(numbers, serving, strict=True))
    return Layout(tuple(SlotPlace(n, e.id, e.host, part) for n, e, part in places), shards)


def hands_of(seat: Seat, most: int | None) -> int:
    """Return how many slots a member may have."""
    return min(seat.executor.cores, most or seat.executor.cores)


def _dealt(key_groups: list[int], hands: int) -> list[tuple[int, ...]]:
    return [tuple(key_groups[hand::hands]) for hand in range(min(hands, len(key_groups)))]
