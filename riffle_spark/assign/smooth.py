"""Which moves can be made without spreading the load wider. Knows owners per slot. Does not know lags or copies.

A move is smooth if neither its source falls below the lightest nor its target rises above the heaviest member there was
at the start. Where work is measured the number of tasks says nothing, and any move is smooth. Moves that are not smooth
alone may be together: an exchange is a cycle of moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.weigh import is_weighed

__all__ = ["Loads", "Step", "Waiting", "shortest_cycle"]


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
