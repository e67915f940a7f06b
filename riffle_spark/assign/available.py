"""The high availability assignor: KIP-441 with a target that respects owners. Knows the order of its five steps.

1 target of the owners, 2 their way there, 3 standbys and theirs, 4 tasks without state, 5 what to tell. Does not know
how a step is done, nor any other assignor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from riffle_spark.assign.board import Board, board_of
from riffle_spark.assign.explain import Decided, told
from riffle_spark.assign.follow import plan_standbys
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.assign.racks import racks_count
from riffle_spark.assign.standby import standby_target
from riffle_spark.assign.steps import OwnerPlan, plan_owners
from riffle_spark.assign.swaps import cheaper
from riffle_spark.assign.target import owner_target

__all__ = ["high_availability"]


def high_availability(view: View, settings: AssignSettings) -> Assignment:
    """Return the assignment of KIP-441 and KIP-925 for this view."""
    settings = _allowed_moves(view, settings)
    racks = racks_count(view.members, view.tasks, settings)
    board = board_of(view, [task for task in view.tasks if task.kind != "stateless"], settings)
    target = owner_target(board, np.zeros(len(board.members), np.int64), settings, racks=racks)
    plan = plan_owners(board, _only_if(settings, board, target), settings)
    copies = standby_target(board, plan.target, settings, racks=racks)
    if racks and settings.rebalance_enable in ("all", "standbys"):
        cheaper(copies, settings)
    standbys, warmups, unsettled = plan_standbys(board, plan, copies, settings)
    stateless = board_of(view, [task for task in view.tasks if task.kind == "stateless"], settings)
    placed = _place_stateless(stateless, board, plan, settings, racks=racks)
    return told(view, settings, Decided(board, plan, copies, standbys, warmups, unsettled, stateless, placed), [])


def _allowed_moves(view: View, settings: AssignSettings) -> AssignSettings:
    """Only place what has no owner while there is any such task, unless the settings allow more always."""
    live = {member.id for member in view.members} | {member.id for member in view.awaited}
    owned = sum(view.owners.get(task.id) in live for task in view.tasks)
    if settings.allow_rebalance == "all_owned" and 0 < owned < len(view.tasks):
        return replace(settings, moves_at_once=0, max_warmup_replicas=0)
    return settings


def _only_if(settings: AssignSettings, board: Board, target: list[int]) -> list[int]:
    """Keep every task that has an owner where it is if owners are not to be rebalanced."""
    if settings.rebalance_enable in ("all", "owners"):
        return target
    return [
        home if home >= 0 and board.placeable[home] and board.pins[t] < 0 else target[t]
        for t, home in enumerate(board.homes)
    ]


def _place_stateless(
    stateless: Board, board: Board, plan: OwnerPlan, settings: AssignSettings, *, racks: bool
) -> list[int]:
    """Place the tasks without state around the others' target; nothing needs to warm up."""
    if not stateless.tasks:
        return []
    base = np.bincount(np.array(plan.target, np.int64), minlength=len(board.members)).astype(np.int64)
    free = replace(settings, rack_aware_assignment_traffic_cost=1, rack_aware_assignment_non_overlap_cost=0)
    target = owner_target(stateless, base, free, racks=racks)
    target = _only_if(settings, stateless, target)
    stand_in = next(m for m, (live, may) in enumerate(zip(board.live, board.placeable, strict=True)) if live and may)
    return [m if board.live[m] else max(stateless.owners[t], stand_in) for t, m in enumerate(target)]
