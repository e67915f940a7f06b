"""Choose the members that get no copy: their disk or memory is full, or their standbys never catch up."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.protocol.ownership.view import Situation
from riffle_spark.settings import Settings

_HIGH = 2
"""The mark of a disk or memory that exceeds its limit and its high mark."""
_FLOOD = 3
"""The mark of a disk that exceeds its flood mark, too. Memory has no flood mark."""
_BELOW = 0.01
"""A disk or memory that exceeded a mark has to fall this far below it."""
_MEASURE_SECONDS = 10.0
_Copy: TypeAlias = tuple[TaskId, MemberId]
_Kind: TypeAlias = Literal["disk", "memory"]
_Full: TypeAlias = tuple[_Kind, MemberId]


class Quarantine:
    """The pairs of task and member for which no copy should be placed.

    A *mark* is a limit of a disk or of memory: 1 the limit, 2 the high mark, 3 the flood mark.
    """

    def __init__(self) -> None:
        self._marks: dict[_Full, int] = {}
        self._leaving: dict[_Full, frozenset[TaskId]] = {}
        self._slow: dict[_Copy, None] = {}
        self._measured_at = float("-inf")
        self._warnings: list[str] = []

    def retry_slow_standbys(self) -> None:
        """Allow copies on standbys that fell behind again, because an operator asked for an assignment."""
        self._slow.clear()

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call, and forget them."""
        warnings = self._warnings
        self._warnings = []
        return warnings

    @property
    def members(self) -> frozenset[MemberId]:
        """Return the members that get no new copies: they are full, or standbys on them fall behind."""
        return self._full | {member for _, member in self._slow}

    @property
    def members_to_empty(self) -> frozenset[MemberId]:
        """Return the members with a disk above the high mark. Their idle copies are removed at once."""
        return frozenset(m for (kind, m), mark in self._marks.items() if kind == "disk" and mark >= _HIGH)

    @property
    def flooded(self) -> frozenset[MemberId]:
        """Return the members with a disk above the flood mark."""
        return frozenset(member for (_, member), mark in self._marks.items() if mark >= _FLOOD)

    @property
    def _full(self) -> frozenset[MemberId]:
        """Return the members whose disk or memory exceeds a mark."""
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

        Some copies leave a member that is above a high limit. When they are removed, more copies leave it, until it is
        below.
        """
        members = situation.members
        last_marks = self._marks
        disk_limits = (settings.local_disk_limit, settings.local_disk_high, settings.local_disk_flood)
        memory_limits = (settings.local_memory_limit, settings.local_memory_high)
        marks: dict[_Full, int] = {}
        for member, (used, _) in sorted(members.disks.items()):
            marks["disk", member] = _exceeded_marks(used, disk_limits, last_marks.get(("disk", member), 0))
        for member, used in sorted(members.memory_shares.items()):
            marks["memory", member] = _exceeded_marks(used, memory_limits, last_marks.get(("memory", member), 0))
        self._marks = {full: mark for full, mark in marks.items() if mark}
        has_changed = self._marks != last_marks
        members_to_relieve = [full for full, mark in self._marks.items() if mark >= _HIGH]
        self._leaving = {full: leaving for full, leaving in self._leaving.items() if full in members_to_relieve}
        for kind, member in members_to_relieve:
            tasks = situation.placed_tasks(member) if kind == "disk" else situation.owned_tasks(member)
            if not self._leaving.get((kind, member), frozenset()) & tasks:
                self._leaving[kind, member] = _choose_copies_to_remove(
                    situation, kind, member, tasks, settings.max_warmup_replicas
                )
                has_changed = has_changed or bool(tasks)
            mark = self._marks[kind, member]
            if mark > last_marks.get((kind, member), 0):
                self._warnings.append(
                    _disk_warning(situation, member, disk_limits[mark - 1])
                    if kind == "disk"
                    else _memory_warning(situation, member)
                )
        return has_changed

    def add_slow_standbys(self, standbys: Mapping[_Copy, int], situation: Situation) -> bool:
        """Quarantine standbys whose lag keeps growing, given with their lags in records.

        Return whether another member can replace a new one of them.
        """
        live = situation.members.live
        present = situation.present.standbys
        lags = {copy: situation.lag(copy[1], copy[0]) for copy in self._slow if copy[1] in live}
        self._slow = {(t, m): None for (t, m), lag in lags.items() if lag or m not in present.get(t, ())}
        new_slow_standbys = {copy: lag for copy, lag in standbys.items() if copy not in self._slow}
        self._slow |= dict.fromkeys(new_slow_standbys)
        replaceable = {copy for copy in new_slow_standbys if self._alternatives(copy[0], situation)}
        for member in sorted({member for _, member in new_slow_standbys}):
            slow_standbys = {task_name(t): lag for (t, m), lag in sorted(new_slow_standbys.items()) if m == member}
            executor = live[member].executor
            largest_lag = max(slow_standbys.values())
            key_groups = ", ".join(slow_standbys)
            replaced_count = sum(m == member for _, m in replaceable)
            self._warnings.append(
                f"[RIFFLE-0762] Standbys on member {member} (executor {executor.id}) fall behind with every batch: "
                f"key-groups {key_groups}, by up to {largest_lag} changed records. "
                f"Other members take over {replaced_count} of {len(slow_standbys)}.\n"
                "  What to do: Raise `upkeep_bandwidth`, or check the disk, network and cores of that executor."
            )
        return bool(replaceable)

    def members_without_copies(self, situation: Situation) -> dict[TaskId, tuple[MemberId, ...]]:
        """Return the members that should have no copy of a task, by task. Tasks without such members are left out."""
        if not self._marks and not self._slow:
            return {}
        placed = {member: situation.placed_tasks(member) for member in situation.members.live}
        quarantined = {t: self._members_without_copy(t, placed, situation) for t in situation.tasks}
        return {t: members for t, members in quarantined.items() if members}

    def _members_without_copy(
        self, t: TaskId, placed: Mapping[MemberId, set[TaskId]], situation: Situation
    ) -> tuple[MemberId, ...]:
        """Return the live members that should have no copy of task ``t``.

        ``placed`` has the tasks on each live member.
        """
        owner = situation.present.owners.get(t)
        full = self._full
        names = {member for (_, member), leaving in self._leaving.items() if t in leaving}
        names |= {member for member in self.flooded if owner != member}
        if len(full) < len(placed):
            names |= {member for member in full if t not in placed.get(member, ())}
            names |= {member for kind, member in self._marks if kind == "memory" and member != owner}
        if self._alternatives(t, situation):
            slow = {member for _, member in self._slow}
            names |= {m for m in slow if (t, m) in self._slow or t not in placed.get(m, ())}
        return tuple(sorted(names & placed.keys()))

    def _alternatives(self, t: TaskId, situation: Situation) -> list[MemberId]:
        """Return the live members that could keep a standby of a task better than those that fall behind.

        They do not fall behind, are not full or drained, and have no place in the present assignment of the task.
        """
        avoided_members = {*self._full, *(member for _, member in self._slow), *situation.drained}
        avoided_members |= {situation.present.owners.get(t, ""), *situation.present.standbys.get(t, ())}
        return sorted(situation.members.live.keys() - avoided_members)


def _exceeded_marks(used: float, limits: tuple[float, ...], last_mark: int) -> int:
    """Return how many of the ascending ``limits`` the share ``used`` exceeds.

    A limit that was exceeded at the last check counts until the use is well below it.
    """
    return sum(used > limit - (_BELOW if number < last_mark else 0.0) for number, limit in enumerate(limits))


def _choose_copies_to_remove(
    situation: Situation, resource: _Kind, member: MemberId, tasks: set[TaskId], count: int
) -> frozenset[TaskId]:
    """Return up to ``count`` copies that leave a full member next: standbys first, then the largest."""
    owners = situation.present.owners

    def size(t: TaskId) -> float:
        return situation.bytes(t) if resource == "disk" else situation.memory.get(t, 0.0)

    return frozenset(sorted(tasks, key=lambda t: (owners.get(t) == member, -size(t), t))[:count])


def _disk_warning(situation: Situation, member: MemberId, limit: float) -> str:
    used, _ = situation.members.disks[member]
    executor = situation.members.live[member].executor
    return (
        f"[RIFFLE-0763] The disk of member {member} (executor {executor.id} on {executor.host}) is {used:.0%} full, "
        f"above the limit of {limit:.0%}. Copies move away from it, and it gets no new ones.\n"
        "  What to do: Free space, or set `local_dir` to a larger disk."
    )


def _memory_warning(situation: Situation, member: MemberId) -> str:
    used_bytes, free_bytes = situation.members.memories[member]
    used_mb = round(used_bytes / 1e6)
    free_mb = round(free_bytes / 1e6)
    executor = situation.members.live[member].executor
    return (
        f"[RIFFLE-0764] The Python workers of member {member} (executor {executor.id} on {executor.host}) use "
        f"{used_mb} MB, and {free_mb} MB are free. Key-groups move away from it, and it gets no new ones.\n"
        "  What to do: Raise spark.executor.memoryOverhead, or limit the rows of a batch."
    )
