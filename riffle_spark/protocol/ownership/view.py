"""Describe a running query to the assignor."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from riffle_spark.assign import model
from riffle_spark.assign.assignor import assign_settings
from riffle_spark.protocol.ownership.groups import Groups, task_named
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies, lag_without_copy
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import EMPTY, Entry, Manifest
from riffle_spark.state.log.record import Record

__all__ = ["Situation", "assign_settings", "recorded", "room_of", "uses_pointers", "view_of"]

_COPY_TIMES = 2
"""A copy takes up to twice its state: what came with batches lies beside it until both are merged."""


def recorded(tail: Record, groups: Groups | None = None) -> model.Assignment:
    """Return who owned and kept what when a record was written, as far as it is of these groups."""
    owners = {task_named(name): owner for name, owner in tail.owners.items()}
    standbys = {task_named(name): tuple(members) for name, members in tail.standbys.items()}
    if groups is not None:
        owners, standbys = groups.only(owners), groups.only(standbys)
    return model.Assignment(owners, standbys)


@dataclass(frozen=True)
class Situation:
    """Everything that an assignment of a running query depends on, beside its settings.

    ``stores`` are the durable ones, ``key_groups`` those that exist in each of ``groups``, ``now`` seconds of the
    driver's clock. ``homes`` are the members that lost tasks belong to, ``traffic`` what a task reads by rack,
    ``weights`` its measured work. ``partitions`` are the (topic, partition) that key-groups stand for, where dispatch
    is by partition. ``quarantined`` are members that should have no copy of a task; on ``flooded`` ones copies
    count only for what they own. ``memory`` are the bytes of memory that a task takes.
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
        """The tasks that there are, sorted."""
        return self.groups.tasks(self.key_groups)

    @cached_property
    def _exist(self) -> frozenset[model.TaskId]:
        return frozenset(self.tasks)

    @cached_property
    def _stores_of(self) -> dict[str, tuple[str, ...]]:
        return {group: self.groups.stores_of(group, self.stores) for group in self.groups.names}

    def stores_of(self, t: model.TaskId) -> tuple[str, ...]:
        """Return the durable stores of a task's group."""
        return self._stores_of.get(t.group, ())

    def entries(self, t: model.TaskId) -> list[Entry]:
        """Return the entries of a task's durable stores."""
        return [self.manifest.entries.get((store, t.key_group), EMPTY) for store in self.stores_of(t)]

    def bytes(self, t: model.TaskId) -> int:
        """Return how large the whole state of a task is."""
        return sum(lag_without_copy(entry).bytes for entry in self.entries(t))

    def copied(self, member: model.MemberId) -> set[model.TaskId]:
        """Return the tasks of which a member has a copy."""
        found = {self.groups.task(store, kg) for store, kg in self.copies.of(member) if store in self.stores}
        return found & self._exist

    def owned(self, member: model.MemberId) -> set[model.TaskId]:
        """Return the tasks that a member owns."""
        return {t for t, owner in self.present.owners.items() if owner == member}

    def held(self, member: model.MemberId) -> set[model.TaskId]:
        """Return the tasks of which a member has a copy, or should have."""
        kept = self.copied(member) | self.owned(member)
        for copies in (self.present.standbys, self.present.warmups):
            kept |= {t for t, members in copies.items() if member in members}
        return kept

    def lag(self, member: model.MemberId, t: model.TaskId) -> int:
        """Return how many changed records a member's copies of a task lack, over all its durable stores."""
        addresses = [(store, t.key_group) for store in self.stores_of(t)]
        every = zip(addresses, self.entries(t), strict=True)
        return sum(self.copies.lag(member, address, entry).records for address, entry in every)


def uses_pointers(settings: Settings) -> bool:
    """Return whether standbys hold pointers to snapshots instead of copies."""
    return settings.standby_mode == "snapshot_pointer"


def view_of(situation: Situation, settings: Settings) -> model.View:
    """Return the assignor's view of a query."""
    members, present = situation.members, situation.present
    live = frozenset(members.live)
    awaited = members.awaited(situation.now, settings.scheduled_rebalance_max_delay)
    lags = _lags(situation)
    room, needs = room_of(situation, settings)
    return model.View(
        members=tuple(
            replace(living.member(), memory_bytes=room.get(name)) for name, living in sorted(members.live.items())
        ),
        tasks=_tasks(situation, needs),
        owners={t: owner for t, owner in present.owners.items() if owner in live},
        standbys=_living(present.standbys, live - situation.flooded),
        warmups=_living(present.warmups, live - situation.flooded),
        lags=lags,
        pins=situation.pins,
        prior_owners={t: home for t, home in situation.prior_owners.items() if home in live or home in awaited},
        awaited=tuple(living.member() for living in awaited.values()),
        pointers=_pointers(present, lags, live) if uses_pointers(settings) else {},
        target=present.target,
        drained=situation.drained,
        quarantined=situation.quarantined,
    )


def room_of(
    situation: Situation, settings: Settings
) -> tuple[dict[model.MemberId, int], dict[model.TaskId, int]]:  # fmt: skip
    """Return the bytes of copies that fit on each member, and those of each task: on disks where not all would fit
    on each; else in memory where that may be short; else none. What is there already fits, also where it counts as the
    largest.
    """
    limit, members = settings.local_disk_limit, situation.members
    free = {name: int(size * (limit - used)) for name, (used, size) in members.disks.items() if used < limit}
    needs = {t: _COPY_TIMES * situation.bytes(t) for t in situation.tasks} if free else {}
    if needs and min(free.values()) < sum(needs.values()):
        return _with_held(free, {name: situation.held(name) for name in free}, needs), needs
    limit, shares = settings.local_memory_limit, members.memory_shares
    roomy = {name: members.memories[name] for name, share in shares.items() if share < limit}
    left = {name: int(limit * (taken + rest)) - taken for name, (taken, rest) in roomy.items()}
    tasks = frozenset(situation.tasks)
    needs = {t: round(took) for t, took in situation.memory.items() if t in tasks}
    if not left or min(left.values()) * len(shares) > sum(needs.values()):
        return {}, {}  # Each could take twice its share.
    return _with_held(left, {name: situation.owned(name) for name in left}, needs), needs


def _with_held(
    room: Mapping[model.MemberId, int],
    held: Mapping[model.MemberId, set[model.TaskId]],
    needs: Mapping[model.TaskId, int],
) -> dict[model.MemberId, int]:
    most = max(needs.values(), default=0)
    each = {name: [needs[t] for t in tasks if t in needs] for name, tasks in held.items()}
    return {name: max(room[name] + sum(each[name]), len(each[name]) * most) for name in room}


def _pointers(
    present: model.Assignment,
    lags: Mapping[model.TaskId, Mapping[model.MemberId, model.Lag]],
    live: frozenset[model.MemberId],
) -> dict[model.TaskId, tuple[model.MemberId, ...]]:
    """Return the standbys that hold no copy but know which snapshot to fetch."""
    without = {t: tuple(m for m in held if m not in lags.get(t, {})) for t, held in present.standbys.items()}
    return _living(without, live)


def _tasks(situation: Situation, needs: Mapping[model.TaskId, int]) -> tuple[model.Task, ...]:
    """Return the tasks. What a standby reads comes from the store, which is in no rack: its traffic is what it will
    read as the owner that it may become.
    """
    stands_for = dict(enumerate(situation.partitions))
    later = {t: replace(each, later=True) for t, each in situation.traffic.items()}
    return tuple(
        model.Task(
            t,
            kind="stateful" if situation.stores_of(t) else "unlogged",
            size=sum(lag_without_copy(entry).records for entry in situation.entries(t)),
            weight=situation.weights.get(t),
            memory_bytes=needs.get(t, 0),
            owner_traffic=situation.traffic.get(t, model.NO_TRAFFIC),
            topic=stands_for[t.key_group][0] if t.key_group in stands_for else None,
            partition=stands_for[t.key_group][1] if t.key_group in stands_for else None,
            standby_traffic=later.get(t, model.NO_TRAFFIC),
        )
        for t in situation.tasks
    )


def _living(
    copies: Mapping[model.TaskId, tuple[model.MemberId, ...]], live: frozenset[model.MemberId]
) -> dict[model.TaskId, tuple[model.MemberId, ...]]:
    kept = {t: tuple(m for m in members if m in live) for t, members in copies.items()}
    return {t: members for t, members in kept.items() if members}


def _lags(situation: Situation) -> dict[model.TaskId, dict[model.MemberId, model.Lag]]:
    """Return the lag of every copy on a live member. A member without any copy of a task is not listed."""
    lags: dict[model.TaskId, dict[model.MemberId, model.Lag]] = {}
    for member in sorted(situation.members.live):
        held = situation.copied(member)
        if member in situation.flooded:
            held = {t for t in held if situation.present.owners.get(t) == member}
        for t in sorted(held):
            lags.setdefault(t, {})[member] = situation.lag(member, t)
    return lags
