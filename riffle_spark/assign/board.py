"""The view as integers: members and tasks by position. Knows ranks of lag, who may own and what fits into memory. Does
not know any goal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from riffle_spark.assign.model import AssignSettings, Lag, Member, MemberId, Task, TaskId, View

__all__ = ["NOBODY", "Board", "attribute", "board_of", "copies_that_fit", "is_placeable", "memory_warnings"]

NOBODY: Final = -1
UNKNOWN_RANK: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Board:
    """One kind of tasks and all members, by position.

    ``live`` members can own now, ``placeable`` ones should own in the end; awaited members are placeable and not live.
    ``ranks[t]`` holds the rank of every member with a copy of t, ``absent[t]`` that of all others: how far from caught
    up, 0 being caught up (KIP-441). ``owning`` counts the members that are live and
    placeable. ``homes[t]`` is the member the task belongs to: its owner, or the awaited or returned member that it was
    taken from; ``aims[t]`` the target the assignment before this one had for it.
    """

    members: tuple[Member, ...]
    live: tuple[bool, ...]
    placeable: tuple[bool, ...]
    tasks: tuple[Task, ...]
    owners: tuple[int, ...]
    homes: tuple[int, ...]
    pins: tuple[int, ...]
    aims: tuple[int, ...]
    standbys: tuple[tuple[int, ...], ...]
    warmups: tuple[tuple[int, ...], ...]
    ranks: tuple[dict[int, int], ...]
    absent: tuple[int, ...]
    owning: int

    @property
    def slots(self) -> list[int]:
        """Return the capacities."""
        return [member.slots for member in self.members]

    def rank(self, task: int, member: int) -> int:
        """Return how far ``member`` is from caught up on ``task``; 0 is caught up."""
        return self.ranks[task].get(member, self.absent[task])

    def most_caught_up(self, task: int, among: Sequence[bool]) -> tuple[int, ...] | None:
        """Return the members of ``among`` with the lowest rank; ``None`` stands for all that hold no copy."""
        known = [(rank, member) for member, rank in self.ranks[task].items() if among[member]]
        absent = self.absent[task]
        lowest = min(known)[0] if known else absent
        if lowest >= absent and len(known) < sum(among):
            return None
        return tuple(sorted(member for rank, member in known if rank == lowest))


def board_of(view: View, tasks: Iterable[Task], settings: AssignSettings) -> Board:
    """Return the board of these tasks of the view."""
    here = {member.id for member in view.members}
    ghosts = [member for member in view.awaited if member.id not in here]
    members = tuple(sorted([*view.members, *ghosts], key=lambda member: member.id))
    index = {member.id: position for position, member in enumerate(members)}
    ordered = tuple(sorted(tasks, key=lambda task: task.id))
    owners = tuple(_live_index(view.owners.get(task.id), index, here) for task in ordered)
    ranked = [_ranks(task, view, index, settings.acceptable_recovery_lag) for task in ordered]
    live = tuple(member.id in here for member in members)
    placeable = _placeable(members, live, settings)
    return Board(
        members=members,
        live=live,
        placeable=placeable,
        tasks=ordered,
        owners=owners,
        homes=tuple(index.get(view.homes.get(task.id, ""), owners[t]) for t, task in enumerate(ordered)),
        aims=tuple(index.get(view.target.get(task.id, ""), NOBODY) for task in ordered),
        pins=tuple(index.get(view.pins.get(task.id, ""), NOBODY) for task in ordered),
        standbys=_copies(ordered, view.standbys, index, here),
        warmups=_copies(ordered, view.warmups, index, here),
        ranks=tuple(known for known, _ in ranked),
        absent=tuple(absent for _, absent in ranked),
        owning=sum(here and may for here, may in zip(live, placeable, strict=True)),
    )


def _placeable(members: Sequence[Member], live: Sequence[bool], settings: AssignSettings) -> tuple[bool, ...]:
    """Return who should own in the end: everybody if none of those that may is there."""
    wanted = tuple(is_placeable(member, settings) for member in members)
    return wanted if any(may and here for may, here in zip(wanted, live, strict=True)) else (True,) * len(members)


def _live_index(member: MemberId | None, index: Mapping[MemberId, int], here: set[MemberId]) -> int:
    return index[member] if member is not None and member in here else NOBODY


def _copies(
    tasks: Sequence[Task],
    copies: Mapping[TaskId, tuple[MemberId, ...]],
    index: Mapping[MemberId, int],
    here: set[MemberId],
) -> tuple[tuple[int, ...], ...]:
    if not copies:
        return ((),) * len(tasks)
    return tuple(tuple(sorted(index[m] for m in copies.get(task.id, ()) if m in here)) for task in tasks)


def _ranks(task: Task, view: View, index: Mapping[MemberId, int], acceptable: int) -> tuple[dict[int, int], int]:
    """Return the rank of each member with a copy, and the rank of a member without one.

    No copy means a lag of the whole state; a pointer ranks just before that and an unknown lag after everything.
    """
    if task.kind != "stateful":
        return {}, 0
    absent = 0 if task.size <= acceptable else task.size + 1
    known = {index[m]: _rank(lag, acceptable) for m, lag in view.lags.get(task.id, {}).items() if m in index}
    for member in view.pointers.get(task.id, ()) if view.pointers else ():
        if member in index:
            known[index[member]] = max(absent - 1, 0)
    return known, absent


def _rank(lag: Lag, acceptable: int) -> int:
    if lag is None:
        return UNKNOWN_RANK
    return 0 if lag <= acceptable else lag


def attribute(member: Member, tag: str) -> str | None:
    """Return a member's attribute: its tag of that name, else its ``id`` or ``rack``."""
    if tag in member.tags:
        return member.tags[tag]
    return {"id": member.id, "rack": member.rack}.get(tag)


def is_placeable(member: Member, settings: AssignSettings) -> bool:
    """Tell whether the operator's filters let a member hold anything; one that may not is drained."""
    if any(attribute(member, tag) == value for tag, value in settings.exclude):
        return False
    return not settings.include or any(attribute(member, tag) == value for tag, value in settings.include)


def copies_that_fit(members: Sequence[Member], tasks: Sequence[Task], copies: int) -> list[int] | None:
    """Return the most copies each member should hold; ``None`` if memory sets no limit or is too small anyway.

    Counted with the largest task, so that any choice of tasks fits; with the mean where that leaves too little room.
    """
    needs = [task.memory_bytes for task in tasks if task.memory_bytes]
    if not needs or all(member.memory_bytes is None for member in members):
        return None
    for need in (max(needs), -(-sum(needs) // len(needs))):
        most = [copies if m.memory_bytes is None else min(copies, m.memory_bytes // need) for m in members]
        if sum(most) >= copies:
            return most
    return None


def memory_warnings(
    members: Sequence[Member],
    tasks: Sequence[Task],
    owners: Mapping[TaskId, MemberId],
    others: Sequence[Mapping[TaskId, tuple[MemberId, ...]]],
) -> list[str]:
    """Say which members hold more than their memory."""
    held: Counter[MemberId] = Counter()
    for task in tasks:
        for member in (owners[task.id], *(m for copies in others for m in copies.get(task.id, ()))):
            held[member] += task.memory_bytes
    return [
        f"member {member.id} is given {held[member.id]} bytes of state and has memory for {member.memory_bytes}"
        for member in sorted(members, key=lambda member: member.id)
        if member.memory_bytes is not None and held[member.id] > member.memory_bytes
    ]
