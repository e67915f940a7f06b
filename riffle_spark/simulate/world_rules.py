"""Apply a running query's rules about disks, memory, racks and slow standbys to a played world.

The rules are those of ``protocol/ownership``. This module translates a world into what they expect: tasks by position
become tasks of one co-location group, and sizes and lags are the world's instead of a log's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from riffle_spark.assign.model import NO_TRAFFIC, Assignment, Lag, MemberId, TaskId, Traffic, View
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.membership import LiveMember, Membership
from riffle_spark.protocol.ownership.quarantine import Quarantine
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ownership.triggers import Measured, Patience
from riffle_spark.protocol.ownership.view import Situation, room_of
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import Executor
from riffle_spark.settings import Settings
from riffle_spark.simulate.world import World, WorldMember
from riffle_spark.state.log.manifest import Manifest

__all__ = ["MeasuredWorld", "WorldRules"]

_Lags = Mapping[tuple[TaskId, MemberId], int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MeasuredWorld:
    """What a query would know after a batch; tasks are named by position.

    ``bytes`` are the sizes of the tasks' state, ``memory`` the bytes of memory that they take. ``disks`` are the share
    in use and the bytes of each member's disk; ``memories`` the bytes of memory that are taken, and those left.
    """

    view: View
    present: Assignment
    now: float
    live: Mapping[MemberId, WorldMember]
    bytes: Mapping[int, int]
    memory: Mapping[int, float]
    traffic: Mapping[int, Traffic]
    disks: Mapping[MemberId, tuple[float, int]]
    memories: Mapping[MemberId, tuple[int, int]]


@dataclass(frozen=True)
class WorldSituation(Situation):
    """A situation whose copies and sizes are a world's, not those of a log."""

    sizes: Mapping[int, int] = field(default_factory=dict)
    lags: Mapping[TaskId, Mapping[MemberId, Lag]] = field(default_factory=dict)

    def bytes(self, t: TaskId) -> int:
        """Return how large the whole state of a task is."""
        return self.sizes[t.key_group]

    def held(self, member: MemberId) -> set[TaskId]:
        """Return the tasks of which a member has a copy, or should have."""
        return super().held(member) | {t for t, copies in self.lags.items() if member in copies}

    def lag(self, member: MemberId, t: TaskId) -> int:
        """Return how many changed records a member's copy of a task lacks."""
        return self.lags.get(t, {}).get(member) or 0


class WorldRules:
    """When disks, memory, racks or slow standbys ask for another assignment, and what the assignor is told of them."""

    def __init__(self, world: World) -> None:
        most = world.settings.max_warmup_replicas
        self._settings = Settings(max_warmup_replicas=most, **world.marks)  # type: ignore[arg-type]
        self._assigning = world.settings
        self._number = {one.task.id: n for n, one in enumerate(world.tasks)}
        self._ids = [one.task.id for one in world.tasks]
        self._measures = world.measures
        self._patience = Patience()
        self._quarantine = Quarantine()
        self._measured = Measured(Weights(), self._patience)
        self._slow = False

    @property
    def emptied(self) -> frozenset[MemberId]:
        """The members on whose disks no copy stays that nobody needs."""
        return self._quarantine.emptied

    def looks(self, slow: _Lags) -> bool:
        """Tell whether there is anything to look at, with standbys that have fallen behind for long enough."""
        self._slow = self._slow or bool(slow)
        return self._measures or self._slow

    def due(self, seen: MeasuredWorld, slow: _Lags) -> bool:
        """Look at what a batch has shown; tell whether to assign anew."""
        situation, present = self._situation(seen), seen.present
        behind = {(task(self._number[t]), member): lag for (t, member), lag in slow.items()}
        fired = [self._quarantine.add_slow(behind, situation), self._quarantine.update_marks(situation, self._settings)]
        if seen.traffic and self._assigning.rack_aware_assignment_strategy != "none":
            settled = not present.warmups and not present.needs_probe
            traffic, owners = _by_task(seen.traffic), self._tasks(seen.view.owners)
            fired.append(self._measured.reads_across(traffic, owners, _racks(seen), settled=settled))
        return any(fired)

    def told(self, seen: MeasuredWorld) -> View:
        """Return what the assignor is told, with what was measured."""
        if not seen.present.needs_probe or not self._measured.traffic:
            self._measured.traffic = _by_task(seen.traffic)
        situation, view, ids = self._situation(seen), seen.view, self._ids
        self._quarantine.update_marks(situation, self._settings)
        room, needs = room_of(situation, self._settings)
        quarantined = {ids[t.key_group]: members for t, members in self._quarantine.of(situation).items()}
        traffic = self._measured.traffic
        return replace(
            _without(view, self._quarantine.flooded), quarantined=quarantined,
            members=tuple(replace(member, memory_bytes=room.get(member.id)) for member in view.members),
            tasks=tuple(
                replace(
                    one, memory_bytes=needs.get(t, 0), owner_traffic=traffic.get(t, NO_TRAFFIC),
                    standby_traffic=replace(traffic.get(t, NO_TRAFFIC), later=t in traffic),
                )
                for t, one in zip(situation.tasks, view.tasks, strict=True)
            ),
        )  # fmt: skip

    def assigned(self, answer: Assignment, seen: MeasuredWorld) -> None:
        """Note an assignment, and what it leaves undone."""
        slots = {name: one.member.slots for name, one in seen.live.items()}
        self._measured.assigned(self._tasks(answer.target), slots, _racks(seen), self._assigning.balance_band)
        self._patience.start_over()

    def _situation(self, seen: MeasuredWorld) -> WorldSituation:
        view, members = seen.view, Membership()
        for name, one in seen.live.items():
            at = Executor(name, one.host, one.member.slots)
            members.live[name] = LiveMember(name, at, one.member.rack, one.member.tags)
        members.disks.update(seen.disks)
        members.memories.update(seen.memories)
        present = Assignment(self._tasks(view.owners), self._tasks(view.standbys), self._tasks(view.warmups))
        return WorldSituation(
            members, ReportedCopies(), Manifest(), (), range(len(self._ids)), seen.now, present,
            memory=_by_task(seen.memory),
            sizes=seen.bytes, lags=self._tasks(view.lags),
        )  # fmt: skip

    def _tasks(self, by_task: Mapping[TaskId, _T]) -> dict[TaskId, _T]:
        return {task(self._number[one]): value for one, value in by_task.items()}


def _by_task(by_number: Mapping[int, _T]) -> dict[TaskId, _T]:
    return {task(n): what for n, what in by_number.items()}


def _racks(seen: MeasuredWorld) -> dict[MemberId, str | None]:
    return {name: one.member.rack for name, one in seen.live.items()}


def _without(view: View, flooded: frozenset[MemberId]) -> View:
    """Return a view without the copies on some members that they do not own."""
    owners = view.owners
    standbys, warmups = (
        {t: tuple(m for m in held if m not in flooded) for t, held in copies.items()}
        for copies in (view.standbys, view.warmups)
    )
    lags = {
        t: {m: lag for m, lag in copies.items() if m not in flooded or owners.get(t) == m}
        for t, copies in view.lags.items()
    }
    return replace(view, standbys=standbys, warmups=warmups, lags=lags) if flooded else view
