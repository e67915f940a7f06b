"""How near the copies are that could take over. Knows lags and pointers. Does not know who decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.protocol.ownership.known_copies import LEVEL, CopyLag
from riffle_spark.protocol.ownership.members import LiveMember
from riffle_spark.protocol.ownership.view import Situation

__all__ = ["MemberState", "Readiness", "member_states", "readiness_of", "standing_by"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """One copy beside the owner's: ``lag_records`` changed records and ``lag_bytes`` bytes behind the key-group's head;
    ``warm`` if that is within ``acceptable_recovery_lag``.

    ``pointers`` are (store, snapshot id, version it was advanced to) of a standby that holds no copy but fetches it
    when it is promoted.
    """

    key_group: int
    member: MemberId
    role: Literal["standby", "warmup"]
    lag_records: int
    lag_bytes: int
    warm: bool
    pointers: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MemberState:
    """One member: ``state`` is ``live``, ``draining`` or ``awaited`` (lost, and its tasks are not given away yet).

    ``owned``, ``standbys`` and ``warmups`` count key-groups.
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
    for task, members in sorted(copies.items()):
        for member in members:
            if member in situation.members.live:
                behind = _behind(situation, member, task.key_group)
                held = _pointers(situation, member, task.key_group) if pointers else ()
                warm = behind.records <= acceptable
                yield Readiness(task.key_group, member, role, behind.records, behind.bytes, warm, held)


def standing_by(situation: Situation, acceptable: int) -> dict[int, tuple[MemberId, ...]]:
    """Return, by key-group, the live standbys whose copies could take over at once: a pointer could not. None where the
    owner is known to have no copy: it was assigned for all that, so it is to fetch one, and not to stop time and again.
    """
    able: dict[int, tuple[MemberId, ...]] = {}
    for task, members in situation.present.standbys.items():
        held = tuple(member for member in members if _could_take_over(situation, member, task.key_group, acceptable))
        if held and _has(situation, situation.present.owners.get(task, ""), task.key_group):
            able[task.key_group] = held
    return able


def _could_take_over(situation: Situation, member: MemberId, key_group: int, acceptable: int) -> bool:
    return _has(situation, member, key_group) and situation.lag(member, key_group) <= acceptable


def _has(situation: Situation, member: MemberId, key_group: int) -> bool:
    copies = situation.copies.of(member)
    return member in situation.members.live and any((store, key_group) in copies for store in situation.stores)


def _behind(situation: Situation, member: MemberId, key_group: int) -> CopyLag:
    total = LEVEL
    for store, entry in zip(situation.stores, situation.entries(key_group), strict=True):
        behind = situation.copies.lag(member, (store, key_group), entry)
        total = CopyLag(total.records + behind.records, total.bytes + behind.bytes)
    return total


def _pointers(situation: Situation, member: MemberId, key_group: int) -> tuple[tuple[str, str, int], ...]:
    """Return what a pointer standby holds: the newest snapshot of each store, unless it has a copy of it."""
    held = situation.copies.of(member)
    return tuple(
        (store, entry.snapshot.id, entry.snapshot.head.version)
        for store, entry in zip(situation.stores, situation.entries(key_group), strict=True)
        if entry.snapshot is not None and (store, key_group) not in held
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


def _counted(groups: Iterable[Iterable[MemberId]]) -> dict[MemberId, int]:
    counts: dict[MemberId, int] = {}
    for members in groups:
        for member in members:
            counts[member] = counts.get(member, 0) + 1
    return counts
