"""Convert a view to integers: members and tasks by position, lags as ranks."""

from collections.abc import Collection
from dataclasses import dataclass

from riffle_spark.assign.model import AssignSettings, Kind, Member, MemberId, Task, View

NOBODY = -1
UNKNOWN_RANK = 1 << 62
WITH_STATE: tuple[Kind, ...] = ("stateful", "unlogged")
WITHOUT_STATE: tuple[Kind, ...] = ("stateless",)


@dataclass(frozen=True, slots=True)
class Board:
    """Tasks of some kinds, and all members, by position.

    ``live`` members can own now. ``placeable`` members should own in the end. A member that is awaited is placeable but
    not live. ``may_own`` marks the members that are both, and ``may_own_count`` is their number.

    ``copy_ranks[task]`` has the rank of every member with a copy, ``rank_without_copy[task]`` that of all others. The
    rank is the distance from caught up, 0 is caught up (KIP-441). ``incumbents[task]`` is the member that may have the
    task without a move: its owner, or the awaited or returned member that lost it. ``last_target[task]`` is its owner
    in the target of the last assignment. ``other_task_counts`` has the number of tasks of other kinds on each member.
    ``quarantined[task]`` are the members that should have no copy of it; the tuple is empty if no task has any.
    """

    members: tuple[Member, ...]
    live: tuple[bool, ...]
    placeable: tuple[bool, ...]
    may_own: tuple[bool, ...]
    tasks: tuple[Task, ...]
    owners: tuple[int, ...]
    incumbents: tuple[int, ...]
    pins: tuple[int, ...]
    last_target: tuple[int, ...]
    standbys: tuple[tuple[int, ...], ...]
    warmups: tuple[tuple[int, ...], ...]
    copy_ranks: tuple[dict[int, int], ...]
    rank_without_copy: tuple[int, ...]
    may_own_count: int
    other_task_counts: tuple[int, ...]
    quarantined: tuple[frozenset[int], ...] = ()

    @property
    def slots(self) -> list[int]:
        """Return the number of task slots of each member."""
        return [member.slots for member in self.members]

    @property
    def placeable_slots(self) -> list[int]:
        """Return the number of task slots of each member that should own tasks in the end, and 0 for other members."""
        return [member.slots if may else 0 for member, may in zip(self.members, self.placeable, strict=True)]

    def rank(self, task: int, member: int) -> int:
        """Return how far the copy of a task on a member is from caught up (0: caught up), also for members without a
        copy.
        """
        return self.copy_ranks[task].get(member, self.rank_without_copy[task])

    def is_quarantined(self, task: int, member: int) -> bool:
        """Return whether a member should have no copy of a task."""
        return bool(self.quarantined) and member in self.quarantined[task]


@dataclass(frozen=True, slots=True)
class _SortedIds:
    """Members and tasks sorted by id, the positions of all members, and the positions of the live members."""

    members: tuple[Member, ...]
    tasks: tuple[Task, ...]
    position: dict[MemberId, int]
    live: dict[MemberId, int]


def board_of(view: View, kinds: Collection[Kind], settings: AssignSettings) -> Board:
    """Return a view as a ``Board`` of positions. It has all members, and the tasks of these kinds."""
    order = _sort_by_id(view, kinds)
    owners = tuple(order.live.get(view.owners.get(task.id, ""), NOBODY) for task in order.tasks)
    live = tuple(member.id in order.live for member in order.members)
    placeable = _mark_placeable(order, settings)
    may_own = tuple(is_live and may for is_live, may in zip(live, placeable, strict=True))
    ranked = _rank_members(view, order, settings)
    standbys, warmups = (
        tuple(
            tuple(sorted(order.live[name] for name in copies.get(task.id, ()) if name in order.live))
            for task in order.tasks
        )
        for copies in (view.standbys, view.warmups)
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
        last_target=tuple(order.position.get(view.target.get(task.id, ""), NOBODY) for task in order.tasks),
        pins=tuple(order.position.get(view.pins.get(task.id, ""), NOBODY) for task in order.tasks),
        standbys=standbys,
        warmups=warmups,
        copy_ranks=tuple(copy_ranks for copy_ranks, _ in ranked),
        rank_without_copy=tuple(rank for _, rank in ranked),
        may_own_count=sum(may_own),
        other_task_counts=(0,) * len(order.members),
        quarantined=_quarantined_members(view, order),
    )


def _quarantined_members(view: View, order: "_SortedIds") -> tuple[frozenset[int], ...]:
    """Return for each task the positions of its quarantined members; empty if the view quarantines no member."""
    if not view.quarantined:
        return ()
    quarantined_names = (view.quarantined.get(task.id, ()) for task in order.tasks)
    return tuple(
        frozenset(order.position[name] for name in names if name in order.position) for names in quarantined_names
    )


def _sort_by_id(view: View, kinds: Collection[Kind]) -> _SortedIds:
    """Sort the view's members and its tasks of these kinds by id."""
    live = {member.id for member in view.members}
    awaited = [member for member in view.awaited if member.id not in live]
    members = tuple(sorted([*view.members, *awaited], key=lambda member: member.id))
    tasks = tuple(sorted((task for task in view.tasks if task.kind in kinds), key=lambda task: task.id))
    position = {member.id: m for m, member in enumerate(members)}
    return _SortedIds(members, tasks, position, {name: m for name, m in position.items() if name in live})


def _mark_placeable(order: _SortedIds, settings: AssignSettings) -> tuple[bool, ...]:
    """Return a mask of the members that the operator's filters allow.

    If they allow no live member, all members count as allowed.
    """
    allowed = tuple(is_allowed(member, settings) for member in order.members)
    is_any_there = any(may and member.id in order.live for may, member in zip(allowed, order.members, strict=True))
    return allowed if is_any_there else (True,) * len(allowed)


def is_allowed(member: Member, settings: AssignSettings) -> bool:
    """Return whether the operator's ``include`` and ``exclude`` filters allow a member to own tasks and keep copies in
    the end.
    """
    if any(member.attribute(tag) == value for tag, value in settings.exclude):
        return False
    return not settings.include or any(member.attribute(tag) == value for tag, value in settings.include)


def _rank_members(view: View, order: _SortedIds, settings: AssignSettings) -> list[tuple[dict[int, int], int]]:
    """Return for each task the rank of every member with a copy, and the rank of a member without one. A lower rank is
    closer to caught up.

    A member without a copy lacks the whole state. A pointer ranks just before that, and an unknown lag after
    everything.
    """
    acceptable = settings.acceptable_recovery_lag
    position = order.position
    ranks_by_task: list[tuple[dict[int, int], int]] = []
    for task in order.tasks:
        if task.kind != "stateful":
            ranks_by_task.append(({}, 0))
            continue
        rank_without_copy = 0 if task.size <= acceptable else task.size + 1
        ranks = {
            position[name]: UNKNOWN_RANK if lag is None else lag if lag > acceptable else 0
            for name, lag in view.lags.get(task.id, {}).items()
            if name in position
        }
        for name in view.pointers.get(task.id, ()) if view.pointers else ():
            if name in position:
                ranks[position[name]] = max(rank_without_copy - 1, 0)
        ranks_by_task.append((ranks, rank_without_copy))
    return ranks_by_task


def count_copies_that_fit(board: Board, count: int) -> list[int] | None:
    """Return how many of ``count`` copies fit into the memory of each member, or ``None`` if memory sets no limit or is
    too small for all of them.

    Each copy counts as large as the largest, so that any choice of tasks fits. If that leaves too little room, each
    counts as large as the mean.
    """
    needs = [task.memory_bytes for task in board.tasks if task.memory_bytes]
    if not needs or all(member.memory_bytes is None for member in board.members):
        return None
    for need in (max(needs), -(-sum(needs) // len(needs))):
        limits = [count if m.memory_bytes is None else min(count, m.memory_bytes // need) for m in board.members]
        if sum(limits) >= count:
            return limits
    return None
