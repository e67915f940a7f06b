"""Move standbys from the present to their target.

Standbys are the next most caught-up members after the owner. If the target is not among them, it warms up, unless
owners need all warm-ups. A running warm-up of a standby has precedence over a new warm-up of an owner.

A standby that is a pointer needs no copy. It is at its target at once and never warms up. Its member keeps no copy. So
a member that warms up to become the owner is not a standby until then.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from riffle_spark.assign.board import Board
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.standby_target import Copies


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """The standbys and warm-ups of each task from now on, by positions.

    Owners or copies of ``unsettled`` tasks have yet to move.
    """

    standbys: Sequence[Sequence[int]]
    warmups: Sequence[Sequence[int]]
    unsettled: Sequence[int]


def plan_standbys(board: Board, plan: OwnerPlan, copies: Copies, settings: AssignSettings) -> StandbyPlan:
    """Return which members keep and which members warm up a copy of each task now, given the plan of the owners and the
    target of the standbys (``copies``).
    """
    tasks = range(len(board.tasks))
    standbys = [_choose_standbys(board, t, plan, copies, settings) for t in tasks]
    missing_standbys = [_missing_standbys(board, t, plan.owners[t], copies, standbys[t]) for t in tasks]
    to_warm_up = [] if settings.points else [(t, m) for t in tasks for rank, m in missing_standbys[t] if rank > 0]
    running_warmups = [(t, m) for t, m in to_warm_up if m in board.warmups[t]]
    warmups = _start_owner_warmups(board, plan, standbys, settings.max_warmup_replicas, len(running_warmups))
    budget = settings.max_warmup_replicas - sum(map(len, warmups))
    new_warmups = [
        (t, m)
        for t, m in (*running_warmups, *(copy for copy in to_warm_up if copy not in running_warmups))
        if m not in warmups[t]
    ]
    for t, m in new_warmups[: max(budget, 0)]:
        warmups[t].append(m)
    unsettled = [
        t
        for t, (owner, goal) in enumerate(zip(plan.owners, plan.target, strict=True))
        if missing_standbys[t] or (owner != goal and board.live[goal])
    ]
    return StandbyPlan(standbys, warmups, unsettled)


def _missing_standbys(
    board: Board, task: int, owner: int, copies: Copies, standbys: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (rank, member) of each standby of the target that is not among ``standbys`` yet, the most caught
    up first.
    """
    missing = [m for m in copies.standbys[task] if m not in standbys and m != owner and board.live[m]]
    return sorted((board.rank(task, m), m) for m in missing)


def _start_owner_warmups(
    board: Board, plan: OwnerPlan, standbys: Sequence[Sequence[int]], limit: int, reserved: int
) -> list[list[int]]:
    """Return for each task the members that warm up in order to own it, at most ``limit`` in all. If there is room,
    copies that are ready and wait for other moves stay.

    Running warm-ups have precedence: ``reserved`` is the room for running warm-ups of standbys, which new warm-ups of
    owners do not take.
    """
    warmups: list[list[int]] = [[] for _ in board.tasks]
    missing_tasks = [t for t in plan.warm if plan.target[t] not in standbys[t]]
    running_tasks = [t for t in missing_tasks if plan.target[t] in board.warmups[t]]
    new_tasks = [t for t in missing_tasks if t not in running_tasks]
    started_tasks = [*running_tasks, *new_tasks[: max(limit - reserved - len(running_tasks), 0)]]
    for t in started_tasks:
        warmups[t].append(plan.target[t])
    budget = limit - len(started_tasks)
    for t in sorted(plan.waiting):
        if budget > 0 and plan.target[t] not in standbys[t] and board.rank_without_copy[t] > 0:
            warmups[t].append(plan.target[t])
            budget -= 1
    return warmups


def _choose_standbys(board: Board, task: int, plan: OwnerPlan, copies: Copies, settings: AssignSettings) -> list[int]:
    """Return the standbys of a task from now on: the most caught-up members besides the owner. Among members with equal
    lags, those of the target are first, then present standbys.

    Pointers are placed at the target at once. A member that warms up to become owner is not a standby then.
    """
    if not copies.standbys[task]:
        return []
    owner = plan.owners[task]
    goal = plan.target[task]
    should = copies.standbys[task]
    without = {owner, goal} if settings.points and (task in plan.warm or task in plan.waiting) else {owner}
    if owner == goal and all(board.live[m] and (settings.points or board.rank(task, m) == 0) for m in should):
        return sorted(should)
    near = {*should, goal, *board.standbys[task], *board.warmups[task], *board.copy_ranks[task]}
    least_loaded = _least_loaded(task, plan, copies, near)
    able = [m for m in (*near, *least_loaded) if m not in without and board.may_own[m]]
    present: Sequence[int] = board.standbys[task]
    order = sorted(
        set(able),
        key=lambda m: (board.rank(task, m), m != goal, m not in should, m not in present, copies.load[m], m),
    )
    return sorted(_take_allowed(task, plan, copies, order))


def _least_loaded(task: int, plan: OwnerPlan, copies: Copies, members: Collection[int]) -> list[int]:
    """Return the least loaded members that are not in ``members``.

    Return none if ``members``, the members with copies, suffice for the standbys.
    """
    may_own = copies.board.may_own
    count = len(copies.standbys[task])
    able = sum(1 for m in members if m != plan.owners[task] and may_own[m])
    if able >= count:
        return []
    other_members = [m for m, may in enumerate(may_own) if may and m not in members]
    return sorted(other_members, key=lambda m: (copies.load[m], m))[:count]


def _take_allowed(task: int, plan: OwnerPlan, copies: Copies, members: Sequence[int]) -> list[int]:
    """Return the first of ``members`` as standbys of a task, as many as it should have.

    Members that forced awareness excludes are skipped.
    """
    chosen_members: list[int] = []
    for m in members:
        if len(chosen_members) < len(copies.standbys[task]) and copies.spread.may_join(
            m, [plan.owners[task], *chosen_members]
        ):
            chosen_members.append(m)
    return chosen_members
