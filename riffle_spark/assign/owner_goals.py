"""Owners by goals in an order of the user's (Cruise Control). Knows what each goal misses on a member. Does not know
who is caught up.

A goal says by how much a member misses it with the tasks that it would own; the sum over members is what a target
misses. The search begins with the assignor's own target, so where that meets all goals nothing is tried. For each
goal in turn it takes the members that miss it, worst first, and makes the one move or exchange that helps most and
lets no earlier goal be missed by more, until none helps. It finds a good target, not always the best, within a
bounded number of tries.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeAlias, get_args

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.demand import AlikeTasks, fair_bounds, rows_of
from riffle_spark.assign.model import AssignSettings, UserGoal
from riffle_spark.assign.owner_weights import is_weighed
from riffle_spark.assign.racks import rack_cost
from riffle_spark.unknown_names import check_known

__all__ = ["Goals", "name_of"]

BuiltIn = Literal["memory", "balance", "spread", "rack", "user"]
Missed: TypeAlias = Callable[[int, Sequence[int]], int]
"""By how much a goal is missed on a member, by position, that owns these tasks."""
Held: TypeAlias = list[list[int]]
"""The tasks of each member."""
Change: TypeAlias = dict[int, list[int]]
"""The tasks that some members would have instead."""
_MOST_TRIES: Final = 50_000


class Goals:
    """The goals of one assignment in their order: those that the settings name, then the assignor's own others.

    ``warnings`` say what is missed, or what a user's goal raised; ``missed`` are the hard goals that are.
    """

    def __init__(self, board: Board, settings: AssignSettings, *, racks: bool) -> None:
        self.warnings: list[str] = []
        self.missed: tuple[str, ...] = ()
        self._board, self._hard, self._tries = board, settings.hard_goals, _MOST_TRIES
        self._goals: list[tuple[str, Missed]] = []
        self._held: Held = []
        self._misses: list[list[int]] = []
        self._named = len(settings.goals)
        if settings.goals or settings.hard_goals:
            _check_names(settings)
        if settings.goals and board.tasks:
            self._rows = rows_of(board, settings)
            others = [name for name in _own_order(board, settings, racks=racks) if name not in settings.goals]
            self._goals = [(name_of(goal), self._measured(goal, settings)) for goal in (*settings.goals, *others)]

    def _measured(self, goal: str | UserGoal, settings: AssignSettings) -> Missed:
        return _built_in(self._board, self._rows, goal, settings) if isinstance(goal, str) else _own(self._board, goal)

    def improved(self, target: list[int]) -> list[int]:
        """Return the target as the goals would have it, or the last assignment's where that is as good; the given one
        where a user's goal fails.
        """
        if not self._goals:
            return target
        try:
            self._take(target)
            for number in range(len(self._goals)):
                while self._tries > 0 and (change := self._step(number)) is not None:
                    self._make(change)
            found = self._target()
            self._keep_aims(found)
        except _GoalError as failed:
            self.warnings.append(f"{failed}; owners are assigned without goals")
            self._goals = []
            return target
        self._sum_up()
        return self._target()

    def asked_for(self, task: int, giver: int) -> str | None:
        """Return the first goal that the two members of a move miss by more now than in the target."""
        taker = next((m for m, tasks in enumerate(self._held) if task in tasks), giver)
        if not self._goals or taker == giver:
            return None
        now: Change = {m: [t for t, owner in enumerate(self._board.owners) if owner == m] for m in (giver, taker)}
        try:
            return next((name for n, (name, _) in enumerate(self._goals) if self._gain(n, now) < 0), None)
        except _GoalError:
            return None

    def _take(self, target: Sequence[int]) -> None:
        self._held = [[] for _ in self._board.members]
        for t, m in enumerate(target):
            self._held[m].append(t)
        self._misses = [[missed(m, held) for m, held in enumerate(self._held)] for _, missed in self._goals]

    def _target(self) -> list[int]:
        placed = {t: m for m, tasks in enumerate(self._held) for t in tasks}
        return [placed[t] for t in range(len(placed))]

    def _make(self, change: Change) -> None:
        for m, tasks in change.items():
            self._held[m] = tasks
            for number, (_, missed) in enumerate(self._goals):
                self._misses[number][m] = missed(m, tasks)

    def _gain(self, number: int, change: Change) -> int:
        """Return by how much less a goal would be missed."""
        missed, misses = self._goals[number][1], self._misses[number]
        return sum(misses[m] - missed(m, tasks) for m, tasks in change.items())

    def _step(self, number: int) -> Change | None:
        """Return what helps most of what can be done for the member that misses a goal most."""
        misses = self._misses[number]
        for member in sorted((m for m, missed in enumerate(misses) if missed), key=lambda m: (-misses[m], m)):
            for changes in (self._moves(member), self._exchanges(member)):
                best: tuple[int, int] | None = None
                chosen = None
                for away, change in changes:
                    self._tries -= 1
                    key = (-self._gain(number, change), away)
                    if key[0] < 0 and (best is None or key < best) and self._is_let(number, change):
                        best, chosen = key, change
                if chosen is not None:
                    return chosen
        return None

    def _is_let(self, number: int, change: Change) -> bool:
        return all(self._gain(earlier, change) >= 0 for earlier in range(number))

    def _may_go(self, task: int, member: int) -> bool:
        board = self._board
        free = board.pins[task] == NOBODY and board.incumbents[task] == board.owners[task]
        return free and board.may_own[member] and bool(self._rows.allowed[self._rows.of[task], member])

    def _moves(self, member: int) -> Iterator[tuple[int, Change]]:
        """Yield the moves of one task from a member, and to it, each with how many leave or come to their owner."""
        for other in range(len(self._held)):
            for giver, taker in ((member, other), (other, member)) if other != member else ():
                for t in self._held[giver]:
                    if self._may_go(t, taker):
                        rest = [held for held in self._held[giver] if held != t]
                        yield self._away(t, giver, taker), {giver: rest, taker: [*self._held[taker], t]}

    def _exchanges(self, member: int) -> Iterator[tuple[int, Change]]:
        for other in (m for m in range(len(self._held)) if m != member):
            for t in (t for t in self._held[member] if self._may_go(t, other)):
                for u in (u for u in self._held[other] if self._may_go(u, member)):
                    mine = [held for held in self._held[member] if held != t]
                    its = [held for held in self._held[other] if held != u]
                    away = self._away(t, member, other) + self._away(u, other, member)
                    yield away, {member: [*mine, u], other: [*its, t]}

    def _away(self, task: int, giver: int, taker: int) -> int:
        incumbent = self._board.incumbents[task]
        return (incumbent == giver) - (incumbent == taker)

    def _keep_aims(self, found: Sequence[int]) -> None:
        """Go on with the last assignment's target where it is as good: then no plan is changed half-way."""
        board, misses = self._board, [sum(each) for each in self._misses]
        for t, aim in enumerate(board.aims):
            fixed = board.pins[t] if board.pins[t] != NOBODY else board.incumbents[t]
            is_free = board.pins[t] == NOBODY and board.incumbents[t] == board.owners[t]
            if aim == NOBODY or not (self._may_go(t, aim) if is_free else aim == fixed):
                return
        self._take(board.aims)
        if [sum(each) for each in self._misses] > misses:
            self._take(found)

    def _sum_up(self) -> None:
        missed = {name: sum(self._misses[n]) for n, (name, _) in enumerate(self._goals[: self._named])}
        self.missed = tuple(name for name in self._hard if missed.get(name))
        for name, by in missed.items():
            if by and name in self._hard:
                self.warnings.append(f"the hard goal {name} cannot be met, it is missed by {by}: no owner moves for it")
            elif by and name not in ("rack", "user"):
                self.warnings.append(f"the goal {name} is missed by {by}, which is the best that was found")
        if self._tries <= 0:
            self.warnings.append(f"the goals were not searched to the end: {_MOST_TRIES} tries are the most")


class _GoalError(Exception):
    """A user's goal raised, or answered what is no whole number."""


def _check_names(settings: AssignSettings) -> None:
    """Raise ``ConfigError`` for a goal that does not exist, and for a hard goal that is not among the goals."""
    built_in = get_args(BuiltIn)
    check_known("goal", [g for g in settings.goals if isinstance(g, str)], built_in, source="goals")
    check_known("hard goal", settings.hard_goals, [name_of(g) for g in settings.goals], source="hard_goals")


def name_of(own: object) -> str:
    """Return what a goal, or a function of the user's, is called."""
    if isinstance(own, str):
        return own
    return str(getattr(own, "__qualname__", type(own).__qualname__)).rpartition(".")[2]


def _own_order(board: Board, settings: AssignSettings, *, racks: bool) -> list[str]:
    """Return the assignor's own goals that count at all, in its order."""
    spread = ["spread"] if settings.store_balance > 0 else []
    cheap = (["rack"] if racks else []) + (["user"] if settings.user_cost is not None else [])
    first = ["memory"] if any(member.memory_bytes is not None for member in board.members) else []
    first += ["balance"] if settings.instance_balance > 0 else []
    racks_first = settings.rack_aware_assignment_strategy == "min_cost"
    return [*first, *cheap, *spread] if racks_first else [*first, *spread, *cheap]


def _own(board: Board, goal: UserGoal) -> Missed:
    def missed(member: int, held: Sequence[int]) -> int:
        try:
            return operator.index(goal(board.members[member], tuple(board.tasks[t] for t in sorted(held))))
        except Exception as error:
            raise _GoalError(f"the goal {name_of(goal)} raised {type(error).__name__}: {error}") from error

    return missed


def _built_in(board: Board, rows: AlikeTasks, name: str, settings: AssignSettings) -> Missed:
    tasks = board.tasks
    measures: dict[str, Missed] = {
        "memory": lambda m, held: _over(board, m, held),
        "balance": _weighed(board, settings) if is_weighed(board) else _counted(board, rows, settings),
        "spread": _spread(board, rows, settings),
        "rack": lambda m, held: sum(rack_cost(tasks[t].owner_traffic, board.members[m].rack, settings) for t in held),
        "user": lambda m, held: sum(rows.costs[t][m] or 0 for t in held) if rows.costs else 0,
    }  # fmt: skip
    return measures[name]


def _over(board: Board, member: int, held: Sequence[int]) -> int:
    most = board.members[member].memory_bytes
    return 0 if most is None else max(sum(board.tasks[t].memory_bytes for t in held) - most, 0)


def _counted(board: Board, rows: AlikeTasks, settings: AssignSettings) -> Missed:
    bounds = fair_bounds(board, rows, settings)
    low, high = bounds.member_low.tolist(), bounds.member_high.tolist()
    return lambda m, held: max(low[m] - len(held), len(held) - high[m], 0)


def _weighed(board: Board, settings: AssignSettings) -> Missed:
    known = [task.weight for task in board.tasks if task.weight is not None]
    weights = [sum(known) / len(known) if task.weight is None else float(task.weight) for task in board.tasks]
    mean, band = sum(weights) / max(sum(board.placeable_slots), 1), settings.balance_band
    shares = [mean * slots for slots in board.placeable_slots]
    return lambda m, held: int(max(abs(sum(weights[t] for t in held) - shares[m]) - band * shares[m], 0))


def _spread(board: Board, rows: AlikeTasks, settings: AssignSettings) -> Missed:
    bounds = fair_bounds(board, rows, settings)
    low, high = bounds.low.T.tolist(), bounds.high.T.tolist()

    def missed(member: int, held: Sequence[int]) -> int:
        counts = [0] * len(low[member])
        for t in held:
            counts[rows.of[t]] += 1
        every = zip(counts, low[member], high[member], strict=True)
        return sum(max(least - count, count - most, 0) for count, least, most in every)

    return missed
