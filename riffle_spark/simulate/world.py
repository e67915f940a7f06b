"""A cluster with a clock: its members, tasks and events, and where the state is while it is played. Knows bytes. Does
not know policies, files or when to assign.

Theory of operation of the copies. ``changed`` counts by task all bytes that were ever changed, and a copy is a place in
that count: it lacks the difference, or the whole state if that is less. A member fetches in order: what it owns, then
standbys, then warm-ups. The copy of an owner that runs is at the count by itself, so it is not listed.
"""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.model import Assignment, AssignSettings, Member, MemberId, Task

__all__ = [
    "KEPT",
    "NOBODY",
    "OWNED",
    "PROTOCOL",
    "WARMING",
    "Floats",
    "Happens",
    "Ints",
    "World",
    "WorldCopies",
    "WorldEvent",
    "WorldMember",
    "WorldTask",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Happens = Literal["join", "return", "leave", "lose", "remove", "load", "time", "racks", "disk"]
NOBODY: Final = -1
OWNED, KEPT, WARMING = 0, 1, 2
"""Why a member fetches a copy, in the order in which it does."""
PROTOCOL: Final[Mapping[str, float]] = {
    "rebalance_seconds": 3.0, "session_timeout": 45.0, "retry_seconds": 3.0, "probing_rebalance_interval": 600.0,
    "scheduled_rebalance_max_delay": 300.0, "state_cleanup_delay": 600.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A member, its host, the bytes it fetches and the rows each of its slots takes in a second (0: any number).

    ``disk_bytes`` and ``memory_bytes`` are those of its disk and of its Python workers, 0 where nobody looks at them;
    ``disk_used_bytes`` is what others have on that disk.
    """

    member: Member
    host: str
    restore_bytes_per_second: float
    rows_per_second: float
    disk_bytes: float = 0.0
    disk_used_bytes: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class WorldTask:
    """A task, the bytes of its state and of a changed row, and the rows that come for it in a second.

    ``memory_bytes`` is what its owner's Python workers take for its usual rows, ``row_seconds`` a row's time in a
    user's code, and ``rows_from`` are the racks that hold a replica of what its rows come from.
    """

    task: Task
    state_bytes: float
    row_bytes: float
    rows_per_second: float
    memory_bytes: float = 0.0
    row_seconds: float = 0.0
    rows_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorldEvent:
    """What happens at a second: members come or go; some tasks (none named: all) get ``amount`` times their usual rows,
    a row takes so many seconds of theirs, or rows come from other racks; others have so many bytes on members' disks.

    ``leave`` is a member's own shut-down and is noticed at once, ``lose`` is a crash, ``remove`` is on purpose and for
    good.
    """

    at: float
    kind: Happens
    members: tuple[MemberId, ...] = ()
    amount: float = 1.0
    tasks: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """One file. ``members`` are all that ever are, ``present`` those of the beginning; ``every`` is a batch's seconds.

    ``swing`` is by how much the load of a day goes up and down. ``protocol`` are seconds: of a rebalance, until a crash
    is noticed, until a failed batch runs again, between probes, for which a member is waited for, and for which copies
    stay. ``policies`` are those that are played if nobody asks for others, none: all. ``marks`` are those of disks and
    memory that differ from their defaults.
    """

    name: str
    seed: int
    seconds: float
    every: float
    settings: AssignSettings
    members: tuple[WorldMember, ...]
    present: frozenset[MemberId]
    tasks: tuple[WorldTask, ...]
    events: tuple[WorldEvent, ...]
    swing: float = 0.0
    protocol: Mapping[str, float] = field(default_factory=lambda: dict(PROTOCOL))
    policies: tuple[str, ...] = ()
    marks: Mapping[str, float] = field(default_factory=dict)

    @property
    def measures(self) -> bool:
        """Whether disks, memory or racks of rows are there to be measured."""
        return (
            any(one.disk_bytes or one.memory_bytes for one in self.members)
            or any(one.rows_from for one in self.tasks)
            or any(event.kind == "racks" for event in self.events)
        )

    def swung(self, now: float) -> float:
        """Return what the load is multiplied with at a second of the day; it is lowest at the beginning."""
        return 1.0 - self.swing * math.cos(2 * math.pi * now / 86_400) if self.swing else 1.0


class FetchedCopies(NamedTuple):
    """Copies that members bring up to date, by position: task, member, why (``OWNED``...), and the place it is at."""

    task: Ints
    member: Ints
    why: Ints
    place: Floats

    @classmethod
    def of(
        cls, rows: "list[tuple[int, int, int, float]]", new: "Set[tuple[int, int]]" = frozenset()
    ) -> "FetchedCopies":
        """Return the copies of rows, in the order in which members fetch them.

        ``new`` are the (task, member) without any copy. Owners come first. Then copies that exist advance before new
        ones are fetched, as ``state/restore/follow.py`` has it: otherwise a new copy would make all others fall behind.
        """
        ordered = sorted(rows, key=lambda row: (row[1], row[2] != OWNED and row[:2] in new, row[2], row[0]))
        task, member, why = (np.array([row[n] for row in ordered], np.int64) for n in range(3))
        return cls(task, member, why, np.array([row[3] for row in ordered], np.float64))

    def only(self, chosen: npt.NDArray[np.bool_]) -> "FetchedCopies":
        """Return some of them."""
        return FetchedCopies(self.task[chosen], self.member[chosen], self.why[chosen], self.place[chosen])

    def rows(self) -> "Iterator[tuple[int, int, int, float]]":
        """Return a row for each."""
        return zip(self.task.tolist(), self.member.tolist(), self.why.tolist(), self.place.tolist(), strict=True)


class WorldCopies:
    """Where the state of each task is, and how far each copy has come; tasks and members are positions in the world."""

    def __init__(self, world: World) -> None:
        self.number = {one.task.id: t for t, one in enumerate(world.tasks)}
        self.index = {one.member.id: m for m, one in enumerate(world.members)}
        self.size = np.array([one.state_bytes for one in world.tasks])
        self.row_bytes = np.array([one.row_bytes for one in world.tasks])
        self.bandwidth = np.array([one.restore_bytes_per_second for one in world.members])
        self.changed = np.zeros(len(world.tasks))
        self.owner: Ints = np.full(len(world.tasks), NOBODY)
        self.synced = np.ones(len(world.tasks), bool)
        self.fetching = FetchedCopies.of([])
        self.kept: dict[int, dict[int, tuple[float, float]]] = {m: {} for m in range(len(world.members))}
        """Copies that nobody brings up to date, by member and task: their place, and since when."""

    def lag(self, task: int, place: float) -> int:
        """Return how many records a copy at a place lacks."""
        lacking = min(float(self.size[task]), max(float(self.changed[task]) - place, 0.0))
        return round(lacking / float(self.row_bytes[task]))

    def lags(self) -> Iterator[tuple[int, int, int]]:
        """Return task, member and lag of every copy."""
        yield from ((t, m, 0) for t, m in enumerate(self.owner.tolist()) if m >= 0 and self.synced[t])
        for m, held in self.kept.items():
            yield from ((t, m, self.lag(t, place)) for t, (place, _) in held.items())
        yield from ((t, m, self.lag(t, place)) for t, m, _, place in self.fetching.rows())

    def left(self, member: int, now: float, *, on_disk: bool) -> None:
        """Let a member be gone, with its copies as they are where its disk comes back with it."""
        task, at, _, place = self.fetching
        mine = at == member
        running = np.flatnonzero((self.owner == member) & self.synced)
        self.kept[member].update({t: (p, now) for t, p in zip(task[mine].tolist(), place[mine].tolist(), strict=True)})
        self.kept[member].update({t: (p, now) for t, p in zip(running.tolist(), self.changed[running], strict=True)})
        self.kept[member] = self.kept[member] if on_disk else {}
        self.synced[self.owner == member] = False
        self.fetching = self.fetching.only(~mine)

    def placed(self, answer: Assignment, live: Mapping[MemberId, Member], now: float) -> None:
        """Let owners, standbys and warm-ups be those of an assignment; copies that it does not need stay a while."""
        there = {(t, m): place for t, m, _, place in self.fetching.rows()}
        before, owner = self.owner, np.full(len(self.owner), NOBODY)
        owner[[self.number[task] for task in answer.owners]] = [self.index[name] for name in answer.owners.values()]
        running = {self.index[name] for name in live}
        for t in np.flatnonzero((before != owner) & self.synced & (before >= 0)).tolist():
            if int(before[t]) in running:
                there[t, int(before[t])] = float(self.changed[t])
        wanted = [(t, int(owner[t]), OWNED) for t in np.flatnonzero((before != owner) | ~self.synced).tolist()]
        for why, copies in ((KEPT, answer.standbys), (WARMING, answer.warmups)):
            wanted += [(self.number[task], self.index[name], why) for task, held in copies.items() for name in held]
        rows = [(t, m, why, self._place(t, m, there)) for t, m, why in wanted if m in running]
        for (t, m), place in there.items():
            self.kept[m][t] = place, now
        self.owner = owner
        self.synced = (before == owner) & self.synced
        fresh = (self.changed - self.size).tolist()
        new = {(t, m) for t, m, _, place in rows if place <= fresh[t]}
        self.fetching = FetchedCopies.of(rows, new)
        self._settle()

    def _place(self, t: int, m: int, there: dict[tuple[int, int], float]) -> float:
        fresh = float(self.changed[t] - self.size[t])
        known = there.pop((t, m), None)
        kept = self.kept[m].pop(t, (fresh, 0.0))[0]
        return max(fresh, kept if known is None else known)

    def _settle(self) -> None:
        """Let owners run whose copies lack nothing."""
        done = (self.fetching.why == OWNED) & (self.changed[self.fetching.task] <= self.fetching.place + 1e-6)
        self.synced[self.fetching.task[done]] = True
        self.fetching = self.fetching.only(~done)

    def forget(self, before: float) -> None:
        """Remove copies that nobody has needed since then."""
        for m, held in self.kept.items():
            if held and min(since for _, since in held.values()) < before:
                self.kept[m] = {t: (place, since) for t, (place, since) in held.items() if since >= before}

    def fetch(self, seconds: float) -> tuple[Floats, list[float]]:
        """Let every member fetch; return how long each task's owner still did, and the bytes by why they were got."""
        restoring = np.where(self.synced, 0.0, seconds)
        task, member, why, place = self.fetching
        if not len(task):
            return restoring, [0.0, 0.0, 0.0]
        lacks = np.clip(self.changed[task] - place, 0.0, self.size[task])
        first = np.append(True, member[1:] != member[:-1])
        sums = np.cumsum(lacks) - lacks
        ahead = sums - sums[first][np.cumsum(first) - 1]
        got = np.clip(self.bandwidth[member] * seconds - ahead, 0.0, lacks)
        owned = why == OWNED
        restoring[task[owned]] = np.minimum((ahead + lacks)[owned] / self.bandwidth[member[owned]], seconds)
        self.fetching = self.fetching._replace(place=self.changed[task] - (lacks - got))
        self._settle()
        return restoring, [float(got[why == each].sum()) for each in (OWNED, KEPT, WARMING)]

    def lacking(self) -> float:
        """Return the bytes that copies lack which somebody fetches."""
        task, _, _, place = self.fetching
        return float(np.clip(self.changed[task] - place, 0.0, self.size[task]).sum())
