"""The result in the caller's words: every move with its reason and goal, how even and how expensive it is. Decides
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.assign.board import NOBODY, Board, memory_warnings
from riffle_spark.assign.demand import fair_range
from riffle_spark.assign.model import (
    Assignment,
    AssignSettings,
    Balance,
    Goal,
    Member,
    MemberId,
    Move,
    Role,
    Task,
    TaskId,
    View,
)
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.racks import rack_cost, rack_warnings
from riffle_spark.assign.standby_target import Copies

__all__ = ["Decided", "balance_of", "cost_of", "spread_per_slot", "told"]


@dataclass(frozen=True, slots=True)
class Decided:
    """What the steps decided, by position."""

    board: Board
    plan: OwnerPlan
    copies: Copies
    standbys: Sequence[Sequence[int]]
    warmups: Sequence[Sequence[int]]
    unsettled: Sequence[int]
    stateless: Board
    placed: Sequence[int]


def told(view: View, settings: AssignSettings, decided: Decided, warnings: Sequence[str]) -> Assignment:
    """Return the assignment with its moves, figures and warnings."""
    board, plan = decided.board, decided.plan
    owners = _named(board, plan.owners) | _named(decided.stateless, decided.placed)
    target = _named(board, plan.target) | _named(decided.stateless, decided.placed)
    goal_standbys = _named_copies(board, decided.copies.standbys)
    live = [member for member, here in zip(board.members, board.live, strict=True) if here]
    cost = cost_of(board.members, view.tasks, target, goal_standbys, settings)
    kept, warming = _named_copies(board, decided.standbys), _named_copies(board, decided.warmups)
    crowded = memory_warnings(live, view.tasks, owners, (kept, warming))
    return Assignment(
        owners=dict(sorted(owners.items())),
        standbys=kept,
        warmups=warming,
        target=dict(sorted(target.items())),
        moves=tuple(sorted(_moves(decided, settings), key=lambda move: (move.task, move.role, move.target))),
        needs_probe=bool(decided.unsettled),
        probe_reason=_probe_reason(decided),
        cost=cost,
        balance=balance_of(live, view.tasks, owners, kept),
        warnings=(*warnings, *crowded, *rack_warnings(view.members, view.tasks, settings)),
    )


def _named(board: Board, placed: Sequence[int]) -> dict[TaskId, MemberId]:
    return {task.id: board.members[m].id for task, m in zip(board.tasks, placed, strict=True)}


def _named_copies(board: Board, copies: Sequence[Sequence[int]]) -> dict[TaskId, tuple[MemberId, ...]]:
    return {
        task.id: tuple(sorted(board.members[m].id for m in held))
        for task, held in zip(board.tasks, copies, strict=True)
        if held
    }


def _probe_reason(decided: Decided) -> str:
    if not decided.unsettled:
        return ""
    waiting = sum(a != b for a, b in zip(decided.plan.owners, decided.plan.target, strict=True))
    return f"{waiting} owners and the standbys of {len(decided.unsettled)} tasks are not yet where they should be"


def _moves(decided: Decided, settings: AssignSettings) -> Iterator[Move]:
    board, plan = decided.board, decided.plan
    why = _Why(decided, settings)
    for t, owner in enumerate(plan.owners):
        if owner != board.owners[t]:
            yield _move(board, t, "owner", owner, why.owner(t, owner))
        for m in decided.warmups[t]:
            if m == plan.target[t]:
                goal, reason = why.place(t, owner, m)
                yield _move(board, t, "warmup", m, (goal, f"warms up to own it: {reason}", False))
            else:
                yield _move(board, t, "warmup", m, ("standby", "warms up to become a standby", False))
        for m in decided.standbys[t]:
            if m not in board.standbys[t]:
                yield _move(board, t, "standby", m, ("standby", why.standby(t, m), False))
    for t, owner in enumerate(decided.placed):
        before = decided.stateless.owners[t]
        if owner != before:
            first: tuple[Goal, str, bool] = ("valid", "has no owner", True)
            level: tuple[Goal, str, bool] = ("balance", "levels the tasks without state", False)
            yield _move(decided.stateless, t, "owner", owner, first if before == NOBODY else level)


def _move(board: Board, task: int, role: Role, target: int, why: tuple[Goal, str, bool]) -> Move:
    source = board.owners[task]
    name = board.members[source].id if source != NOBODY else None
    return Move(board.tasks[task].id, role, name, board.members[target].id, *why)


class _Why:
    """Which goal asked for a place: the first one, in order, that the source did not meet."""

    def __init__(self, decided: Decided, settings: AssignSettings) -> None:
        self._decided, self._settings = decided, settings
        board = decided.board
        slots = [slots if may else 0 for slots, may in zip(board.slots, board.placeable, strict=True)]
        self._low, self._high = fair_range(len(board.tasks), slots)
        self._load = [0] * len(board.members)
        for owner in board.owners:
            if owner != NOBODY:
                self._load[owner] += 1

    def owner(self, task: int, owner: int) -> tuple[Goal, str, bool]:
        """Return goal, reason and force of an owner move."""
        board, plan = self._decided.board, self._decided.plan
        before = board.owners[task]
        if before == NOBODY:
            return "valid", "has no living owner; goes to a most caught-up member", True
        if board.rank(task, before) > board.rank(task, owner):
            return "caught_up", "its owner lags and this member is closer to caught up", True
        goal, reason = self.place(task, before, owner)
        return goal, reason, task in plan.forced

    def place(self, task: int, source: int, target: int) -> tuple[Goal, str]:
        """Return why ``target`` should own the task rather than ``source``."""
        board = self._decided.board
        if board.pins[task] == target or not board.placeable[source]:
            return "operator", "pinned there by hand" if board.pins[task] == target else "its member is being drained"
        if board.homes[task] == target != board.owners[task]:
            return "return", "belongs to this member, which is back"
        if self._load[source] > self._high[source] or self._load[target] < self._low[target]:
            return "balance", "levels the tasks per slot"
        if self._settings.rack_aware_assignment_strategy != "none" and self._saves(task, source, target):
            return "rack", "reads less from other racks"
        own = self._settings.user_cost is not None
        return ("user", "the user's own cost is lower") if own else ("spread", "spreads the tasks of its group")

    def _saves(self, task: int, source: int, target: int) -> bool:
        board = self._decided.board
        traffic = board.tasks[task].owner_traffic
        return rack_cost(traffic, board.members[target].rack, 1) < rack_cost(traffic, board.members[source].rack, 1)

    def standby(self, task: int, member: int) -> str:
        """Return why ``member`` becomes a standby."""
        board = self._decided.board
        if member == board.owners[task]:
            return "its owner until now keeps a copy"
        return "already holds a copy" if board.rank(task, member) < board.absent[task] else "keeps a spare copy"


Standbys = Mapping[TaskId, tuple[MemberId, ...]]


def spread_per_slot(members: Sequence[Member], placed: Iterable[MemberId]) -> float:
    """Return most minus fewest of ``placed`` per slot over the members."""
    counts = Counter(placed)
    loads = [counts[member.id] / max(member.slots, 1) for member in members]
    return max(loads) - min(loads) if loads else 0.0


def balance_of(
    members: Sequence[Member], tasks: Sequence[Task], owners: Mapping[TaskId, MemberId], standbys: Standbys
) -> Balance:
    """Return how even owners, copies and the owners of each group are."""
    stateful = [task.id for task in tasks if task.kind != "stateless" and task.id in owners]
    copies = [*(owners[task] for task in stateful), *(m for held in standbys.values() for m in held)]
    groups = Counter((task.group, owner) for task, owner in owners.items())
    worst = 0
    for group in {task.group for task in owners}:
        counts = [groups[group, member.id] for member in members]
        worst = max(worst, max(counts) - min(counts))
    return Balance(
        owners=spread_per_slot(members, owners.values()),
        stateful_owners=spread_per_slot(members, (owners[task] for task in stateful)),
        stateful_copies=spread_per_slot(members, copies),
        worst_group=worst,
    )


def cost_of(
    members: Sequence[Member],
    tasks: Sequence[Task],
    owners: Mapping[TaskId, MemberId],
    standbys: Standbys,
    settings: AssignSettings,
) -> int:
    """Return the traffic cost between racks of owners and standbys."""
    racks = {member.id: member.rack for member in members}
    weight = settings.rack_aware_assignment_traffic_cost
    total = 0
    for task in tasks:
        if task.id in owners:
            total += rack_cost(task.owner_traffic, racks.get(owners[task.id]), weight)
        total += sum(rack_cost(task.standby_traffic, racks.get(m), weight) for m in standbys.get(task.id, ()))
    return total
