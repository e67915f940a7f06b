"""Measure how far standbys and warm-ups lag, and describe members and keys to operators."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.protocol.ownership.groups import GROUP, task
from riffle_spark.protocol.ownership.membership import LiveMember, Membership
from riffle_spark.protocol.ownership.prior_owners import PriorOwners
from riffle_spark.protocol.ownership.reported_copies import NO_LAG, CopyLag
from riffle_spark.protocol.ownership.view import Situation
from riffle_spark.state.log.manifest import EMPTY, Address, Head

Role: TypeAlias = Literal["standby", "warmup"]
_BATCHES_OF_A_TREND = 10
_NO_HEADS: Mapping[Address, Head] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Readiness:
    """The lag of a standby or warm-up behind the head of its key-group.

    Attributes:
        key_group: the number of the key-group.
        member: the id of the member.
        role: ``standby`` or ``warmup``.
        lag_records: how many changed records the copy lacks.
        lag_bytes: how many bytes of the object store the copy lacks.
        warm: whether ``lag_records`` is within ``acceptable_recovery_lag``.
        pointers: with ``standby_mode = "snapshot_pointer"``, (store, snapshot id, version) of the snapshots to fetch.
        group: the co-location group of the key-group.

    >>> Readiness(3, "m1", "standby", lag_records=120, lag_bytes=4_096, warm=True).warm
    True
    """

    key_group: int
    member: MemberId
    role: Role
    lag_records: int
    lag_bytes: int
    warm: bool
    pointers: tuple[tuple[str, str, int], ...] = ()
    group: str = GROUP

    @property
    def task(self) -> TaskId:
        """The task that it is a copy of."""
        return task(self.key_group, self.group)


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a running query.

    Attributes:
        id: the name of the member's folder.
        executor: the id of its executor.
        host: the executor's host.
        cores: how many tasks the executor runs at once.
        rack: its rack, ``None`` if unknown.
        tags: its tags by name.
        state: ``live``, ``draining``, or ``awaited``: lost, but its tasks still belong to it.
        owned: how many key-groups it owns.
        standbys: how many standbys it keeps.
        warmups: how many copies it warms up.
        load: its measured work in microseconds of a core per batch, as a moving average.
        lag_records: how many changed records its standbys and warm-ups lack in total.
        lag_bytes: how many bytes they lack in total.
        lag_trend: the growth of ``lag_records`` over the last ten batches; negative if it shrinks.
        disk_used_share: the share of its disk in use, 0 to 1; ``None`` if not measured.
        memory_bytes: the memory of its Python workers; ``None`` if not measured.
        memory_used_share: ``memory_bytes`` as a share of itself plus the free memory; ``None`` if not measured.

    >>> MemberState("m1", executor="1", host="host-a", cores=4, owned=32).state
    'live'
    """

    id: MemberId
    executor: str
    host: str
    cores: int
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    state: Literal["live", "draining", "awaited"] = "live"
    owned: int = 0
    standbys: int = 0
    warmups: int = 0
    load: float = 0.0
    lag_records: int = 0
    lag_bytes: int = 0
    lag_trend: int = 0
    disk_used_share: float | None = None
    memory_bytes: int | None = None
    memory_used_share: float | None = None


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """The member that processes a key from the next batch on.

    Attributes:
        key_group: the number of the key's key-group.
        owner: the id of the member that owns it.
        executor: the id of the owner's executor.
        host: the executor's host.
        standbys: the ids of the members with a spare copy.
        topic: the topic with dispatch by partition, else ``None``.
        partition: the partition with dispatch by partition, else ``None``.
        group: the co-location group of the store.

    >>> KeyPlace(3, owner="m1", executor="1", host="host-a").standbys
    ()
    """

    key_group: int
    owner: MemberId
    executor: str
    host: str
    standbys: tuple[MemberId, ...] = ()
    topic: str | None = None
    partition: int | None = None
    group: str = GROUP


class LagTrend:
    """The lags of each member's copies, summed per batch, for the last ten batches."""

    def __init__(self) -> None:
        self._lags: deque[dict[MemberId, CopyLag]] = deque([{}], maxlen=_BATCHES_OF_A_TREND + 1)

    def record(self, members: Iterable[MemberId], lagging: Iterable[Readiness]) -> None:
        """Record the lags of all copies after a batch, given the members with copies and the copies that lag."""
        lags = dict.fromkeys(members, NO_LAG)
        for copy in lagging:
            total = lags.get(copy.member, NO_LAG)
            lags[copy.member] = CopyLag(total.records + copy.lag_records, total.bytes + copy.lag_bytes)
        self._lags.append(lags)

    def of(self, member: MemberId) -> tuple[int, int, int]:
        """Return the lag of a member's copies as (records, bytes, growth of the records over the last ten batches)."""
        newest = self._lags[-1].get(member, NO_LAG)
        oldest = next((lags[member] for lags in self._lags if member in lags), newest)
        return newest.records, newest.bytes, newest.records - oldest.records

    def with_lag(self, state: MemberState) -> MemberState:
        """Return a member's state with its lag and trend."""
        records, size, trend = self.of(state.id)
        return replace(state, lag_records=records, lag_bytes=size, lag_trend=trend)


def place_of(
    t: TaskId, present: Assignment, members: Membership, partitions: Sequence[tuple[str, int]] = ()
) -> KeyPlace | None:
    """Return the place of task ``t``, or ``None`` while it has no live owner.

    ``partitions`` has the (topic, partition) of each key-group, with dispatch by partition.
    """
    owner = present.owners.get(t)
    member = members.live.get(owner or "")
    if owner is None or member is None:
        return None
    topic, partition = partitions[t.key_group] if partitions else (None, None)
    standbys = present.standbys.get(t, ())
    return KeyPlace(t.key_group, owner, member.executor.id, member.executor.host, standbys, topic, partition, t.group)


def lagging_copies(situation: Situation, acceptable_lag: int, *, pointers: bool) -> tuple[Readiness, ...]:
    """Return the readiness of every standby and warm-up that lags.

    ``acceptable_lag`` is the lag in records up to which a copy is warm. With ``pointers`` standbys hold no copies.
    """
    present = situation.present
    return (
        *_lagging_of_role(situation, present.standbys, "standby", acceptable_lag, pointers=pointers),
        *_lagging_of_role(situation, present.warmups, "warmup", acceptable_lag, pointers=False),
    )


def _lagging_of_role(
    situation: Situation,
    copies: Mapping[TaskId, tuple[MemberId, ...]],
    role: Role,
    acceptable_lag: int,
    *,
    pointers: bool,
) -> Iterable[Readiness]:
    """Yield the readiness of the lagging copies of one role, given the members with a copy by task."""
    for t, member in sorted(_behind(situation, copies)):
        lag = _total_lag(situation, member, t)
        if lag != NO_LAG:
            snapshots = _pointers(situation, member, t) if pointers else ()
            warm = lag.records <= acceptable_lag
            yield Readiness(t.key_group, member, role, lag.records, lag.bytes, warm, snapshots, t.group)


def _behind(situation: Situation, copies: Mapping[TaskId, tuple[MemberId, ...]]) -> set[tuple[TaskId, MemberId]]:
    """Return the copies on live members that are not at the head of one of their task's stores."""
    entries = situation.manifest.entries
    heads_of = {member: situation.copies.of_member(member) for member in situation.members.live}
    behind: set[tuple[TaskId, MemberId]] = set()
    for t, members in copies.items():
        for store in situation.stores_of(t):
            address = (store, t.key_group)
            entry = entries.get(address)
            head = entry.head if entry is not None else None
            for member in members:
                heads = heads_of.get(member)
                if heads is not None and heads.get(address) != head:
                    behind.add((t, member))
    return behind


def all_copies(present: Assignment, live: Set[MemberId], lagging: Iterable[Readiness]) -> tuple[Readiness, ...]:
    """Return the readiness of every standby and warm-up on ``live`` members, standbys first, by key-group.

    Copies that are not in ``lagging`` have no lag.
    """
    lagging_copies_by_place = {(copy.role, copy.task, copy.member): copy for copy in lagging}
    roles: tuple[tuple[Role, Mapping[TaskId, tuple[MemberId, ...]]], ...] = (
        ("standby", present.standbys),
        ("warmup", present.warmups),
    )
    return tuple(
        lagging_copies_by_place.get((role, t, member))
        or Readiness(t.key_group, member, role, 0, 0, warm=True, group=t.group)
        for role, copies in roles
        for t, members in sorted(copies.items())
        for member in members
        if member in live
    )


def ready_standbys(situation: Situation, store: str, acceptable_lag: int) -> dict[int, tuple[MemberId, ...]]:
    """Return, by key-group of a store, the live standbys with a copy that lags at most ``acceptable_lag`` records.

    If such a standby exists, a slot without a copy on its disk fails as misplaced, and the batch runs again. So
    key-groups whose live owner has reported no copy are left out. Otherwise the slots of this owner would fail in each
    run, instead of fetching copies.
    """
    ready: dict[int, tuple[MemberId, ...]] = {}
    owners = situation.present.owners
    entries = situation.manifest.entries
    group = situation.groups.of(store)
    heads_of = {member: situation.copies.of_member(member) for member in situation.members.live}
    for t, members in situation.present.standbys.items():
        address = (store, t.key_group)
        if t.group != group or address not in heads_of.get(owners.get(t, ""), _NO_HEADS):
            continue
        entry = entries.get(address, EMPTY)
        head = entry.head
        able = []
        for member in members:
            reported_head = heads_of.get(member, _NO_HEADS).get(address)
            if reported_head == head or (
                reported_head is not None and situation.copies.lag(member, address, entry).records <= acceptable_lag
            ):
                able.append(member)
        if able:
            ready[t.key_group] = tuple(able)
    return ready


def _total_lag(situation: Situation, member: MemberId, t: TaskId) -> CopyLag:
    """Return the lag of a member's copies of a task, summed over the task's stores."""
    total = NO_LAG
    for store, entry in zip(situation.stores_of(t), situation.entries(t), strict=True):
        lag = situation.copies.lag(member, (store, t.key_group), entry)
        total = CopyLag(total.records + lag.records, total.bytes + lag.bytes)
    return total


def _pointers(situation: Situation, member: MemberId, t: TaskId) -> tuple[tuple[str, str, int], ...]:
    """Return (store, snapshot id, version) of the newest snapshot of each store that a standby has no copy of."""
    heads = situation.copies.of_member(member)
    return tuple(
        (store, entry.snapshot.id, entry.snapshot.head.version)
        for store, entry in zip(situation.stores_of(t), situation.entries(t), strict=True)
        if entry.snapshot is not None and (store, t.key_group) not in heads
    )


def member_states(situation: Situation, awaited: Mapping[MemberId, LiveMember]) -> tuple[MemberState, ...]:
    """Return the state of all live and awaited members, sorted by id, without load, lags, disk and memory."""
    present = situation.present
    owned = Counter(present.owners.values())
    standbys = Counter(member for members in present.standbys.values() for member in members)
    warmups = Counter(member for members in present.warmups.values() for member in members)
    states = []
    for name, member in sorted({**awaited, **situation.members.live}.items()):
        state: Literal["live", "draining", "awaited"] = "draining" if name in situation.drained else "live"
        states.append(
            MemberState(
                id=name,
                executor=member.executor.id,
                host=member.executor.host,
                cores=member.executor.cores,
                rack=member.rack,
                tags=member.tags,
                state=state if name in situation.members.live else "awaited",
                owned=owned[name],
                standbys=standbys[name],
                warmups=warmups[name],
            )
        )
    return tuple(states)


def with_room(state: MemberState, members: Membership) -> MemberState:
    """Return a member's state with the last report of its disk and memory."""
    disk_share, _ = members.disks.get(state.id, (None, 0))
    memory_bytes, _ = members.memories.get(state.id, (None, 0))
    memory_share = members.memory_shares.get(state.id)
    return replace(state, disk_used_share=disk_share, memory_bytes=memory_bytes, memory_used_share=memory_share)


def with_load(
    states: Iterable[MemberState], owners: Mapping[TaskId, MemberId], measured: Mapping[TaskId, float]
) -> tuple[MemberState, ...]:
    """Return members' states with the ``measured`` work of the tasks they own."""
    load: dict[MemberId, float] = {}
    for t, owner in owners.items():
        load[owner] = load.get(owner, 0.0) + measured.get(t, 0.0)
    return tuple(replace(state, load=round(load.get(state.id, 0.0), 1)) for state in states)


def followers_of(present: Assignment, prior_owners: PriorOwners, group: str) -> dict[int, tuple[MemberId, ...]]:
    """Return, by key-group of a group, the members that will read its deltas: prior owners, warm-ups and standbys."""
    followers: dict[int, tuple[MemberId, ...]] = {}
    standbys = present.standbys
    for t in present.owners:
        if t.group == group:
            members = standbys.get(t, ())
            fetching = (*prior_owners.followers(t), *present.warmups.get(t, ()))
            if fetching:
                members = tuple(dict.fromkeys((*fetching, *members)))
            if members:
                followers[t.key_group] = members
    return followers
