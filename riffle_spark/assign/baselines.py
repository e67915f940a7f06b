"""The assignors ``sticky`` and ``hash``, without warm-ups."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from riffle_spark.assign.board import NOBODY, WITH_STATE, WITHOUT_STATE, Board, board_of
from riffle_spark.assign.explain import Placement, assignment_of
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.owner_target import owner_target
from riffle_spark.assign.racks import have_racks_effect, reduce_rack_traffic
from riffle_spark.assign.standby_moves import StandbyPlan
from riffle_spark.assign.standby_target import standby_target

_IGNORED = ("rebalance_enable", "moves_at_once", "goals", "hard_goals", "user_cost")


def sticky_assignor(view: View, settings: AssignSettings) -> Assignment:
    """Return an assignment by the steps of Kafka's StickyAssignor. Tasks move at once, without warming up copies first.

    1. A member that is back with its copies gets the tasks that it owned.
    2. Every other owner that may stay keeps its tasks.
    3. A task without an owner moves to a member with a copy.
    4. Tasks move until the members are level. Pins are obeyed at once.

    With a rack strategy the min-cost flow of ``owner_target`` replaces the steps. Its non-overlap cost then counts
    against the present owner.
    """
    board = board_of(view, (*WITH_STATE, *WITHOUT_STATE), settings)
    if have_racks_effect(view, settings):
        owners = owner_target(board, settings, racks=True)
    else:
        owners = _choose_sticky_owners(board)
    return _make_assignment(view, board, _replace_lost_owners(board, owners), settings)


def hash_assignor(view: View, settings: AssignSettings) -> Assignment:
    """Place each task on the member slot that the hash of its name selects, except pinned tasks.

    Many tasks move when a member joins or leaves.
    """
    board = board_of(view, (*WITH_STATE, *WITHOUT_STATE), settings)
    ring = [m for m, slots in enumerate(board.slots) for _ in range(slots) if board.may_own[m]]
    hashed = [ring[crc32(str(task.id).encode()) % len(ring)] for task in board.tasks]
    owners = [m if pin == NOBODY else pin for m, pin in zip(hashed, board.pins, strict=True)]
    return _make_assignment(view, board, owners, settings)


def _choose_sticky_owners(board: Board) -> list[int]:
    """Return the owner of each task, by position, as ``sticky_assignor`` chooses owners."""
    eligible_members = [m for m, may in enumerate(board.may_own) if may]
    slots = [max(count, 1) for count in board.slots]
    owners = [_find_sticky_owner(board, t, eligible_members) for t in range(len(board.tasks))]
    pinned = Counter(board.pins)
    free = [t for t, pin in enumerate(board.pins) if pin == NOBODY]
    held_tasks: dict[int, list[int]] = {m: [t for t in free if owners[t] == m] for m in eligible_members}
    fair = len(owners) / sum(slots[m] for m in eligible_members)

    def load(m: int, extra: int = 0) -> float:
        return (len(held_tasks[m]) + pinned[m] + extra) / slots[m]

    for t in free:
        if owners[t] == NOBODY:
            full = {m: load(m) >= fair for m in eligible_members}
            held_tasks[min(eligible_members, key=lambda m: (full[m], board.rank(t, m), load(m), m))].append(t)
    for _ in free:
        giver = max(eligible_members, key=lambda m: (bool(held_tasks[m]), load(m), -m))
        taker = min(eligible_members, key=lambda m: (load(m, 1), m))
        if load(taker, 1) >= load(giver) or not held_tasks[giver]:
            break
        task = min(held_tasks[giver], key=lambda t: (board.rank(t, taker), t))
        held_tasks[giver].remove(task)
        held_tasks[taker].append(task)
    owner_of_task = {t: m for m, tasks in held_tasks.items() for t in tasks}
    return [owner_of_task.get(t, pin) for t, pin in enumerate(board.pins)]


def _find_sticky_owner(board: Board, task: int, eligible_members: Sequence[int]) -> int:
    """Return the task's prior owner if that member is live and has a copy, else the present owner.

    Return ``NOBODY`` if that member is not in ``eligible_members``.
    """
    incumbent = board.incumbents[task]
    owner = board.owners[task]
    if incumbent in eligible_members and incumbent in board.copy_ranks[task]:
        return incumbent
    return owner if owner in eligible_members else NOBODY


def _replace_lost_owners(board: Board, owners: list[int]) -> list[int]:
    """Return ``owners`` with a live member in place of each member that is not live: the task's present owner, or the
    first live member.
    """
    first = board.may_own.index(True)
    return [owner if board.live[owner] else max(board.owners[t], first) for t, owner in enumerate(owners)]


def _make_assignment(view: View, board: Board, owners: list[int], settings: AssignSettings) -> Assignment:
    """Return the assignment for these owners (by position), with standbys.

    A warning names the settings that the assignor ignores.
    """
    racks = have_racks_effect(view, settings)
    plan = OwnerPlan(owners, owners, [], frozenset(), frozenset())
    copies = standby_target(board, plan, settings, racks=racks)
    if racks:
        reduce_rack_traffic(copies, settings)
    standbys = StandbyPlan(copies.standbys, [()] * len(copies.standbys), [])
    assignment = assignment_of(
        view, Placement(board, plan, copies, standbys, board_of(view, (), settings), []), settings
    )
    defaults = AssignSettings()
    ignored_settings = [name for name in _IGNORED if getattr(settings, name) != getattr(defaults, name)]
    if not ignored_settings:
        return assignment
    # Cause: The assignors sticky and hash follow only their own steps.
    warning = (
        f"[RIFFLE-0775] The assignor {settings.assignor} ignores these settings: {', '.join(ignored_settings)}. "
        f"What to do: Use assignor = high_availability, or remove these settings."
    )
    return replace(assignment, warnings=(*assignment.warnings, warning))
