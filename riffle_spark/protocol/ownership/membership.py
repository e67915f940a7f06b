"""The members of a query: which executors hold which folder, which left, and which may come back.

Theory of operation. A member is a folder of copies, so it outlives its executor: another executor that claims the
folder is the same member, returned. An executor becomes a member with its census, which runs beside the batches; only a
query without any member waits for one. A lost member is remembered for as long as it may be awaited: an executor that
brings its folder later joins like any other. If executors cannot be asked (Spark Connect), each is a member by its own
id.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from riffle_spark.assign.model import Member
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.protocol.ports import Executor
from riffle_spark.state.log.record import RecordedMember

__all__ = ["LiveMember", "LostMember", "MemberChanges", "Membership"]


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A live member: its folder's name, the executor that holds it, its rack and tags."""

    id: str
    executor: Executor
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    counted: bool = True
    """Whether a census has named it; else the executor is a member by its own id."""

    def member(self) -> Member:
        """Return it as the assignor knows it."""
        tags = {name: value for name, value in self.tags.items() if name not in ("id", "rack")}
        return Member(self.id, slots=self.executor.cores, rack=self.rack, tags=tags)

    def recorded(self) -> RecordedMember:
        """Return it as a full record stores it."""
        at = self.executor
        return RecordedMember(self.id, at.id, at.host, at.cores, self.rack, dict(sorted(self.tags.items())))


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that left at ``since`` (seconds of the driver's clock); ``planned`` if it was removed on purpose."""

    living: LiveMember
    since: float
    planned: bool


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """Members that joined, left or returned since the last look.

    ``duplicates`` maps executors whose census was refused to the member whose folder they have a copy of.
    """

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    duplicates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.returned)


class Membership:
    """The live members by id, the lost ones that are remembered, and the executors that were last seen alive."""

    def __init__(self) -> None:
        self.executors: tuple[Executor, ...] = ()
        self.live: dict[str, LiveMember] = {}
        self.lost: dict[str, LostMember] = {}
        self.disks: dict[str, tuple[float, int]] = {}
        """The share in use and the bytes of each measured disk, by member."""
        self.memories: dict[str, tuple[int, int]] = {}
        """The bytes that Python workers take and the bytes left, by measured member."""
        self._heirs: dict[str, str] = {}
        self._displaced: dict[str, set[str]] = {}
        """By member, the live executors that held it before another one named the same folder."""

    def record_usage(self, member: str, disk: tuple[float, int], memory: tuple[int, int] = (0, 0)) -> None:
        """Record how full a live member's disk and memory are. A disk or memory of no bytes was not measured."""
        if disk[1] and member in self.live:
            self.disks[member] = disk
        if memory[0] and member in self.live:
            self.memories[member] = memory

    @property
    def memory_shares(self) -> dict[str, float]:
        """The share of its memory that each member's Python workers take. Operators read it from other threads."""
        return {member: taken / (taken + left) for member, (taken, left) in tuple(self.memories.items())}

    def of_executor(self, executor: str) -> LiveMember | None:
        """Return the member that an executor holds."""
        return next((living for living in self.live.values() if living.executor.id == executor), None)

    def record_folder(self, executor: str, member: str) -> None:
        """Note in which member's folder an executor works: it may have taken the folder over from a dead one."""
        living = self.live.get(member)
        if living is not None and living.executor.id != executor:
            self._heirs[member] = executor

    def hand_on(self, executors: Sequence[Executor]) -> MemberChanges:
        """Give members whose executor is gone to the executor that works in their folder: no member left."""
        here = {executor.id: executor for executor in executors}
        self._displaced = {member: held & here.keys() for member, held in self._displaced.items()}
        heirs = {member: here[heir] for member, heir in self._heirs.items() if heir in here and member in self.live}
        returned = sorted(member for member in heirs if self.live[member].executor.id not in here)
        for member in returned:
            self.live[member] = replace(self.live[member], executor=heirs[member])
        self._heirs.clear()
        return MemberChanges(returned=tuple(returned))

    def without_census(self, executors: Iterable[Executor]) -> list[Executor]:
        """Return the executors whose census has not named a member yet."""
        known = {living.executor.id for living in self.live.values() if living.counted}
        return [executor for executor in executors if executor.id not in known]

    def departed(self, executors: Sequence[Executor]) -> list[LiveMember]:
        """Return the members whose executor is not among the live ones."""
        here = {executor.id for executor in executors}
        return [living for _, living in sorted(self.live.items()) if living.executor.id not in here]

    def remove(self, members: Iterable[LiveMember], now: float, planned: frozenset[str]) -> MemberChanges:
        """Take members out of the live ones; ``planned`` are executors that were removed on purpose."""
        gone = list(members)
        for living in gone:
            del self.live[living.id]
            self.disks.pop(living.id, None)
            self.memories.pop(living.id, None)
            if living.counted:
                self.lost[living.id] = LostMember(living, now, living.executor.id in planned)
        return MemberChanges(left=tuple(living.id for living in gone))

    def add(
        self, censuses: Iterable[Census], executors: Sequence[Executor], racks: Mapping[str, str | None]
    ) -> MemberChanges:
        """Add the members that censuses of live executors name; ``racks`` by member."""
        here = {executor.id: executor for executor in executors}
        joined: list[str] = []
        returned: list[str] = []
        duplicates: dict[str, str] = {}
        for census in censuses:
            present = self.of_executor(census.executor)
            if not census.member or census.executor not in here or (present is not None and present.counted):
                continue
            if self._is_duplicate(census, here):
                duplicates[census.executor] = census.member
                continue
            if present is not None:
                del self.live[present.id]
            before = self.lost.pop(census.member, None)
            self.live[census.member] = LiveMember(
                census.member, here[census.executor], racks.get(census.member), MappingProxyType(dict(census.tags))
            )
            self.record_usage(census.member, census.disk, census.memory)
            (joined if before is None else returned).append(census.member)
        return MemberChanges(tuple(sorted(joined)), returned=tuple(sorted(returned)), duplicates=duplicates)

    def _is_duplicate(self, census: Census, here: Collection[str]) -> bool:
        """Return whether an executor names a folder that another live executor has, too.

        The first executor that names another one's folder may have taken it over from one that died unseen. An executor
        that lost the member in this way and names it again has a folder of its own, on a copy of the disk.
        """
        known = self.live.get(census.member)
        if known is None or known.executor.id not in here:
            return False
        displaced = self._displaced.setdefault(census.member, set())
        if census.executor in displaced:
            return True
        displaced.add(known.executor.id)
        return False

    def stand_in(self, executors: Iterable[Executor]) -> MemberChanges:
        """Make executors that cannot be asked members by their own ids."""
        named = list(executors)
        for executor in named:
            self.live[executor.id] = LiveMember(executor.id, executor, counted=False)
        return MemberChanges(joined=tuple(executor.id for executor in named))

    def forget_lost(self, now: float, delay: float) -> None:
        """Forget lost members after ``delay`` seconds, also those that were removed on purpose."""
        self.lost = {name: lost for name, lost in self.lost.items() if now - lost.since < delay}

    def awaited(self, now: float, delay: float) -> dict[str, LiveMember]:
        """Return the lost members that are still awaited."""
        waiting = {name: lost for name, lost in self.lost.items() if not lost.planned and now - lost.since < delay}
        return {name: lost.living for name, lost in sorted(waiting.items())}

    def executor_names(self) -> dict[str, str]:
        """Return the executor id of each live and remembered member."""
        lost = (lost.living for lost in self.lost.values())
        return {living.id: living.executor.id for living in (*lost, *self.live.values())}

    def forget(self) -> None:
        """Forget all members: another driver may have been at work."""
        self.live.clear()
        self.lost.clear()
        self.disks.clear()
        self.memories.clear()
        self._heirs.clear()
        self._displaced.clear()
