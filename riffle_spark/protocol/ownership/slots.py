"""From owners to slots, and who owns what in ``hashed`` dispatch. Pure; knows members, cores and the partitions'
hashes. Does not know batches or copies.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from riffle_spark.assign.board import is_allowed
from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Move, TaskId
from riffle_spark.keygroups import slot_numbers
from riffle_spark.protocol.ownership.groups import Groups, task
from riffle_spark.protocol.ownership.membership import LiveMember
from riffle_spark.protocol.ports import SlotLayout, SlotPlace
from riffle_spark.protocol.shards import Shards
from riffle_spark.settings import SETTING_LINES, Settings

__all__ = [
    "Cut",
    "cut_into_slots",
    "hands_of",
    "hashed_assignment",
    "hashed_layout",
    "laid_out",
    "slots_to_level",
    "without_effect",
]

Cut: TypeAlias = tuple[LiveMember, tuple[int, ...]]
"""A slot to be: its member, and the key-groups it serves."""


def laid_out(
    members: Mapping[str, LiveMember], owners: Mapping[TaskId, str], groups: Groups,
    most: int | None = None, shards: Shards | None = None,
) -> SlotLayout:  # fmt: skip
    """Return slots for the owners' key-groups, of each group apart: no more on an executor than it has cores, or
    key-groups of that group, or ``most``.
    """
    each = [{t.key_group: owner for t, owner in owners.items() if t.group == group} for group in groups.names]
    first, *others = (_of_group(members, mine, most, shards) for mine in each)
    stores = (groups.stores_of(group, groups.of_stores) for group in groups.names[1:])
    return replace(first, apart=tuple(zip(stores, others, strict=True))) if others else first


def _of_group(
    members: Mapping[str, LiveMember], owners: Mapping[int, str], most: int | None, shards: Shards | None
) -> SlotLayout:
    owned: dict[str, list[int]] = {}
    for key_group, owner in sorted(owners.items()):
        owned.setdefault(owner, []).append(key_group)
    parts = ((living, _dealt(owned.get(living.id, []), hands_of(living, most))) for living in members.values())
    return cut_into_slots(members, ((living, part) for living, mine in parts for part in mine), shards)


def cut_into_slots(members: Mapping[str, LiveMember], cuts: Iterable[Cut], shards: Shards | None) -> SlotLayout:
    """Return the layout of those that serve something; where nothing is served, of one slot."""
    serving = [(living, part) for living, part in cuts if part]
    if not serving:
        serving = [(min(members.values(), key=lambda living: living.executor), ())]
    serving.sort(key=lambda cut: cut[0].executor)
    numbers = slot_numbers(len(serving))
    places = ((n, living.executor, part) for n, (living, part) in zip(numbers, serving, strict=True))
    return SlotLayout(tuple(SlotPlace(n, e.id, e.host, part) for n, e, part in places), shards)


def hands_of(living: LiveMember, most: int | None) -> int:
    """Return how many slots a member may have."""
    return min(living.executor.cores, most or living.executor.cores)


def _dealt(key_groups: list[int], hands: int) -> list[tuple[int, ...]]:
    return [tuple(key_groups[hand::hands]) for hand in range(min(hands, len(key_groups)))]


def without_effect(settings: Settings) -> tuple[str, ...]:
    """Return the settings that have another value than their default and no effect where hashes name the owners."""
    if settings.dispatch != "hashed":
        return ()
    lines = sorted(SETTING_LINES.items())
    return tuple(name for name, line in lines if line.of_assignment and getattr(settings, name) != line.default)


def slots_to_level(
    members: Mapping[MemberId, LiveMember], settings: Settings, drained: Collection[MemberId]
) -> dict[MemberId, int]:
    """Return the slots of the members among which work is to be level: those that may own in the end."""
    asked = AssignSettings(include=settings.include, exclude=settings.exclude)
    every = {name: living.executor.cores for name, living in members.items() if name not in drained}
    return {name: cores for name, cores in every.items() if is_allowed(members[name].member(), asked)} or every


def hashed_layout(
    members: Mapping[MemberId, LiveMember], shards: Shards, drained: Collection[MemberId] = (), most: int | None = None
) -> SlotLayout:
    """Return the slots that have a shard. Those of ``drained`` members are not counted, while others live."""
    return cut_into_slots(members, _dealt_by_hash(members, shards, drained, most), shards)


def hashed_assignment(
    members: Mapping[MemberId, LiveMember], shards: Shards, present: Assignment, drained: Collection[MemberId] = (),
    most: int | None = None,
) -> Assignment:  # fmt: skip
    """Return the owners that the hashes name, and the moves that this takes. There are no other copies."""
    dealt = _dealt_by_hash(members, shards, drained, most)
    owners = {task(shard): living.id for living, mine in dealt for shard in mine}
    return Assignment(dict(sorted(owners.items())), target=owners, moves=tuple(_moves(present.owners, owners, members)))


def _dealt_by_hash(
    members: Mapping[MemberId, LiveMember], shards: Shards, drained: Collection[MemberId], most: int | None
) -> list[Cut]:
    counted = [living for name, living in sorted(members.items()) if name not in drained] or [*members.values()]
    slots = [living for living in counted for _ in range(hands_of(living, most))]
    return list(zip(slots, shards.hashed(len(slots)), strict=True))


def _moves(
    before: Mapping[TaskId, MemberId], owners: Mapping[TaskId, MemberId], members: Collection[MemberId]
) -> list[Move]:
    moved = [(t, before.get(t), owner) for t, owner in sorted(owners.items()) if before.get(t) != owner]
    return [
        Move(t, "owner", source if source in members else None, owner, "valid", "the hash names its slot")
        for t, source, owner in moved
    ]
