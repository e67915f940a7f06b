"""The one entry: a view in, an assignment out. Knows the order of the steps. Does not know how any step works."""

from __future__ import annotations

from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Move, TaskId, View
from riffle_spark.errors import ConfigError

__all__ = ["assign"]


def assign(view: View, settings: AssignSettings) -> Assignment:
    """Return who owns, keeps and warms what: pure, the same answer for the same view and settings on any machine.

    Raises ``ConfigError`` if there is a task and no member.

    >>> from riffle_spark.assign.model import Member, Task
    >>> view = View((Member("a"), Member("b")), (Task(TaskId("counts", 0)), Task(TaskId("counts", 1))))
    >>> dict(assign(view, AssignSettings()).owners)
    {TaskId(group='counts', key_group=0): 'a', TaskId(group='counts', key_group=1): 'b'}
    """
    if view.tasks and not view.members:
        raise ConfigError("there is no live member to place tasks on", remedy="start an executor, then assign again")
    members = sorted(view.members, key=lambda member: member.id)
    load = {member.id: 0 for member in members}
    slots = {member.id: member.slots for member in members}
    share = len(view.tasks) / max(1, sum(slots.values()))
    owners: dict[TaskId, MemberId] = {}
    for task in sorted(task.id for task in view.tasks):
        owner = view.owners.get(task)
        if owner not in load or load[owner] + 1 > -(-share * slots[owner] // 1):
            owner = min(load, key=lambda member: (load[member] / slots[member], member))
        owners[task] = owner
        load[owner] += 1
    moves = [
        Move(task, "owner", view.owners.get(task), owner, "balance", "placed where there is most room")
        for task, owner in owners.items()
        if view.owners.get(task) != owner
    ]
    return Assignment(owners, target=owners, moves=tuple(moves))
