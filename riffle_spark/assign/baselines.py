"""The sticky and the plain hash assignor. Knows the consumer assignor's steps, and copies. Does not know warm-ups."""

from collections.abc import Sequence
from zlib import crc32

from riffle_spark.assign.board import NOBODY, WITH_STATE, WITHOUT_STATE, Board, board_of
from riffle_spark.assign.explain import Placement, assignment_of
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.owner_target import owner_target
from riffle_spark.assign.racks import racks_count
from riffle_spark.assign.standby_moves import StandbyPlan
from riffle_spark.assign.standby_racks import save_traffic
from riffle_spark.assign.standby_target import standby_target

__all__ = ["hash_assignor", "sticky_assignor"]


def sticky_assignor(view: View, settings: AssignSettings) -> Assignment:
    """Give a member that is back what it owned, keep every other owner that may stay, place the rest where copies are,
    then level: nobody waits for a copy.

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
    """Place each task by a hash of its name over the slots: needs no history, and spares none."""
    board = board_of(view, (*WITH_STATE, *WITHOUT_STATE), settings)
    ring = [m for m, slots in enumerate(board.slots) for _ in range(slots) if board.may_own[m]]
    owners = [ring[crc32(str(task.id).encode()) % len(ring)] for task in board.tasks]
    return _placed(view, board, owners, settings)


def _levelled(board: Board) -> list[int]:
    able = [m for m, may in enumerate(board.may_own) if may]
    slots = [max(count, 1) for count in board.slots]
    owners = [_prior(board, t, able) for t in range(len(board.tasks))]
    fair = len(owners) / sum(slots[m] for m in able)
    held: dict[int, list[int]] = {m: [t for t, owner in enumerate(owners) if owner == m] for m in able}
    for t, owner in enumerate(owners):
        if owner == NOBODY:
            full = {m: len(held[m]) >= fair * slots[m] for m in able}
            held[min(able, key=lambda m: (full[m], board.rank(t, m), len(held[m]) / slots[m], m))].append(t)
    for _ in board.tasks:
        giver = max(able, key=lambda m: (len(held[m]) / slots[m], -m))
        taker = min(able, key=lambda m: ((len(held[m]) + 1) / slots[m], m))
        if (len(held[taker]) + 1) / slots[taker] >= len(held[giver]) / slots[giver]:
            break
        task = min(held[giver], key=lambda t: (board.rank(t, taker), t))
        held[giver].remove(task)
        held[taker].append(task)
    placed = {t: m for m, tasks in held.items() for t in tasks}
    return [placed[t] for t in range(len(owners))]


def _prior(board: Board, task: int, able: Sequence[int]) -> int:
    """Return the member that the task was taken from if it is back with its copy, else the owner that it has."""
    home, owner = board.homes[task], board.owners[task]
    if home in able and home in board.ranks[task]:
        return home
    return owner if owner in able else NOBODY


def _on_live(board: Board, owners: list[int]) -> list[int]:
    first = board.may_own.index(True)
    return [owner if board.live[owner] else max(board.owners[t], first) for t, owner in enumerate(owners)]


def _placed(view: View, board: Board, owners: list[int], settings: AssignSettings) -> Assignment:
    racks = racks_count(view, settings)
    plan = OwnerPlan(owners, owners, [], frozenset(), frozenset())
    copies = standby_target(board, owners, settings, racks=racks)
    if racks:
        save_traffic(copies, settings)
    standbys = [[m for m in held if board.live[m]] for held in copies.standbys]
    kept = StandbyPlan(standbys, [()] * len(standbys), [])
    return assignment_of(view, Placement(board, plan, copies, kept, board_of(view, (), settings), []), settings)
