"""Apply a running query's rules about disks, memory, racks and slow standbys to a played world.

The rules are the code of ``protocol/ownership``. This module translates a world into its input: tasks by position
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
from riffle_spark.protocol.ownership.triggers import MeasuredTriggers, Patience
from riffle_spark.protocol.ownership.view import Situation, room_of
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import Executor
from riffle_spark.settings import Settings
from riffle_spark.simulate.world import World, WorldMember
from riffle_spark.state.log.manifest import Manifest

_Lags = Mapping[tuple[TaskId, MemberId], int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MeasuredWorld:
    """The measurements of a running query after a batch. Tasks are numbers: their positions in the world.

    ``bytes`` are the sizes of the tasks' state, ``memory`` the bytes of memory that they take. ``disks`` are the share
    in use and the bytes of each member's disk; ``memories`` the bytes of memory in use and left.
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
    """A situation with the copies and sizes of a world, not of a log."""

    sizes: Mapping[int, int] = field(default_factory=dict)
    lags: Mapping[TaskId, Mapping[MemberId, Lag]] = field(default_factory=dict)

    def bytes(self, t: TaskId) -> int:
        """Return the size in bytes of a task's whole state."""
        return self.sizes[t.key_group]

    def placed_tasks(self, member: MemberId) -> set[TaskId]:
        """Return the tasks that a member has a copy of or is assigned to."""
        return super().placed_tasks(member) | {t for t, copies in self.lags.items() if member in copies}

    def lag(self, member: MemberId, t: TaskId) -> int:
        """Return how many changed records a member's copy of a task lacks."""
        return self.lags.get(t, {}).get(member) or 0


class WorldRules:
    """The triggers of disks, memory, racks and slow standbys, and the view that the assignor gets because of them."""

    def __init__(self, world: World) -> None:
        """Start with the settings of ``world``, and without measurements."""
        warmups = world.settings.max_warmup_replicas
        self._settings = Settings(max_warmup_replicas=warmups, **world.marks)  # type: ignore[arg-type]
        self._assign_settings = world.settings
        self._ids = [task.task.id for task in world.tasks]
        self._number = {task_id: n for n, task_id in enumerate(self._ids)}
        self._is_measured = world.is_measured
        self._patience = Patience()
        self._quarantine = Quarantine()
        self._measured = MeasuredTriggers(Weights(), self._patience)
        self._had_slow_standby = False

    @property
    def members_to_empty(self) -> frozenset[MemberId]:
        """The members with full disks, from which all copies that no assignment needs are removed."""
        return self._quarantine.members_to_empty

    def can_fire(self, slow: _Lags) -> bool:
        """Return whether any trigger of this class can fire.

        ``slow`` are the standbys that have been falling behind. After the first of them it stays true.
        """
        self._had_slow_standby = self._had_slow_standby or bool(slow)
        return self._is_measured or self._had_slow_standby

    def is_due(self, measured: MeasuredWorld, slow: _Lags) -> bool:
        """Evaluate the measurements of a batch.

        Return whether a trigger causes an assignment. ``slow`` are the standbys that have been falling behind.
        """
        situation = self._make_situation(measured)
        present = measured.present
        lags = {(task(self._number[t]), member): lag for (t, member), lag in slow.items()}
        triggers = [
            self._quarantine.add_slow_standbys(lags, situation),
            self._quarantine.update_marks(situation, self._settings),
        ]
        if measured.traffic and self._assign_settings.rack_aware_assignment_strategy != "none":
            settled = not present.warmups and not present.needs_probe
            traffic = _key_by_task(measured.traffic)
            owners = self._to_task_keys(measured.view.owners)
            triggers.append(self._measured.reads_across(traffic, owners, _member_racks(measured), settled=settled))
        return any(triggers)

    def measured_view(self, measured: MeasuredWorld) -> View:
        """Return the view in ``measured`` with the memory, traffic and quarantined members added for the assignor."""
        if not measured.present.needs_probe or not self._measured.traffic:
            self._measured.traffic = _key_by_task(measured.traffic)
        situation = self._make_situation(measured)
        view = measured.view
        ids = self._ids
        self._quarantine.update_marks(situation, self._settings)
        free_memory, needs = room_of(situation, self._settings)
        members_by_task = self._quarantine.members_without_copies(situation)
        quarantined = {ids[t.key_group]: members for t, members in members_by_task.items()}
        traffic = self._measured.traffic
        tasks = tuple(
            replace(
                view_task,
                memory_bytes=needs.get(t, 0),
                owner_traffic=traffic.get(t, NO_TRAFFIC),
                standby_traffic=replace(traffic.get(t, NO_TRAFFIC), later=t in traffic),
            )
            for t, view_task in zip(situation.tasks, view.tasks, strict=True)
        )
        members = tuple(replace(member, memory_bytes=free_memory.get(member.id)) for member in view.members)
        reduced = _without_copies(view, self._quarantine.flooded)
        return replace(reduced, quarantined=quarantined, members=members, tasks=tasks)

    def note_assignment(self, assignment: Assignment, measured: MeasuredWorld) -> None:
        """Record an assignment, so that work and traffic which it cannot improve cause no other assignment."""
        slots = {name: member.member.slots for name, member in measured.live.items()}
        target = self._to_task_keys(assignment.target)
        self._measured.record_assignment(target, slots, _member_racks(measured), self._assign_settings.balance_band)
        self._patience.reset()

    def _make_situation(self, measured: MeasuredWorld) -> WorldSituation:
        """Return the measurements as the situation that the rules of a running query read."""
        view = measured.view
        members = Membership()
        for name, member in measured.live.items():
            executor = Executor(name, member.host, member.member.slots)
            members.live[name] = LiveMember(name, executor, member.member.rack, member.member.tags)
        members.disks.update(measured.disks)
        members.memories.update(measured.memories)
        present = Assignment(
            self._to_task_keys(view.owners), self._to_task_keys(view.standbys), self._to_task_keys(view.warmups)
        )
        return WorldSituation(
            members,
            ReportedCopies(),
            Manifest(),
            (),
            range(len(self._ids)),
            measured.now,
            present,
            memory=_key_by_task(measured.memory),
            sizes=measured.bytes,
            lags=self._to_task_keys(view.lags),
        )

    def _to_task_keys(self, by_id: Mapping[TaskId, _T]) -> dict[TaskId, _T]:
        """Return the values keyed by the ids that the rules use, instead of the ids in the world."""
        return {task(self._number[task_id]): value for task_id, value in by_id.items()}


def _key_by_task(by_number: Mapping[int, _T]) -> dict[TaskId, _T]:
    """Return the values keyed by task id. ``by_number`` has them by the task's position in the world."""
    return {task(number): value for number, value in by_number.items()}


def _member_racks(measured: MeasuredWorld) -> dict[MemberId, str | None]:
    return {name: member.member.rack for name, member in measured.live.items()}


def _without_copies(view: View, flooded: frozenset[MemberId]) -> View:
    """Return the view without the copies that members in ``flooded`` have but do not own."""
    if not flooded:
        return view
    owners = view.owners
    standbys, warmups = (
        {t: tuple(m for m in members if m not in flooded) for t, members in copies.items()}
        for copies in (view.standbys, view.warmups)
    )
    lags = {
        t: {m: lag for m, lag in copies.items() if m not in flooded or owners.get(t) == m}
        for t, copies in view.lags.items()
    }
    return replace(view, standbys=standbys, warmups=warmups, lags=lags)
