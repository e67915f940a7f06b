"""How even and how expensive a placement is. Knows balance per slot and traffic between racks. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from riffle_spark.assign.model import AssignSettings, Balance, Member, MemberId, Task, TaskId
from riffle_spark.assign.racks import rack_cost

__all__ = ["balance_of", "cost_of", "spread_per_slot"]

Copies = Mapping[TaskId, tuple[MemberId, ...]]


def spread_per_slot(members: Sequence[Member], placed: Iterable[MemberId]) -> float:
    """Return most minus fewest of ``placed`` per slot over the members."""
    counts = Counter(placed)
    loads = [counts[member.id] / max(member.slots, 1) for member in members]
    return max(loads) - min(loads) if loads else 0.0


def balance_of(
    members: Sequence[Member], tasks: Sequence[Task], owners: Mapping[TaskId, MemberId], standbys: Copies
) -> Balance:
    """Return how even owners, copies and the owners of each group are."""
    stateful = [task.id for task in tasks if task.kind != "stateless" and task.id in owners]
    copies = [*(owners[task] for task in stateful), *(m for held in standbys.values() for m in held)]
    groups = Counter((task.group, owner) for task, owner in owners.items())
    worst = 0
    for group in {task.group for task in owners}:
        counts = [groups[group, member.id] for member in members]
        worst = max(worst, max(counts) - min(counts))
    return Balance(
        owners=spread_per_slot(members, owners.values()),
        stateful_owners=spread_per_slot(members, (owners[task] for task in stateful)),
        stateful_copies=spread_per_slot(members, copies),
        worst_group=worst,
    )


def cost_of(
    members: Sequence[Member],
    tasks: Sequence[Task],
    owners: Mapping[TaskId, MemberId],
    standbys: Copies,
    settings: AssignSettings,
) -> int:
    """Return the traffic cost between racks of owners and standbys."""
    racks = {member.id: member.rack for member in members}
    weight = settings.rack_aware_assignment_traffic_cost
    total = 0
    for task in tasks:
        if task.id in owners:
            total += rack_cost(task.owner_traffic, racks.get(owners[task.id]), weight)
        total += sum(rack_cost(task.standby_traffic, racks.get(m), weight) for m in standbys.get(task.id, ()))
    return total
