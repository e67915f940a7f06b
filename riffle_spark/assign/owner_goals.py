"""Improve the target of owners by goals in the user's order, as Cruise Control does.

Theory of operation. A goal measures by how much a member misses it with the tasks that the member would own. A target
misses a goal by the sum over all members.

1. The search starts with the assignor's own target. If it meets all goals, nothing is tried.
2. For each goal in turn it takes the members that miss the goal, worst first. It makes the one move or exchange that
   helps most and lets no earlier goal be missed by more, until none helps.
3. The number of tries is bounded. So the result is good, but not always the best.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeAlias, get_args

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.demand import AlikeTasks, compute_fair_bounds, group_alike_tasks
from riffle_spark.assign.model import AssignSettings, UserGoal
from riffle_spark.assign.owner_weights import has_weights, task_weights
from riffle_spark.assign.racks import rack_cost
from riffle_spark.unknown_names import check_known

BuiltInGoal = Literal["memory", "balance", "spread", "rack", "user"]
MissFunction: TypeAlias = Callable[[int, Sequence[int]], int]
"""Returns by how much a member, by position, misses a goal with these tasks."""
TasksByMember: TypeAlias = list[list[int]]
"""The tasks of each member, by position."""
Change: TypeAlias = dict[int, list[int]]
"""The tasks that some members would own instead."""
_MAX_TRIES: Final = 50_000


class Goals:
    """The goals of an assignment, in order: the goals in the settings, then the default assignor's other goals.

    ``warnings`` describe missed goals and errors of a user's goal. ``missed`` are the names of the hard goals that the
    target misses.
    """

    def __init__(self, board: Board, settings: AssignSettings, *, racks: bool) -> None:
        """Check the names of goals, and prepare the function that measures the misses of each goal.

        ``racks`` is whether the cost of racks counts. Raises ``ConfigError`` for an unknown name.
        """
        self.warnings: list[str] = []
        self.missed: tuple[str, ...] = ()
        self._board = board
        self._hard = settings.hard_goals
        self._tries = _MAX_TRIES
        self._goals: list[tuple[str, MissFunction]] = []
        self._tasks_of: TasksByMember = []
        self._misses: list[list[int]] = []
        self._named_count = len(settings.goals)
        if settings.goals or settings.hard_goals:
            _check_names(settings)
        if settings.goals and board.tasks:
            self._rows = group_alike_tasks(board, settings)
            default_goals = [
                name for name in _default_order(board, settings, racks=racks) if name not in settings.goals
            ]
            self._goals = [
                (goal_name(goal), self._make_miss_function(goal, settings))
                for goal in (*settings.goals, *default_goals)
            ]

    def _make_miss_function(self, goal: str | UserGoal, settings: AssignSettings) -> MissFunction:
        """Return the function that measures by how much a member misses this goal: a built-in goal by name, or a user's
        function.
        """
        return (
            _miss_of_built_in_goal(self._board, self._rows, goal, settings)
            if isinstance(goal, str)
            else _miss_of_user_goal(self._board, goal)
        )

    def improve(self, target: list[int]) -> list[int]:
        """Return ``target`` improved by the goals, or the last assignment's target if that is as good.

        If a user's goal raises, all goals are ignored and ``target`` is returned.
        """
        if not self._goals:
            return target
        try:
            self._set_target(target)
            for number in range(len(self._goals)):
                while self._tries > 0 and (change := self._find_best_change(number)) is not None:
                    self._apply(change)
            found_target = self._target()
            self._keep_last_target(found_target)
        except _GoalError as failed:
            # Cause: The user's own goal raised an error, or did not return a whole number.
            self.warnings.append(
                f"[RIFFLE-0781] {failed}. The goals are ignored. What to do: Correct the function that goals names."
            )
            self._goals = []
            return target
        self._warn_of_misses()
        return self._target()

    def unmet_goal(self, task: int, giver: int) -> str | None:
        """Return the first goal that the two members of a move miss by more at present than in the target.

        ``giver`` owns the task at present. ``None`` if there is no such goal.
        """
        taker = next((m for m, tasks in enumerate(self._tasks_of) if task in tasks), giver)
        if not self._goals or taker == giver:
            return None
        present: Change = {m: [t for t, owner in enumerate(self._board.owners) if owner == m] for m in (giver, taker)}
        try:
            return next((name for n, (name, _) in enumerate(self._goals) if self._gain(n, present) < 0), None)
        except _GoalError:
            return None

    def _set_target(self, target: Sequence[int]) -> None:
        """Start from this target: store the tasks of each member, and by how much each member misses each goal."""
        self._tasks_of = [[] for _ in self._board.members]
        for t, m in enumerate(target):
            self._tasks_of[m].append(t)
        self._misses = [
            [measure_miss(m, tasks) for m, tasks in enumerate(self._tasks_of)] for _, measure_miss in self._goals
        ]

    def _target(self) -> list[int]:
        """Return the present target: the owner of each task."""
        owner_of_task = {t: m for m, tasks in enumerate(self._tasks_of) for t in tasks}
        return [owner_of_task[t] for t in range(len(owner_of_task))]

    def _apply(self, change: Change) -> None:
        """Apply a change to the target, and measure again the goals of the members that it concerns."""
        for m, tasks in change.items():
            self._tasks_of[m] = tasks
            for number, (_, measure_miss) in enumerate(self._goals):
                self._misses[number][m] = measure_miss(m, tasks)

    def _gain(self, number: int, change: Change) -> int:
        """Return by how much less goal ``number`` would be missed after a change; negative if more."""
        measure_miss = self._goals[number][1]
        misses = self._misses[number]
        return sum(misses[m] - measure_miss(m, tasks) for m, tasks in change.items())

    def _find_best_change(self, number: int) -> Change | None:
        """Return the move or exchange that helps goal ``number`` most, for the member that misses it most; ``None`` if
        no change helps.
        """
        misses = self._misses[number]
        for member in sorted((m for m, miss in enumerate(misses) if miss), key=lambda m: (-misses[m], m)):
            for changes in (self._list_moves(member), self._list_exchanges(member)):
                best: tuple[int, int] | None = None
                chosen = None
                for away, change in changes:
                    self._tries -= 1
                    key = (-self._gain(number, change), away)
                    if key[0] < 0 and (best is None or key < best) and self._keeps_earlier_goals(number, change):
                        best = key
                        chosen = change
                if chosen is not None:
                    return chosen
        return None

    def _keeps_earlier_goals(self, number: int, change: Change) -> bool:
        """Return whether a change lets no goal with precedence over goal ``number`` be missed by more."""
        return all(self._gain(earlier, change) >= 0 for earlier in range(number))

    def _may_move(self, task: int, member: int) -> bool:
        """Return whether a task is free to move (no pin, no awaited owner) and may be owned by the member."""
        board = self._board
        free = board.pins[task] == NOBODY and board.incumbents[task] == board.owners[task]
        return free and board.may_own[member] and bool(self._rows.allowed[self._rows.row_of[task], member])

    def _list_moves(self, member: int) -> Iterator[tuple[int, Change]]:
        """Yield each move of one task from the member or to it, with the change in the number of tasks away from their
        present owner.
        """
        for partner in range(len(self._tasks_of)):
            for giver, taker in ((member, partner), (partner, member)) if partner != member else ():
                for t in self._tasks_of[giver]:
                    if self._may_move(t, taker):
                        remaining_tasks = [task for task in self._tasks_of[giver] if task != t]
                        yield (
                            self._count_away(t, giver, taker),
                            {giver: remaining_tasks, taker: [*self._tasks_of[taker], t]},
                        )

    def _list_exchanges(self, member: int) -> Iterator[tuple[int, Change]]:
        """Yield the exchanges of one task of the member for one task of another, each with the change in the number of
        tasks away from their present owner.
        """
        for partner in (m for m in range(len(self._tasks_of)) if m != member):
            for t in (t for t in self._tasks_of[member] if self._may_move(t, partner)):
                for u in (u for u in self._tasks_of[partner] if self._may_move(u, member)):
                    remaining_tasks = [task for task in self._tasks_of[member] if task != t]
                    partner_tasks = [task for task in self._tasks_of[partner] if task != u]
                    away = self._count_away(t, member, partner) + self._count_away(u, partner, member)
                    yield away, {member: [*remaining_tasks, u], partner: [*partner_tasks, t]}

    def _count_away(self, task: int, giver: int, taker: int) -> int:
        """Return 1 if the move takes the task off its present owner, -1 if it brings the task back to it, else 0."""
        incumbent = self._board.incumbents[task]
        return (incumbent == giver) - (incumbent == taker)

    def _keep_last_target(self, target: Sequence[int]) -> None:
        """Keep the last assignment's target if it is valid and misses the goals by no more than ``target``, so that no
        plan changes half-way.
        """
        board = self._board
        misses = [sum(by_member) for by_member in self._misses]
        for t, aim in enumerate(board.last_target):
            fixed_owner = board.pins[t] if board.pins[t] != NOBODY else board.incumbents[t]
            is_free = board.pins[t] == NOBODY and board.incumbents[t] == board.owners[t]
            if aim == NOBODY or not (self._may_move(t, aim) if is_free else aim == fixed_owner):
                return
        self._set_target(board.last_target)
        if [sum(by_member) for by_member in self._misses] > misses:
            self._set_target(target)

    def _warn_of_misses(self) -> None:
        """Add warnings for the goals that the final target misses and for a stopped search. Set ``missed``."""
        missed = {name: sum(self._misses[n]) for n, (name, _) in enumerate(self._goals[: self._named_count])}
        self.missed = tuple(name for name in self._hard if missed.get(name))
        for name, miss in missed.items():
            if miss and name in self._hard:
                # Cause: The members, the filters or goals with precedence leave no placement that meets the goal.
                self.warnings.append(
                    f"[RIFFLE-0782] The hard goal {name} is missed by {miss}, so no owner moves. "
                    f"What to do: Add members, or remove the goal from hard_goals."
                )
            elif miss and name not in ("rack", "user"):
                # Cause: The members, the filters or goals with precedence leave no placement that meets the goal.
                self.warnings.append(
                    f"[RIFFLE-0783] The goal {name} is missed by {miss} in the best target found. "
                    f"What to do: Add members, or give the goal precedence in goals."
                )
        if self._tries <= 0:
            # Cause: The query has many tasks and members, or its goals conflict. The best target so far is used.
            self.warnings.append(
                f"[RIFFLE-0784] The search for goals stopped after {_MAX_TRIES} tries. "
                f"What to do: Name fewer goals, or accept the best target so far."
            )


class _GoalError(Exception):
    """A user's goal raised or did not return a whole number."""


def _check_names(settings: AssignSettings) -> None:
    """Raise ``ConfigError`` for a goal that does not exist, and for a hard goal that is not among the goals."""
    built_in = get_args(BuiltInGoal)
    check_known("goal", [g for g in settings.goals if isinstance(g, str)], built_in, source="goals")
    check_known("hard goal", settings.hard_goals, [goal_name(g) for g in settings.goals], source="hard_goals")


def goal_name(goal: object) -> str:
    """Return the name of a goal: its text, or the name of a user's function or class."""
    if isinstance(goal, str):
        return goal
    return str(getattr(goal, "__qualname__", type(goal).__qualname__)).rpartition(".")[2]


def _default_order(board: Board, settings: AssignSettings, *, racks: bool) -> list[str]:
    """Return the names of the default assignor's own goals that have an effect with these settings, in order."""
    spread = ["spread"] if settings.store_balance > 0 else []
    cheap = (["rack"] if racks else []) + (["user"] if settings.user_cost is not None else [])
    first = ["memory"] if any(member.memory_bytes is not None for member in board.members) else []
    first += ["balance"] if settings.instance_balance > 0 else []
    racks_first = settings.rack_aware_assignment_strategy == "min_cost"
    return [*first, *cheap, *spread] if racks_first else [*first, *spread, *cheap]


def _miss_of_user_goal(board: Board, goal: UserGoal) -> MissFunction:
    """Return the function that measures a user's goal.

    It raises ``_GoalError`` if the goal raises or does not return a whole number.
    """

    def measure_miss(member: int, tasks: Sequence[int]) -> int:
        try:
            return operator.index(goal(board.members[member], tuple(board.tasks[t] for t in sorted(tasks))))
        except Exception as error:
            raise _GoalError(f"The goal {goal_name(goal)} raised {type(error).__name__}: {error}") from error

    return measure_miss


def _miss_of_built_in_goal(board: Board, rows: AlikeTasks, name: str, settings: AssignSettings) -> MissFunction:
    """Return the function that measures the built-in goal ``name``."""
    measures: dict[str, MissFunction] = {
        "memory": lambda m, tasks: _memory_miss(board, m, tasks),
        "balance": _miss_of_work(board, settings) if has_weights(board) else _miss_of_counts(board, rows, settings),
        "spread": _miss_of_spread(board, rows, settings),
        "rack": lambda m, tasks: sum(
            rack_cost(board.tasks[t].owner_traffic, board.members[m].rack, settings) for t in tasks
        ),
        "user": lambda m, tasks: sum(rows.costs[t][m] or 0 for t in tasks) if rows.costs else 0,
    }
    return measures[name]


def _memory_miss(board: Board, member: int, tasks: Sequence[int]) -> int:
    """Return by how many bytes the state of ``tasks`` exceeds the member's room; 0 if it fits or the room is
    unknown.
    """
    limit = board.members[member].memory_bytes
    return 0 if limit is None else max(sum(board.tasks[t].memory_bytes for t in tasks) - limit, 0)


def _miss_of_counts(board: Board, rows: AlikeTasks, settings: AssignSettings) -> MissFunction:
    """Return the function that measures by how many tasks a member is outside its fair range."""
    bounds = compute_fair_bounds(board, rows, settings)
    low = bounds.member_low.tolist()
    high = bounds.member_high.tolist()
    return lambda m, tasks: max(low[m] - len(tasks), len(tasks) - high[m], 0)


def _miss_of_work(board: Board, settings: AssignSettings) -> MissFunction:
    """Return the function that measures by how much the measured work of a member is outside the band around
    its share.
    """
    weights = task_weights(board)
    mean = sum(weights) / max(sum(board.placeable_slots), 1)
    band = settings.balance_band
    shares = [mean * slots for slots in board.placeable_slots]
    return lambda m, tasks: int(max(abs(sum(weights[t] for t in tasks) - shares[m]) - band * shares[m], 0))


def _miss_of_spread(board: Board, rows: AlikeTasks, settings: AssignSettings) -> MissFunction:
    """Return the function that measures by how many tasks a member is outside the fair range of each group (row),
    summed over the groups.
    """
    bounds = compute_fair_bounds(board, rows, settings)
    low = bounds.low.T.tolist()
    high = bounds.high.T.tolist()

    def measure_miss(member: int, tasks: Sequence[int]) -> int:
        counts = [0] * len(low[member])
        for t in tasks:
            counts[rows.row_of[t]] += 1
        ranges = zip(counts, low[member], high[member], strict=True)
        return sum(max(least - count, count - highest, 0) for count, least, highest in ranges)

    return measure_miss
