"""Which moves can be made without spreading the load wider. Knows owners per slot. Does not know lags or copies.

A move is smooth if neither its source falls below the lightest nor its target rises above the heaviest member there was
at the start. Moves that are not smooth alone may be together: an exchange is a cycle of moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from riffle_spark.assign.board import NOBODY, Board

__all__ = ["Loads", "Step", "first_smooth", "shortest_cycle"]


class Step(NamedTuple):
    """One owner move: the task, from where and where to."""

    task: int
    source: int
    target: int


class Loads:
    """Owners per slot while moves are tried."""

    def __init__(self, board: Board, owners: Sequence[int]) -> None:
        self._slots = [max(slots, 1) for slots in board.slots]
        self._counts = [0] * len(self._slots)
        for owner in owners:
            if owner != NOBODY:
                self._counts[owner] += 1
        self._watched = [live and may for live, may in zip(board.live, board.placeable, strict=True)]
        ratios = [self.ratio(m) for m, watched in enumerate(self._watched) if watched] or [0.0]
        self._low, self._high = min(ratios), max(ratios)

    def ratio(self, member: int, change: int = 0) -> float:
        """Return the tasks per slot of a member, as they are or after a change."""
        return (self._counts[member] + change) / self._slots[member]

    def is_smooth(self, step: Step) -> bool:
        """Tell whether the move leaves every member within the bounds of the start."""
        if self.ratio(step.target, 1) > self._high:
            return False
        return not self._watched[step.source] or self.ratio(step.source, -1) >= self._low

    def are_smooth(self, steps: Iterable[Step]) -> bool:
        """Tell whether all the moves together do."""
        change: dict[int, int] = {}
        for step in steps:
            change[step.source] = change.get(step.source, 0) - 1
            change[step.target] = change.get(step.target, 0) + 1
        return all(
            self.ratio(m, by) <= self._high and (not self._watched[m] or self.ratio(m, by) >= self._low)
            for m, by in change.items()
        )

    def make(self, steps: Iterable[Step]) -> None:
        """Count the moves as made."""
        for step in steps:
            self._counts[step.source] -= 1
            self._counts[step.target] += 1

    def gain(self, step: Step) -> float:
        """Return how much heavier the source is than the target."""
        return self.ratio(step.source) - self.ratio(step.target)


def first_smooth(loads: Loads, steps: Iterable[Step], rank: Callable[[Step], int]) -> Step | None:
    """Return the smooth move that levels most, then whose copy is closest to caught up."""
    smooth = [step for step in steps if loads.is_smooth(step)]
    return min(smooth, key=lambda step: (-loads.gain(step), rank(step), step.task), default=None)


def shortest_cycle(ready: Sequence[Step], pending: Sequence[Step]) -> list[Step]:
    """Return the cycle of moves with the fewest pending ones; empty if there is none."""
    ends: dict[int, list[tuple[Step, int]]] = {}
    for price, steps in ((0, ready), (1, pending)):
        for step in steps:
            ends.setdefault(step.source, []).append((step, price))
    best: list[Step] = []
    lowest = len(pending) + 1
    for first, price in [(step, 0) for step in ready] + [(step, 1) for step in pending]:
        found = _way(ends, first, price)
        if found is not None and found[0] < lowest:
            lowest, best = found
        if lowest <= 1 and best:
            break
    return best


def _way(ends: dict[int, list[tuple[Step, int]]], first: Step, price: int) -> tuple[int, list[Step]] | None:
    """Search the cheapest way from the target of ``first`` back to its source; ready moves cost nothing."""
    best: dict[int, tuple[int, list[Step]]] = {first.target: (price, [first])}
    queue = deque([first.target])
    while queue:
        here = queue.popleft()
        cost, path = best[here]
        if here == first.source:
            continue
        for step, extra in ends.get(here, ()):
            if step.target not in best or cost + extra < best[step.target][0]:
                best[step.target] = (cost + extra, [*path, step])
                queue.append(step.target)
    return best.get(first.source)
