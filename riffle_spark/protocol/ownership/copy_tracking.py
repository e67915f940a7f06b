"""Track the copies on members' disks: their heads, their lags, and the idle copies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from riffle_spark.assign.model import Assignment, MemberId
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ownership.idle_copies import IdleCopies
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.readiness import LagTrend, Readiness, all_copies, lagging_copies
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ownership.view import Situation, uses_pointers
from riffle_spark.protocol.ownership.warmup_progress import WarmupProgress
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import Address, Entry, Manifest
from riffle_spark.state.log.record import Record


class CopyTracking:
    """All reported copies, and how far they lag.

    ``lagging`` has the standbys and warm-ups that lagged at the last measurement. ``trend`` has the growth of the lags
    over batches, and ``warmups`` the bytes that the warm-ups still have to fetch.
    """

    def __init__(self) -> None:
        self.reported = ReportedCopies()
        self.idle = IdleCopies()
        self.trend = LagTrend()
        self.warmups = WarmupProgress()
        self.lagging: tuple[Readiness, ...] = ()
        self._measured: tuple[Assignment, frozenset[MemberId]] = (Assignment({}), frozenset())
        """The assignment and the live members of the last measurement."""

    @property
    def readiness(self) -> tuple[Readiness, ...]:
        """The lag of each standby and warm-up as last measured, standbys first, by key-group."""
        return all_copies(*self._measured, self.lagging)

    def forget(self) -> None:
        """Forget all copies: another driver may have run batches."""
        self.reported.forget()
        self.idle.forget()

    def measure(self, situation: Situation, settings: Settings, *, is_batch: bool) -> None:
        """Measure the lags of standbys and warm-ups. Only measurements for a batch count for the trend."""
        acceptable_lag = settings.acceptable_recovery_lag
        present = situation.present
        self.lagging = lagging_copies(situation, acceptable_lag, pointers=uses_pointers(settings))
        self._measured = (present, frozenset(situation.members.live))
        warmups = all_copies(replace(present, standbys={}), situation.members.live.keys(), self.lagging)
        self.warmups.record(warmups, situation.now)
        if is_batch:
            copies = (*present.standbys.values(), *present.warmups.values())
            with_copies = situation.members.live.keys() & set(chain.from_iterable(copies))
            self.trend.record(with_copies, self.lagging)

    def record_missing(self, receipts: Sequence[Receipt]) -> None:
        """Forget the copies that slots did not find in their folders, as their receipts report."""
        for receipt in receipts:
            for key_group in receipt.missing:
                self.reported.remove(receipt.member, (receipt.store, key_group))

    def record_commit(
        self, record: Record, manifest: Manifest, changes: Mapping[Address, Entry], receipts: Sequence[Receipt]
    ) -> None:
        """Record the copies that slots advanced, the deltas they sealed, and the links that the record removes.

        ``manifest`` is the manifest before the batch.
        """
        self.reported.record_receipts(receipts, manifest)
        self.reported.record_removed_links(record.sequence, manifest, changes)

    def record_assignment(
        self, assignment: Assignment, membership: Membership, groups: Groups, settings: Settings, now: float
    ) -> None:
        """Record an assignment made at time ``now``: copies without a place in it are idle from now on."""
        pointers = uses_pointers(settings)
        self.idle.record_assignment(assignment, self.reported, membership, now, pointers=pointers, groups=groups)
