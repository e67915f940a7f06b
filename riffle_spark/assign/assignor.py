"""Compute an assignment from a view of the members and tasks, with a built-in assignor or a user's own.

Pins and drains hold with every assignor. If another assignor breaks a pin or drain, ``high_availability`` places the
task. If a user's code raises an error or returns an invalid assignment, a warning reports it and the query continues.
"""

import functools
import operator
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import PurePath
from typing import cast

from riffle_spark.assign.baselines import hash_assignor, sticky_assignor
from riffle_spark.assign.board import is_allowed
from riffle_spark.assign.explain import add_unlisted_moves
from riffle_spark.assign.high_availability import high_availability
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, MemberId, TaskId, View
from riffle_spark.assign.owner_goals import goal_name
from riffle_spark.assign.validity import find_refusals, tasks_with_broken_requests
from riffle_spark.errors import ConfigError
from riffle_spark.settings import SETTING_LINES, Settings

_BUILT_IN = ("high_availability", "sticky", "hash")
_NAMES_SHOWN = 5
_COST_LIMIT = 1_000_000_000
"""The maximum of a user's cost. Sums of larger costs would lose the difference that one move makes."""


def assign(view: View, settings: AssignSettings) -> Assignment:
    """Return the owners, standbys and warm-ups of every task.

    The function is pure: the same view and settings give the same assignment on any machine.

    Args:
        view: the members, the tasks and everything known about them.
        settings: the settings that concern assignment.

    Raises:
        ConfigError: there is a task but no member, or the assignor that the settings name cannot be loaded.

    >>> from riffle_spark.assign.model import Member, Task, TaskId
    >>> view = View((Member("a"), Member("b")), (Task(TaskId("counts", 0)), Task(TaskId("counts", 1))))
    >>> dict(assign(view, AssignSettings()).owners)
    {TaskId(group='counts', key_group=0): 'a', TaskId(group='counts', key_group=1): 'b'}
    """
    if view.tasks and not view.members:
        # Cause: No executor of the query runs, or all of them were lost at once.
        raise ConfigError(
            "There is no live member to place tasks on.",
            remedy="Start an executor, then assign again.",
            id="RIFFLE-0107",
        )
    settings, warnings = _evaluate_user_costs(view, settings)
    assignment = _run_assignor(view, settings)
    return replace(assignment, warnings=(*warnings, *assignment.warnings)) if warnings else assignment


def _run_assignor(view: View, settings: AssignSettings) -> Assignment:
    """Return the assignment of the assignor that the settings name, a built-in one or the user's own."""
    assignor = settings.assignor
    if assignor == "high_availability":
        return high_availability(view, settings)
    if assignor == "sticky":
        return _enforce_requests(view, sticky_assignor(view, settings), settings)
    if assignor == "hash":
        return _enforce_requests(view, hash_assignor(view, settings), settings)
    return _run_users_assignor(view, settings, _cached_assignor(assignor) if isinstance(assignor, str) else assignor)


def _run_users_assignor(view: View, settings: AssignSettings, assignor: Assignor) -> Assignment:
    """Return the assignment of a user's assignor, with operator requests enforced.

    If the assignor raises or its result is not valid, return the last assignment (the default assignment if there is
    none) with warnings.
    """
    try:
        answer = assignor(view.read_only(), settings)
    except Exception as error:  # noqa: BLE001 - the user's code must not stop the query
        # Cause: The user's own assignor failed. The last assignment stays, and only tasks without an owner are placed.
        problem = (
            f"[RIFFLE-0770] The assignor raised {_error_text(error, goal_name(assignor))}. What to do: Correct it."
        )
        return _fall_back(view, settings, [problem])
    problems = find_refusals(view, answer, settings)
    if problems:
        return _fall_back(view, settings, problems)
    answer = _restore_task_ids(view, answer)
    answer = replace(answer, target=answer.target or dict(answer.owners))
    return _enforce_requests(view, add_unlisted_moves(view, answer), settings)


def _enforce_requests(view: View, answer: Assignment, settings: AssignSettings) -> Assignment:
    """Return ``answer``, the valid result of an assignor, with the operator's pins and drains enforced.

    The default assignor places the tasks that ``answer`` leaves for good away from their pin, or on a drained or
    excluded member. A warning names these tasks.
    """
    broken_tasks = tasks_with_broken_requests(view, answer, settings)
    if not broken_tasks:
        return answer
    running = sum(len(members) for task, members in answer.warmups.items() if task not in broken_tasks)
    repaired_assignment = high_availability(
        replace(view, tasks=tuple(task for task in view.tasks if task.id in broken_tasks)),
        replace(settings, max_warmup_replicas=max(settings.max_warmup_replicas - running, 0)),
    )
    # Cause: An operator pinned a key-group or drained a member, and the user's own assignor did not obey.
    warning = (
        "[RIFFLE-0771] The assignor placed tasks elsewhere than on their pinned member, or on a drained member. The "
        f"default assignor places them: {_join_names(sorted(broken_tasks))}. "
        f"What to do: Obey the pins, drains and filters of the view in the assignor."
    )
    return replace(
        answer,
        owners={**answer.owners, **repaired_assignment.owners},
        standbys={**_remove_tasks(answer.standbys, broken_tasks), **repaired_assignment.standbys},
        warmups={**_remove_tasks(answer.warmups, broken_tasks), **repaired_assignment.warmups},
        target={**answer.target, **repaired_assignment.target},
        moves=(*(move for move in answer.moves if move.task not in broken_tasks), *repaired_assignment.moves),
        needs_probe=repaired_assignment.needs_probe or (answer.needs_probe and _is_unsettled(answer, broken_tasks)),
        probe_reason=repaired_assignment.probe_reason or answer.probe_reason,
        warnings=(*answer.warnings, warning),
    )


def _is_unsettled(answer: Assignment, broken: Collection[TaskId]) -> bool:
    """Return whether any task outside ``broken`` still has warm-ups, or has another owner than its target."""
    other_tasks = [task for task in answer.owners if task not in broken]
    return any(answer.warmups.get(task) or answer.target.get(task) != answer.owners[task] for task in other_tasks)


def _join_names(tasks: Sequence[object]) -> str:
    """Return the names of the first few tasks as text, followed by the number of the other tasks."""
    rest = len(tasks) - _NAMES_SHOWN
    return ", ".join(map(str, tasks[:_NAMES_SHOWN])) + (f" and {rest} more" if rest > 0 else "")


def _remove_tasks(
    copies: Mapping[TaskId, tuple[MemberId, ...]], tasks: Collection[TaskId]
) -> dict[TaskId, tuple[MemberId, ...]]:
    """Return the members with copies of each task, without the given tasks."""
    return {task: members for task, members in copies.items() if task not in tasks}


def _fall_back(view: View, settings: AssignSettings, problems: Sequence[str]) -> Assignment:
    """Return the assignment that replaces an invalid one, with ``problems`` as warnings.

    The last assignment stays, and only tasks without an owner are placed. If there is no last assignment, it is the
    assignment of the default assignor.
    """
    is_first = not any(task.id in view.owners for task in view.tasks)
    assignment = high_availability(view, settings if is_first else replace(settings, rebalance_enable="none"))
    effect = "The default assignor decides instead." if is_first else "The last assignment stays."
    parts = [problem.partition("What to do: ") for problem in problems]
    warnings = (f"{fact}{effect} {mark}{remedy}" for fact, mark, remedy in parts)
    return replace(assignment, warnings=(*warnings, *assignment.warnings))


def assign_settings(settings: Settings, drained: Iterable[MemberId] = ()) -> AssignSettings:
    """Return the part of a query's settings that concerns assignment.

    ``drained`` members are added to ``exclude``. Raises ``ConfigError`` if the user's assignor cannot be loaded.
    """
    loaded = load_assignor_setting(settings)
    values: dict[str, object] = {
        setting.name: getattr(loaded, setting.name)
        for setting in fields(AssignSettings)
        if setting.name in SETTING_LINES
    }
    values["forced_awareness"] = dict(loaded.forced_awareness)
    values["exclude"] = (*loaded.exclude, *(("id", member) for member in sorted(drained)))
    return AssignSettings(**values)  # type: ignore[arg-type] # each value is the setting of its name


def load_assignor_setting(settings: Settings) -> Settings:
    """Return the settings with the user's assignor as an object in place of its dotted path.

    A query calls this once, so a class is instantiated once. Built-in assignors stay names. Raises ``ConfigError`` if
    the assignor cannot be loaded.
    """
    if settings.assignor in _BUILT_IN:
        return settings
    assignor = _load_assignor(settings.assignor)
    return settings if assignor == settings.assignor else settings.but(assignor=assignor)


@functools.cache
def _cached_assignor(path: str) -> Assignor:
    """Return the user's assignor with this dotted path.

    It is loaded once per process. Raises ``ConfigError`` if it cannot be loaded.
    """
    return _load_assignor(path)


def _load_assignor(assignor: object) -> Assignor:
    """Return a user's assignor. ``assignor`` is a function, an object with ``__call__``, a class, or the dotted path of
    one (``module.name``).

    A class is instantiated. Raises ``ConfigError`` if this fails or if the result cannot be called.
    """
    loaded = _import_assignor(assignor) if isinstance(assignor, str) else assignor
    if isinstance(loaded, type):
        try:
            loaded = loaded()
        except Exception as error:
            raise ConfigError(
                f"The assignor {assignor} cannot be instantiated: {_error_text(error, str(assignor))}.",
                remedy="Remove the arguments of its constructor, or name a function.",
                where="assignor",
                id="RIFFLE-0110",
            ) from error
    if not callable(loaded):
        raise ConfigError(
            f"The assignor {assignor!r} is not callable.", remedy="Name a function.", where="assignor", id="RIFFLE-0108"
        )
    return cast("Assignor", loaded)


def _import_assignor(path: str) -> object:
    """Return the object with this dotted path (``module.name`` or ``module:name``).

    Raises ``ConfigError`` if the import fails.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return cast("object", getattr(import_module(module), name))
    except Exception as error:
        reason = f": {type(error).__name__}: {error}" if module else ""
        raise ConfigError(
            f"Unknown assignor {path!r}{reason}.",
            remedy=f"Use {', '.join(_BUILT_IN)}, a function, or the dotted path of your own.",
            where="assignor",
            id="RIFFLE-0109",
        ) from error


def _evaluate_user_costs(view: View, settings: AssignSettings) -> tuple[AssignSettings, list[str]]:
    """Call the user's cost function once per task and member. Return settings that look the costs up, and warnings.

    If the function raises, all its costs are ignored. If it allows a task on no member, the costs of this task are
    ignored.
    """
    user_cost = settings.user_cost
    if user_cost is None:
        return settings, []
    members = (*view.members, *view.awaited)
    try:
        costs = {(t.id, m.id): _clamp_cost(user_cost(t, m)) for t in view.tasks for m in members}
    except Exception as error:  # noqa: BLE001 - the user's code must not stop the query
        warning = (
            f"[RIFFLE-0772] user_cost raised {_error_text(error, goal_name(user_cost))}. It is ignored. "
            f"What to do: Correct the function."
        )
        return replace(settings, user_cost=None), [warning]
    eligible_members = [m.id for m in members if is_allowed(m, settings)] or [m.id for m in members]
    nowhere = [str(t.id) for t in view.tasks if all(costs[t.id, m] is None for m in eligible_members)]
    warnings = []
    if nowhere:
        warnings.append(
            f"[RIFFLE-0773] user_cost returned None for every member that may own {_join_names(nowhere)}, so these "
            f"tasks are placed without it.\n  What to do: Return an integer for at least one of these members."
        )
    return replace(settings, user_cost=lambda task, member: costs[task.id, member.id]), warnings


def _clamp_cost(cost: object) -> int | None:
    """Return a user's cost limited to the supported range.

    ``None`` (not allowed) stays. Raises ``TypeError`` for anything but an integer.
    """
    if cost is None:
        return None
    return min(max(operator.index(cost), -_COST_LIMIT), _COST_LIMIT)  # type: ignore[arg-type] # others raise TypeError


def _error_text(error: Exception, name: str) -> str:
    """Return the type and text of an error of a user's function, and the last traceback line in the file of that
    function. ``name`` is the function's name, for errors without such a line.
    """
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own_frames = [frame for frame in frames if frame.filename == frames[0].filename]
    place = (
        f"{PurePath(own_frames[-1].filename).name}, line {own_frames[-1].lineno}, in {own_frames[-1].name}"
        if own_frames
        else name
    )
    return f"{type(error).__name__}: {error} ({place})"


def _restore_task_ids(view: View, answer: Assignment) -> Assignment:
    """Return a valid assignment with the task ids of the view in place of equal ids.

    A user's assignor may return ids with NumPy numbers, which JSON cannot store.
    """
    ids = {task.id: task.id for task in view.tasks}
    return replace(
        answer,
        owners={ids[task]: member for task, member in answer.owners.items()},
        standbys={ids[task]: tuple(members) for task, members in answer.standbys.items() if members},
        warmups={ids[task]: tuple(members) for task, members in answer.warmups.items() if members},
        target={ids.get(task, task): member for task, member in answer.target.items()},
        moves=tuple(replace(move, task=ids.get(move.task, move.task)) for move in answer.moves),
    )
