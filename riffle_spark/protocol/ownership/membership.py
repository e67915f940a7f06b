"""Track the members of a query: the folder of each executor, lost members, and members that may return.

Theory of operation.

1. A member is a folder of copies. It outlives its executor: if another executor uses the folder, the member has
   returned.
2. An executor becomes a member with its census, which runs in the background. Only a query without any member waits for
   a census.
3. A lost member is remembered while it may be awaited. If its folder appears later, it joins like a new member.
4. If executors cannot answer a census (Spark Connect), each is a member by its own id.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from riffle_spark.assign.model import Member
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.protocol.ports import Executor
from riffle_spark.state.log.record import RecordedMember


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A live member: the name of its folder (``id``), its executor, rack and tags.

    ``counted`` is false until a census has named the folder. Until then ``id`` is the id of the executor.
    """

    id: str
    executor: Executor
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    counted: bool = True

    def to_assignor_member(self) -> Member:
        """Return this member as the assignor's ``Member``."""
        tags = {name: value for name, value in self.tags.items() if name not in ("id", "rack")}
        return Member(self.id, slots=self.executor.cores, rack=self.rack, tags=tags)

    def to_recorded(self) -> RecordedMember:
        """Return this member as the log records it."""
        executor = self.executor
        return RecordedMember(
            self.id, executor.id, executor.host, executor.cores, self.rack, dict(sorted(self.tags.items()))
        )


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member lost at ``since`` (seconds of the driver's clock); ``planned`` if it was removed on purpose."""

    living: LiveMember
    since: float
    planned: bool


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """The ids of members that joined, left or returned with one update.

    ``duplicates`` maps executors to the member of which their folder is a copy. Their censuses are refused.
    """

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    duplicates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        """Return whether a member joined, left or returned."""
        return bool(self.joined or self.left or self.returned)


class Membership:
    """The live and the lost members by id, and the executors of the last update (``executors``)."""

    def __init__(self) -> None:
        """Start without members."""
        self.executors: tuple[Executor, ...] = ()
        self.live: dict[str, LiveMember] = {}
        self.lost: dict[str, LostMember] = {}
        self.disks: dict[str, tuple[float, int]] = {}
        """The share in use and the size in bytes of each measured disk, by member."""
        self.memories: dict[str, tuple[int, int]] = {}
        """The bytes that Python workers use and the free bytes, by measured member."""
        self._heirs: dict[str, str] = {}
        self._displaced: dict[str, set[str]] = {}
        """By member, the live executors that had it before another one named the same folder."""

    def record_usage(self, member: str, disk: tuple[float, int], memory: tuple[int, int] = (0, 0)) -> None:
        """Record the (used share, bytes) of a live member's disk, and its (used, free) bytes of memory.

        A disk or memory of no bytes was not measured and is ignored.
        """
        if disk[1] and member in self.live:
            self.disks[member] = disk
        if memory[0] and member in self.live:
            self.memories[member] = memory

    @property
    def memory_shares(self) -> dict[str, float]:
        """Return the share of its memory that each member's Python workers use.

        Operators read it from other threads.
        """
        return {member: used / (used + free) for member, (used, free) in tuple(self.memories.items())}

    def of_executor(self, executor: str) -> LiveMember | None:
        """Return the member of an executor, ``None`` if it has none."""
        return next((living for living in self.live.values() if living.executor.id == executor), None)

    def record_folder(self, executor: str, member: str) -> None:
        """Record that an executor uses the folder of ``member``, perhaps instead of a dead executor."""
        living = self.live.get(member)
        if living is not None and living.executor.id != executor:
            self._heirs[member] = executor

    def reassign_folders(self, executors: Sequence[Executor]) -> MemberChanges:
        """Give the members of dead executors to the live executors that use their folders; return the changes."""
        by_id = {executor.id: executor for executor in executors}
        self._displaced = {member: names & by_id.keys() for member, names in self._displaced.items()}
        heirs = {member: by_id[heir] for member, heir in self._heirs.items() if heir in by_id and member in self.live}
        returned = sorted(member for member in heirs if self.live[member].executor.id not in by_id)
        for member in returned:
            self.live[member] = replace(self.live[member], executor=heirs[member])
        self._heirs.clear()
        return MemberChanges(returned=tuple(returned))

    def executors_without_census(self, executors: Iterable[Executor]) -> list[Executor]:
        """Return the executors whose census has not arrived."""
        counted_executors = {member.executor.id for member in self.live.values() if member.counted}
        return [executor for executor in executors if executor.id not in counted_executors]

    def find_departed(self, executors: Sequence[Executor]) -> list[LiveMember]:
        """Return the members whose executor is not among these live executors, sorted by id."""
        alive = {executor.id for executor in executors}
        return [member for _, member in sorted(self.live.items()) if member.executor.id not in alive]

    def remove(self, members: Iterable[LiveMember], now: float, planned: frozenset[str]) -> MemberChanges:
        """Move members from the live to the lost ones; return the changes.

        ``planned`` are the ids of executors that were removed on purpose.
        """
        removed = list(members)
        for member in removed:
            del self.live[member.id]
            self.disks.pop(member.id, None)
            self.memories.pop(member.id, None)
            if member.counted:
                self.lost[member.id] = LostMember(member, now, member.executor.id in planned)
        return MemberChanges(left=tuple(member.id for member in removed))

    def add(
        self, censuses: Iterable[Census], executors: Sequence[Executor], racks: Mapping[str, str | None]
    ) -> MemberChanges:
        """Add the members that the censuses of these live executors name; return the changes.

        ``racks`` has the rack of each member.
        """
        by_id = {executor.id: executor for executor in executors}
        joined: list[str] = []
        returned: list[str] = []
        duplicates: dict[str, str] = {}
        for census in censuses:
            present = self.of_executor(census.executor)
            if not census.member or census.executor not in by_id or (present is not None and present.counted):
                continue
            if self._is_duplicate(census, by_id):
                duplicates[census.executor] = census.member
                continue
            if present is not None:
                del self.live[present.id]
            lost = self.lost.pop(census.member, None)
            self.live[census.member] = LiveMember(
                census.member, by_id[census.executor], racks.get(census.member), MappingProxyType(dict(census.tags))
            )
            self.record_usage(census.member, census.disk, census.memory)
            (joined if lost is None else returned).append(census.member)
        return MemberChanges(tuple(sorted(joined)), returned=tuple(sorted(returned)), duplicates=duplicates)

    def _is_duplicate(self, census: Census, alive: Collection[str]) -> bool:
        """Return whether an executor names a folder that another live executor has, too.

        The first executor that names another executor's folder may have taken it over from one whose death is not known
        yet. If the other executor names the folder again, the two have folders of the same name on copied disks.
        """
        member = self.live.get(census.member)
        if member is None or member.executor.id not in alive:
            return False
        displaced_executors = self._displaced.setdefault(census.member, set())
        if census.executor in displaced_executors:
            return True
        displaced_executors.add(member.executor.id)
        return False

    def add_without_census(self, executors: Iterable[Executor]) -> MemberChanges:
        """Make executors without a census members by their own ids; return the changes."""
        joined = list(executors)
        for executor in joined:
            self.live[executor.id] = LiveMember(executor.id, executor, counted=False)
        return MemberChanges(joined=tuple(executor.id for executor in joined))

    def forget_lost(self, now: float, delay: float) -> None:
        """Forget members that were lost ``delay`` seconds ago or earlier, also those that were removed on purpose."""
        self.lost = {name: lost for name, lost in self.lost.items() if now - lost.since < delay}

    def awaited_members(self, now: float, delay: float) -> dict[str, LiveMember]:
        """Return the lost members whose return is awaited.

        They were lost less than ``delay`` seconds before ``now``, and not on purpose.
        """
        awaited_by_name = {
            name: lost for name, lost in self.lost.items() if not lost.planned and now - lost.since < delay
        }
        return {name: lost.living for name, lost in sorted(awaited_by_name.items())}

    def executor_names(self) -> dict[str, str]:
        """Return the executor id of each live and remembered member."""
        lost = (lost.living for lost in self.lost.values())
        return {living.id: living.executor.id for living in (*lost, *self.live.values())}

    def forget(self) -> None:
        """Forget all members, because another driver may have run batches."""
        self.live.clear()
        self.lost.clear()
        self.disks.clear()
        self.memories.clear()
        self._heirs.clear()
        self._displaced.clear()
