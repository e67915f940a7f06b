"""Level owners by measured work instead of by number.

Theory of operation.

1. Nothing moves while every member's work per slot is within ``balance_band`` of the mean.
2. Otherwise one task moves from the heaviest to the lightest member, or two tasks are exchanged. The change that
   levels the two members most is made. This repeats until all members are within the band, or nothing helps.
3. If places have costs, the cheapest of the changes that bring both members into the band is made.
"""

from collections.abc import Callable, Sequence

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.demand import AlikeTasks, FreeSet
from riffle_spark.assign.model import AssignSettings

__all__ = ["beyond_band", "is_weighed", "weighed_target"]


def is_weighed(board: Board) -> bool:
    """Return whether the work of any task has been measured."""
    return any(task.weight is not None for task in board.tasks)


def weighed_target(
    board: Board,
    rows: AlikeTasks,
    free_sets: Sequence[FreeSet],
    settings: AssignSettings,
    cost: Callable[[int, int], int] = lambda _, __: 0,
) -> list[int]:
    """Return a member for every task. Tasks without a weight count as the mean. ``cost`` is by task and member."""
    work = _Work(board, rows)
    for t in sorted(range(len(free_sets)), key=lambda t: (len(free_sets[t] or board.members), -work.weights[t], t)):
        work.place(t, work.lightest(t, free_sets[t] or work.able))
    for _ in range(4 * len(board.tasks)):
        if work.is_within(settings) or not work.level(settings, cost):
            break
    return work.target


def beyond_band(board: Board, rows: AlikeTasks, target: Sequence[int], settings: AssignSettings) -> float:
    """Return how far above the band the heaviest member is, as a multiple of the mean; 0 within the band."""
    work = _Work(board, rows)
    for t, m in enumerate(target):
        work.place(t, m)
    highest = max(work.ratio(m) for m in work.able)
    return max(0.0, round(highest / work.mean - 1 - settings.balance_band, 6)) if work.mean else 0.0


class _Work:
    """The work of members while tasks are placed and levelled."""

    def __init__(self, board: Board, rows: AlikeTasks) -> None:
        self._board = board
        self._rows = rows
        measured = [task.weight for task in board.tasks if task.weight is not None]
        mean = sum(measured) / len(measured)
        self.weights = [mean if task.weight is None else float(task.weight) for task in board.tasks]
        self._slots = [max(slots, 1) for slots in board.slots]
        self.able = tuple(m for m, may in enumerate(board.placeable) if may)
        self.target = [NOBODY] * len(board.tasks)
        self._load = [0.0] * len(self._slots)
        self._held: list[set[int]] = [set() for _ in self._slots]

    def ratio(self, member: int, weight: float = 0.0) -> float:
        """Return the work per slot, with an additional weight."""
        return (self._load[member] + weight) / self._slots[member]

    def lightest(self, task: int, members: Sequence[int]) -> int:
        """Return the member with the least work that may own the task."""
        allowed = [m for m in members if self._rows.allowed[self._rows.of[task], m]] or members
        return min(allowed, key=lambda m: (self.ratio(m, self.weights[task]), m))

    def place(self, task: int, member: int) -> None:
        previous = self.target[task]
        if previous != NOBODY:
            self._load[previous] -= self.weights[task]
            self._held[previous].remove(task)
        self.target[task] = member
        self._load[member] += self.weights[task]
        self._held[member].add(task)

    @property
    def mean(self) -> float:
        return sum(self._load) / sum(self._slots[m] for m in self.able)

    def is_within(self, settings: AssignSettings) -> bool:
        """Return whether every member's work is within the band around the mean."""
        band = settings.balance_band
        mean = self.mean
        return all((1 - band) * mean <= self.ratio(m) <= (1 + band) * mean for m in self.able)

    def level(self, settings: AssignSettings, cost: Callable[[int, int], int]) -> bool:
        """Make the move or exchange that levels the heaviest and lightest member most; return whether there was one.

        A member with a single task that is too heavy is skipped.
        """
        limit = (1 + settings.balance_band) * self.mean
        light = min(self.able, key=lambda m: (self.ratio(m), m))
        for heavy in sorted(self.able, key=lambda m: (-self.ratio(m), m)):
            if self._level(heavy, light, limit, cost):
                return True
            if len(self._held[heavy]) > 1 or self.ratio(heavy) <= limit:
                break
        return False

    def _level(self, heavy: int, light: int, limit: float, cost: Callable[[int, int], int]) -> bool:
        """Make the move or exchange that levels two members most, at the lowest cost. Return whether there was one."""
        best: tuple[float, int, float, int, int, int] | None = None
        for t in sorted(self._held[heavy]):
            for u in (NOBODY, *sorted(self._held[light])):
                if self._may_have(t, light) and (u == NOBODY or self._may_have(u, heavy)):
                    moved = self.weights[t] - (self.weights[u] if u != NOBODY else 0.0)
                    after = max(self.ratio(heavy, -moved), self.ratio(light, moved))
                    price = cost(t, light) - cost(t, heavy)
                    price += cost(u, heavy) - cost(u, light) if u != NOBODY else 0
                    key = (max(after, limit), price, after, int(u != NOBODY), t, u)
                    if after < self.ratio(heavy) * (1 - 1e-9):
                        best = key if best is None else min(best, key)
        if best is None:
            return False
        self.place(best[4], light)
        if best[5] != NOBODY:
            self.place(best[5], heavy)
        return True

    def _may_have(self, task: int, member: int) -> bool:
        return self._board.pins[task] == NOBODY and bool(self._rows.allowed[self._rows.of[task], member])
