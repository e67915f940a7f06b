"""Collect the facts of a driver from its parts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Final

from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.protocol.batch.counters import Counters
from riffle_spark.protocol.facts import DriverFacts, FailureFacts, GroupFacts, MemberFacts, MemberStatus, StoreFacts
from riffle_spark.protocol.ownership.groups import Groups, task_name
from riffle_spark.protocol.ownership.operations import RequestRegister
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ownership.placement import Placement
from riffle_spark.protocol.ownership.readiness import MemberState
from riffle_spark.protocol.ports import Clock
from riffle_spark.protocol.request_prices import has_price
from riffle_spark.protocol.source_lag import SourceLag
from riffle_spark.state.log.manifest import NO_SIZE, Manifest, Size
from riffle_spark.state.log.record import Record

_MEASURE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _PlacementKey:
    """The inputs of the placement of groups. Each new assignment is another object."""

    present: Assignment
    members: tuple[MemberId, ...]
    key_groups: int
    groups: Groups

    def is_same(self, key: "_PlacementKey | None") -> bool:
        """Return whether a placement made for ``key`` is still right."""
        return (
            key is not None
            and self.present is key.present
            and (self.members, self.key_groups, self.groups) == (key.members, key.key_groups, key.groups)
        )


class FactCollector:
    """Makes the ``DriverFacts`` of a driver, and counts its batches.

    Placement is read again only after a new assignment, so that a batch costs no loop over key-groups. The caller makes
    sure that no batch runs at the same time.
    """

    def __init__(self, ownership: Ownership, operations: RequestRegister, clock: Clock, root: str) -> None:
        """Create the collector of a driver with these parts, which has run no batch."""
        self.counters = Counters(has_price=has_price(root))
        self.source_lag = SourceLag()
        self.query_name = ""
        self.commit_ms: int | None = None
        self.failure: FailureFacts | None = None
        self.paused_since_ms: Callable[[], int | None] = lambda: None
        """Returns since when the query is paused."""
        self._ownership = ownership
        self._operations = operations
        self._clock = clock
        self._groups: tuple[GroupFacts, ...] = ()
        self._groups_key: _PlacementKey | None = None
        self._member_sizes = _MemberSizes()

    def start_run(self, previous: Record | None, query_name: str) -> None:
        """Start a run of the query. ``previous`` is the newest record before the driver's claim."""
        self.query_name = query_name
        self.source_lag = SourceLag()
        self.failure = None
        self.commit_ms = previous.written_ms if previous is not None and previous.kind == "batch" else None

    def collect(self, tail: Record | None, manifest: Manifest, run_id: str | None, answered: int = 0) -> DriverFacts:
        """Return the facts of this moment. ``tail`` is the newest record, ``manifest`` is that of ``tail``.

        ``answered`` is the number of the newest request from the mailbox with an answer.
        """
        now = self._clock.seconds()
        placement = self._ownership.placement
        sizes = self._member_sizes.measure(manifest, placement, now)
        members = tuple(self._member(state, now, sizes) for state in self._operations.members)
        requests = self._operations.requests
        probes = placement.triggers.probes
        return DriverFacts(
            time_ms=self._clock.wall_ms(),
            query_id=tail.query_id if tail else "",
            query_name=self.query_name,
            run_id=run_id or "",
            epoch=tail.epoch if tail else -1,
            version=tail.version if tail else -1,
            commit_ms=self.commit_ms,
            watermark_ms=tail.watermark_ms if tail else None,
            source=self.source_lag.lags(now),
            members=members,
            stores=_facts_of_stores(manifest, tail.row_counts if tail else {}),
            groups=self._group_facts(tuple(member.id for member in members)),
            next_probe_seconds=probes.seconds_to_next(
                placement.present, placement.settings.probing_rebalance_interval, now
            ),
            paused_since_ms=self.paused_since_ms(),
            drained=tuple(sorted(requests.drained)),
            pins={task_name(task): member for task, member in sorted(requests.pins.items())},
            slot_limit=requests.slots,
            disk_limit=placement.settings.local_disk_limit,
            failure=self.failure,
            answered=answered,
            counters=self.counters.values(),
        )

    def _member(self, state: MemberState, now: float, sizes: Mapping[MemberId, Size]) -> MemberFacts:
        """Return the facts of a member, given its state as of the last assignment.

        ``sizes`` has the size of the state that members own.
        """
        size = sizes.get(state.id, NO_SIZE)
        ownership = self._ownership
        lag_records, _, lag_trend = ownership.copies.trend.of(state.id)
        warmups = ownership.copies.warmups
        return MemberFacts(
            id=state.id,
            executor=state.executor,
            host=state.host,
            rack=state.rack,
            state=self._status(state, now),
            slots=state.cores,
            owned=state.owned,
            standbys=state.standbys,
            warmups=state.warmups,
            lag_records=lag_records,
            lag_trend=lag_trend,
            warmup_bytes=warmups.remaining_bytes(state.id),
            warmup_seconds=warmups.remaining_seconds(state.id),
            disk_used=ownership.membership.disks.get(state.id, (None, 0))[0],
            memory_used=ownership.membership.memory_shares.get(state.id),
            state_rows=size.rows,
            state_bytes=size.bytes,
        )

    def _status(self, state: MemberState, now: float) -> MemberStatus:
        if self._ownership.discovery.is_set_aside(state.executor, now):
            return "quarantined"
        if state.state == "live":
            is_quarantined = state.id in self._ownership.placement.triggers.quarantine.members
            return "quarantined" if is_quarantined else "active"
        return "drained" if state.state == "draining" else "awaited"

    def _group_facts(self, members: tuple[MemberId, ...]) -> tuple[GroupFacts, ...]:
        """Return the placement of all groups, the same object while nothing changes."""
        placement = self._ownership.placement
        key_groups = placement.settings.key_groups if placement.shards is None else len(placement.shards)
        key = _PlacementKey(placement.present, members, key_groups, placement.groups)
        if not key.is_same(self._groups_key):
            self._groups = tuple(_facts_of_group(name, key) for name in placement.groups.names)
            self._groups_key = key
        return self._groups


class _MemberSizes:
    """Measures the state that each member owns.

    All entries are read at most once per ``_MEASURE_SECONDS``, so that batches stay proportional to what they change.
    Until a member owns state, they are read each time.
    """

    def __init__(self) -> None:
        self._sizes: dict[MemberId, Size] = {}
        self._present: Assignment | None = None
        self._manifest: Manifest | None = None
        self._measured_at = 0.0

    def measure(self, manifest: Manifest, placement: Placement, now: float) -> Mapping[MemberId, Size]:
        """Return the size of the state that each member owns. ``now`` is in seconds of a monotonic clock."""
        is_same = manifest is self._manifest and placement.present is self._present
        is_recent = bool(self._sizes) and now - self._measured_at < _MEASURE_SECONDS
        if is_same or is_recent:
            return self._sizes
        sizes: dict[MemberId, Size] = {}
        owners = placement.present.owners
        for (store, key_group), entry in manifest.entries.items():
            owner = owners.get(placement.groups.task(store, key_group))
            if owner is not None:
                total = sizes.get(owner, NO_SIZE)
                sizes[owner] = Size(*map(add, total, entry.measure()))
        self._sizes = sizes
        self._manifest = manifest
        self._present = placement.present
        self._measured_at = now
        return sizes


def _facts_of_stores(manifest: Manifest, row_counts: Mapping[str, int]) -> tuple[StoreFacts, ...]:
    """Return the sizes of all stores. ``row_counts`` has the state rows of each store for which they are known."""
    return tuple(
        StoreFacts(store, row_counts.get(store, size.rows), size.bytes, size.deltas, store in row_counts)
        for store, size in sorted(manifest.measure_stores().items())
    )


def _facts_of_group(name: str, key: _PlacementKey) -> GroupFacts:
    positions = {member: position for position, member in enumerate(key.members)}
    tasks = [TaskId(name, key_group) for key_group in range(key.key_groups)]
    return GroupFacts(
        name,
        key.groups.stores_of(name, key.groups.of_stores),
        tuple(positions.get(key.present.owners.get(task, ""), -1) for task in tasks),
        _positions(key.present.standbys, tasks, positions),
        _positions(key.present.warmups, tasks, positions),
    )


def _positions(
    copies: Mapping[TaskId, Sequence[MemberId]], tasks: Iterable[TaskId], positions: Mapping[MemberId, int]
) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(positions[member] for member in copies.get(task, ()) if member in positions) for task in tasks)
