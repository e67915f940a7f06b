"""Level owners by measured work instead of by number.

Theory of operation.

1. Nothing moves while every member's work per slot is within ``balance_band`` of the mean.
2. Otherwise one task moves from the heaviest to the lightest member, or two tasks are exchanged. The change that
   levels the two members most is made. This repeats until all members are within the band, or nothing helps.
3. If places have costs, the cheapest of the changes that bring both members into the band is made.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.demand import AlikeTasks, FreeSet
from riffle_spark.assign.model import AssignSettings

PlaceCost: TypeAlias = Callable[[int, int], int]
"""Returns the cost of a task on a member, by positions."""


def has_weights(board: Board) -> bool:
    """Return whether the work of any task has been measured."""
    return any(task.weight is not None for task in board.tasks)


def task_weights(board: Board) -> list[float]:
    """Return the measured work of each task. A task whose work was not measured counts as the mean of the others."""
    measured = [task.weight for task in board.tasks if task.weight is not None]
    mean = sum(measured) / len(measured)
    return [mean if task.weight is None else float(task.weight) for task in board.tasks]


def level_by_weight(
    board: Board,
    rows: AlikeTasks,
    free_sets: Sequence[FreeSet],
    settings: AssignSettings,
    cost: PlaceCost = lambda _, __: 0,
) -> list[int]:
    """Return the owner of each task, levelled by measured work.

    ``cost`` returns the cost of a task on a member.
    """
    work = _Work(board, rows)
    for t in sorted(range(len(free_sets)), key=lambda t: (len(free_sets[t] or board.members), -work.weights[t], t)):
        work.place(t, work.lightest(t, free_sets[t] or work.eligible_members))
    for _ in range(4 * len(board.tasks)):
        if work.is_within(settings) or not work.level_once(settings, cost):
            break
    return work.target


def band_excess(board: Board, rows: AlikeTasks, target: Sequence[int], settings: AssignSettings) -> float:
    """Return how far the heaviest member is above the allowed band around the mean work, as a multiple of the mean; 0
    within the band.
    """
    work = _Work(board, rows)
    for t, m in enumerate(target):
        work.place(t, m)
    highest = max(work.work_per_slot(m) for m in work.eligible_members)
    return max(0.0, round(highest / work.mean - 1 - settings.balance_band, 6)) if work.mean else 0.0


class _Work:
    """The work of members while tasks are placed and levelled."""

    def __init__(self, board: Board, rows: AlikeTasks) -> None:
        """Start without placed tasks."""
        self._board = board
        self._rows = rows
        self.weights = task_weights(board)
        self._slots = [max(slots, 1) for slots in board.slots]
        self.eligible_members = tuple(m for m, may in enumerate(board.placeable) if may)
        self.target = [NOBODY] * len(board.tasks)
        self._load = [0.0] * len(self._slots)
        self._tasks_of: list[set[int]] = [set() for _ in self._slots]

    def work_per_slot(self, member: int, weight: float = 0.0) -> float:
        """Return the member's work per slot, as if it had ``weight`` more."""
        return (self._load[member] + weight) / self._slots[member]

    def lightest(self, task: int, members: Sequence[int]) -> int:
        """Return the member of ``members`` with the least work per slot that may own the task."""
        allowed = [m for m in members if self._rows.allowed[self._rows.row_of[task], m]] or members
        return min(allowed, key=lambda m: (self.work_per_slot(m, self.weights[task]), m))

    def place(self, task: int, member: int) -> None:
        """Give the task to a member, and take it from its previous owner, if any."""
        previous = self.target[task]
        if previous != NOBODY:
            self._load[previous] -= self.weights[task]
            self._tasks_of[previous].remove(task)
        self.target[task] = member
        self._load[member] += self.weights[task]
        self._tasks_of[member].add(task)

    @property
    def mean(self) -> float:
        """Return the mean work per slot of the members that should own tasks."""
        return sum(self._load) / sum(self._slots[m] for m in self.eligible_members)

    def is_within(self, settings: AssignSettings) -> bool:
        """Return whether every member's work is within the configured band around the mean."""
        band = settings.balance_band
        mean = self.mean
        return all((1 - band) * mean <= self.work_per_slot(m) <= (1 + band) * mean for m in self.eligible_members)

    def level_once(self, settings: AssignSettings, cost: PlaceCost) -> bool:
        """Make the one move or exchange of tasks that levels the heaviest and lightest member most. Return whether
        there was one.

        A member with a single task that is too heavy is skipped.
        """
        limit = (1 + settings.balance_band) * self.mean
        light = min(self.eligible_members, key=lambda m: (self.work_per_slot(m), m))
        for heavy in sorted(self.eligible_members, key=lambda m: (-self.work_per_slot(m), m)):
            if self._level_pair(heavy, light, limit, cost):
                return True
            if len(self._tasks_of[heavy]) > 1 or self.work_per_slot(heavy) <= limit:
                break
        return False

    def _level_pair(self, heavy: int, light: int, limit: float, cost: PlaceCost) -> bool:
        """Make the one move or exchange of tasks between two members that levels them most, at the lowest cost.

        Return whether there was one.
        """
        best: tuple[float, int, float, int, int, int] | None = None
        for t in sorted(self._tasks_of[heavy]):
            for u in (NOBODY, *sorted(self._tasks_of[light])):
                if self._may_have(t, light) and (u == NOBODY or self._may_have(u, heavy)):
                    moved = self.weights[t] - (self.weights[u] if u != NOBODY else 0.0)
                    after = max(self.work_per_slot(heavy, -moved), self.work_per_slot(light, moved))
                    price = cost(t, light) - cost(t, heavy)
                    price += cost(u, heavy) - cost(u, light) if u != NOBODY else 0
                    key = (max(after, limit), price, after, int(u != NOBODY), t, u)
                    if after < self.work_per_slot(heavy) * (1 - 1e-9):
                        best = key if best is None else min(best, key)
        if best is None:
            return False
        *_, moved_task, exchanged_task = best
        self.place(moved_task, light)
        if exchanged_task != NOBODY:
            self.place(exchanged_task, heavy)
        return True

    def _may_have(self, task: int, member: int) -> bool:
        """Return whether a task has no pin and may be owned by the member."""
        return self._board.pins[task] == NOBODY and bool(self._rows.allowed[self._rows.row_of[task], member])
