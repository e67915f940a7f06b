"""Ways to rebalance, put beside each other: who stops, who waits for whom, and what is fetched before it is owned.

Each says what is modelled of it and nothing more: none of them is the other system's code. Knows assignors. Does not
know clocks or worlds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Task, TaskId, View
from riffle_spark.simulate.group import Assign

__all__ = ["OURS", "POLICIES", "Policy", "kip441"]

_Moving: TypeAlias = list[tuple[TaskId, MemberId]]
_Warmups: TypeAlias = dict[TaskId, tuple[MemberId, ...]]


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to rebalance.

    ``stops`` are the tasks that stand while a rebalance lasts. ``batches`` are all run together: one task that restores
    holds up all, and a crash is noticed at once. ``static``: who left keeps its tasks until the session times out.
    ``defers``: tasks of who left stay without an owner until a delay is over. ``learns``: a hand-over waits for the
    copy, and its arrival is the next rebalance. ``probes``: whether there are rebalances without a change of
    membership, by a timer alone or as the rules of a running query say. ``awaits``: a lost member keeps its claim on
    its tasks for a while, which others process. ``keeps_copies``: whether a member that returns has its disk.
    """

    name: str
    says: str
    assignor: Assign
    stops: Literal["all", "moved", "none"] = "moved"
    batches: bool = False
    static: bool = False
    defers: bool = False
    learns: bool = False
    probes: Literal["never", "timer", "rules"] = "never"
    awaits: bool = False
    keeps_copies: bool = True


def _by(name: str) -> Assign:
    def assigned(view: View, settings: AssignSettings) -> Assignment:
        return assign(view, replace(settings, assignor=name))

    return assigned


def learner(view: View, settings: AssignSettings) -> Assignment:
    """Give a task to its next owner when that one has learned it; until then its living owner goes on.

    The proposal before KIP-441: where a task should be is the sticky assignor's choice.
    """
    wanted = assign(view, replace(settings, assignor="sticky"))
    owners, warmups = dict(wanted.owners), dict[TaskId, tuple[MemberId, ...]]()
    for task, owner in wanted.owners.items():
        before = view.owners.get(task)
        lag = view.lags.get(task, {}).get(owner, -1)
        if before is not None and before != owner and (lag is None or not 0 <= lag <= settings.acceptable_recovery_lag):
            owners[task], warmups[task] = before, (owner,)
    standbys = {task: tuple(m for m in held if m != owners[task] and m not in warmups.get(task, ()))
                for task, held in wanted.standbys.items()}  # fmt: skip
    return replace(wanted, owners=owners, warmups=warmups, standbys=standbys, needs_probe=bool(warmups))


class _Clients:
    """Members with their tasks, as KIP-441's steps see them: in the order of their ids, a task's copies together."""

    def __init__(self, view: View) -> None:
        self.slots = {member.id: max(member.slots, 1) for member in sorted(view.members, key=lambda member: member.id)}
        self.active: dict[MemberId, set[TaskId]] = {member: set() for member in self.slots}
        self.standby: dict[MemberId, set[TaskId]] = {member: set() for member in self.slots}

    def count(self, member: MemberId) -> int:
        """Return how many copies a member has been given."""
        return len(self.active[member]) + len(self.standby[member])

    def load(self, member: MemberId) -> float:
        """Return its copies per slot."""
        return self.count(member) / self.slots[member]

    def has(self, member: MemberId, task: TaskId) -> bool:
        """Tell whether a member has been given a copy of a task."""
        return task in self.active[member] or task in self.standby[member]

    def least(self, may: Callable[[MemberId], bool]) -> MemberId | None:
        """Return the member with the least load of those that may have something."""
        return min(filter(may, self.slots), key=lambda member: (self.load(member), member), default=None)

    def level(self, held: Mapping[MemberId, set[TaskId]]) -> None:
        """Move tasks from each fuller to each emptier member while that makes the two more level."""
        moved = True
        while moved:
            moved = False
            for giver in self.slots:
                for taker in self.slots:
                    for task in sorted(held[giver]) if giver != taker and self._pays(giver, taker) else ():
                        if not self._pays(giver, taker):
                            break
                        if not self.has(taker, task):
                            held[giver].remove(task)
                            held[taker].add(task)
                            moved = True

    def _pays(self, giver: MemberId, taker: MemberId) -> bool:
        skew = self.load(giver) - self.load(taker)
        after = (self.count(giver) - 1) / self.slots[giver] - (self.count(taker) + 1) / self.slots[taker]
        return skew > 0 and 0 <= after < skew


def kip441(view: View, settings: AssignSettings) -> Assignment:
    """Assign as KIP-441 and Kafka Streams' high availability assignor describe it, without racks and tags.

    The target is made anew each time, by turns over sorted members, and knows no owners; then owners and standbys are
    put on members that are caught up, and the target warms up.
    """
    clients, tasks = _Clients(view), sorted(view.tasks, key=lambda task: task.id)
    stateful = [task for task in tasks if task.kind == "stateful"]
    for n, task in enumerate(stateful):
        clients.active[list(clients.slots)[n % len(clients.slots)]].add(task.id)
    clients.level(clients.active)
    for task in stateful:
        for _ in range(min(settings.num_standbys, len(clients.slots) - 1)):
            clients.standby[clients.least(lambda m, one=task.id: not clients.has(m, one)) or ""].add(task.id)  # type: ignore[misc]
    clients.level(clients.standby)
    target = {task: member for member, held in clients.active.items() for task in held}
    ranks = {task.id: _ranks(task, view, clients, settings) for task in stateful}
    warmups: dict[TaskId, tuple[MemberId, ...]] = {}
    moving = _owners_on_caught_up(clients, ranks, warmups, settings.max_warmup_replicas)
    moving += _standbys_on_caught_up(clients, ranks, warmups, settings.max_warmup_replicas)
    for task in tasks:
        if task.kind != "stateful":
            clients.active[clients.least(lambda _: True) or ""].add(task.id)
    owners = {task: member for member, held in sorted(clients.active.items()) for task in sorted(held)}
    standbys: dict[TaskId, tuple[MemberId, ...]] = {}
    for member, held in sorted(clients.standby.items()):
        for one in held - {task for task, warm in warmups.items() if member in warm}:
            standbys[one] = (*standbys.get(one, ()), member)
    reason = f"{moving} copies wait for their target to be warm" if moving else ""
    return Assignment(owners, standbys, warmups, target, needs_probe=moving > 0, probe_reason=reason)


def _ranks(task: Task, view: View, clients: _Clients, settings: AssignSettings) -> dict[MemberId, float]:
    """Return how far each member is from being caught up on a task; 0 is near enough."""
    lags = {member: view.lags.get(task.id, {}).get(member, task.size) for member in clients.slots}
    acceptable = settings.acceptable_recovery_lag
    return {m: float("inf") if lag is None else 0 if lag <= acceptable else lag for m, lag in lags.items()}


def _behind(held: Mapping[MemberId, set[TaskId]], ranks: Mapping[TaskId, dict[MemberId, float]]) -> _Moving:
    """Return tasks and members that are not caught up while others are more so: those with few candidates first."""
    found = [(task, m) for m, of in held.items() for task in of if ranks[task][m] > min(ranks[task].values())]
    return sorted(found, key=lambda each: (sum(not rank for rank in ranks[each[0]].values()), each[0]))


def _owners_on_caught_up(
    clients: _Clients, ranks: Mapping[TaskId, dict[MemberId, float]], warmups: _Warmups, most: int
) -> int:
    """Put each owner that is behind on a standby or other member that is not; return how many are."""
    moving = _behind(clients.active, ranks)
    for task, wanted in moving:
        rank = ranks[task]
        spare = clients.least(lambda m, of=task, by=rank: not by[m] and of in clients.standby[m])  # type: ignore[misc]
        chosen = spare or clients.least(lambda m, by=rank: not by[m])  # type: ignore[misc]
        chosen = chosen or min(clients.slots, key=lambda m, by=rank: (by[m], m))  # type: ignore[misc]
        clients.active[wanted].remove(task)
        clients.active[chosen].add(task)
        if task in clients.standby[chosen]:
            clients.standby[chosen].remove(task)
            clients.standby[wanted].add(task)
        else:
            _warm_up(clients, warmups, task, wanted, most)
    return len(moving)


def _standbys_on_caught_up(
    clients: _Clients, ranks: Mapping[TaskId, dict[MemberId, float]], warmups: _Warmups, most: int
) -> int:
    """Do the same for standbys that are no warm-ups, as far as there is another member for them."""
    moved = 0
    for task, wanted in _behind(clients.standby, ranks):
        if wanted in warmups.get(task, ()):
            continue
        rank = ranks[task]
        chosen = clients.least(lambda m, of=task, by=rank: not by[m] and not clients.has(m, of))  # type: ignore[misc]
        nearer = [m for m in clients.slots if (rank[m], m) < (rank[wanted], wanted) and not clients.has(m, task)]
        chosen = chosen or min(nearer, key=lambda m, by=rank: (by[m], m), default=None)  # type: ignore[misc]
        if chosen is not None:
            clients.standby[chosen].add(task)
            clients.standby[wanted].remove(task)
            _warm_up(clients, warmups, task, wanted, most)
            moved += 1
    return moved


def _warm_up(clients: _Clients, warmups: _Warmups, task: TaskId, member: MemberId, most: int) -> None:
    if sum(map(len, warmups.values())) < most:
        clients.standby[member].add(task)
        warmups[task] = (*warmups.get(task, ()), member)


OURS: Final = "riffle"
POLICIES: Final = {
    each.name: each
    for each in (
        Policy("eager", "every rebalance revokes every task; the sticky assignor deals them out", _by("sticky"), "all"),
        Policy(
            "static", "eager, but who leaves keeps its tasks, idle, until its session times out", _by("sticky"), "all",
            static=True,
        ),
        Policy("cooperative", "only tasks that change hands stop; two rebalances where one is revoked", _by("sticky")),
        Policy(
            "deferred", "cooperative; tasks of who left wait without an owner until a delay is over", _by("sticky"),
            defers=True,
        ),
        Policy("learner", "cooperative; a task changes hands when the next owner has learned it", learner, learns=True),
        Policy(
            "kip441", "Kafka Streams' assignor as described: stateless target, warm-ups, a probe by a timer", kip441,
            probes="timer",
        ),
        Policy(
            "spark", "a hash over the executors there are; a task without its state restores in the batch",
            _by("hash"), "none", batches=True, keeps_copies=False,
        ),
        Policy(
            OURS, "riffle_spark's assignor and its rules of when to assign; a batch waits for its slowest task",
            assign, "none", batches=True, probes="rules", awaits=True,
        ),
    )
}  # fmt: skip
