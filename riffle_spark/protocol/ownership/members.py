"""Who is a member: executors and the folders they hold, those that left and may come back. Knows censuses, and time as
it is told. Does not know copies.

Theory of operation. A member is a folder of copies, so it outlives its executor: another executor that claims the
folder is the same member, returned. An executor becomes a member with its census, which runs beside the batches; only a
query without any member waits for one. A lost member is remembered for as long as it may be waited for: who comes with
its folder later joins like any other. Where nobody can be asked (Spark Connect) the executor stands for itself.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from riffle_spark.assign.model import Assignment, Member, MemberId, TaskId
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.protocol.ports import Executor
from riffle_spark.state.log.record import RecordedMember

__all__ = ["Homes", "LiveMember", "LostMember", "MemberChanges", "Members"]


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A live member: its folder's name, the executor that holds it, and where it stands."""

    id: str
    executor: Executor
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    counted: bool = True
    """Whether a census has named it; else the executor stands for itself."""

    def member(self) -> Member:
        """Return it as the assignor knows it."""
        tags = {name: value for name, value in self.tags.items() if name not in ("id", "rack")}
        return Member(self.id, slots=self.executor.cores, rack=self.rack, tags=tags)

    def recorded(self) -> RecordedMember:
        """Return it as a full record tells it."""
        at = self.executor
        return RecordedMember(self.id, at.id, at.host, at.cores, self.rack, dict(sorted(self.tags.items())))


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that left at ``since`` (seconds of the driver's clock); ``planned`` if it was taken away on purpose."""

    living: LiveMember
    since: float
    planned: bool


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """Members that joined, left or returned since the last look."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.returned)


class Members:
    """The live members by id, and the lost ones that are remembered."""

    def __init__(self) -> None:
        self.live: dict[str, LiveMember] = {}
        self.lost: dict[str, LostMember] = {}
        self._heirs: dict[str, str] = {}
        self._before: dict[str, str] = {}
        self.twins: dict[str, str] = {}
        """By executor, a member that another one is: each has a folder of that name, as the disk of one was copied."""
        self.disks: dict[str, tuple[float, int]] = {}
        """Of the members whose disks were measured: the share that is in use, and the disk's bytes."""
        self.memories: dict[str, tuple[int, int]] = {}
        """Of the members whose memory was measured: the bytes that Python workers take, and those left besides."""

    def measured(self, member: str, disk: tuple[float, int], memory: tuple[int, int] = (0, 0)) -> None:
        """Take how full a live member's disk and memory are; one of no bytes was not looked at."""
        if disk[1] and member in self.live:
            self.disks[member] = disk
        if memory[0] and member in self.live:
            self.memories[member] = memory

    @property
    def memory_shares(self) -> dict[str, float]:
        """How much of the memory that a member's Python workers take or could have they take. Operators ask from other
        threads, while batches measure.
        """
        return {member: taken / (taken + left) for member, (taken, left) in tuple(self.memories.items())}

    def of_executor(self, executor: str) -> LiveMember | None:
        """Return the member that an executor holds."""
        return next((living for living in self.live.values() if living.executor.id == executor), None)

    def works_in(self, executor: str, member: str) -> None:
        """Note that an executor was seen at work in a member's folder: it may have taken it over from a dead one."""
        living = self.live.get(member)
        if living is not None and living.executor.id != executor:
            self._heirs[member] = executor

    def hand_on(self, executors: Sequence[Executor]) -> MemberChanges:
        """Give the members whose executor is gone to the one that works in their folder already: nobody left."""
        here = {executor.id: executor for executor in executors}
        self.twins = {executor: member for executor, member in self.twins.items() if executor in here}
        heirs = {member: here[heir] for member, heir in self._heirs.items() if heir in here and member in self.live}
        returned = sorted(member for member in heirs if self.live[member].executor.id not in here)
        for member in returned:
            self.live[member] = replace(self.live[member], executor=heirs[member])
        self._heirs.clear()
        return MemberChanges(returned=tuple(returned))

    def strangers(self, executors: Iterable[Executor]) -> list[Executor]:
        """Return the executors that are not members yet, those that stand for themselves included."""
        known = {living.executor.id for living in self.live.values() if living.counted}
        return [executor for executor in executors if executor.id not in known]

    def departed(self, executors: Sequence[Executor]) -> list[LiveMember]:
        """Return the members whose executor is not among the live ones."""
        here = {executor.id for executor in executors}
        return [living for _, living in sorted(self.live.items()) if living.executor.id not in here]

    def leave(self, living_members: Iterable[LiveMember], now: float, planned: frozenset[str]) -> MemberChanges:
        """Take these out of the live ones; ``planned`` are executors that were taken away on purpose."""
        gone = list(living_members)
        for living in gone:
            del self.live[living.id]
            self.disks.pop(living.id, None)
            self.memories.pop(living.id, None)
            if living.counted:
                self.lost[living.id] = LostMember(living, now, living.executor.id in planned)
        return MemberChanges(left=tuple(living.id for living in gone))

    def enter(
        self, censuses: Iterable[Census], executors: Sequence[Executor], racks: Mapping[str, str | None]
    ) -> MemberChanges:
        """Take in the members that censuses of live executors name; ``racks`` by member."""
        here = {executor.id: executor for executor in executors}
        joined: list[str] = []
        returned: list[str] = []
        for census in censuses:
            present = self.of_executor(census.executor)
            if not census.member or census.executor not in here or (present is not None and present.counted):
                continue
            if self._is_twin(census, here):
                continue
            if present is not None:
                del self.live[present.id]
            before = self.lost.pop(census.member, None)
            self.live[census.member] = LiveMember(
                census.member, here[census.executor], racks.get(census.member), MappingProxyType(dict(census.tags))
            )
            self.measured(census.member, census.disk, census.memory)
            (joined if before is None else returned).append(census.member)
        return MemberChanges(joined=tuple(sorted(joined)), returned=tuple(sorted(returned)))

    def _is_twin(self, census: Census, here: Collection[str]) -> bool:
        """Tell whether a member has another executor, which is here, too. Who names a member that is another one's may
        have taken the folder over, as its owner died unseen; who names it once more after that has one of its own.
        """
        known, executor = self.live.get(census.member), census.executor
        self.twins.pop(executor, None)
        if known is None or known.executor.id not in here:
            return False
        if self._before.get(census.member) == executor:
            self.twins[executor] = census.member
            return True
        self._before[census.member] = known.executor.id
        return False

    def stand_in(self, executors: Iterable[Executor]) -> MemberChanges:
        """Let executors that cannot be asked stand for themselves."""
        named = list(executors)
        for executor in named:
            self.live[executor.id] = LiveMember(executor.id, executor, counted=False)
        return MemberChanges(joined=tuple(executor.id for executor in named))

    def forget_lost(self, now: float, delay: float) -> None:
        """Forget the lost members that are waited for no longer, and those that were taken away as long ago."""
        self.lost = {name: lost for name, lost in self.lost.items() if now - lost.since < delay}

    def awaited(self, now: float, delay: float) -> dict[str, LiveMember]:
        """Return the lost members that are still waited for."""
        waiting = {name: lost for name, lost in self.lost.items() if not lost.planned and now - lost.since < delay}
        return {name: lost.living for name, lost in sorted(waiting.items())}

    def forget(self) -> None:
        """Forget all: another driver may have been at work."""
        self.live.clear()
        self.lost.clear()
        self.disks.clear()
        self.memories.clear()
        self._heirs.clear()
        self._before.clear()
        self.twins.clear()


class Homes:
    """Whose tasks are that lost members had: theirs, while they are waited for, and once they are back until they own
    them again. ``awaited`` are those that the last assignment waited for.
    """

    def __init__(self) -> None:
        self.owners: dict[TaskId, MemberId] = {}
        self.awaited: frozenset[MemberId] = frozenset()
        self._kept: dict[TaskId, MemberId] = {}

    def of(self, members: Collection[MemberId]) -> dict[TaskId, MemberId]:
        """Return the tasks that belong to some members."""
        return {t: home for t, home in self.owners.items() if home in members}

    def followers(self, one: TaskId) -> tuple[str, str]:
        """Return who is to read a task's deltas once it is back, be it as an owner or as a standby; "" is nobody."""
        return self.owners.get(one, ""), self._kept.get(one, "")

    def remember(self, left: Iterable[MemberId], awaited: Collection[MemberId], present: Assignment) -> None:
        """Keep the tasks of members that may come back for them, and of what they kept copies."""
        for member in left:
            if member in awaited:
                owned = [t for t, owner in present.owners.items() if owner == member]
                self.owners.update({t: member for t in owned if self.owners.get(t) not in awaited})
                self._kept.update({t: member for t, kept in present.standbys.items() if member in kept})

    def given_up(self, awaited: Collection[MemberId], live: Collection[MemberId]) -> bool:
        """Forget tasks of those that are waited for no longer; tell whether there are such."""
        self.owners = self.of({*awaited, *live})
        self._kept = {t: member for t, member in self._kept.items() if member in awaited}
        return bool(self.awaited - {*awaited, *live})

    def returned(self, present: Assignment) -> None:
        """Forget tasks that are where they belong."""
        self.owners = {t: home for t, home in self.owners.items() if present.owners.get(t) != home}
