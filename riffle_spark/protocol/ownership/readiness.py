"""Measure how far standbys and warm-ups lag, and describe members and keys to operators."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.protocol.ownership.groups import GROUP, task
from riffle_spark.protocol.ownership.membership import LiveMember, Membership
from riffle_spark.protocol.ownership.prior_owners import PriorOwners
from riffle_spark.protocol.ownership.reported_copies import LEVEL, CopyLag
from riffle_spark.protocol.ownership.view import Situation

__all__ = [
    "KeyPlace",
    "LagTrend",
    "MemberState",
    "Readiness",
    "followed_by",
    "member_states",
    "place_of",
    "readiness_of",
    "standing_by",
    "with_load",
    "with_room",
]

_BATCHES_OF_A_TREND = 10


@dataclass(frozen=True, slots=True)
class Readiness:
    """One copy beside the owner's: ``lag_records`` changed records and ``lag_bytes`` bytes behind the key-group's head;
    ``warm`` if that is within ``acceptable_recovery_lag``.

    ``pointers`` are (store, snapshot id, version it was advanced to) of a standby that holds no copy but fetches it
    when it is promoted. ``group`` is the co-location group whose key-group it is.
    """

    key_group: int
    member: MemberId
    role: Literal["standby", "warmup"]
    lag_records: int
    lag_bytes: int
    warm: bool
    pointers: tuple[tuple[str, str, int], ...] = ()
    group: str = GROUP

    @property
    def task(self) -> TaskId:
        """What it is a copy of."""
        return task(self.key_group, self.group)


@dataclass(frozen=True, slots=True)
class MemberState:
    """One member: ``state`` is ``live``, ``draining`` or ``awaited`` (lost, and its tasks are not given away yet).

    ``owned``, ``standbys`` and ``warmups`` count key-groups. ``load`` is its measured work, microseconds of a core a
    batch as a fading mean. ``lag_records`` and ``lag_bytes`` are what its standbys and warm-ups lack together,
    ``lag_trend`` by how many records that has grown (or, below zero, shrunk) over the last ten batches.
    ``disk_used_share``, ``memory_bytes`` (what its Python workers take) and ``memory_used_share`` (of that and what is
    left) are ``None`` where nobody has told.
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
    """Where a key is processed from the next batch on: its key-group, the member that owns it with executor and host,
    and the members that keep a spare copy. Where dispatch is by partition, ``topic`` and ``partition`` say which.
    ``group`` is the co-location group of its store.
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
    """What members' copies lack together, batch by batch."""

    def __init__(self) -> None:
        self._lags: deque[dict[MemberId, tuple[int, int]]] = deque([{}], maxlen=_BATCHES_OF_A_TREND + 1)

    def note(self, copies: Iterable[Readiness]) -> None:
        """Take a batch's copies."""
        lags: dict[MemberId, tuple[int, int]] = {}
        for copy in copies:
            records, size = lags.get(copy.member, (0, 0))
            lags[copy.member] = (records + copy.lag_records, size + copy.lag_bytes)
        self._lags.append(lags)

    def of(self, member: MemberId) -> tuple[int, int, int]:
        """Return the records and bytes that a member's copies lack, and by how many records that has grown."""
        records, size = self._lags[-1].get(member, (0, 0))
        began, _ = next((lags[member] for lags in self._lags if member in lags), (records, size))
        return records, size, records - began

    def told(self, state: MemberState) -> MemberState:
        """Return a member's state with its lag and trend."""
        records, size, trend = self.of(state.id)
        return replace(state, lag_records=records, lag_bytes=size, lag_trend=trend)


def place_of(
    at: TaskId, present: Assignment, members: Membership, partitions: Sequence[tuple[str, int]] = ()
) -> KeyPlace | None:
    """Return where a task is, ``None`` while it has no owner; ``partitions`` are what key-groups stand for."""
    owner = present.owners.get(at)
    living = members.live.get(owner or "")
    if owner is None or living is None:
        return None
    topic, partition = partitions[at.key_group] if partitions else (None, None)
    place = (owner, living.executor.id, living.executor.host, present.standbys.get(at, ()))
    return KeyPlace(at.key_group, *place, topic, partition, at.group)


def readiness_of(situation: Situation, acceptable: int, *, pointers: bool) -> tuple[Readiness, ...]:
    """Return the readiness of every standby and warm-up, standbys first, by key-group."""
    present = situation.present
    return (
        *_of_role(situation, present.standbys, "standby", acceptable, pointers=pointers),
        *_of_role(situation, present.warmups, "warmup", acceptable, pointers=False),
    )


def _of_role(
    situation: Situation, copies: Mapping[TaskId, tuple[MemberId, ...]], role: Literal["standby", "warmup"],
    acceptable: int, *, pointers: bool,
) -> Iterable[Readiness]:  # fmt: skip
    for t, members in sorted(copies.items()):
        for member in members:
            if member in situation.members.live:
                behind = _behind(situation, member, t)
                held = _pointers(situation, member, t) if pointers else ()
                warm = behind.records <= acceptable
                yield Readiness(t.key_group, member, role, behind.records, behind.bytes, warm, held, t.group)


def standing_by(situation: Situation, acceptable: int) -> dict[TaskId, tuple[MemberId, ...]]:
    """Return, by task, the live standbys whose copies could take over at once: a pointer could not. None where the
    owner is known to have no copy: it was assigned for all that, so it is to fetch one, and not to stop time and again.
    """
    able: dict[TaskId, tuple[MemberId, ...]] = {}
    for t, members in situation.present.standbys.items():
        held = tuple(member for member in members if _could_take_over(situation, member, t, acceptable))
        if held and _has(situation, situation.present.owners.get(t, ""), t):
            able[t] = held
    return able


def _could_take_over(situation: Situation, member: MemberId, t: TaskId, acceptable: int) -> bool:
    return _has(situation, member, t) and situation.lag(member, t) <= acceptable


def _has(situation: Situation, member: MemberId, t: TaskId) -> bool:
    copies = situation.copies.of(member)
    return member in situation.members.live and any((one, t.key_group) in copies for one in situation.stores_of(t))


def _behind(situation: Situation, member: MemberId, t: TaskId) -> CopyLag:
    total = LEVEL
    for store, entry in zip(situation.stores_of(t), situation.entries(t), strict=True):
        behind = situation.copies.lag(member, (store, t.key_group), entry)
        total = CopyLag(total.records + behind.records, total.bytes + behind.bytes)
    return total


def _pointers(situation: Situation, member: MemberId, t: TaskId) -> tuple[tuple[str, str, int], ...]:
    """Return what a pointer standby holds: the newest snapshot of each store, unless it has a copy of it."""
    held = situation.copies.of(member)
    return tuple(
        (store, entry.snapshot.id, entry.snapshot.head.version)
        for store, entry in zip(situation.stores_of(t), situation.entries(t), strict=True)
        if entry.snapshot is not None and (store, t.key_group) not in held
    )


def member_states(situation: Situation, awaited: Mapping[MemberId, LiveMember]) -> tuple[MemberState, ...]:
    """Return all live and awaited members, sorted by id."""
    present = situation.present
    owned, kept, warming = (
        _counted([[owner] for owner in present.owners.values()]),
        _counted(present.standbys.values()),
        _counted(present.warmups.values()),
    )
    states = []
    for name, living in sorted({**awaited, **situation.members.live}.items()):
        draining = "draining" if name in situation.drained else "live"
        state = draining if name in situation.members.live else "awaited"
        counts = (owned.get(name, 0), kept.get(name, 0), warming.get(name, 0))
        states.append(
            MemberState(name, living.executor.id, living.executor.host, living.executor.cores, living.rack, living.tags,
                        state, *counts)  # type: ignore[arg-type]
        )  # fmt: skip
    return tuple(states)


def with_room(state: MemberState, members: Membership) -> MemberState:
    """Return a member's state with how full its disk and memory are, as was told last."""
    disk, memory = members.disks.get(state.id, (None, 0)), members.memories.get(state.id, (None, 0))
    share = members.memory_shares.get(state.id)
    return replace(state, disk_used_share=disk[0], memory_bytes=memory[0], memory_used_share=share)


def with_load(
    states: Iterable[MemberState], owners: Mapping[TaskId, MemberId], measured: Mapping[TaskId, float]
) -> tuple[MemberState, ...]:  # fmt: skip
    """Return members' states with the measured work of what they own."""
    load: dict[MemberId, float] = {}
    for t, owner in owners.items():
        load[owner] = load.get(owner, 0.0) + measured.get(t, 0.0)
    return tuple(replace(state, load=round(load.get(state.id, 0.0), 1)) for state in states)


def followed_by(present: Assignment, prior_owners: PriorOwners, group: str) -> dict[int, tuple[MemberId, ...]]:
    """Return, by key-group of a group, who will read its deltas: those that it awaits, warm-ups, standbys."""
    copies, tasks = (present.warmups, present.standbys), [t for t in present.owners if t.group == group]
    every = {t: [*prior_owners.followers(t), *(m for held in copies for m in held.get(t, ()))] for t in tasks}
    named = {t.key_group: tuple(filter(None, dict.fromkeys(members))) for t, members in every.items()}
    return {key_group: members for key_group, members in named.items() if members}


def _counted(groups: Iterable[Iterable[MemberId]]) -> dict[MemberId, int]:
    counts: dict[MemberId, int] = {}
    for members in groups:
        for member in members:
            counts[member] = counts.get(member, 0) + 1
    return counts
