"""Who should have no copy of which key-group: members with full disks, standbys that never catch up. Knows disks and
lags. Does not know who decides.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.protocol.ownership.view import Situation, task
from riffle_spark.settings import Settings

__all__ = ["Shunned"]

_LIMIT, _HIGH, _FLOOD = 1, 2, 3
"""How many marks a disk is beyond."""
_BELOW = 0.01
"""A disk counts as below a mark again once it is so far below it."""
_LOOK_SECONDS = 10.0
_Copy: TypeAlias = tuple[TaskId, MemberId]


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
