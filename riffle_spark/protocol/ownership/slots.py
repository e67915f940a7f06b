"""Derive slots from owners, and the owners of ``hashed`` dispatch from the members."""

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

_SlotShards: TypeAlias = tuple[LiveMember, tuple[int, ...]]
"""A slot: its member, and the key-groups it serves."""


def layout_of(
    members: Mapping[str, LiveMember],
    owners: Mapping[TaskId, str],
    groups: Groups,
    slot_limit: int | None = None,
    shards: Shards | None = None,
) -> SlotLayout:
    """Return the slots for the owners' key-groups, separately for each group.

    An executor gets at most as many slots as it has cores, as it owns key-groups of the group, and as ``slot_limit``.
    """
    by_group = [{t.key_group: owner for t, owner in owners.items() if t.group == group} for group in groups.names]
    first, *other_layouts = (_layout_of_group(members, owned, slot_limit, shards) for owned in by_group)
    stores = (groups.stores_of(group, groups.of_stores) for group in groups.names[1:])
    return replace(first, other_groups=tuple(zip(stores, other_layouts, strict=True))) if other_layouts else first


def _layout_of_group(
    members: Mapping[str, LiveMember], owners: Mapping[int, str], slot_limit: int | None, shards: Shards | None
) -> SlotLayout:
    """Return the slots for one group, given the owner of each of its key-groups."""
    owned: dict[str, list[int]] = {}
    for key_group, owner in sorted(owners.items()):
        owned.setdefault(owner, []).append(key_group)
    slot_shards = []
    for member in members.values():
        key_groups = owned.get(member.id, [])
        count = min(_slots_of(member, slot_limit), len(key_groups))
        slot_shards += [(member, tuple(key_groups[slot::count])) for slot in range(count)]
    return _layout(members, slot_shards, shards)


def _layout(members: Mapping[str, LiveMember], slot_shards: Iterable[_SlotShards], shards: Shards | None) -> SlotLayout:
    """Return the layout of the slots that serve key-groups. If there are none, it has one empty slot."""
    serving = [(member, part) for member, part in slot_shards if part]
    if not serving:
        serving = [(min(members.values(), key=lambda member: member.executor), ())]
    serving.sort(key=lambda slot: slot[0].executor)
    numbers = slot_numbers(len(serving))
    places = ((n, member.executor, part) for n, (member, part) in zip(numbers, serving, strict=True))
    return SlotLayout(tuple(SlotPlace(n, e.id, e.host, part) for n, e, part in places), shards)


def _slots_of(member: LiveMember, slot_limit: int | None) -> int:
    """Return how many slots a member may have."""
    return min(member.executor.cores, slot_limit or member.executor.cores)


def settings_without_effect(settings: Settings) -> tuple[str, ...]:
    """Return the names of changed settings without effect: with ``hashed`` dispatch hashes choose the owners."""
    if settings.dispatch != "hashed":
        return ()
    setting_lines = sorted(SETTING_LINES.items())
    return tuple(name for name, line in setting_lines if line.of_assignment and getattr(settings, name) != line.default)


def slots_to_level(
    members: Mapping[MemberId, LiveMember], settings: Settings, drained: Collection[MemberId]
) -> dict[MemberId, int]:
    """Return the number of slots of each member over which work is levelled.

    These are the members that the settings ``include`` and ``exclude`` allow, without drained ones; all of these if
    none is allowed.
    """
    filters = AssignSettings(include=settings.include, exclude=settings.exclude)
    cores = {name: member.executor.cores for name, member in members.items() if name not in drained}
    return {
        name: count for name, count in cores.items() if is_allowed(members[name].to_assignor_member(), filters)
    } or cores


def hashed_layout(
    members: Mapping[MemberId, LiveMember],
    shards: Shards,
    drained: Collection[MemberId] = (),
    slot_limit: int | None = None,
) -> SlotLayout:
    """Return the slots that have a shard, with ``hashed`` dispatch.

    ``drained`` members have none while other members live.
    """
    return _layout(members, _slots_by_hash(members, shards, drained, slot_limit), shards)


def hashed_assignment(
    members: Mapping[MemberId, LiveMember],
    shards: Shards,
    present: Assignment,
    drained: Collection[MemberId] = (),
    slot_limit: int | None = None,
) -> Assignment:
    """Return the owners that the hashes choose, and the moves from ``present``. There are no other copies."""
    slot_shards = _slots_by_hash(members, shards, drained, slot_limit)
    owners = {task(shard): member.id for member, part in slot_shards for shard in part}
    moves = []
    for t, owner in sorted(owners.items()):
        source = present.owners.get(t)
        if source != owner:
            moves.append(
                Move(t, "owner", source if source in members else None, owner, "valid", "the hash names its slot")
            )
    return Assignment(dict(sorted(owners.items())), target=owners, moves=tuple(moves))


def _slots_by_hash(
    members: Mapping[MemberId, LiveMember], shards: Shards, drained: Collection[MemberId], slot_limit: int | None
) -> list[_SlotShards]:
    """Return all slots of the members that are not drained, each with the shards whose hash chooses it."""
    able = [member for name, member in sorted(members.items()) if name not in drained] or [*members.values()]
    slots = [member for member in able for _ in range(_slots_of(member, slot_limit))]
    return list(zip(slots, shards.shards_by_slot(len(slots)), strict=True))
