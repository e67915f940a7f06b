"""How near the copies are that could take over, and who should have none. Knows lags, pointers and full disks. Does not
know who decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.protocol.ownership.known_copies import LEVEL, CopyLag
from riffle_spark.protocol.ownership.members import LiveMember
from riffle_spark.protocol.ownership.view import Situation, task
from riffle_spark.settings import Settings

__all__ = ["MemberState", "Readiness", "Shunned", "member_states", "readiness_of", "standing_by"]

_LIMIT, _HIGH, _FLOOD = 1, 2, 3
"""How many marks a disk is beyond."""
_BELOW = 0.01
"""A disk counts as below a mark again once it is so far below it."""
_LOOK_SECONDS = 10.0
_Copy: TypeAlias = tuple[TaskId, MemberId]


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
    for t, members in sorted(copies.items()):
        for member in members:
            if member in situation.members.live:
                behind = _behind(situation, member, t.key_group)
                held = _pointers(situation, member, t.key_group) if pointers else ()
                warm = behind.records <= acceptable
                yield Readiness(t.key_group, member, role, behind.records, behind.bytes, warm, held)


def standing_by(situation: Situation, acceptable: int) -> dict[int, tuple[MemberId, ...]]:
    """Return, by key-group, the live standbys whose copies could take over at once: a pointer could not. None where the
    owner is known to have no copy: it was assigned for all that, so it is to fetch one, and not to stop time and again.
    """
    able: dict[int, tuple[MemberId, ...]] = {}
    for t, members in situation.present.standbys.items():
        held = tuple(member for member in members if _could_take_over(situation, member, t.key_group, acceptable))
        if held and _has(situation, situation.present.owners.get(t, ""), t.key_group):
            able[t.key_group] = held
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


class Shunned:
    """Members that should have no copy of a task: their disk is too full, or their standby never catches up."""

    def __init__(self) -> None:
        self._marks: dict[MemberId, int] = {}
        self._leaving: dict[MemberId, frozenset[TaskId]] = {}
        self._slow: dict[_Copy, None] = {}
        self._looked = float("-inf")
        self._warnings: list[str] = []

    def forgive(self) -> None:
        """Let standbys that fell behind be tried again: somebody asked."""
        self._slow.clear()

    def take_warnings(self) -> list[str]:
        """Return what there is to say since the last call."""
        told, self._warnings = self._warnings, []
        return told

    @property
    def emptied(self) -> frozenset[MemberId]:
        """The members whose disk is beyond the high mark."""
        return frozenset(member for member, mark in self._marks.items() if mark >= _HIGH)

    @property
    def flooded(self) -> frozenset[MemberId]:
        """The members whose disk is beyond the highest mark."""
        return frozenset(member for member, mark in self._marks.items() if mark >= _FLOOD)

    def looked_at(self, working: Iterable[MemberId], now: float) -> frozenset[MemberId]:
        """Return the members with full disks to look at now: those that ``working`` ones, who tell with each batch, are
        not among. Now and then is enough.
        """
        idle = frozenset(self._marks) - frozenset(working)
        if not idle or now - self._looked < _LOOK_SECONDS:
            return frozenset()
        self._looked = now
        return idle

    def disks_changed(self, situation: Situation, settings: Settings) -> bool:
        """Look at the members' disks; tell whether another assignment is due. A member beyond the high mark is to give
        up some copies, and some more once these are gone, until it is below.
        """
        disks, marks = situation.members.disks, self._marks
        if not disks and not marks:
            return False
        limits = (settings.local_disk_limit, settings.local_disk_high, settings.local_disk_flood)
        now = {member: _mark(used, limits, marks.get(member, 0)) for member, (used, _) in sorted(disks.items())}
        self._marks = {member: mark for member, mark in now.items() if mark}
        changed = self._marks != marks
        self._leaving = {member: leaving for member, leaving in self._leaving.items() if member in self.emptied}
        for member in sorted(self.emptied):
            held = situation.held(member)
            if not self._leaving.get(member, frozenset()) & held:
                self._leaving[member] = _next_to_go(situation, member, held, settings.max_warmup_replicas)
                changed = changed or bool(held)
            if self._marks[member] > marks.get(member, 0):
                self._warnings.append(_full(situation, member, limits[self._marks[member] - 1]))
        return changed

    def fall_behind(self, standbys: Mapping[_Copy, int], situation: Situation) -> bool:
        """Take standbys whose lags grow and grow; tell whether one of them is new and another member can do better."""
        live, present = situation.members.live, situation.present.standbys
        lags = {copy: situation.lag(copy[1], copy[0].key_group) for copy in self._slow if copy[1] in live}
        self._slow = {(t, m): None for (t, m), lag in lags.items() if lag or m not in present.get(t, ())}
        fresh = {copy: lag for copy, lag in standbys.items() if copy not in self._slow}
        self._slow |= dict.fromkeys(fresh)
        better = {copy for copy in fresh if self._others(copy[0], situation)}
        for member in sorted({member for _, member in fresh}):
            mine = {t.key_group: lag for (t, m), lag in sorted(fresh.items()) if m == member}
            moved = "other members take them over" if any(m == member for _, m in better) else "nobody can do better"
            self._warnings.append(
                f"standbys on member {member} (executor {live[member].executor.id}) fall behind with every batch: "
                f"key-groups {', '.join(map(str, mine))}, by up to {max(mine.values())} changed records; {moved}\n"
                "  What to do: raise `upkeep_bandwidth`, or look at that executor's disk, network and cores"
            )
        return bool(better)

    def of(self, situation: Situation) -> dict[TaskId, tuple[MemberId, ...]]:
        """Return by task the members that should have no copy of it."""
        if not self._marks and not self._slow:
            return {}
        tasks = [task(key_group) for key_group in situation.key_groups]
        held = {member: situation.held(member) for member in situation.members.live}
        found = {t: self._shunned(t, held, situation) for t in tasks}
        return {t: members for t, members in found.items() if members}

    def _shunned(self, t: TaskId, held: Mapping[MemberId, set[TaskId]], situation: Situation) -> tuple[MemberId, ...]:
        others, owner = self._others(t, situation), situation.present.owners.get(t)
        names = {member for member, leaving in self._leaving.items() if t in leaving}
        names |= {member for member in self.flooded if owner != member}
        if len(self._marks) < len(held):
            names |= {member for member in self._marks if t not in held.get(member, ())}
        if others:
            slow = {member for _, member in self._slow}
            names |= {m for m in slow if (t, m) in self._slow or t not in held.get(m, ())}
        return tuple(sorted(names & held.keys()))

    def _others(self, t: TaskId, situation: Situation) -> list[MemberId]:
        """Return the members that could take a standby of a task and do better than those that fall behind."""
        avoided = {*self._marks, *(member for _, member in self._slow), *situation.drained}
        avoided |= {situation.present.owners.get(t, ""), *situation.present.standbys.get(t, ())}
        return sorted(situation.members.live.keys() - avoided)


def _mark(used: float, limits: tuple[float, ...], before: int) -> int:
    """Return how many marks a disk is beyond: of those that it was beyond it has to come some way below."""
    return sum(used > limit - (_BELOW if number < before else 0.0) for number, limit in enumerate(limits))


def _next_to_go(situation: Situation, member: MemberId, held: set[TaskId], most: int) -> frozenset[TaskId]:
    """Return the copies that leave a member next: what it does not own first, then the largest."""
    owners = situation.present.owners
    order = sorted(held, key=lambda t: (owners.get(t) == member, -situation.bytes(t.key_group), t))
    return frozenset(order[:most])


def _full(situation: Situation, member: MemberId, limit: float) -> str:
    used, at = situation.members.disks[member][0], situation.members.live[member].executor
    return (
        f"the disk of member {member} (executor {at.id} on {at.host}) is {used:.0%} full, beyond {limit:.0%}: copies "
        "leave it by and by, and none comes\n  What to do: free space, or give `local_dir` a larger disk; with room "
        "again it gets key-groups again"
    )
