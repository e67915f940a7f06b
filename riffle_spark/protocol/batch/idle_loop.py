"""Housekeeping while the query is idle, and the handover of operator requests to the next driver.

Theory of operation. Each record that commits a batch stores the operator requests in effect. While no batch arrives, a
changed request is appended in a record of its own, in the same epoch, so a fenced driver cannot append it. A check runs
no job, and sends no request except one GET of the mailbox if ``control`` is on. If the check finds a reason, the driver
computes an assignment and plans upkeep. If the requests have changed, it puts one record. A batch and a check never run
at the same time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from riffle_spark.errors import RefusedError, UnavailableError
from riffle_spark.messages.state_change import StateChange
from riffle_spark.protocol.batch.mailbox_reader import MailboxReader
from riffle_spark.protocol.batch.records import Stamp, requests_record
from riffle_spark.protocol.batch.stored_requests import (
    AwaitedMember,
    StoredRequests,
    apply_stored_settings,
    changed_settings,
    read_requests,
)
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.protocol.ownership.membership import LiveMember, LostMember
from riffle_spark.protocol.ownership.operations import OperatorRequests, RequestRegister
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import DriverPorts, Executor
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.upkeep import Upkeep, UpkeepInput
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import sent_since

IDLE_SECONDS = 1.0
"""The delay of housekeeping after a batch, because a next batch would do the same work."""
_RECORD = "record"


class IdleLoop:
    """The housekeeping of a driver between batches. ``settings`` are the settings at the start of the query."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        operations: RequestRegister,
        ownership: Ownership,
        upkeep: Upkeep,
        rounds: Rounds,
        mailbox: MailboxReader,
        ports: DriverPorts,
    ) -> None:
        """Create the housekeeping from the parts of a driver. ``operations`` has the operator requests."""
        self._started_settings = settings
        self._log = log
        self._operations = operations
        self._ownership = ownership
        self._upkeep = upkeep
        self._rounds = rounds
        self._mailbox = mailbox
        self._ports = ports
        self._clock_origin_ms = ports.clock.wall_ms() - ports.clock.seconds() * 1000
        self._epoch: int | None = None
        self._kept_requests = StoredRequests()
        """Settings and fields in the log that this version does not know. Each record repeats them."""
        self._batch_ended_at = 0.0
        self._has_open_upkeep = False
        self._backoff: Delays[str] = Delays(1.0, 600.0)

    def start_run(self, tail: Record | None) -> None:
        """Start a run: take over the operator requests in the newest record before this driver's claim.

        Requests made to this driver are newer than the requests in its own record. If another driver ran in between,
        its record is newer.
        """
        recorded_requests = read_requests(tail.orders) if tail else StoredRequests()
        settings, refused_settings = apply_stored_settings(self._started_settings, recorded_requests.settings)
        self._kept_requests = StoredRequests(settings=refused_settings, unknown_fields=recorded_requests.unknown_fields)
        placement = self._ownership.placement
        placement.weights.resume(self._log.weights, placement.groups)
        lost_members = {waiting.member.id: self._lost_member(waiting) for waiting in recorded_requests.awaited}
        self._ownership.membership.lost.update(lost_members)
        placement.prior_owners.resume(placement.groups.restrict(recorded_requests.prior_owners))
        own_epoch = self._epoch
        self._epoch = self._log.tail.epoch if self._log.tail else None
        if tail is None or tail.epoch == own_epoch:
            return
        has_run = own_epoch is not None
        pins = placement.groups.restrict(recorded_requests.pins)
        requests = OperatorRequests(
            pins,
            frozenset(recorded_requests.drained),
            recorded_requests.slots,
            settings if has_run or settings != self._started_settings else None,
        )
        self._operations.take_over(requests, alone=has_run)
        self._mailbox.take_over(recorded_requests.answers)
        if dropped_pins := [task_name(task) for task in recorded_requests.pins if task not in pins]:
            # Cause: `store_groups` or the stores of the query have changed since the pins were set.
            placement.warn(
                f"[RIFFLE-0802] Dropped the pins {', '.join(dropped_pins)}, because their co-location groups no longer "
                "exist.\n  What to do: Pin the key-groups again under their present group, if they should stay pinned."
            )
        if in_effect := _requests_in_effect(replace(recorded_requests, pins=pins), refused_settings):
            # Cause: The log keeps operator requests, so that a restart of the driver does not undo them.
            placement.warn(
                f"[RIFFLE-0803] Requests made to an earlier driver are still in effect: {in_effect}.\n"
                "  What to do: Undrain, unpin or reconfigure what should end."
            )

    def requests_for_record(self) -> dict[str, object]:
        """Return the operator requests for the next record, as JSON."""
        return self._current_requests().to_json()

    def _current_requests(self) -> StoredRequests:
        """Return the operator requests in effect and the awaited members."""
        requests = self._operations.requests
        lost, prior_owners = self._ownership.placement.awaited(self._ports.clock.seconds())
        changes = changed_settings(self._started_settings, requests.settings) if requests.settings else {}
        return replace(
            self._kept_requests,
            drained=tuple(sorted(requests.drained)),
            pins=dict(requests.pins),
            slots=requests.slots,
            settings={**self._kept_requests.settings, **changes},
            answers=self._mailbox.answers,
            control=(requests.settings or self._started_settings).control == "on",
            prior_owners=prior_owners,
            awaited=tuple(
                AwaitedMember(round(self._clock_origin_ms + member.since * 1000), member.living.to_recorded())
                for member in lost
            ),
        )

    def _lost_member(self, awaited: AwaitedMember) -> LostMember:
        """Return an awaited member of a record as a lost member.

        If the clock was set back, so that the loss is in the future, the member counts as lost now.
        """
        member = awaited.member
        living = LiveMember(member.id, Executor(member.executor, member.host, member.slots), member.rack, member.tags)
        lost_at = (awaited.since_ms - self._clock_origin_ms) / 1000
        return LostMember(living, min(lost_at, self._ports.clock.seconds()), planned=False)

    def record_batch_end(self) -> None:
        """Record the end of a batch. Its upkeep may still be open."""
        self._batch_ended_at = self._ports.clock.seconds()
        self._has_open_upkeep = True

    def is_idle(self) -> bool:
        """Return whether the last batch ended at least ``IDLE_SECONDS`` ago."""
        return self._ports.clock.seconds() - self._batch_ended_at >= IDLE_SECONDS

    def do_housekeeping(
        self, executors: Sequence[Executor], settings: Settings, upkeep_input: Callable[[], UpkeepInput]
    ) -> bool:
        """Do the housekeeping that is due; return whether there was any.

        ``upkeep_input`` returns the input for planning upkeep on these executors. Raises ``FencedError`` if another
        driver has appended, ``UnavailableError`` if the store does not answer.
        """
        clock_seconds = self._ports.clock.seconds()
        if not executors or not self.is_idle():
            return False
        is_due = self._is_due(executors, settings.state_cleanup_delay, clock_seconds)
        if is_due:
            self._assign_and_plan(executors, upkeep_input, clock_seconds)
        return self._write_requests() or is_due

    def _is_due(self, executors: Sequence[Executor], cleanup_delay: float, clock_seconds: float) -> bool:
        """Return whether members, requests, copies or upkeep give a reason for an assignment or a plan."""
        ownership = self._ownership
        return (
            tuple(executors) != ownership.membership.executors
            or ownership.placement.has_pending_request()
            or bool(
                self._rounds.arrived
                or ownership.membership.lost
                or ownership.membership.executors_without_census(executors)
            )
            or ownership.placement.present.needs_probe
            or ownership.copies.idle.is_due(clock_seconds, cleanup_delay)
            or (self._has_open_upkeep and not self._ports.background.is_busy())
        )

    def _assign_and_plan(
        self, executors: Sequence[Executor], upkeep_input: Callable[[], UpkeepInput], clock_seconds: float
    ) -> None:
        """Compute an assignment if a trigger fires, and plan upkeep if it changed or no upkeep runs."""
        current = upkeep_input()
        stores = tuple(operator.store for operator in current.operators)
        self._upkeep.gather(self._ownership)
        assignment = self._ownership.placement.present
        self._ownership.layout_for(executors, current.manifest, stores, current.home, clock_seconds, between=True)
        if self._ownership.placement.present is not assignment or not self._ports.background.is_busy():
            self._has_open_upkeep = self._upkeep.plan_idle(upkeep_input(), clock_seconds)

    def _write_requests(self) -> bool:
        """Append a record if the requests differ from those in the newest record; return whether one was appended."""
        tail = self._log.tail
        clock_seconds = self._ports.clock.seconds()
        if tail is None or self._backoff.is_delayed(_RECORD, clock_seconds):
            return False
        if self._log.is_unclear:
            self._settle_append(clock_seconds)
        elif self._current_requests().differs_from(read_requests(tail.orders)):
            self._append()
        else:
            return False
        return True

    def is_delayed(self) -> bool:
        """Return whether the next record has to wait, because the store has just refused one."""
        return self._backoff.is_delayed(_RECORD, self._ports.clock.seconds())

    def append_change(self, change: StateChange) -> None:
        """Append a record of kind ``state`` that lists a change of state, with the operator requests and answers.

        Raises ``FencedError`` if another driver has appended, ``UnavailableError`` if the outcome is unknown.
        """
        self._append(change)

    def _append(self, change: StateChange | None = None) -> None:
        """Append a record with the operator requests and new snapshots. With a ``change``, its kind is ``state``."""
        tail = self._log.tail
        assert tail is not None, "requests are read after the claim"
        manifest = self._log.manifest
        requests_before = dict(self._ports.objects.requests)
        # A snapshot may also replace links of the changed entries.
        changed_manifest = manifest if change is None else manifest.with_entries(change.entries)
        snapshots = self._upkeep.entries_with_snapshots(changed_manifest, self._ownership)
        changes = snapshots if change is None else {**change.entries, **snapshots}
        stamp = Stamp(self._ports.new_id(), self._ports.clock.wall_ms())
        draft = requests_record(tail, self._ownership, self.requests_for_record(), stamp)
        promised = self._upkeep.promise(tail.sequence + 1)
        draft = replace(draft, promised=promised, savepoints=self._mailbox.savepoints.current)
        if change is not None:
            draft = replace(draft, kind="state", edit=change.edit, row_counts=change.row_counts)
        step = "requests" if change is None else "change"
        self._ports.reached(f"before {step}")
        try:
            record = self._log.append(draft, manifest.with_entries(changes), self._ownership.moves.unrecorded())
        except (RefusedError, UnavailableError):
            self._backoff.record_failure(_RECORD, self._ports.clock.seconds())
            raise
        finally:
            if change is None and self._ports.upkeep_objects is not None:
                self._upkeep.count_requests(sent_since(requests_before, self._ports.objects.requests))
        self._ports.reached(f"after {step}")
        self._backoff.forget(_RECORD)
        self._ownership.moves.record_append(record.moves, record.version)
        self._upkeep.record_commit(record, manifest, changes)
        self._ownership.copies.reported.record_removed_links(record.sequence, changed_manifest, snapshots)

    def _settle_append(self, clock_seconds: float) -> None:
        """Find out whether an append with an unknown outcome was committed. Start upkeep at the newest record."""
        try:
            tail = self._log.settle_append()
        except UnavailableError:
            self._backoff.record_failure(_RECORD, clock_seconds)
            raise
        self._ownership.moves.record_append(tail.moves, tail.version)
        self._upkeep.start(None, tail, self._log.manifest)


def _requests_in_effect(requests: StoredRequests, refused_settings: Mapping[str, object]) -> str:
    """Return the requests as text for a warning, or ``""`` if there are none."""
    phrases = []
    if requests.drained:
        phrases.append(f"drained: {', '.join(requests.drained)}")
    if requests.pins:
        pins = [f"{task_name(task)} to {member}" for task, member in requests.pins.items()]
        phrases.append(f"pinned: {', '.join(pins)}")
    if requests.slots:
        phrases.append(f"at most {requests.slots} slots per executor")
    for name, value in sorted(requests.settings.items()):
        phrases.append(f"{name} = {value!r}" + (" (unknown to this version)" if name in refused_settings else ""))
    return ", ".join(phrases)
