"""The sticky and the plain hash assignor. Knows the consumer assignor's steps, and copies. Does not know warm-ups."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from riffle_spark.assign.board import NOBODY, WITH_STATE, WITHOUT_STATE, Board, board_of
from riffle_spark.assign.explain import Placement, assignment_of
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.owner_target import owner_target
from riffle_spark.assign.racks import racks_count, save_traffic
from riffle_spark.assign.standby_moves import StandbyPlan
from riffle_spark.assign.standby_target import standby_target

__all__ = ["hash_assignor", "sticky_assignor"]

_NOT_HEEDED = ("rebalance_enable", "moves_at_once", "goals", "hard_goals", "user_cost")


def sticky_assignor(view: View, settings: AssignSettings) -> Assignment:
    """Give a member that is back what it owned, keep every other owner that may stay, place the rest where copies are,
    then level: nobody waits for a copy. Pins are obeyed at once.

    These are the steps of Kafka's StickyAssignor, with copies on disk for what it knows of earlier members. With a rack
    strategy the cost of not overlapping is counted against the previous owner.
    """
    board = board_of(view, (*WITH_STATE, *WITHOUT_STATE), settings)
    if racks_count(view, settings):
        owners = owner_target(board, settings, racks=True)
    else:
        owners = _levelled(board)
    return _placed(view, board, _on_live(board, owners), settings)


def hash_assignor(view: View, settings: AssignSettings) -> Assignment:
    """Place each task by a hash of its name over the slots: needs no history, and spares none. Pins go before."""
    board = board_of(view, (*WITH_STATE, *WITHOUT_STATE), settings)
    ring = [m for m, slots in enumerate(board.slots) for _ in range(slots) if board.may_own[m]]
    hashed = [ring[crc32(str(task.id).encode()) % len(ring)] for task in board.tasks]
    owners = [m if pin == NOBODY else pin for m, pin in zip(hashed, board.pins, strict=True)]
    return _placed(view, board, owners, settings)


def _levelled(board: Board) -> list[int]:
    able = [m for m, may in enumerate(board.may_own) if may]
    slots = [max(count, 1) for count in board.slots]
    owners = [_prior(board, t, able) for t in range(len(board.tasks))]
    pinned, free = Counter(board.pins), [t for t, pin in enumerate(board.pins) if pin == NOBODY]
    held: dict[int, list[int]] = {m: [t for t in free if owners[t] == m] for m in able}
    fair = len(owners) / sum(slots[m] for m in able)

    def load(m: int, more: int = 0) -> float:
        return (len(held[m]) + pinned[m] + more) / slots[m]

    for t in free:
        if owners[t] == NOBODY:
            full = {m: load(m) >= fair for m in able}
            held[min(able, key=lambda m: (full[m], board.rank(t, m), load(m), m))].append(t)
    for _ in free:
        giver = max(able, key=lambda m: (bool(held[m]), load(m), -m))
        taker = min(able, key=lambda m: (load(m, 1), m))
        if load(taker, 1) >= load(giver) or not held[giver]:
            break
        task = min(held[giver], key=lambda t: (board.rank(t, taker), t))
        held[giver].remove(task)
        held[taker].append(task)
    placed = {t: m for m, tasks in held.items() for t in tasks}
    return [placed.get(t, pin) for t, pin in enumerate(board.pins)]


def _prior(board: Board, task: int, able: Sequence[int]) -> int:
    """Return the member that the task was taken from if it is back with its copy, else the owner that it has."""
    incumbent, owner = board.incumbents[task], board.owners[task]
    if incumbent in able and incumbent in board.ranks[task]:
        return incumbent
    return owner if owner in able else NOBODY


def _on_live(board: Board, owners: list[int]) -> list[int]:
    first = board.may_own.index(True)
    return [owner if board.live[owner] else max(board.owners[t], first) for t, owner in enumerate(owners)]


def _placed(view: View, board: Board, owners: list[int], settings: AssignSettings) -> Assignment:
    racks = racks_count(view, settings)
    plan = OwnerPlan(owners, owners, [], frozenset(), frozenset())
    copies = standby_target(board, plan, settings, racks=racks)
    if racks:
        save_traffic(copies, settings)
    kept = StandbyPlan(copies.standbys, [()] * len(copies.standbys), [])
    found = assignment_of(view, Placement(board, plan, copies, kept, board_of(view, (), settings), []), settings)
    usual = AssignSettings()
    idle = [name for name in _NOT_HEEDED if getattr(settings, name) != getattr(usual, name)]
    told = (f"the assignor {settings.assignor} does not heed these settings: {', '.join(idle)}",) if idle else ()
    return replace(found, warnings=(*found.warnings, *told))
