"""The one entry: a view in, an assignment out. Knows the order of the steps. Does not know how any step works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from riffle_spark.assign.available import high_availability
from riffle_spark.assign.custom import load_assignor, raised, refusals, with_target
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, View
from riffle_spark.assign.sticky import hashed, sticky
from riffle_spark.errors import ConfigError

__all__ = ["assign"]


def assign(view: View, settings: AssignSettings) -> Assignment:
    """Return who owns, keeps and warms what: pure, the same answer for the same view and settings on any machine.

    Raises ``ConfigError`` if there is a task and no member.

    >>> from riffle_spark.assign.model import Member, Task, TaskId
    >>> view = View((Member("a"), Member("b")), (Task(TaskId("counts", 0)), Task(TaskId("counts", 1))))
    >>> dict(assign(view, AssignSettings()).owners)
    {TaskId(group='counts', key_group=0): 'a', TaskId(group='counts', key_group=1): 'b'}
    """
    if view.tasks and not view.members:
        raise ConfigError("there is no live member to place tasks on", remedy="start an executor, then assign again")
    chosen = settings.assignor
    if chosen == "high_availability":
        return high_availability(view, settings)
    if chosen in ("sticky", "hash"):
        return (sticky if chosen == "sticky" else hashed)(view, settings)
    return _users(view, settings, load_assignor(chosen) if isinstance(chosen, str) else chosen)


def _users(view: View, settings: AssignSettings, assignor: Assignor) -> Assignment:
    """Take a user's answer if it is valid; else keep what is and say what was wrong."""
    try:
        answer = assignor(view, settings)
    except Exception as error:  # noqa: BLE001 - the user's code: the query goes on with what is, and the warning says why
        return _without(view, settings, [raised(error, assignor)])
    wrong = refusals(view, answer, settings)
    return _without(view, settings, wrong) if wrong else with_target(answer)


def _without(view: View, settings: AssignSettings, said: Sequence[str]) -> Assignment:
    """Keep the last assignment and place only what has no owner; where there is no last one, do as the default does."""
    is_first = not any(task.id in view.owners for task in view.tasks)
    kept = high_availability(view, settings if is_first else replace(settings, rebalance_enable="none"))
    instead = "there is no last assignment, so high_availability decides" if is_first else "the last assignment stays"
    return replace(kept, warnings=(*(f"{each}; {instead}" for each in said), *kept.warnings))
