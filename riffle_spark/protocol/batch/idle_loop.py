"""What a driver does between its batches, and what it hands to the next driver. Knows the will, the log, members and
upkeep. Does not know threads, or how a batch is run.

Theory of operation. What was asked of a query (``Will``) is in each record that a batch commits. Where none comes, it
is appended as a record of its own, of the same epoch and put as any other: a driver that was fenced cannot. A look
costs no request and no job; only where it finds a reason is there an assignment, upkeep and, if the will has changed,
one put. A batch and a look exclude each other: the driver sees to that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.batch.records import Stamp, requests_record
from riffle_spark.protocol.batch.stored_requests import (
    StoredRequests,
    Wait,
    apply_stored_settings,
    changed_settings,
    read_requests,
)
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.protocol.ownership.membership import LiveMember, LostMember
from riffle_spark.protocol.ownership.operations import Operations, OperatorRequests
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import DriverPorts, Executor
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.upkeep import Upkeep, UpkeepInput
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import sent_since

__all__ = ["LOOK_SECONDS", "IdleLoop"]

LOOK_SECONDS = 1.0
"""So long after a batch, or after another look, there is none: a batch is expected, which does all there is to do."""
_RECORD = "record"


class IdleLoop:
    """One driver's hours without a batch. ``settings`` are those that it was started with."""

    def __init__(
        self, settings: Settings, log: Log, operations: Operations, ownership: Ownership, upkeep: Upkeep,
        rounds: Rounds, ports: DriverPorts,
    ) -> None:  # fmt: skip
        self._started = settings
        self._log = log
        self._operations = operations
        self._ownership = ownership
        self._upkeep = upkeep
        self._rounds = rounds
        self._ports = ports
        self._zero_ms = ports.clock.wall_ms() - ports.clock.seconds() * 1000
        self._epoch: int | None = None
        self._carried = StoredRequests()
        self._quiet_since = 0.0
        self._unfinished = False
        self._put_off: Delays[str] = Delays(1.0, 600.0)

    def begin(self, tail: Record | None) -> None:
        """Take over what the newest record before this driver's claim says. Where it is this driver's own, what it was
        asked stands, and may be newer; where another was at work in between, that is the newer.
        """
        found = read_requests(tail.orders) if tail else StoredRequests()
        settings, strange = apply_stored_settings(self._started, found.settings)
        self._carried = StoredRequests(settings=strange, others=found.others)
        placement = self._ownership.placement
        placement.weights.resume(self._log.weights, placement.groups)
        self._ownership.membership.lost.update({wait.member.id: self._lost(wait) for wait in found.awaited})
        placement.prior_owners.resume(placement.groups.restrict(found.prior_owners))
        mine, self._epoch = self._epoch, self._log.tail.epoch if self._log.tail else None
        if tail is None or tail.epoch == mine:
            return
        changed = settings if mine is not None or settings != self._started else None
        pins = placement.groups.restrict(found.pins)
        asked = OperatorRequests(pins, frozenset(found.drained), found.slots, changed)
        self._operations.take_over(asked, alone=mine is not None)
        if dropped := [task_name(t) for t in found.pins if t not in pins]:
            told = f"pins of co-location groups that are no more are dropped: {', '.join(dropped)}\n"
            placement.warn(f"{told}  What to do: nothing; or pin what is to stay, in the group that it is in now")
        if stands := _told(replace(found, pins=pins), strange):
            placement.warn(stands)

    def orders(self) -> dict[str, object]:
        """Return what the next record is to say."""
        return self._will().to_json()

    def _will(self) -> StoredRequests:
        orders = self._operations.requests
        lost, prior_owners = self._ownership.placement.awaited(self._ports.clock.seconds())
        changed = changed_settings(self._started, orders.settings) if orders.settings else {}
        return replace(
            self._carried, drained=tuple(sorted(orders.drained)), pins=dict(orders.pins), slots=orders.slots,
            settings={**self._carried.settings, **changed}, prior_owners=prior_owners,
            awaited=tuple(Wait(round(self._zero_ms + one.since * 1000), one.living.recorded()) for one in lost),
        )  # fmt: skip

    def _lost(self, wait: Wait) -> LostMember:
        """Return a member that is waited for; never since a time that is to come, wherever the clock was set."""
        told, now = wait.member, self._ports.clock.seconds()
        living = LiveMember(told.id, Executor(told.executor, told.host, told.slots), told.rack, told.tags)
        return LostMember(living, min((wait.since_ms - self._zero_ms) / 1000, now), planned=False)

    def ran(self) -> None:
        """Note the end of a batch."""
        self._quiet_since, self._unfinished = self._ports.clock.seconds(), True

    def look(
        self, executors: Sequence[Executor], settings: Settings, place: Callable[[], UpkeepInput]
    ) -> bool:  # fmt: skip
        """Do what has to be done at once though no batch comes; tell whether anything had to. ``place`` tells upkeep
        where it stands, for these executors.

        Raises ``FencedError`` if another driver has appended, ``UnavailableError`` if the store does not answer.
        """
        now = self._ports.clock.seconds()
        if now - self._quiet_since < LOOK_SECONDS or not executors:
            return False
        acts = self._has_reason(executors, settings.state_cleanup_delay, now)
        if acts:
            self._act(executors, place, now)
        return self._write() or acts

    def _has_reason(self, executors: Sequence[Executor], cleanup_delay: float, now: float) -> bool:
        own, busy = self._ownership, self._ports.background.busy()
        return (
            tuple(executors) != own.membership.executors
            or own.placement.has_pending_request()
            or bool(self._rounds.arrived or own.membership.lost or own.membership.without_census(executors))
            or own.placement.present.needs_probe
            or own.copies.idle.is_due(now, cleanup_delay)
            or (self._unfinished and not busy)
        )

    def _act(self, executors: Sequence[Executor], place: Callable[[], UpkeepInput], now: float) -> None:
        given = place()
        stores = tuple(operator.store for operator in given.operators)
        self._upkeep.gather(self._ownership)
        before = self._ownership.placement.present
        self._ownership.layout_for(executors, given.manifest, stores, given.home, now, between=True)
        if self._ownership.placement.present is not before or not self._ports.background.busy():
            self._unfinished = self._upkeep.go_on(place(), now)

    def _write(self) -> bool:
        """Append the will if no record says it yet; tell whether one was appended."""
        tail, now = self._log.tail, self._ports.clock.seconds()
        if tail is None or self._put_off.is_delayed(_RECORD, now):
            return False
        if self._log.unclear:
            self._settle(now)
        elif self._will().is_news_to(read_requests(tail.orders)):
            self._append(tail, now)
        else:
            return False
        return True

    def _append(self, tail: Record, now: float) -> None:
        before, sent = self._log.manifest, dict(self._ports.objects.requests)
        listed = self._upkeep.snapshots(before, self._ownership)
        stamp = Stamp(self._ports.new_id(), self._ports.clock.wall_ms())
        draft = requests_record(tail, self._ownership, self.orders(), stamp)
        draft = replace(draft, promised=self._upkeep.promise(tail.sequence + 1))
        self._ports.reached("before will")
        try:
            record = self._log.append(draft, before.changed(listed))
        except UnavailableError:
            self._put_off.record_failure(_RECORD, now)
            raise
        finally:
            if self._ports.upkeep_objects is not None:
                self._upkeep.also_sent(sent_since(sent, self._ports.objects.requests))
        self._ports.reached("after will")
        self._put_off.forget(_RECORD)
        self._upkeep.committed(record, before, listed)
        self._ownership.copies.known.record_snapshots(record.sequence, before, listed)

    def _settle(self, now: float) -> None:
        """Find out what became of a record that was put."""
        try:
            tail = self._log.settle()
        except UnavailableError:
            self._put_off.record_failure(_RECORD, now)
            raise
        self._upkeep.start(None, tail, self._log.manifest)


def _told(will: StoredRequests, strange: Mapping[str, object]) -> str:
    """Say what stands of what an earlier driver was asked; nothing where nothing does."""
    settings = [f"{name} = {value!r}" for name, value in sorted(will.settings.items()) if name not in strange]
    said = [
        f"drained: {', '.join(will.drained)}" if will.drained else "",
        f"pinned: {', '.join(f'{task_name(t)} to {member}' for t, member in will.pins.items())}" if will.pins else "",
        f"{will.slots} slots an executor at most" if will.slots else "",
        *settings,
        *(
            f"{name} = {value!r}, which this version does not know and keeps as it is"
            for name, value in strange.items()
        ),
    ]
    stands = "; ".join(filter(None, said))
    return stands and (
        f"what an earlier driver was asked stands: {stands}\n"
        "  What to do: nothing; or undrain, unpin or reconfigure what is to end"
    )
