"""The standbys' way from the present to their target. Knows who is caught up. Does not choose the target.

Standbys are the next most caught-up members after the owner; where the target is not one of them it warms up, as far as
the warm-ups that owners need leave room. While a lost member is waited for, no copy is begun on a member without one:
it may come back with its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from riffle_spark.assign.board import Board
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.standby_target import Copies

__all__ = ["plan_standbys"]


def plan_standbys(
    board: Board, plan: OwnerPlan, copies: Copies, settings: AssignSettings
) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Return standbys and warm-ups of every task from now on, and the tasks whose copies are still to move."""
    warmups: list[list[int]] = [[] for _ in board.tasks]
    standbys = [_standbys(board, t, plan, copies) for t in range(len(board.tasks))]
    for t in plan.warm:
        if plan.target[t] not in standbys[t]:
            warmups[t].append(plan.target[t])
    _hold(board, plan, standbys, warmups, settings)
    left = settings.max_warmup_replicas - sum(map(len, warmups))
    unsettled = []
    for t in copies.stateful:
        missing = [m for m in copies.standbys[t] if m not in standbys[t] and m != plan.owners[t] and board.live[m]]
        waiting = sorted((board.rank(t, m), m) for m in missing)
        moving = plan.owners[t] != plan.target[t] and board.live[plan.target[t]]
        if moving or waiting:
            unsettled.append(t)
        fresh = [m for rank, m in waiting if rank > 0 and m not in warmups[t] and _may_keep(board, t, m)]
        taken = fresh[: max(left, 0)]
        warmups[t] += taken
        left -= len(taken)
    return standbys, warmups, unsettled


def _hold(
    board: Board, plan: OwnerPlan, standbys: list[list[int]], warmups: list[list[int]], settings: AssignSettings
) -> None:
    """Keep the copies that are ready but wait for others, as long as there is room."""
    left = settings.max_warmup_replicas - sum(map(len, warmups))
    for t in sorted(plan.held):
        if left > 0 and plan.target[t] not in standbys[t] and board.absent[t] > 0:
            warmups[t].append(plan.target[t])
            left -= 1


def _standbys(board: Board, task: int, plan: OwnerPlan, copies: Copies) -> list[int]:
    """Return the most caught-up members beside the owner: the target's own first, then present standbys."""
    wanted = len(copies.standbys[task])
    if wanted == 0:
        return []
    owner, goal, should = plan.owners[task], plan.target[task], copies.standbys[task]
    if owner == goal and all(board.live[m] and board.rank(task, m) == 0 for m in should):
        return sorted(should)
    near = {*should, goal, *board.standbys[task], *board.warmups[task], *board.ranks[task]}
    others = _others(board, copies, near, wanted, {owner})
    found = [m for m in (*near, *others) if m != owner and board.live[m] and board.placeable[m]]
    found = [m for m in found if _may_keep(board, task, m)]
    present: Sequence[int] = board.standbys[task]
    ordered = sorted(
        set(found),
        key=lambda m: (board.rank(task, m), m != goal, m not in should, m not in present, copies.load[m], m),
    )
    return sorted(_apart(copies, owner, ordered, wanted))


def _may_keep(board: Board, task: int, member: int) -> bool:
    """Tell whether a member holds a copy or may begin one now."""
    return all(board.live) or member in board.ranks[task] or member in board.standbys[task]


def _others(board: Board, copies: Copies, near: set[int], wanted: int, taken: set[int]) -> list[int]:
    """Return the least loaded members without a copy, only if the known ones are too few."""
    able = sum(1 for m in near if m not in taken and board.live[m] and board.placeable[m])
    if able >= wanted:
        return []
    rest = [m for m in range(len(board.members)) if m not in near and board.live[m] and board.placeable[m]]
    return sorted(rest, key=lambda m: (copies.load[m], m))[:wanted]


def _apart(copies: Copies, owner: int, ordered: Sequence[int], wanted: int) -> list[int]:
    """Take members in order as forced awareness allows."""
    taken: list[int] = []
    for m in ordered:
        if len(taken) < wanted and copies.spread.may_join(m, [owner, *taken]):
            taken.append(m)
    return taken
