"""How many copies fit into each member's memory. Knows what tasks need. Does not place any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from riffle_spark.assign.model import Member, MemberId, Task, TaskId

__all__ = ["copies_that_fit", "memory_warnings"]


def copies_that_fit(members: Sequence[Member], tasks: Sequence[Task], copies: int) -> list[int] | None:
    """Return the most copies each member should hold; ``None`` if memory sets no limit or is too small anyway.

    Counted with the largest task, so that any choice of tasks fits; with the mean where that leaves too little room.
    """
    needs = [task.memory_bytes for task in tasks if task.memory_bytes]
    if not needs or all(member.memory_bytes is None for member in members):
        return None
    for need in (max(needs), -(-sum(needs) // len(needs))):
        most = [copies if m.memory_bytes is None else min(copies, m.memory_bytes // need) for m in members]
        if sum(most) >= copies:
            return most
    return None


def memory_warnings(
    members: Sequence[Member],
    tasks: Sequence[Task],
    owners: Mapping[TaskId, MemberId],
    others: Sequence[Mapping[TaskId, tuple[MemberId, ...]]],
) -> list[str]:
    """Say which members hold more than their memory."""
    held: Counter[MemberId] = Counter()
    for task in tasks:
        for member in (owners[task.id], *(m for copies in others for m in copies.get(task.id, ()))):
            held[member] += task.memory_bytes
    return [
        f"member {member.id} is given {held[member.id]} bytes of state and has memory for {member.memory_bytes}"
        for member in sorted(members, key=lambda member: member.id)
        if member.memory_bytes is not None and held[member.id] > member.memory_bytes
    ]
