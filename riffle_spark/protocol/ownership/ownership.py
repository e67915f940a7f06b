"""Track the owners of key-groups from batch to batch: membership, placement and copies behind one facade.

- ``Membership``: live and lost executors, their disks and memory. ``Discovery`` keeps it up to date.
- ``Placement``: owners, standbys, warm-ups and slots, and the triggers of a new assignment.
- ``CopyTracking``: the copies that exist, their lags, and the idle copies.

The facade has the steps that touch several parts. For everything else callers use the part itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from riffle_spark.messages.slot_orders import Home, Receipt
from riffle_spark.protocol.ownership import readiness
from riffle_spark.protocol.ownership.copy_tracking import CopyTracking
from riffle_spark.protocol.ownership.discovery import Discovery
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.move_history import MoveHistory
from riffle_spark.protocol.ownership.operations import RequestRegister
from riffle_spark.protocol.ownership.placement import Placement
from riffle_spark.protocol.ownership.rebalance import Rebalance
from riffle_spark.protocol.ownership.weights import memory_by_member
from riffle_spark.protocol.ports import Clock, Executor, SlotLayout
from riffle_spark.protocol.receipts import error_of, is_refused
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import Address, Entry, Manifest
from riffle_spark.state.log.record import Record


class Ownership:
    """Membership, placement and copies of one query, for its driver."""

    def __init__(self, settings: Settings, discovery: Discovery, operations: RequestRegister, clock: Clock) -> None:
        """Create the parts of a query without members. ``operations`` has the requests of operators."""
        self.discovery = discovery
        self.membership = Membership()
        self.copies = CopyTracking()
        self.moves = MoveHistory(clock)
        self.placement = Placement(settings, self.membership, self.copies, operations, self.moves)
        self._operations = operations

    def begin(self, tail: Record | None, groups: Groups) -> None:
        """Start a run from the newest record.

        Members and copies are forgotten, because another driver may have run batches.
        """
        self.discovery.forget()
        self.membership.forget()
        self.copies.forget()
        self.placement.begin(tail, groups)
        self.moves.start_run(tail.version if tail else -1)

    def change_settings(self, settings: Settings) -> None:
        """Use changed settings from the next census and assignment on."""
        self.discovery.change_settings(settings)
        self.placement.change_settings(settings)

    def layout_for(
        self,
        executors: Sequence[Executor],
        manifest: Manifest,
        stores: tuple[str, ...],
        home: Home,
        now: float,
        *,
        between: bool = False,
    ) -> SlotLayout:
        """Return the slots for these live executors: the same object while nothing changes.

        ``stores`` are the durable stores. With ``between``, no batch runs, and triggers that count batches are left
        out.
        """
        members_changed = self._update_members(executors, home, now)
        situation = self.placement.situation(manifest, stores, now)
        self.copies.measure(situation, self.placement.settings, is_batch=not between)
        return self.placement.layout_for(situation, members_changed=members_changed, between=between)

    def _update_members(self, executors: Sequence[Executor], home: Home, now: float) -> bool:
        """Update the members for these live executors; return whether any left, joined or returned."""
        membership = self.membership
        delay = self.placement.settings.scheduled_rebalance_max_delay
        membership.forget_lost(now, delay)
        uncounted_members = [name for name, member in membership.live.items() if not member.counted]
        changes = self.discovery.update_members(executors, membership, self.copies.reported, home, now)
        members = {executor: membership.of_executor(executor) for executor in uncounted_members}
        names = {executor: member.id for executor, member in members.items() if member and member.counted}
        if names:
            self._operations.replace_executor_names(names)
        self.copies.reported.keep_members(membership.live)
        awaited = membership.awaited_members(now, delay)
        for change in changes:
            self.placement.prior_owners.remember(change.left, awaited, self.placement.present)
        return any(changes)

    def record_receipts(self, receipts: Sequence[Receipt], now: float) -> None:
        """Record what the slots of a run reported: folders, missing copies, use of disk and memory, refusing disks."""
        memory = memory_by_member(receipts, self.placement.groups)
        for receipt in receipts:
            if is_refused(receipt):
                self.discovery.set_aside(receipt.executor, str(error_of(receipt)), now)
            self.record_folder(receipt.executor, receipt.member)
            self.membership.record_usage(receipt.member, receipt.disk, memory.get(receipt.member, (0, 0)))
        self.copies.record_missing(receipts)

    def record_folder(self, executor: str, folder: str) -> None:
        """Record that an executor uses the folder of member ``folder`` (empty: unknown).

        If the executor had another member, that one is removed, and its copies are forgotten with the next update.
        """
        self.membership.record_folder(executor, folder)
        member = self.membership.of_executor(executor)
        if folder and member is not None and member.counted and member.id != folder:
            self.membership.remove([member], 0.0, frozenset({executor}))
            self.placement.forget_layout()

    def record_commit(
        self, record: Record, manifest: Manifest, changes: Mapping[Address, Entry], receipts: Sequence[Receipt]
    ) -> None:
        """Record a committed batch: its copies, its measured work, and which disks work again.

        ``manifest`` is the manifest before it, ``changes`` are its changed entries.
        """
        self.copies.record_commit(record, manifest, changes, receipts)
        self.placement.weights.record_batch(receipts, manifest, self.placement.groups)
        self.discovery.forget_refusals()

    def member_states(self) -> tuple[readiness.MemberState, ...]:
        """Return the members as of the last assignment, with load, lag, disk and memory as of the last batch."""
        states = [
            readiness.with_room(self.copies.trend.with_lag(state), self.membership)
            for state in self._operations.members
        ]
        return readiness.with_load(states, self.placement.present.owners, self.placement.weights.measured)

    def take_rebalance(self) -> Rebalance:
        """Return the moves and warnings of assignments since the last call, and forget them."""
        changes = self.placement.take_changes()
        return replace(changes, warnings=(*changes.warnings, *self.discovery.take_warnings()))
