"""The one entry: a view in, an assignment out. Knows the order of the steps. Does not know how any step works."""

from __future__ import annotations

from riffle_spark.assign.available import high_availability
from riffle_spark.assign.model import Assignment, AssignSettings, View
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
    return high_availability(view, settings)
