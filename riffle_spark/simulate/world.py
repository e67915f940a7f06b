"""A simulated cluster with a clock: members, tasks and events, and the copies of the state.

Theory of operation. ``changed`` counts per task all bytes that were ever changed. The place of a copy is the count up
to which it has the changes. The copy lacks the rest, at most the whole state. A member fetches owned tasks first, then
standbys, then warm-ups. A running owner is always up to date, so its copy is not listed.
"""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.model import Assignment, AssignSettings, Member, MemberId, Task

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
EventKind = Literal["join", "return", "leave", "lose", "remove", "load", "time", "racks", "disk"]
NOBODY: Final = -1
OWNED = 0
STANDBY = 1
WARMING = 2
"""The purpose for which a member fetches a copy, in the order of fetching."""
PROTOCOL: Final[Mapping[str, float]] = {
    "rebalance_seconds": 3.0,
    "session_timeout": 45.0,
    "retry_seconds": 3.0,
    "probing_rebalance_interval": 600.0,
    "scheduled_rebalance_max_delay": 300.0,
    "state_cleanup_delay": 600.0,
}


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A member with its host, its bandwidth, and the rows per second of each slot (0: unlimited).

    ``disk_bytes`` is the size of its disk and ``memory_bytes`` the memory of its Python workers, 0 if not checked.
    ``disk_used_bytes`` is other data on that disk.
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
    """A task with the bytes of its state and of a changed row, and its rows per second.

    ``memory_bytes`` is the memory of the owner's Python workers at the usual load, ``row_seconds`` the time of a row
    in the user's code. ``rows_from`` are the racks with a replica of its source.
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
    """A change of membership or load at a second. Without ``tasks`` it applies to all tasks.

    ``leave`` is a shutdown, ``lose`` a crash, ``remove`` planned and permanent. ``amount`` is the factor of ``load``,
    the seconds per row of ``time``, or the bytes of other data of ``disk``.
    """

    second: float
    kind: EventKind
    members: tuple[MemberId, ...] = ()
    amount: float = 1.0
    tasks: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """A world file. ``members`` are all members of the simulation, ``present`` the members at its start.

    ``every`` is the duration of a batch in seconds. ``swing`` is the daily variation of the load. ``protocol`` holds
    durations in seconds (``PROTOCOL``). ``policies`` are played by default, or all if it is empty. ``marks`` are the
    limits of disk and memory that differ from the default settings.
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
    def is_measured(self) -> bool:
        """Whether the world describes disks, memory or racks of rows."""
        return (
            any(member.disk_bytes or member.memory_bytes for member in self.members)
            or any(task.rows_from for task in self.tasks)
            or any(event.kind == "racks" for event in self.events)
        )

    def relative_load(self, second: float) -> float:
        """Return the load at a second of the day as a multiple of the mean. It is lowest at second 0."""
        return 1.0 - self.swing * math.cos(2 * math.pi * second / 86_400) if self.swing else 1.0


class FetchedCopies(NamedTuple):
    """Copies that members bring up to date, as arrays of task, member, purpose (such as ``OWNED``) and place, the bytes
    that the copy has.
    """

    task: Ints
    member: Ints
    purpose: Ints
    place: Floats

    @classmethod
    def from_rows(
        cls, rows: list[tuple[int, int, int, float]], new: Set[tuple[int, int]] = frozenset()
    ) -> "FetchedCopies":
        """Return the copies in ``rows`` (task, member, purpose, place), in the order in which they are fetched.

        ``new`` are the (task, member) without any copy. Owners are first. Then existing copies advance before new
        copies are fetched, as in ``state/restore/follow.py``. Otherwise a new copy would make all others fall behind.
        """
        ordered = sorted(rows, key=lambda row: (row[1], row[2] != OWNED and row[:2] in new, row[2], row[0]))
        task, member, purpose = (np.array([row[n] for row in ordered], np.int64) for n in range(3))
        return cls(task, member, purpose, np.array([row[3] for row in ordered], np.float64))

    def select(self, mask: npt.NDArray[np.bool_]) -> "FetchedCopies":
        """Return the copies for which ``mask`` is true."""
        return FetchedCopies(self.task[mask], self.member[mask], self.purpose[mask], self.place[mask])

    def rows(self) -> Iterator[tuple[int, int, int, float]]:
        """Yield (task, member, purpose, place) of each copy."""
        return zip(self.task.tolist(), self.member.tolist(), self.purpose.tolist(), self.place.tolist(), strict=True)


class WorldCopies:
    """The owner of each task and the place of each copy. Tasks and members are positions in the world."""

    def __init__(self, world: World) -> None:
        """Start without owners and copies, with the sizes and rates of ``world``."""
        self.number = {task.task.id: t for t, task in enumerate(world.tasks)}
        self.index = {member.member.id: m for m, member in enumerate(world.members)}
        self.size = np.array([task.state_bytes for task in world.tasks])
        self.row_bytes = np.array([task.row_bytes for task in world.tasks])
        self.bandwidth = np.array([member.restore_bytes_per_second for member in world.members])
        self.changed = np.zeros(len(world.tasks))
        self.owner: Ints = np.full(len(world.tasks), NOBODY)
        self.synced = np.ones(len(world.tasks), bool)
        self.fetching = FetchedCopies.from_rows([])
        self.unused: dict[int, dict[int, tuple[float, float]]] = {m: {} for m in range(len(world.members))}
        """Copies that no assignment needs, by member and task: their place, and since when they are unused."""

    def lag(self, task: int, place: float) -> int:
        """Return how many changed records of a task a copy at ``place`` lacks."""
        lacking = min(float(self.size[task]), max(float(self.changed[task]) - place, 0.0))
        return round(lacking / float(self.row_bytes[task]))

    def lags(self) -> Iterator[tuple[int, int, int]]:
        """Yield task, member and lag of every copy."""
        yield from ((t, m, 0) for t, m in enumerate(self.owner.tolist()) if m >= 0 and self.synced[t])
        for m, copies in self.unused.items():
            yield from ((t, m, self.lag(t, place)) for t, (place, _) in copies.items())
        yield from ((t, m, self.lag(t, place)) for t, m, _, place in self.fetching.rows())

    def stop_copies(self, member: int, second: float, *, keeps_disk: bool) -> None:
        """Stop the copies of a member that is gone at ``second``. With ``keeps_disk`` they remain as unused copies."""
        is_of_member = self.fetching.member == member
        running = np.flatnonzero((self.owner == member) & self.synced)
        stopped = self.fetching.select(is_of_member)
        if keeps_disk:
            places = zip(stopped.task.tolist(), stopped.place.tolist(), strict=True)
            self.unused[member].update({t: (place, second) for t, place in places})
            owned = zip(running.tolist(), self.changed[running], strict=True)
            self.unused[member].update({t: (place, second) for t, place in owned})
        else:
            self.unused[member] = {}
        self.synced[self.owner == member] = False
        self.fetching = self.fetching.select(~is_of_member)

    def apply_assignment(self, assignment: Assignment, live: Mapping[MemberId, Member], second: float) -> None:
        """Apply an assignment at ``second``: set the owners, and start the copies that it needs on live members.

        Copies that it does not need become unused.
        """
        places = {(t, m): place for t, m, _, place in self.fetching.rows()}
        previous = self.owner
        owner = np.full(len(self.owner), NOBODY)
        owner[[self.number[task] for task in assignment.owners]] = [
            self.index[name] for name in assignment.owners.values()
        ]
        running = {self.index[name] for name in live}
        for t in np.flatnonzero((previous != owner) & self.synced & (previous >= 0)).tolist():
            if int(previous[t]) in running:
                places[t, int(previous[t])] = float(self.changed[t])
        needed_copies = [(t, int(owner[t]), OWNED) for t in np.flatnonzero((previous != owner) | ~self.synced).tolist()]
        for purpose, copies in ((STANDBY, assignment.standbys), (WARMING, assignment.warmups)):
            for task, names in copies.items():
                needed_copies += [(self.number[task], self.index[name], purpose) for name in names]
        rows = [(t, m, purpose, self._take_copy(t, m, places)) for t, m, purpose in needed_copies if m in running]
        for (t, m), place in places.items():
            self.unused[m][t] = place, second
        self.owner = owner
        self.synced = (previous == owner) & self.synced
        empty_place = (self.changed - self.size).tolist()
        self.fetching = FetchedCopies.from_rows(rows, {(t, m) for t, m, _, place in rows if place <= empty_place[t]})
        self._mark_synced_owners()

    def _take_copy(self, t: int, m: int, places: dict[tuple[int, int], float]) -> float:
        """Remove the copy of task ``t`` on member ``m`` from ``places`` and from the unused copies.

        Return its place, or the place of an empty copy.
        """
        empty_place = float(self.changed[t] - self.size[t])
        unused, _ = self.unused[m].pop(t, (empty_place, 0.0))
        return max(empty_place, places.pop((t, m), unused))

    def _mark_synced_owners(self) -> None:
        """Mark the tasks whose owner has a complete copy as synced."""
        is_complete = (self.fetching.purpose == OWNED) & (
            self.changed[self.fetching.task] <= self.fetching.place + 1e-6
        )
        self.synced[self.fetching.task[is_complete]] = True
        self.fetching = self.fetching.select(~is_complete)

    def remove_unused(self, since: float) -> None:
        """Remove the copies that have been unused since before ``since`` (seconds)."""
        for m, copies in self.unused.items():
            if copies and min(unused_since for _, unused_since in copies.values()) < since:
                self.unused[m] = {t: copy for t, copy in copies.items() if copy[1] >= since}

    def fetch_copies(self, seconds: float) -> tuple[Floats, list[float]]:
        """Let every member fetch for ``seconds``.

        Return how many seconds each task's owner still fetched, and the fetched bytes by purpose.
        """
        restoring = np.where(self.synced, 0.0, seconds)
        task, member, purpose, place = self.fetching
        if not len(task):
            return restoring, [0.0, 0.0, 0.0]
        lacking = np.clip(self.changed[task] - place, 0.0, self.size[task])
        is_first = np.append(True, member[1:] != member[:-1])
        sums = np.cumsum(lacking) - lacking
        ahead = sums - sums[is_first][np.cumsum(is_first) - 1]
        fetched = np.clip(self.bandwidth[member] * seconds - ahead, 0.0, lacking)
        owned = purpose == OWNED
        restoring[task[owned]] = np.minimum((ahead + lacking)[owned] / self.bandwidth[member[owned]], seconds)
        self.fetching = self.fetching._replace(place=self.changed[task] - (lacking - fetched))
        self._mark_synced_owners()
        return restoring, [float(fetched[purpose == kind].sum()) for kind in (OWNED, STANDBY, WARMING)]

    def lacking_bytes(self) -> float:
        """Return the bytes that all copies still have to fetch."""
        task, _, _, place = self.fetching
        return float(np.clip(self.changed[task] - place, 0.0, self.size[task]).sum())
