"""Which of KIP-441's properties a placement breaks, in a word each. Knows the properties. Does not know the assignor.

It judges placements of any assignor, so it looks only at the group before and the assignment.
"""

from __future__ import annotations

from collections.abc import Iterator

from riffle_spark.assign.check import violations
from riffle_spark.assign.figures import spread_per_slot
from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Task
from riffle_spark.assign.simulate import Group

__all__ = ["broken_properties", "unsettled_properties"]


def broken_properties(group: Group, assignment: Assignment, settings: AssignSettings) -> list[str]:
    """Return what this placement breaks: validity, standbys wanted, owners caught up, warm-ups bounded."""
    return [*violations(group.view(), assignment, settings), *_not_met(group, assignment, settings)]


def _not_met(group: Group, assignment: Assignment, settings: AssignSettings) -> Iterator[str]:
    wanted = min(settings.num_standbys, len(group.members) - 1)
    for task in group.tasks:
        if task.kind != "stateful":
            continue
        if len(assignment.standbys.get(task.id, ())) < wanted:
            yield f"standby_missing {task.id}"
        owner = assignment.owners.get(task.id)
        ranks = {member: _rank(group, task, member, settings.acceptable_recovery_lag) for member in group.members}
        if owner in ranks and ranks[owner] > min(ranks.values()):
            yield f"owner_not_most_caught_up {task.id}"
        others = [ranks[member] for member in assignment.standbys.get(task.id, ()) if member in ranks]
        spare = sorted(rank for member, rank in ranks.items() if member != owner)
        if sorted(others) != spare[: len(others)]:
            yield f"standby_not_next_most_caught_up {task.id}"


def _rank(group: Group, task: Task, member: MemberId, acceptable: int) -> float:
    lag = group.lags.get(member, {}).get(task.id, task.size)
    if lag is None:
        return float("inf")
    return 0 if lag <= acceptable else lag


def unsettled_properties(group: Group, last: Assignment) -> list[str]:
    """Return what a settled group must have and this one has not."""
    members = list(group.members.values())
    stateful = [last.owners[task.id] for task in group.tasks if task.kind == "stateful"]
    found = []
    if spread_per_slot(members, stateful) > 1:
        found.append("stateful_owners_not_balanced")
    if spread_per_slot(members, last.owners.values()) > 1:
        found.append("owners_not_balanced")
    return found
