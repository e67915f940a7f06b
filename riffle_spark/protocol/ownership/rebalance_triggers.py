"""Decide after each batch whether a new assignment is due, and fix the inputs of the assignor.

Between batches only probes count. The other triggers count batches in a row (``Patience``), or compare disks, memory
and lags with their marks (``Quarantine``). Each assignment resets them.
"""

from collections.abc import Iterable
from dataclasses import replace

from riffle_spark.assign.model import Assignment, MemberId
from riffle_spark.protocol.ownership.quarantine import Quarantine
from riffle_spark.protocol.ownership.readiness import Readiness
from riffle_spark.protocol.ownership.slots import slots_to_level
from riffle_spark.protocol.ownership.triggers import MeasuredTriggers, Patience, Probes
from riffle_spark.protocol.ownership.view import Situation, uses_pointers
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.settings import Settings


class RebalanceTriggers:
    """The triggers of a running query, except changes of members, tasks and requests."""

    def __init__(self, weights: Weights) -> None:
        self.probes = Probes()
        self.quarantine = Quarantine()
        self._patience = Patience()
        self._measured = MeasuredTriggers(weights, self._patience)

    def is_probe_due(self, situation: Situation, readiness: Iterable[Readiness], settings: Settings) -> bool:
        """Return whether a probing rebalance is due now.

        A standby that is to become the owner counts as a warm-up.
        """
        target = situation.present.target
        warming = [r.lag_records for r in readiness if r.role == "warmup" or target.get(r.task) == r.member]
        patience = (settings.acceptable_recovery_lag, settings.probing_rebalance_interval)
        return self.probes.is_due(situation.present, warming, patience, situation.now)

    def is_due_after_batch(self, situation: Situation, lagging: Iterable[Readiness], settings: Settings) -> bool:
        """Update every trigger that counts batches; return whether one of them fired.

        ``lagging`` are the standbys and warm-ups that lag.
        """
        present = situation.present
        settled = not present.warmups and not present.needs_probe
        slots = slots_to_level(situation.members.live, settings, situation.drained)
        fired = [
            self._quarantine_slow_standbys(situation, lagging, settings),
            self.quarantine.update_marks(situation, settings),
            self._measured.is_unlevel(present.owners, slots, settings.balance_band, settled=not present.warmups),
            self._reads_across(situation, settings, settled=settled),
        ]
        return any(fired)

    def _quarantine_slow_standbys(self, situation: Situation, lagging: Iterable[Readiness], settings: Settings) -> bool:
        """Quarantine standbys whose lag keeps growing; return whether another member can replace one of them.

        A standby without a copy is still being restored and is not counted.
        """
        if uses_pointers(settings):
            return self.quarantine.add_slow_standbys({}, situation)
        standbys = (r for r in lagging if r.role == "standby" and situation.has_copy(r.member, r.task))
        slow = self._patience.count_growing_lags({(r.task, r.member): r.lag_records for r in standbys})
        return self.quarantine.add_slow_standbys(slow, situation)

    def _reads_across(self, situation: Situation, settings: Settings, *, settled: bool) -> bool:
        """Return whether owners read too many rows across racks for enough batches."""
        weights = self._measured.weights
        if not weights.racks_of or settings.rack_aware_assignment_strategy == "none":
            return False
        traffic = weights.traffic(situation.groups, situation.partitions or None)
        return self._measured.reads_across(traffic, situation.present.owners, _racks(situation), settled=settled)

    def start_assignment(self, situation: Situation, *, is_requested: bool) -> None:
        """Fix the measured traffic for the next assignment.

        A series of probing rebalances uses the same measurement. If an operator requested it, slow standbys are tried
        again.
        """
        if is_requested:
            self.quarantine.retry_slow_standbys()
        if not situation.present.needs_probe or not self._measured.traffic:
            weights = self._measured.weights
            self._measured.traffic = weights.traffic(situation.groups, situation.partitions or None)

    def with_measurements(self, situation: Situation, settings: Settings) -> Situation:
        """Return the situation with the measured traffic and the quarantined members."""
        self.quarantine.update_marks(situation, settings)
        return replace(
            situation, traffic=self._measured.traffic, quarantined=self.quarantine.members_without_copies(situation)
        )

    def record_assignment(self, assignment: Assignment, situation: Situation, settings: Settings) -> None:
        """Record an assignment and what it could not improve, and count batches from zero."""
        slots = slots_to_level(situation.members.live, settings, situation.drained)
        self._measured.record_assignment(assignment.target, slots, _racks(situation), settings.balance_band)
        self.probes.record_assignment(assignment, situation.now)
        self._patience.reset()

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call, and forget them."""
        return [*self.quarantine.take_warnings(), *self._measured.take_warnings()]


def _racks(situation: Situation) -> dict[MemberId, str | None]:
    return {name: living.rack for name, living in situation.members.live.items()}
