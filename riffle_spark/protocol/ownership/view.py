"""Describe a running query to the assignor."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from riffle_spark.assign import model
from riffle_spark.assign.assignor import assign_settings
from riffle_spark.protocol.ownership.groups import Groups, parse_task
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies, lag_without_copy
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import EMPTY, Entry, Manifest
from riffle_spark.state.log.record import Record

__all__ = ["Situation", "assign_settings", "recorded_assignment", "room_of", "uses_pointers", "view_of"]

_COPY_TIMES = 2
"""A copy takes up to twice its state, because new deltas are stored in addition until both are merged."""


def recorded_assignment(tail: Record, groups: Groups | None = None) -> model.Assignment:
    """Return the owners and standbys that record ``tail`` stores. If ``groups`` is passed, tasks of other groups are
    left out.
    """
    owners = {parse_task(name): owner for name, owner in tail.owners.items()}
    standbys = {parse_task(name): tuple(members) for name, members in tail.standbys.items()}
    if groups is not None:
        owners = groups.restrict(owners)
        standbys = groups.restrict(standbys)
    return model.Assignment(owners, standbys)


@dataclass(frozen=True)
class Situation:
    """Everything that an assignment of a running query depends on, except its settings.

    ``stores`` are the durable stores, ``key_groups`` the numbers in each of ``groups``, ``now`` the seconds of the
    driver's clock. ``prior_owners`` names the lost or returned members that owned tasks before. ``traffic`` is what a
    task reads by rack, ``weights`` its measured work, ``memory`` its bytes of memory. ``partitions`` are the (topic,
    partition) of key-groups with dispatch by partition. ``quarantined`` names, by task, members that should have no
    copy of it. Copies on ``flooded`` members count only for tasks that the member owns.
    """

    members: Membership
    copies: ReportedCopies
    manifest: Manifest
    stores: tuple[str, ...]
    key_groups: Collection[int]
    now: float
    present: model.Assignment
    groups: Groups = field(default_factory=Groups)
    pins: Mapping[model.TaskId, model.MemberId] = field(default_factory=dict)
    drained: frozenset[model.MemberId] = frozenset()
    prior_owners: Mapping[model.TaskId, model.MemberId] = field(default_factory=dict)
    traffic: Mapping[model.TaskId, model.Traffic] = field(default_factory=dict)
    weights: Mapping[model.TaskId, int] = field(default_factory=dict)
    partitions: Sequence[tuple[str, int]] = ()
    quarantined: Mapping[model.TaskId, tuple[model.MemberId, ...]] = field(default_factory=dict)
    flooded: frozenset[model.MemberId] = frozenset()
    memory: Mapping[model.TaskId, float] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> list[model.TaskId]:
        """Return all tasks, sorted."""
        return self.groups.tasks(self.key_groups)

    @cached_property
    def _task_set(self) -> frozenset[model.TaskId]:
        return frozenset(self.tasks)

    @cached_property
    def _stores_of(self) -> dict[str, tuple[str, ...]]:
        """Return the durable stores of each group."""
        return {group: self.groups.stores_of(group, self.stores) for group in self.groups.names}

    def stores_of(self, t: model.TaskId) -> tuple[str, ...]:
        """Return the durable stores of a task's group."""
        return self._stores_of.get(t.group, ())

    def entries(self, t: model.TaskId) -> list[Entry]:
        """Return the manifest entry of each durable store of a task."""
        return [self.manifest.entries.get((store, t.key_group), EMPTY) for store in self.stores_of(t)]

    def bytes(self, t: model.TaskId) -> int:
        """Return the bytes of a task's whole state in the object store."""
        return sum(lag_without_copy(entry).bytes for entry in self.entries(t))

    def has_copy(self, member: model.MemberId, t: model.TaskId) -> bool:
        """Return whether a live member has a copy of one of a task's stores."""
        heads = self.copies.of_member(member)
        return member in self.members.live and any((store, t.key_group) in heads for store in self.stores_of(t))

    def copied_tasks(self, member: model.MemberId) -> set[model.TaskId]:
        """Return the tasks of which a member has a copy of at least one store."""
        tasks_with_copy = {
            self.groups.task(store, kg) for store, kg in self.copies.of_member(member) if store in self.stores
        }
        return tasks_with_copy & self._task_set

    def owned_tasks(self, member: model.MemberId) -> set[model.TaskId]:
        """Return the tasks that a member owns."""
        return {t for t, owner in self.present.owners.items() if owner == member}

    def placed_tasks(self, member: model.MemberId) -> set[model.TaskId]:
        """Return the tasks that a member has a copy of, owns, or keeps as a standby or warm-up."""
        tasks = self.copied_tasks(member) | self.owned_tasks(member)
        for copies in (self.present.standbys, self.present.warmups):
            tasks |= {t for t, members in copies.items() if member in members}
        return tasks

    def lag(self, member: model.MemberId, t: model.TaskId) -> int:
        """Return how many changed records a member lacks of a task, over all its durable stores."""
        entries = zip(self.stores_of(t), self.entries(t), strict=True)
        return sum(self.copies.lag(member, (store, t.key_group), entry).records for store, entry in entries)


def uses_pointers(settings: Settings) -> bool:
    """Return whether standbys hold pointers to snapshots instead of copies."""
    return settings.standby_mode == "snapshot_pointer"


def view_of(situation: Situation, settings: Settings) -> model.View:
    """Return the assignor's view of a query."""
    members = situation.members
    present = situation.present
    live = frozenset(members.live)
    awaited = members.awaited_members(situation.now, settings.scheduled_rebalance_max_delay)
    lags = _lags(situation)
    room, needs = room_of(situation, settings)
    return model.View(
        members=tuple(
            replace(m.to_assignor_member(), memory_bytes=room.get(name)) for name, m in sorted(members.live.items())
        ),
        tasks=_tasks(situation, needs),
        owners={t: owner for t, owner in present.owners.items() if owner in live},
        standbys=_restrict_to(present.standbys, live - situation.flooded),
        warmups=_restrict_to(present.warmups, live - situation.flooded),
        lags=lags,
        pins=situation.pins,
        prior_owners={t: m for t, m in situation.prior_owners.items() if m in live or m in awaited},
        awaited=tuple(member.to_assignor_member() for member in awaited.values()),
        pointers=_pointers(present, lags, live) if uses_pointers(settings) else {},
        target=present.target,
        drained=situation.drained,
        quarantined=situation.quarantined,
    )


def room_of(situation: Situation, settings: Settings) -> tuple[dict[model.MemberId, int], dict[model.TaskId, int]]:
    """Return the bytes of copies that fit on each member, and the bytes of each task's copy.

    1. Disks limit the copies if not all copies would fit on each of them.
    2. Otherwise memory limits them if a member could not hold twice its share.
    3. Otherwise both results are empty.

    The copies that a member has already always fit, each counted as the largest task.
    """
    disk_limit = settings.local_disk_limit
    members = situation.members
    free = {name: int(size * (disk_limit - used)) for name, (used, size) in members.disks.items() if used < disk_limit}
    needs = {t: _COPY_TIMES * situation.bytes(t) for t in situation.tasks} if free else {}
    if needs and min(free.values()) < sum(needs.values()):
        return _add_held_copies(free, {name: situation.placed_tasks(name) for name in free}, needs), needs
    memory_limit = settings.local_memory_limit
    shares = members.memory_shares
    free = {}
    for name, share in shares.items():
        if share < memory_limit:
            used_bytes, free_bytes = members.memories[name]
            free[name] = int(memory_limit * (used_bytes + free_bytes)) - used_bytes
    tasks = frozenset(situation.tasks)
    needs = {t: round(size) for t, size in situation.memory.items() if t in tasks}
    if not free or min(free.values()) * len(shares) > sum(needs.values()):
        return {}, {}
    return _add_held_copies(free, {name: situation.owned_tasks(name) for name in free}, needs), needs


def _add_held_copies(
    free: Mapping[model.MemberId, int],
    present: Mapping[model.MemberId, set[model.TaskId]],
    needs: Mapping[model.TaskId, int],
) -> dict[model.MemberId, int]:
    """Return the room of each member, given its ``free`` bytes and the tasks that it holds at ``present``.

    ``needs`` has the bytes of each task's copy.
    """
    largest = max(needs.values(), default=0)
    sizes = {name: [needs[t] for t in tasks if t in needs] for name, tasks in present.items()}
    return {name: max(free[name] + sum(sizes[name]), len(sizes[name]) * largest) for name in free}


def _pointers(
    present: model.Assignment,
    lags: Mapping[model.TaskId, Mapping[model.MemberId, model.Lag]],
    live: frozenset[model.MemberId],
) -> dict[model.TaskId, tuple[model.MemberId, ...]]:
    """Return the live standbys of each task that have no copy, only a pointer to a snapshot."""
    pointers = {t: tuple(m for m in members if m not in lags.get(t, {})) for t, members in present.standbys.items()}
    return _restrict_to(pointers, live)


def _tasks(situation: Situation, needs: Mapping[model.TaskId, int]) -> tuple[model.Task, ...]:
    """Return the assignor's tasks.

    A standby reads from the object store, and the store belongs to no rack. Its traffic is its future traffic as the
    owner.
    """
    partitions = dict(enumerate(situation.partitions))
    tasks = []
    for t in situation.tasks:
        traffic = situation.traffic.get(t)
        topic, partition = partitions.get(t.key_group, (None, None))
        tasks.append(
            model.Task(
                t,
                kind="stateful" if situation.stores_of(t) else "unlogged",
                size=sum(lag_without_copy(entry).records for entry in situation.entries(t)),
                weight=situation.weights.get(t),
                memory_bytes=needs.get(t, 0),
                owner_traffic=traffic or model.NO_TRAFFIC,
                topic=topic,
                partition=partition,
                standby_traffic=replace(traffic, later=True) if traffic else model.NO_TRAFFIC,
            )
        )
    return tuple(tasks)


def _restrict_to(
    copies: Mapping[model.TaskId, tuple[model.MemberId, ...]], members: frozenset[model.MemberId]
) -> dict[model.TaskId, tuple[model.MemberId, ...]]:
    """Return the copies that are on ``members``. Tasks without such a copy are left out."""
    restricted_copies = {t: tuple(m for m in holders if m in members) for t, holders in copies.items()}
    return {t: holders for t, holders in restricted_copies.items() if holders}


def _lags(situation: Situation) -> dict[model.TaskId, dict[model.MemberId, model.Lag]]:
    """Return the lag of every copy on a live member. A member without a copy of a task is not listed."""
    lags: dict[model.TaskId, dict[model.MemberId, model.Lag]] = {}
    for member in sorted(situation.members.live):
        tasks = situation.copied_tasks(member)
        if member in situation.flooded:
            tasks = {t for t in tasks if situation.present.owners.get(t) == member}
        for t in sorted(tasks):
            lags.setdefault(t, {})[member] = situation.lag(member, t)
    return lags
