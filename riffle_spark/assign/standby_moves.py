"""The standbys' way from the present to their target. Knows who is caught up. Does not choose the target.

Standbys are the next most caught-up members after the owner; where the target is not one of them it warms up, as far as
the warm-ups that owners need leave room.

A standby that is a pointer needs no copy: it is at its target at once, and never warms up. Its member keeps no copy for
it, so a target that warms up to become the owner is no standby meanwhile.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from riffle_spark.assign.board import Board
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.standby_target import Copies

__all__ = ["StandbyPlan", "plan_standbys"]


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """By task the standbys and warm-ups from now on; the tasks whose owners or copies are still to move."""

    standbys: Sequence[Sequence[int]]
    warmups: Sequence[Sequence[int]]
    unsettled: Sequence[int]


def plan_standbys(board: Board, plan: OwnerPlan, copies: Copies, settings: AssignSettings) -> StandbyPlan:
    """Decide who keeps and who warms up a copy of each task now."""
    standbys = [_standbys(board, t, plan, copies, settings) for t in range(len(board.tasks))]
    warmups = _owner_warmups(board, plan, standbys, settings)
    left = settings.max_warmup_replicas - sum(map(len, warmups))
    unsettled = []
    for t, (owner, goal) in enumerate(zip(plan.owners, plan.target, strict=True)):
        missing = [m for m in copies.standbys[t] if m not in standbys[t] and m != owner and board.live[m]]
        waiting = sorted((board.rank(t, m), m) for m in missing)
        if waiting or (owner != goal and board.live[goal]):
            unsettled.append(t)
        fresh = [m for rank, m in waiting if rank > 0 and m not in warmups[t]]
        taken = [] if settings.points else fresh[: max(left, 0)]
        warmups[t] += taken
        left -= len(taken)
    return StandbyPlan(standbys, warmups, unsettled)


def _owner_warmups(
    board: Board, plan: OwnerPlan, standbys: Sequence[Sequence[int]], settings: AssignSettings
) -> list[list[int]]:
    """Warm up what owners need, and keep the copies that are ready but wait for others as long as there is room."""
    warmups: list[list[int]] = [[] for _ in board.tasks]
    for t in plan.warm:
        if plan.target[t] not in standbys[t]:
            warmups[t].append(plan.target[t])
    left = settings.max_warmup_replicas - sum(map(len, warmups))
    for t in sorted(plan.waiting):
        if left > 0 and plan.target[t] not in standbys[t] and board.absent[t] > 0:
            warmups[t].append(plan.target[t])
            left -= 1
    return warmups


def _standbys(board: Board, task: int, plan: OwnerPlan, copies: Copies, settings: AssignSettings) -> list[int]:
    """Return the most caught-up members beside the owner: the target's own first, then present standbys. Pointers are
    where they should be, and the owner that warms up is none of them.
    """
    if not copies.standbys[task]:
        return []
    owner, goal, should = plan.owners[task], plan.target[task], copies.standbys[task]
    without = {owner, goal} if settings.points and (task in plan.warm or task in plan.waiting) else {owner}
    if owner == goal and all(board.live[m] and (settings.points or board.rank(task, m) == 0) for m in should):
        return sorted(should)
    near = {*should, goal, *board.standbys[task], *board.warmups[task], *board.ranks[task]}
    others = _least_loaded(task, plan, copies, near)
    found = [m for m in (*near, *others) if m not in without and board.may_own[m]]
    present: Sequence[int] = board.standbys[task]
    order = sorted(
        set(found),
        key=lambda m: (board.rank(task, m), m != goal, m not in should, m not in present, copies.load[m], m),
    )
    return sorted(_first_allowed(task, plan, copies, order))


def _least_loaded(task: int, plan: OwnerPlan, copies: Copies, members: Collection[int]) -> list[int]:
    """Return the least loaded members without a copy, only if the known ``members`` are too few."""
    may_own, wanted = copies.board.may_own, len(copies.standbys[task])
    able = sum(1 for m in members if m != plan.owners[task] and may_own[m])
    if able >= wanted:
        return []
    rest = [m for m, may in enumerate(may_own) if may and m not in members]
    return sorted(rest, key=lambda m: (copies.load[m], m))[:wanted]


def _first_allowed(task: int, plan: OwnerPlan, copies: Copies, members: Sequence[int]) -> list[int]:
    """Take as many members in order as the task should have standbys, where forced awareness allows them."""
    taken: list[int] = []
    for m in members:
        if len(taken) < len(copies.standbys[task]) and copies.spread.may_join(m, [plan.owners[task], *taken]):
            taken.append(m)
    return taken
