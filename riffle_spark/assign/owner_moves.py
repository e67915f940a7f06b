"""Move owners step by step from the present to the target.

Theory of operation (KIP-441). A task moves to its target as soon as the target is among the most caught-up members.
Until then a caught-up member keeps it, the present owner first, and the target warms up. Four rules keep the moves
smooth:

1. The load per slot never spreads wider than it was. Moves that only exchange tasks between equally loaded members are
   made together.
2. Running warm-ups with an unchanged target continue. Then new warm-ups start, the most levelling first.
3. An exchange longer than ``max_warmup_replicas`` starts only if the copies that are ready first can be kept as
   standbys. Otherwise only its requested moves (pins, drains and filters) are made, because it could never be
   completed.
4. A target that is less level than the present is not approached.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_weights import has_weights


@dataclass(frozen=True, slots=True)
class OwnerPlan:
    """The owners from now on, the target as far as it can be reached, and the tasks (``warm``) whose target member
    warms up a copy.

    ``forced`` tasks had to move at once. ``waiting`` tasks have a ready copy at their target but wait for other moves.
    """

    owners: list[int]
    target: list[int]
    warm: list[int]
    forced: frozenset[int]
    waiting: frozenset[int]


class OwnerMove(NamedTuple):
    """A move of a task's ownership by positions: the task, the member that gives it up, the member that takes it, and
    how far the taker's copy is from caught up.
    """

    task: int
    giver: int
    taker: int
    rank: int = 0


def plan_owners(board: Board, target: Sequence[int], settings: AssignSettings) -> OwnerPlan:
    """Plan the moves from the present owners to ``target``: the next owner of each task, and the tasks that warm up."""
    owners, ready, pending = _sort_moves(board, target)
    forced = [t for t, owner in enumerate(owners) if owner != board.owners[t]]
    reachable = [goal if board.live[goal] else owner for goal, owner in zip(target, owners, strict=True)]
    loads = Loads(board, owners, reachable if _is_not_only_balance(board, settings) else ())
    made_moves = _make_requested_moves(loads, ready, settings)
    made_moves += _make_smooth_moves(loads, [move for move in ready if move not in made_moves], settings)
    for move in made_moves:
        owners[move.task] = move.taker
    applied_moves = set(made_moves)
    ready = [move for move in ready if move not in applied_moves]
    kept_copies = 0 if settings.copies_may_stay else sum(board.rank_without_copy[move.task] > 0 for move in ready)
    warm, stuck = _choose_tasks_to_warm(loads, ready, pending, settings, kept_copies)
    reached = list(target)
    if stuck and not made_moves:
        moves = (*ready, *pending)
        requested = {move for move in moves if settings.moves_at_once != 0 and loads.is_requested(move)}
        owners = _replace_by_task(owners, {move.task: move.taker for move in requested.intersection(ready)})
        reached = _replace_by_task(reached, {move.task: owners[move.task] for move in moves if move not in requested})
        warm = sorted(move.task for move in requested.difference(ready))[: settings.max_warmup_replicas]
        ready = []
    return OwnerPlan(owners, reached, warm, frozenset(forced), frozenset(move.task for move in ready))


def _replace_by_task(members: Sequence[int], changes: Mapping[int, int]) -> list[int]:
    """Return ``members``, one for each task, with those of the tasks in ``changes`` replaced."""
    return [changes.get(t, member) for t, member in enumerate(members)]


def _is_not_only_balance(board: Board, settings: AssignSettings) -> bool:
    """Return whether the target may differ from the present owners for another reason than balance: a request, a
    return, a user's rule, or room.
    """
    drained = any(owner != NOBODY and not board.placeable[owner] for owner in board.owners)
    pinned = any(pin != NOBODY for pin in board.pins) or board.incumbents != board.owners
    small = bool(board.quarantined) or any(member.memory_bytes is not None for member in board.members)
    return drained or pinned or small or _may_unbalance(settings)


def _may_unbalance(settings: AssignSettings) -> bool:
    """Return whether settings may ask for a target that is less level than the present: a user's cost, goals, or a
    store balance of 0 (default 0.55).

    ``include`` and ``exclude`` do not count: they are in ``board.placeable``, which the caller checks.
    """
    return settings.user_cost is not None or bool(settings.goals) or settings.store_balance == 0


def _sort_moves(board: Board, target: Sequence[int]) -> tuple[list[int], list[OwnerMove], list[OwnerMove]]:
    """Return the owners after the moves that cannot wait, the moves whose taker has caught up, and the moves whose
    taker has yet to catch up.
    """
    lowest = [_lowest_rank(board, t) for t in range(len(target))]
    owners = [_owner_at_once(board, t, member, lowest) for t, member in enumerate(target)]
    _add_substitutes(board, owners, lowest)
    ready = []
    pending = []
    for t, member in enumerate(target):
        owner = owners[t]
        if owner == member or not board.live[member]:
            continue
        if owner == board.owners[t] and board.rank(t, member) <= lowest[t]:
            ready.append(OwnerMove(t, owner, member))
        else:
            pending.append(OwnerMove(t, owner, member, board.rank(t, member)))
    return owners, ready, pending


def _owner_at_once(board: Board, task: int, member: int, lowest: Sequence[int]) -> int:
    """Return the member that owns the task from now on: the present owner if its copy is among the most caught up, else
    ``member`` (the target) if its copy is, else ``NOBODY``. ``lowest`` has the best rank of each task.
    """
    owner = board.owners[task]
    if owner != NOBODY and board.rank(task, owner) <= lowest[task]:
        return owner
    return member if board.live[member] and board.rank(task, member) <= lowest[task] else NOBODY


def _add_substitutes(board: Board, owners: list[int], lowest: Sequence[int]) -> None:
    """Give every task without an owner to a most caught-up member until its target can own it. Changes ``owners``.

    Standbys are first, then the members with the lowest load, so that all members share the fetching.
    """
    slots = [max(count, 1) for count in board.slots]
    load = [0] * len(board.members)
    for owner in owners:
        if owner != NOBODY:
            load[owner] += 1
    for t, owner in enumerate(owners):
        if owner == NOBODY:
            may = [m for m in range(len(board.members)) if board.live[m] and board.rank(t, m) <= lowest[t]]
            candidates = [m for m in may if board.placeable[m]] or may
            substitute = min(candidates, key=lambda m: (m not in board.standbys[t], load[m] / slots[m], m))
            owners[t] = substitute
            load[substitute] += 1


def _lowest_rank(board: Board, task: int) -> int:
    """Return the rank of the most caught-up member that may own the task now."""
    owner = board.owners[task]
    ranks = board.copy_ranks[task]
    if ranks.get(owner, 1) == 0:
        return 0
    eligible_ranks = [rank for m, rank in ranks.items() if board.live[m] and (board.placeable[m] or m == owner)]
    eligible_count = board.may_own_count + (owner != NOBODY and not board.placeable[owner])
    return (
        min([*eligible_ranks, board.rank_without_copy[task]])
        if len(eligible_ranks) < eligible_count
        else min(eligible_ranks)
    )


def _make_requested_moves(loads: "Loads", ready: Sequence[OwnerMove], settings: AssignSettings) -> list[OwnerMove]:
    """Apply the ready moves of pins and drains to ``loads``, and return them. ``moves_at_once`` does not limit them."""
    if not settings.moves_at_once:
        return []
    requested = [move for move in ready if loads.is_requested(move)]
    return _make_smooth_moves(loads, requested, replace(settings, moves_at_once=None))


def _make_smooth_moves(loads: "Loads", ready: Sequence[OwnerMove], settings: AssignSettings) -> list[OwnerMove]:
    """Apply the ready moves that leave every member within its bounds, all at once if possible. Return them."""
    limit = settings.moves_at_once
    if (limit is None or len(ready) <= limit) and loads.are_smooth(ready):
        loads.apply_moves(ready)
        return list(ready)
    waiting_moves = WaitingMoves(ready)
    made_moves: list[OwnerMove] = []
    while waiting_moves.remaining_moves() and (limit is None or len(made_moves) < limit):
        move = waiting_moves.best_smooth_move(loads)
        moves = [move] if move is not None else find_shortest_cycle(waiting_moves.remaining_moves(), [])
        if not moves or (limit is not None and made_moves and len(made_moves) + len(moves) > limit):
            break
        loads.apply_moves(moves)
        waiting_moves.drop(moves)
        made_moves += moves
    return made_moves


def _choose_tasks_to_warm(
    loads: "Loads", ready: Sequence[OwnerMove], pending: Sequence[OwnerMove], settings: AssignSettings, kept_copies: int
) -> tuple[list[int], bool]:
    """Return the tasks whose target member warms up now, and whether no remaining move can ever be completed.

    Running warm-ups have precedence over new warm-ups that level more. ``kept_copies`` counts the copies of ready moves
    that are not standbys.
    """
    running = [move for move in pending if loads.warms_up(move)]
    budget = settings.max_warmup_replicas - kept_copies
    chosen_tasks, ready = _choose_warmups(loads, ready, running, budget) if running else ([], list(ready))
    other_moves = [move for move in pending if move.task not in chosen_tasks]
    added_tasks, ready = _choose_warmups(loads, ready, other_moves, budget - len(chosen_tasks))
    chosen_tasks += added_tasks
    remaining = [move for move in other_moves if move.task not in added_tasks]
    if chosen_tasks or not (remaining or ready) or settings.max_warmup_replicas == 0:
        return chosen_tasks, False
    cycle = find_shortest_cycle(ready, remaining) if settings.copies_may_stay else []
    started_tasks = [move.task for move in cycle if move not in ready]
    return started_tasks[: settings.max_warmup_replicas], not started_tasks


def _choose_warmups(
    loads: "Loads", ready: Sequence[OwnerMove], pending: Sequence[OwnerMove], budget: int
) -> tuple[list[int], list[OwnerMove]]:
    """Choose at most ``budget`` pending moves that are smooth or close a cycle of moves.

    Return their tasks, and the ready moves that remain.
    """
    waiting_moves = WaitingMoves(pending)
    chosen_tasks: list[int] = []
    ready = list(ready)
    while len(chosen_tasks) < budget:
        move = waiting_moves.best_smooth_move(loads)
        moves = [move] if move is not None else find_shortest_cycle(ready, waiting_moves.remaining_moves())
        new_tasks = [move.task for move in moves if move not in ready]
        if not moves or len(chosen_tasks) + len(new_tasks) > budget:
            break
        loads.apply_moves(moves)
        waiting_moves.drop(moves)
        chosen_tasks += new_tasks
        ready = [move for move in ready if move not in moves]
    return chosen_tasks, ready


class Loads:
    """The number of owned tasks per member and slot while moves are tried.

    A set of moves is *smooth* if each member stays within the loads at the start, or within those of ``target``, a
    target that must be reached.
    """

    def __init__(self, board: Board, owners: Sequence[int], target: Sequence[int] = ()) -> None:
        """Count the tasks of these ``owners``, one member position per task, and set the bounds of smooth moves."""
        self._slots = np.maximum(np.array(board.slots, np.int64), 1)
        owned = np.array([owner for owner in owners if owner != NOBODY], np.int64)
        self._counts = np.bincount(owned, minlength=len(self._slots)).astype(np.int64)
        self._may_own = np.array(board.may_own)
        self._pins = board.pins
        self._placeable = board.placeable
        self._warmups = board.warmups
        counts = [self._counts]
        if target:
            counts.append(np.bincount(np.array(target, np.int64), minlength=len(self._slots)))
        ratios = np.concatenate([(owned / self._slots)[self._may_own] for owned in counts])
        bounded = len(ratios) > 0 and not has_weights(board)
        self._low: float = ratios.min() if bounded else -np.inf
        self._high: float = ratios.max() if bounded else np.inf

    def are_smooth(self, moves: Sequence[OwnerMove]) -> bool:
        """Return whether the moves, made together, leave every member within its bounds."""
        ratios = (self._counts + self._count_changes(moves)) / self._slots
        return bool((ratios <= self._high).all() and (ratios >= self._low)[self._may_own].all())

    def is_requested(self, move: OwnerMove) -> bool:
        """Return whether an operator's pin or drain is the reason of a move."""
        return self._pins[move.task] != NOBODY or not self._placeable[move.giver]

    def warms_up(self, move: OwnerMove) -> bool:
        """Return whether the member that takes the task already warms up a copy of it."""
        return move.taker in self._warmups[move.task]

    def _count_changes(self, moves: Sequence[OwnerMove]) -> npt.NDArray[np.int64]:
        """Return by how much the moves change the number of owned tasks of each member."""
        size = len(self._slots)
        given_away = np.bincount(np.array([move.giver for move in moves], np.int64), minlength=size)
        received = np.bincount(np.array([move.taker for move in moves], np.int64), minlength=size)
        return (received - given_away).astype(np.int64)

    def apply_moves(self, moves: Sequence[OwnerMove]) -> None:
        """Change the loads as if the moves were made."""
        self._counts += self._count_changes(moves)

    def givers_and_takers(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        """Return a mask of the members that may give a task away, a mask of those that may take one, and the owned
        tasks per slot of each member.
        """
        may_give = ~self._may_own | ((self._counts - 1) / self._slots >= self._low)
        may_take = ~self._may_own | ((self._counts + 1) / self._slots <= self._high)
        return may_give, may_take, self._counts / self._slots


class WaitingMoves:
    """Waiting moves as arrays, so that all are compared at once."""

    def __init__(self, moves: Sequence[OwnerMove]) -> None:
        self._moves = sorted(moves)
        table = np.array(self._moves, object).reshape(len(self._moves), 4)
        self._giver = table[:, 1].astype(np.int64)
        self._taker = table[:, 2].astype(np.int64)
        self._rank = table[:, 3].astype(np.float64)
        self._open = np.ones(len(self._moves), bool)

    def remaining_moves(self) -> list[OwnerMove]:
        """Return the moves that were not dropped, by task."""
        return [self._moves[number] for number in np.flatnonzero(self._open)]

    def drop(self, moves: Sequence[OwnerMove]) -> None:
        """Remove these moves. Unknown moves are ignored."""
        dropped_moves = set(moves)
        for number in np.flatnonzero(self._open):
            if self._moves[number] in dropped_moves:
                self._open[number] = False

    def best_smooth_move(self, loads: Loads) -> OwnerMove | None:
        """Return the smooth move that levels most, or ``None``.

        If several moves level equally, it is the move closest to caught up, then the first by task.
        """
        may_give, may_take, ratio = loads.givers_and_takers()
        smooth = np.flatnonzero(self._open & may_give[self._giver] & may_take[self._taker])
        if not len(smooth):
            return None
        gain = ratio[self._giver[smooth]] - ratio[self._taker[smooth]]
        best = smooth[gain == gain.max()]
        number: int = best[self._rank[best].argmin()]
        return self._moves[number]


Exits = dict[int, dict[int, tuple[int, OwnerMove]]]
"""By giver and taker, the cost of a move in warm-ups (0 if it is ready) and the move."""


def find_shortest_cycle(ready: Sequence[OwnerMove], pending: Sequence[OwnerMove]) -> list[OwnerMove]:
    """Return a cycle of moves, giver to taker, with the fewest pending moves; empty if there is none."""
    exits: Exits = {}
    for price, moves in ((1, pending), (0, ready)):
        for move in sorted(moves, reverse=True):
            exits.setdefault(move.giver, {})[move.taker] = (price, move)
    best: list[OwnerMove] = []
    lowest = len(pending) + 1
    for member in sorted(exits):
        cycle = _find_cycle_through(exits, member, lowest)
        if cycle:
            best = cycle
            lowest = sum(exits[move.giver][move.taker][0] for move in cycle)
        if best and lowest <= (0 if ready else 2):
            break
    return best


def _find_cycle_through(exits: Exits, member: int, below: int) -> list[OwnerMove]:
    """Return the cheapest cycle of moves from a member back to it that costs less than ``below``; empty if there is
    none. ``exits`` has the cost of each move.
    """
    cost = {member: 0}
    last_move: dict[int, OwnerMove] = {}
    queue = deque([member])
    back = below
    while queue:
        giver = queue.popleft()
        for taker, (price, move) in sorted(exits.get(giver, {}).items()):
            total = cost[giver] + price
            if total >= back:
                continue
            if taker == member:
                back = total
                last_move[member] = move
            elif total < cost.get(taker, below):
                cost[taker] = total
                last_move[taker] = move
                if price:
                    queue.append(taker)
                else:
                    queue.appendleft(taker)
    path = [last_move[member]] if member in last_move else []
    while path and path[-1].giver != member:
        path.append(last_move[path[-1].giver])
    return path[::-1]
