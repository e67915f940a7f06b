"""The default assignor, ``high_availability``: owners move only to copies that have caught up.

Theory of operation. It follows KIP-441 (warm-ups) and KIP-925 (racks), in these steps:

1. ``owner_target``: the best owners if every copy had caught up. ``Goals`` adjusts it to the user's goals.
2. ``plan_owners``: the owners from now on, and the targets that warm up.
3. ``standby_target`` and ``plan_standbys``: the same for standbys.
4. Tasks without state fill the remaining capacity.

Each call moves the present assignment closer to the target. While the result waits for warm-ups it sets
``needs_probe``, so that the caller assigns again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from riffle_spark.assign.board import NOBODY, WITH_STATE, WITHOUT_STATE, Board, board_of
from riffle_spark.assign.explain import Placement, assignment_of
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.assign.owner_goals import Goals
from riffle_spark.assign.owner_moves import OwnerPlan, plan_owners
from riffle_spark.assign.owner_target import owner_target
from riffle_spark.assign.racks import have_racks_effect, reduce_rack_traffic
from riffle_spark.assign.standby_moves import plan_standbys
from riffle_spark.assign.standby_target import standby_target


def high_availability(view: View, settings: AssignSettings) -> Assignment:
    """Return the assignment of the default assignor (KIP-441 and KIP-925) for this view."""
    requested_settings = settings
    settings = _limit_moves(view, settings)
    racks = have_racks_effect(view, settings)
    board = board_of(view, WITH_STATE, settings)
    goals = Goals(board, settings, racks=racks)
    best_target = goals.improve(owner_target(board, settings, racks=racks))
    # Owners that must not move get no target elsewhere, so that nothing warms up in vain.
    owners_stay = goals.missed or requested_settings.moves_at_once == 0
    target_settings = replace(settings, rebalance_enable="none") if owners_stay else settings
    target = _choose_target(board, best_target, target_settings)
    plan = plan_owners(board, target, settings)
    if settings is not requested_settings:
        plan = _plan_in_one_rebalance(board, target, requested_settings) or plan
    copies = standby_target(board, plan, settings, racks=racks)
    if racks and settings.rebalance_enable in ("all", "standbys"):
        reduce_rack_traffic(copies, settings)
    standbys = plan_standbys(board, plan, copies, settings)
    stateful_counts = Counter(plan.target)
    other_task_counts = tuple(stateful_counts[m] for m in range(len(board.members)))
    stateless = replace(board_of(view, WITHOUT_STATE, settings), other_task_counts=other_task_counts)
    owners = _place_stateless(stateless, settings, racks=racks)
    return assignment_of(view, Placement(board, plan, copies, standbys, stateless, owners, goals), settings)


def _limit_moves(view: View, settings: AssignSettings) -> AssignSettings:
    """Return settings that place only tasks without an owner, if there are such tasks and ``allow_rebalance`` is not
    ``always``. Return the settings unchanged otherwise.
    """
    live = {member.id for member in view.members} | {member.id for member in view.awaited}
    owned = sum(view.owners.get(task.id) in live for task in view.tasks)
    if settings.allow_rebalance == "all_owned" and 0 < owned < len(view.tasks):
        return replace(settings, moves_at_once=0, max_warmup_replicas=0)
    return settings


def _plan_in_one_rebalance(board: Board, target: Sequence[int], settings: AssignSettings) -> OwnerPlan | None:
    """Return a plan that reaches the target in one rebalance, because standbys in sync take over; ``None`` if that is
    impossible.
    """
    plan = plan_owners(board, target, replace(settings, max_warmup_replicas=0))
    moved_tasks = [t for t, m in enumerate(plan.owners) if board.owners[t] not in (NOBODY, m)]
    in_sync = all(plan.owners[t] in board.standbys[t] and board.rank(t, plan.owners[t]) == 0 for t in moved_tasks)
    return plan if in_sync and plan.owners == list(target) == plan.target else None


def _choose_target(board: Board, target: list[int], settings: AssignSettings) -> list[int]:
    """Return ``target``, or the present owners if the settings forbid moving owners."""
    if settings.rebalance_enable in ("all", "owners"):
        return target
    return [
        incumbent if incumbent >= 0 and board.placeable[incumbent] and board.pins[t] < 0 else target[t]
        for t, incumbent in enumerate(board.incumbents)
    ]


def _place_stateless(board: Board, settings: AssignSettings, *, racks: bool) -> list[int]:
    """Return the owner of each task without state.

    They are placed around the target of the stateful tasks, without warm-ups.
    """
    if not board.tasks:
        return []
    free = replace(settings, rack_aware_assignment_traffic_cost=1, rack_aware_assignment_non_overlap_cost=0)
    target = _choose_target(board, owner_target(board, free, racks=racks), settings)
    substitute = board.may_own.index(True)
    return [m if board.live[m] else max(board.owners[t], substitute) for t, m in enumerate(target)]
