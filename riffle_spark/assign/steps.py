"""The owners' way from the present to the target. Knows who is caught up. Does not choose the target, nor standbys.

Theory of operation (KIP-441). A task goes to its target as soon as the target is among the most caught-up members;
until then whoever is caught up keeps it, the present owner first, and the target warms up. Two rules keep the way
smooth:

* the load per slot never spreads wider than it was: moves that only exchange tasks between equally loaded members
  are made together;
* warm-ups start with the moves that level most. An exchange longer than ``max_warmup_replicas`` is begun only where the
  copies that are ready first can be kept as standbys; otherwise the tasks stay, for it could never be completed.
  Nor is a target approached that is less level than the present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.smooth import Loads, Step, Waiting, shortest_cycle

__all__ = ["OwnerPlan", "plan_owners"]

FAR = 1 << 62


@dataclass(frozen=True, slots=True)
class OwnerPlan:
    """Owners from now on, the target as far as it can be reached, and the tasks whose target warms up from now on.

    ``forced`` tasks had to move at once; ``held`` ones are ready at their target but wait for others.
    """

    owners: list[int]
    target: list[int]
    warm: list[int]
    forced: frozenset[int]
    held: frozenset[int]


def plan_owners(board: Board, target: Sequence[int], settings: AssignSettings) -> OwnerPlan:
    """Decide who owns each task now and which targets to warm up."""
    owners, forced, ready, pending = _sort_out(board, target)
    loads = Loads(board, owners, list(target) if _is_ordered(board, settings) else [])
    made = _make(loads, ready, settings.moves_at_once)
    for step in made:
        owners[step.task] = step.target
    done = set(made)
    held = [step for step in ready if step not in done]
    warm, stuck = _warm(loads, held, pending, settings)
    reached = list(target)
    if stuck and not made:
        for step in (*held, *pending):
            reached[step.task] = owners[step.task]
        held = []
    return OwnerPlan(owners, reached, warm, frozenset(forced), frozenset(step.task for step in held))


def _is_ordered(board: Board, settings: AssignSettings) -> bool:
    """Tell whether more than balance asks for the target: a drain, a pin, a return, a rule, memory, exact seats."""
    drained = any(owner != NOBODY and not board.placeable[owner] for owner in board.owners)
    pinned = any(pin != NOBODY for pin in board.pins) or board.homes != board.owners
    small = any(member.memory_bytes is not None for member in board.members)
    return drained or pinned or small or settings.user_cost is not None or settings.store_balance == 0


def _sort_out(board: Board, target: Sequence[int]) -> tuple[list[int], list[int], list[Step], list[Step]]:
    """Return the owners after what cannot wait, the tasks that could not, and the ready and the pending moves."""
    lowest = [_lowest_rank(board, t, _first(board, t, goal)) for t, goal in enumerate(target)]
    owners = [_settled(board, t, goal, lowest[t]) for t, goal in enumerate(target)]
    _let_stand_in(board, owners, lowest)
    forced = [t for t, now in enumerate(owners) if now != board.owners[t]]
    ready, pending = [], []
    for t, goal in enumerate(target):
        now = owners[t]
        if now == goal or not board.live[goal]:
            continue
        if now == board.owners[t] and board.rank(t, goal) <= lowest[t]:
            ready.append(Step(t, now, goal))
        else:
            pending.append(Step(t, now, goal, board.rank(t, goal)))
    return owners, forced, ready, pending


def _first(board: Board, task: int, goal: int) -> int:
    """Return whose lag decides who is most caught up: the owner, or the target where they are one."""
    return goal if board.owners[task] == goal else board.owners[task]


def _settled(board: Board, task: int, goal: int, lowest: int) -> int:
    """Return the owner that may keep the task, or its target that may have it at once, or nobody."""
    owner = board.owners[task]
    if owner != NOBODY and board.rank(task, owner) <= lowest:
        return owner
    return goal if board.live[goal] and board.rank(task, goal) <= lowest else NOBODY


def _let_stand_in(board: Board, owners: list[int], lowest: Sequence[int]) -> None:
    """Give every task without an owner to a most caught-up member until its target can have it: a standby before
    others, then who has least to do, so that what has to be fetched is fetched by all.
    """
    load = [0] * len(board.members)
    for owner in owners:
        if owner != NOBODY:
            load[owner] += 1
    for t, owner in enumerate(owners):
        if owner == NOBODY:
            may = [m for m in range(len(board.members)) if board.live[m] and board.rank(t, m) <= lowest[t]]
            able = [m for m in may if board.placeable[m]] or may
            chosen = min(able, key=lambda m: (m not in board.standbys[t], load[m] / max(board.slots[m], 1), m))
            owners[t] = chosen
            load[chosen] += 1


def _lowest_rank(board: Board, task: int, owner: int) -> int:
    """Return the rank of the most caught-up member that may own the task now."""
    ranks = board.ranks[task]
    if ranks.get(owner, 1) == 0:
        return 0
    known = [rank for m, rank in ranks.items() if board.live[m] and (board.placeable[m] or m == owner)]
    able = board.owning + (owner != NOBODY and not board.placeable[owner])
    return min([*known, board.absent[task]]) if len(known) < able else min(known)


def _make(loads: Loads, ready: Sequence[Step], most: int | None) -> list[Step]:
    """Return the ready moves that can be made now, all at once if that is smooth."""
    if (most is None or len(ready) <= most) and loads.are_smooth(ready):
        loads.make(ready)
        return list(ready)
    waiting = Waiting(ready)
    made: list[Step] = []
    while waiting.left() and (most is None or len(made) < most):
        step = waiting.first_smooth(loads)
        steps = [step] if step is not None else shortest_cycle(waiting.left(), [])
        if not steps or (most is not None and made and len(made) + len(steps) > most):
            break
        loads.make(steps)
        waiting.drop(steps)
        made += steps
    return made


def _warm(
    loads: Loads, held: Sequence[Step], pending: Sequence[Step], settings: AssignSettings
) -> tuple[list[int], bool]:
    """Return the tasks whose target warms up now, and whether nothing that is left can ever be completed."""
    waiting, ready = Waiting(pending), list(held)
    chosen: list[int] = []
    budget = settings.max_warmup_replicas - (len(ready) if settings.num_standbys == 0 else 0)
    while len(chosen) < budget:
        step = waiting.first_smooth(loads)
        steps = [step] if step is not None else shortest_cycle(ready, waiting.left())
        fresh = [step.task for step in steps if step not in ready]
        if not steps or len(chosen) + len(fresh) > budget:
            break
        loads.make(steps)
        waiting.drop(steps)
        chosen += fresh
        ready = [step for step in ready if step not in steps]
    left = waiting.left()
    if chosen or not (left or ready) or settings.max_warmup_replicas == 0:
        return chosen, False
    cycle = shortest_cycle(ready, left) if settings.num_standbys > 0 else []
    begun = [step.task for step in cycle if step not in ready]
    return begun[: settings.max_warmup_replicas], not begun
