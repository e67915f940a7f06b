"""The view as integers: members and tasks by position. Knows ranks of lag, who may own and what fits into memory. Does
not know any goal.
"""

from collections.abc import Collection
from dataclasses import dataclass

from riffle_spark.assign.model import AssignSettings, Kind, Member, MemberId, Task, View

__all__ = ["NOBODY", "WITHOUT_STATE", "WITH_STATE", "Board", "board_of", "copies_that_fit", "is_allowed"]

NOBODY = -1
UNKNOWN_RANK = 1 << 62
WITH_STATE: tuple[Kind, ...] = ("stateful", "unlogged")
WITHOUT_STATE: tuple[Kind, ...] = ("stateless",)


@dataclass(frozen=True, slots=True)
class Board:
    """Some kinds of tasks and all members, by position.

    ``live`` members can own now. ``placeable`` members should own in the end. A member that is awaited is placeable but
    not live. ``may_own`` marks the members that are both; ``owning`` is their number.

    ``ranks[task]`` has the rank of every member with a copy, ``absent[task]`` the rank of all others. The rank is the
    distance from caught up, 0 is caught up (KIP-441). ``incumbents[task]`` is the member that may have the task without
    a move: its owner, or the awaited or returned member that lost it. ``aims[task]`` is its owner in the target of the
    assignment before. ``base`` is the number of tasks of other kinds on each member. ``quarantined[task]`` are the
    members that should have no copy of it; the tuple is empty if no task has any.
    """

    members: tuple[Member, ...]
    live: tuple[bool, ...]
    placeable: tuple[bool, ...]
    may_own: tuple[bool, ...]
    tasks: tuple[Task, ...]
    owners: tuple[int, ...]
    incumbents: tuple[int, ...]
    pins: tuple[int, ...]
    aims: tuple[int, ...]
    standbys: tuple[tuple[int, ...], ...]
    warmups: tuple[tuple[int, ...], ...]
    ranks: tuple[dict[int, int], ...]
    absent: tuple[int, ...]
    owning: int
    base: tuple[int, ...]
    quarantined: tuple[frozenset[int], ...] = ()

    @property
    def slots(self) -> list[int]:
        """Return the capacities."""
        return [member.slots for member in self.members]

    @property
    def placeable_slots(self) -> list[int]:
        """Return the capacities of members that should own in the end, 0 for the others."""
        return [member.slots if may else 0 for member, may in zip(self.members, self.placeable, strict=True)]

    def rank(self, task: int, member: int) -> int:
        """Return how far ``member`` is from caught up on ``task``; 0 is caught up."""
        return self.ranks[task].get(member, self.absent[task])

    def is_quarantined(self, task: int, member: int) -> bool:
        """Tell whether ``member`` should have no copy of ``task``."""
        return bool(self.quarantined) and member in self.quarantined[task]


@dataclass(frozen=True, slots=True)
class _Order:
    """Members and tasks in the order of their ids; positions by id, of every member and of the live ones."""

    members: tuple[Member, ...]
    tasks: tuple[Task, ...]
    position: dict[MemberId, int]
    live: dict[MemberId, int]


def board_of(view: View, kinds: Collection[Kind], settings: AssignSettings) -> Board:
    """Return the board of the view's tasks of these kinds."""
    order = _order_of(view, kinds)
    owners = tuple(order.live.get(view.owners.get(task.id, ""), NOBODY) for task in order.tasks)
    live = tuple(member.id in order.live for member in order.members)
    placeable = _placeable(order, settings)
    may_own = tuple(here and may for here, may in zip(live, placeable, strict=True))
    ranked = _ranks(view, order, settings)
    standbys, warmups = (
        tuple(
            tuple(sorted(order.live[name] for name in held.get(task.id, ()) if name in order.live))
            for task in order.tasks
        )
        for held in (view.standbys, view.warmups)
    )
    return Board(
        members=order.members,
        live=live,
        placeable=placeable,
        may_own=may_own,
        tasks=order.tasks,
        owners=owners,
        incumbents=tuple(
            order.position.get(view.prior_owners.get(task.id, ""), owners[t]) for t, task in enumerate(order.tasks)
        ),
        aims=tuple(order.position.get(view.target.get(task.id, ""), NOBODY) for task in order.tasks),
        pins=tuple(order.position.get(view.pins.get(task.id, ""), NOBODY) for task in order.tasks),
        standbys=standbys,
        warmups=warmups,
        ranks=tuple(known for known, _ in ranked),
        absent=tuple(absent for _, absent in ranked),
        owning=sum(may_own),
        base=(0,) * len(order.members),
        quarantined=_quarantined_members(view, order),
    )


def _quarantined_members(view: View, order: "_Order") -> tuple[frozenset[int], ...]:
    if not view.quarantined:
        return ()
    named = (view.quarantined.get(task.id, ()) for task in order.tasks)
    return tuple(frozenset(order.position[name] for name in names if name in order.position) for names in named)


def _order_of(view: View, kinds: Collection[Kind]) -> _Order:
    live = {member.id for member in view.members}
    ghosts = [member for member in view.awaited if member.id not in live]
    members = tuple(sorted([*view.members, *ghosts], key=lambda member: member.id))
    tasks = tuple(sorted((task for task in view.tasks if task.kind in kinds), key=lambda task: task.id))
    position = {member.id: m for m, member in enumerate(members)}
    return _Order(members, tasks, position, {name: m for name, m in position.items() if name in live})


def _placeable(order: _Order, settings: AssignSettings) -> tuple[bool, ...]:
    """Return who should own in the end by the operator's filters: everybody if none of those that may is there."""
    allowed = tuple(is_allowed(each, settings) for each in order.members)
    is_any_there = any(may and each.id in order.live for may, each in zip(allowed, order.members, strict=True))
    return allowed if is_any_there else (True,) * len(allowed)


def is_allowed(member: Member, settings: AssignSettings) -> bool:
    """Tell whether the operator's filters let a member own and keep anything in the end."""
    if any(member.attribute(tag) == value for tag, value in settings.exclude):
        return False
    return not settings.include or any(member.attribute(tag) == value for tag, value in settings.include)


def _ranks(view: View, order: _Order, settings: AssignSettings) -> list[tuple[dict[int, int], int]]:
    """Return by task the rank of each member with a copy, and the rank of a member without one.

    No copy means a lag of the whole state; a pointer ranks just before that and an unknown lag after everything.
    """
    acceptable, position = settings.acceptable_recovery_lag, order.position
    ranked: list[tuple[dict[int, int], int]] = []
    for task in order.tasks:
        if task.kind != "stateful":
            ranked.append(({}, 0))
            continue
        absent = 0 if task.size <= acceptable else task.size + 1
        known = {
            position[name]: UNKNOWN_RANK if lag is None else lag if lag > acceptable else 0
            for name, lag in view.lags.get(task.id, {}).items()
            if name in position
        }
        for name in view.pointers.get(task.id, ()) if view.pointers else ():
            if name in position:
                known[position[name]] = max(absent - 1, 0)
        ranked.append((known, absent))
    return ranked


def copies_that_fit(board: Board, count: int) -> list[int] | None:
    """Return how many of ``count`` copies each member should hold at most; ``None`` if memory sets no limit or is too
    small anyway.

    Counted with the largest task, so that any choice of tasks fits; with the mean where that leaves too little room.
    """
    needs = [task.memory_bytes for task in board.tasks if task.memory_bytes]
    if not needs or all(member.memory_bytes is None for member in board.members):
        return None
    for need in (max(needs), -(-sum(needs) // len(needs))):
        most = [count if m.memory_bytes is None else min(count, m.memory_bytes // need) for m in board.members]
        if sum(most) >= count:
            return most
    return None
