"""Kafka Streams' high availability assignor as in KIP-441, without racks and tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Task, TaskId, View

__all__ = ["kip441"]

_Moving: TypeAlias = list[tuple[TaskId, MemberId]]
_Warmups: TypeAlias = dict[TaskId, tuple[MemberId, ...]]


class _Clients:
    """The members in the order of their ids, with the tasks assigned so far."""

    def __init__(self, view: View) -> None:
        self.slots = {member.id: max(member.slots, 1) for member in sorted(view.members, key=lambda member: member.id)}
        self.active: dict[MemberId, set[TaskId]] = {member: set() for member in self.slots}
        self.standby: dict[MemberId, set[TaskId]] = {member: set() for member in self.slots}

    def count(self, member: MemberId) -> int:
        """Return the number of copies assigned to a member."""
        return len(self.active[member]) + len(self.standby[member])

    def load(self, member: MemberId) -> float:
        """Return a member's copies per slot."""
        return self.count(member) / self.slots[member]

    def has(self, member: MemberId, task: TaskId) -> bool:
        """Return whether a member has a copy of a task."""
        return task in self.active[member] or task in self.standby[member]

    def least(self, is_allowed: Callable[[MemberId], bool]) -> MemberId | None:
        """Return the member with the least load among those allowed."""
        return min(filter(is_allowed, self.slots), key=lambda member: (self.load(member), member), default=None)

    def level(self, tasks_of: Mapping[MemberId, set[TaskId]]) -> None:
        """Move tasks from members with more load to members with less, while this balances both."""
        moved = True
        while moved:
            moved = False
            for giver in self.slots:
                for taker in self.slots:
                    for task in sorted(tasks_of[giver]) if giver != taker and self._pays(giver, taker) else ():
                        if not self._pays(giver, taker):
                            break
                        if not self.has(taker, task):
                            tasks_of[giver].remove(task)
                            tasks_of[taker].add(task)
                            moved = True

    def _pays(self, giver: MemberId, taker: MemberId) -> bool:
        skew = self.load(giver) - self.load(taker)
        after = (self.count(giver) - 1) / self.slots[giver] - (self.count(taker) + 1) / self.slots[taker]
        return skew > 0 and 0 <= after < skew


def kip441(view: View, settings: AssignSettings) -> Assignment:
    """Assign as Kafka Streams' high availability assignor does.

    1. Compute the target: stateful tasks are dealt in turn to the sorted members, regardless of present owners. 2. Move
    owners and standbys to members that have caught up, and let the target warm up.
    """
    clients = _Clients(view)
    tasks = sorted(view.tasks, key=lambda task: task.id)
    stateful = [task for task in tasks if task.kind == "stateful"]
    for n, task in enumerate(stateful):
        clients.active[list(clients.slots)[n % len(clients.slots)]].add(task.id)
    clients.level(clients.active)
    for task in stateful:
        for _ in range(min(settings.num_standbys, len(clients.slots) - 1)):
            least = clients.least(lambda m, task_id=task.id: not clients.has(m, task_id))  # type: ignore[misc]
            clients.standby[least or ""].add(task.id)
    clients.level(clients.standby)
    target = {task: member for member, ids in clients.active.items() for task in ids}
    ranks = {task.id: _ranks(task, view, clients, settings) for task in stateful}
    warmups: dict[TaskId, tuple[MemberId, ...]] = {}
    moving = _owners_on_caught_up(clients, ranks, warmups, settings.max_warmup_replicas)
    moving += _standbys_on_caught_up(clients, ranks, warmups, settings.max_warmup_replicas)
    for task in tasks:
        if task.kind != "stateful":
            clients.active[clients.least(lambda _: True) or ""].add(task.id)
    owners = {task: member for member, ids in sorted(clients.active.items()) for task in sorted(ids)}
    standbys: dict[TaskId, tuple[MemberId, ...]] = {}
    for member, ids in sorted(clients.standby.items()):
        for task_id in ids - {task for task, warm in warmups.items() if member in warm}:
            standbys[task_id] = (*standbys.get(task_id, ()), member)
    reason = f"{moving} copies wait for their target to be warm" if moving else ""
    return Assignment(owners, standbys, warmups, target, needs_probe=moving > 0, probe_reason=reason)


def _ranks(task: Task, view: View, clients: _Clients, settings: AssignSettings) -> dict[MemberId, float]:
    """Return the lag of each member for a task, 0 if it is acceptable."""
    lags = {member: view.lags.get(task.id, {}).get(member, task.size) for member in clients.slots}
    acceptable = settings.acceptable_recovery_lag
    return {m: float("inf") if lag is None else 0 if lag <= acceptable else lag for m, lag in lags.items()}


def _behind(tasks_of: Mapping[MemberId, set[TaskId]], ranks: Mapping[TaskId, dict[MemberId, float]]) -> _Moving:
    """Return (task, member) if another member has a smaller lag. Tasks with few candidates are first."""
    behind = [
        (task, m) for m, tasks in tasks_of.items() for task in tasks if ranks[task][m] > min(ranks[task].values())
    ]
    return sorted(behind, key=lambda pair: (sum(not rank for rank in ranks[pair[0]].values()), pair[0]))


def _owners_on_caught_up(
    clients: _Clients, ranks: Mapping[TaskId, dict[MemberId, float]], warmups: _Warmups, limit: int
) -> int:
    """Move each owner that is behind to a standby or another member that is not; return their number."""
    moving = _behind(clients.active, ranks)
    for task, target in moving:
        rank = ranks[task]
        spare = clients.least(lambda m, of=task, by=rank: not by[m] and of in clients.standby[m])  # type: ignore[misc]
        chosen = spare or clients.least(lambda m, by=rank: not by[m])  # type: ignore[misc]
        chosen = chosen or min(clients.slots, key=lambda m, by=rank: (by[m], m))  # type: ignore[misc]
        clients.active[target].remove(task)
        clients.active[chosen].add(task)
        if task in clients.standby[chosen]:
            clients.standby[chosen].remove(task)
            clients.standby[target].add(task)
        else:
            _warm_up(clients, warmups, task, target, limit)
    return len(moving)


def _standbys_on_caught_up(
    clients: _Clients, ranks: Mapping[TaskId, dict[MemberId, float]], warmups: _Warmups, limit: int
) -> int:
    """Move each standby, except warm-ups, to a member that is less behind. Return the number of moves."""
    moved = 0
    for task, target in _behind(clients.standby, ranks):
        if target in warmups.get(task, ()):
            continue
        rank = ranks[task]
        chosen = clients.least(lambda m, of=task, by=rank: not by[m] and not clients.has(m, of))  # type: ignore[misc]
        nearer = [m for m in clients.slots if (rank[m], m) < (rank[target], target) and not clients.has(m, task)]
        chosen = chosen or min(nearer, key=lambda m, by=rank: (by[m], m), default=None)  # type: ignore[misc]
        if chosen is not None:
            clients.standby[chosen].add(task)
            clients.standby[target].remove(task)
            _warm_up(clients, warmups, task, target, limit)
            moved += 1
    return moved


def _warm_up(clients: _Clients, warmups: _Warmups, task: TaskId, member: MemberId, limit: int) -> None:
    if sum(map(len, warmups.values())) < limit:
        clients.standby[member].add(task)
        warmups[task] = (*warmups.get(task, ()), member)
