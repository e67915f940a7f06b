"""Quarantine members from copies: those with full disks or little memory, and standbys that never catch up."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.protocol.ownership.groups import named
from riffle_spark.protocol.ownership.view import Situation
from riffle_spark.settings import Settings

__all__ = ["Quarantine"]

_LIMIT, _HIGH, _FLOOD = 1, 2, 3
"""The number of marks that a disk or memory exceeds. Memory has no flood mark."""
_BELOW = 0.01
"""A disk or memory that exceeded a mark has to fall this far below it."""
_MEASURE_SECONDS = 10.0
_Copy: TypeAlias = tuple[TaskId, MemberId]
_Kind: TypeAlias = Literal["disk", "memory"]


class Quarantine:
    """Which members should get no copy of which task."""

    def __init__(self) -> None:
        self._marks: dict[tuple[_Kind, MemberId], int] = {}
        self._leaving: dict[tuple[_Kind, MemberId], frozenset[TaskId]] = {}
        self._slow: dict[_Copy, None] = {}
        self._measured_at = float("-inf")
        self._warnings: list[str] = []

    def forgive(self) -> None:
        """Let standbys that fell behind be tried again, because an operator asked for an assignment."""
        self._slow.clear()

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        warnings = self._warnings
        self._warnings = []
        return warnings

    @property
    def emptied(self) -> frozenset[MemberId]:
        """The members whose disk exceeds the high mark."""
        return frozenset(m for (kind, m), mark in self._marks.items() if kind == "disk" and mark >= _HIGH)

    @property
    def flooded(self) -> frozenset[MemberId]:
        """The members whose disk exceeds the flood mark."""
        return frozenset(member for (_, member), mark in self._marks.items() if mark >= _FLOOD)

    @property
    def _full(self) -> frozenset[MemberId]:
        return frozenset(member for _, member in self._marks)

    def members_to_measure(self, working: Iterable[MemberId], now: float) -> frozenset[MemberId]:
        """Return the full members to measure now, at most once every ten seconds.

        ``working`` members report their disk and memory with each batch, so they are left out.
        """
        idle = self._full - frozenset(working)
        if not idle or now - self._measured_at < _MEASURE_SECONDS:
            return frozenset()
        self._measured_at = now
        return idle

    def update_marks(self, situation: Situation, settings: Settings) -> bool:
        """Compare members' disks and memory with their marks; return whether another assignment is due.

        A member beyond a high mark gives up some copies, and more of them once these are gone, until it is below.
        """
        members = situation.members
        marks = self._marks
        disks = {member: used for member, (used, _) in members.disks.items()}
        of_disk = (settings.local_disk_limit, settings.local_disk_high, settings.local_disk_flood)
        of_memory = (settings.local_memory_limit, settings.local_memory_high)
        each: tuple[tuple[_Kind, Mapping[MemberId, float], tuple[float, ...]], ...]
        each = (("disk", disks, of_disk), ("memory", members.memory_shares, of_memory))
        now = {(k, m): _mark(used[m], limits, marks.get((k, m), 0)) for k, used, limits in each for m in sorted(used)}
        self._marks = {full: mark for full, mark in now.items() if mark}
        changed = self._marks != marks
        emptied = [full for full, mark in self._marks.items() if mark >= _HIGH]
        self._leaving = {full: leaving for full, leaving in self._leaving.items() if full in emptied}
        for kind, member in emptied:
            held = situation.held(member) if kind == "disk" else situation.owned(member)
            if not self._leaving.get((kind, member), frozenset()) & held:
                self._leaving[kind, member] = _next_to_leave(
                    situation, kind, member, held, settings.max_warmup_replicas
                )
                changed = changed or bool(held)
            mark = self._marks[kind, member]
            if mark > marks.get((kind, member), 0):
                limit = (of_disk if kind == "disk" else of_memory)[mark - 1]
                self._warnings.append(_full(situation, member, limit) if kind == "disk" else _short(situation, member))
        return changed

    def add_slow(self, standbys: Mapping[_Copy, int], situation: Situation) -> bool:
        """Note standbys whose lag keeps growing; return whether one is new and another member could replace it."""
        live, present = situation.members.live, situation.present.standbys
        lags = {copy: situation.lag(copy[1], copy[0]) for copy in self._slow if copy[1] in live}
        self._slow = {(t, m): None for (t, m), lag in lags.items() if lag or m not in present.get(t, ())}
        fresh = {copy: lag for copy, lag in standbys.items() if copy not in self._slow}
        self._slow |= dict.fromkeys(fresh)
        better = {copy for copy in fresh if self._alternatives(copy[0], situation)}
        for member in sorted({member for _, member in fresh}):
            mine = {named(t): lag for (t, m), lag in sorted(fresh.items()) if m == member}
            moved = (
                "other members take them over"
                if any(m == member for _, m in better)
                else "no other member can do better"
            )
            self._warnings.append(
                f"standbys on member {member} (executor {live[member].executor.id}) fall behind with every batch: "
                f"key-groups {', '.join(mine)}, by up to {max(mine.values())} changed records; {moved}\n"
                "  What to do: raise `upkeep_bandwidth`, or look at that executor's disk, network and cores"
            )
        return bool(better)

    def of(self, situation: Situation) -> dict[TaskId, tuple[MemberId, ...]]:
        """Return, by task, the members that should have no copy of it."""
        if not self._marks and not self._slow:
            return {}
        held = {member: situation.held(member) for member in situation.members.live}
        quarantined = {t: self._of_task(t, held, situation) for t in situation.tasks}
        return {t: members for t, members in quarantined.items() if members}

    def _of_task(self, t: TaskId, held: Mapping[MemberId, set[TaskId]], situation: Situation) -> tuple[MemberId, ...]:
        owner = situation.present.owners.get(t)
        full = self._full
        names = {member for (_, member), leaving in self._leaving.items() if t in leaving}
        names |= {member for member in self.flooded if owner != member}
        if len(full) < len(held):
            short = {member for kind, member in self._marks if kind == "memory" and member != owner}
            names |= {member for member in full if t not in held.get(member, ())} | short
        if self._alternatives(t, situation):
            slow = {member for _, member in self._slow}
            names |= {m for m in slow if (t, m) in self._slow or t not in held.get(m, ())}
        return tuple(sorted(names & held.keys()))

    def _alternatives(self, t: TaskId, situation: Situation) -> list[MemberId]:
        """Return the members that could take a standby of a task and do better than those that fall behind."""
        avoided = {*self._full, *(member for _, member in self._slow), *situation.drained}
        avoided |= {situation.present.owners.get(t, ""), *situation.present.standbys.get(t, ())}
        return sorted(situation.members.live.keys() - avoided)


def _mark(used: float, limits: tuple[float, ...], before: int) -> int:
    """Return how many marks a disk or memory exceeds; marks that it exceeded before count until it is well below."""
    return sum(used > limit - (_BELOW if number < before else 0.0) for number, limit in enumerate(limits))


def _next_to_leave(
    situation: Situation, kind: _Kind, member: MemberId, held: set[TaskId], most: int
) -> frozenset[TaskId]:
    """Return the copies that leave a member next: standbys first, then the largest."""
    owners = situation.present.owners
    memory = situation.memory

    def size(t: TaskId) -> float:
        return situation.bytes(t) if kind == "disk" else memory.get(t, 0.0)

    return frozenset(sorted(held, key=lambda t: (owners.get(t) == member, -size(t), t))[:most])


def _full(situation: Situation, member: MemberId, limit: float) -> str:
    used, at = situation.members.disks[member][0], situation.members.live[member].executor
    return (
        f"the disk of member {member} (executor {at.id} on {at.host}) is {used:.0%} full, beyond {limit:.0%}: copies "
        "leave it by and by, and none comes\n  What to do: free space, or give `local_dir` a larger disk; with room "
        "again it gets key-groups again"
    )


def _short(situation: Situation, member: MemberId) -> str:
    (taken, left), at = situation.members.memories[member], situation.members.live[member].executor
    return (
        f"the Python workers of member {member} (executor {at.id} on {at.host}) take {taken / 1e6:.0f} MB, and "
        f"{left / 1e6:.0f} MB are left: key-groups leave it by and by, and none comes\n  What to do: raise "
        "spark.executor.memoryOverhead, or have fewer rows in a batch; with room again it gets key-groups again"
    )
