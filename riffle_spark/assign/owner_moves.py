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

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_weights import is_weighed

__all__ = ["Loads", "OwnerPlan", "Step", "Waiting", "plan_owners", "shortest_cycle"]


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
    """Tell whether more than balance asks for the target: a drain, a pin, a return, a rule, memory, exact shares."""
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


class Step(NamedTuple):
    """One owner move: the task, from where and where to, and how far the target is from caught up."""

    task: int
    source: int
    target: int
    rank: int = 0


class Loads:
    """Owners per slot while moves are tried; a ``goal`` that must be reached counts as smooth as well."""

    def __init__(self, board: Board, owners: Sequence[int], goal: Sequence[int] = ()) -> None:
        self._slots = np.maximum(np.array(board.slots, np.int64), 1)
        owned = np.array([owner for owner in owners if owner != NOBODY], np.int64)
        self._counts = np.bincount(owned, minlength=len(self._slots)).astype(np.int64)
        self._watched = np.array(board.live) & np.array(board.placeable)
        counts = [self._counts, np.bincount(np.array(goal, np.int64), minlength=len(self._slots))][: 1 + bool(goal)]
        ratios = np.concatenate([(each / self._slots)[self._watched] for each in counts])
        bounded = len(ratios) > 0 and not is_weighed(board)
        self._low: float = ratios.min() if bounded else -np.inf
        self._high: float = ratios.max() if bounded else np.inf

    def are_smooth(self, steps: Sequence[Step]) -> bool:
        """Tell whether all the moves together leave every member within the bounds of the start."""
        ratios = (self._counts + self._change(steps)) / self._slots
        return bool((ratios <= self._high).all() and (ratios >= self._low)[self._watched].all())

    def _change(self, steps: Sequence[Step]) -> npt.NDArray[np.int64]:
        size = len(self._slots)
        gone = np.bincount(np.array([step.source for step in steps], np.int64), minlength=size)
        come = np.bincount(np.array([step.target for step in steps], np.int64), minlength=size)
        return (come - gone).astype(np.int64)

    def make(self, steps: Sequence[Step]) -> None:
        """Count the moves as made."""
        self._counts += self._change(steps)

    def bounds(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        """Return which members may give one task and take one, and the owners per slot."""
        may_give = ~self._watched | ((self._counts - 1) / self._slots >= self._low)
        may_take = (self._counts + 1) / self._slots <= self._high
        return may_give, may_take, self._counts / self._slots


class Waiting:
    """Moves that wait, looked through all at once."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = sorted(steps)
        table = np.array(self.steps, object).reshape(len(self.steps), 4)
        self._source, self._target = table[:, 1].astype(np.int64), table[:, 2].astype(np.int64)
        self._rank = table[:, 3].astype(np.float64)
        self._open = np.ones(len(self.steps), bool)

    def left(self) -> list[Step]:
        """Return the moves that still wait, by task."""
        return [self.steps[place] for place in np.flatnonzero(self._open)]

    def drop(self, steps: Sequence[Step]) -> None:
        """Take moves out."""
        gone = set(steps)
        for place in np.flatnonzero(self._open):
            if self.steps[place] in gone:
                self._open[place] = False

    def first_smooth(self, loads: Loads) -> Step | None:
        """Return the smooth move that levels most, then whose copy is closest to caught up, then by task."""
        may_give, may_take, ratio = loads.bounds()
        smooth = np.flatnonzero(self._open & may_give[self._source] & may_take[self._target])
        if not len(smooth):
            return None
        gain = ratio[self._source[smooth]] - ratio[self._target[smooth]]
        best = smooth[gain == gain.max()]
        place: int = best[self._rank[best].argmin()]
        return self.steps[place]


def shortest_cycle(ready: Sequence[Step], pending: Sequence[Step]) -> list[Step]:
    """Return a cycle of moves with the fewest pending ones; empty if there is none."""
    ends: dict[int, dict[int, tuple[int, Step]]] = {}
    for price, steps in ((1, pending), (0, ready)):
        for step in sorted(steps, reverse=True):
            ends.setdefault(step.source, {})[step.target] = (price, step)
    best: list[Step] = []
    lowest = len(pending) + 1
    for member in sorted(ends):
        found = _round_trip(ends, member, lowest)
        if found:
            best, lowest = found, sum(ends[step.source][step.target][0] for step in found)
        if best and lowest <= (0 if ready else 2):
            break
    return best


def _round_trip(ends: dict[int, dict[int, tuple[int, Step]]], home: int, below: int) -> list[Step]:
    """Search the cheapest way from a member back to it, cheaper than ``below``; ready moves cost nothing."""
    cost = {home: 0}
    came: dict[int, Step] = {}
    queue = deque([home])
    back = below
    last: Step | None = None
    while queue:
        here = queue.popleft()
        for target, (price, step) in sorted(ends.get(here, {}).items()):
            total = cost[here] + price
            if total >= back:
                continue
            if target == home:
                back, last = total, step
            elif total < cost.get(target, below):
                cost[target], came[target] = total, step
                if price:
                    queue.append(target)
                else:
                    queue.appendleft(target)
    return _path(came, last, home)


def _path(came: dict[int, Step], last: Step | None, home: int) -> list[Step]:
    path: list[Step] = []
    step = last
    while step is not None:
        path.append(step)
        step = came.get(step.source) if step.source != home else None
    return path[::-1]
