"""Decide the owner, standbys and warm-ups of each task, and the slots that serve a batch.

The assignment changes only on a trigger. Otherwise owners, slots and even the layout object are those of the batch
before.
"""

from collections.abc import Collection
from dataclasses import replace

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.keygroups import few_key_groups_warning
from riffle_spark.protocol.ownership import readiness, slots
from riffle_spark.protocol.ownership.copy_tracking import CopyTracking
from riffle_spark.protocol.ownership.groups import ONE_GROUP, Groups
from riffle_spark.protocol.ownership.membership import LostMember, Membership
from riffle_spark.protocol.ownership.move_history import MoveHistory
from riffle_spark.protocol.ownership.operations import OperatorRequests, RequestRegister
from riffle_spark.protocol.ownership.prior_owners import PriorOwners
from riffle_spark.protocol.ownership.rebalance import Rebalance, RebalanceListener, moves_of, notify
from riffle_spark.protocol.ownership.rebalance_triggers import RebalanceTriggers
from riffle_spark.protocol.ownership.view import Situation, assign_settings, recorded_assignment, view_of
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.protocol.shards import Shards, key_group_number
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record


class Placement:
    """The present assignment, the slots that follow from it (``layout``), and the triggers that change it.

    ``groups`` are the co-location groups of the query's stores. ``shards`` are the partitions that key-groups stand
    for; they are ``None`` unless dispatch is by partition. ``settings`` are the settings in force.
    """

    def __init__(
        self,
        settings: Settings,
        membership: Membership,
        copies: CopyTracking,
        operations: RequestRegister,
        history: MoveHistory,
    ) -> None:
        """Create a placement without owners. ``operations`` has the requests of operators.

        ``history`` gets the moves.
        """
        self.settings = settings
        self.present = Assignment({})
        self.layout: SlotLayout | None = None
        self.prior_owners = PriorOwners()
        self.weights = Weights()
        self.triggers = RebalanceTriggers(self.weights)
        self.listener: RebalanceListener | None = None
        self.groups = ONE_GROUP
        self.shards: Shards | None = None
        self._membership = membership
        self._copies = copies
        self._operations = operations
        self._history = history
        self._applied_requests = operations.requests
        self._changes = Rebalance()

    def begin(self, tail: Record | None, groups: Groups) -> None:
        """Start with the owners and standbys of the newest record, as far as their groups still exist."""
        self.prior_owners = PriorOwners()
        self.layout = None
        self.groups = groups
        self.present = recorded_assignment(tail, groups) if tail else Assignment({})

    def change_settings(self, settings: Settings) -> None:
        """Use changed settings from the next assignment on, which is due now."""
        settings_without_effect = slots.settings_without_effect(settings)
        changed_names = [
            name for name in settings_without_effect if getattr(settings, name) != getattr(self.settings, name)
        ]
        if changed_names:
            self.warn(
                f"[RIFFLE-0765] With dispatch = hashed these settings have no effect: {', '.join(changed_names)}.\n"
                "  What to do: Set them back, or use another dispatch."
            )
        self.settings = settings
        self.layout = None

    def set_tasks(self, groups: Groups, shards: Shards | None) -> None:
        """Set the shards of a batch, and add the groups of its stores, because stores may join while a query runs."""
        self.shards = shards
        merged_groups = self.groups.merged_with(groups)
        if merged_groups != self.groups:
            self.groups = merged_groups
            self.layout = None

    def forget_layout(self) -> None:
        """Forget the slots, so that a new assignment is made before the next run."""
        self.layout = None

    def warn(self, warning: str) -> None:
        """Add a warning to the next batch report."""
        self._changes = self._changes.extended((), [warning])

    def take_changes(self) -> Rebalance:
        """Return the moves and warnings since the last call, and forget them."""
        changes = self._changes.extended((), self.triggers.take_warnings())
        self._changes = Rebalance()
        return changes

    def situation(
        self, manifest: Manifest, stores: tuple[str, ...], now: float, key_groups: Collection[int] | None = None
    ) -> Situation:
        """Return the inputs of the next assignment.

        ``stores`` are the durable stores. ``key_groups`` are all of them by default.
        """
        if key_groups is None:
            key_groups = range(self.settings.key_groups if self.shards is None else len(self.shards))
        requests = self._operations.requests
        live = self._membership.live
        return Situation(
            self._membership,
            self._copies.reported,
            manifest,
            stores,
            key_groups,
            now,
            self.present,
            self.groups,
            pins={t: member for t, member in self.groups.restrict(requests.pins).items() if member in live},
            drained=requests.drained & set(live),
            prior_owners=self.prior_owners.owners,
            weights=self.weights.in_use,
            partitions=self._partitions,
            flooded=self.triggers.quarantine.flooded,
            memory=self.weights.memory,
        )

    def layout_for(self, situation: Situation, *, members_changed: bool, between: bool) -> SlotLayout:
        """Return the slots for the live members, after a new assignment if one is due.

        With ``between``, no batch runs, and triggers that count batches are left out.
        """
        if self.layout is None or members_changed or self._is_due(situation, between=between):
            self._assign(self.situation(situation.manifest, situation.stores, situation.now))
        assert self.layout is not None
        return self.layout

    def has_pending_request(self) -> bool:
        """Return whether a request, or a change of tasks or settings, waits for the next assignment."""
        return self.layout is None or self._operations.requests != self._applied_requests

    def awaited(self, now: float) -> tuple[list[LostMember], dict[TaskId, MemberId]]:
        """Return the lost members that are awaited, and the tasks that return to their prior owner, with that owner."""
        awaited = self._membership.awaited_members(now, self.settings.scheduled_rebalance_max_delay)
        returning = self.prior_owners.among({*awaited, *self._membership.live})
        return [self._membership.lost[member] for member in awaited], returning

    def task_of(self, key_group: int | tuple[str, int], store: str | None) -> TaskId:
        """Return the task of a key-group number or a (topic, partition) of a store.

        With one group ``store`` may be ``None``. Raises ``ConfigError`` if there is no such task.
        """
        return TaskId(self.groups.chosen_group(store), key_group_number(key_group, self.shards))

    def place_of(self, task: TaskId) -> readiness.KeyPlace | None:
        """Return the place of a task, or ``None`` while it has no live owner."""
        return readiness.place_of(task, self.present, self._membership, self._partitions)

    def ready_standbys(self, manifest: Manifest, store: str) -> dict[int, tuple[MemberId, ...]]:
        """Return, by key-group of a store, the live standbys that could take over at once."""
        situation = self.situation(manifest, (store,), 0.0, ())
        return readiness.ready_standbys(situation, store, self.settings.acceptable_recovery_lag)

    def followers(self, store: str) -> dict[int, tuple[MemberId, ...]]:
        """Return, by key-group of a store, the members that will read its deltas, awaited ones included."""
        return readiness.followers_of(self.present, self.prior_owners, self.groups.of(store))

    @property
    def _partitions(self) -> tuple[tuple[str, int], ...]:
        """Return the (topic, partition) of each shard, empty unless dispatch is by partition."""
        return () if self.shards is None else self.shards.partitions

    def _is_due(self, situation: Situation, *, between: bool) -> bool:
        """Check every trigger; return whether one fired.

        All of them are checked, because some count batches. With ``hashed`` dispatch only requests, tasks and members
        count.
        """
        laid_out_for = self.layout.shards if self.layout else None
        has_all_owners = len(self.present.owners) == len(self.groups.names) * len(situation.key_groups)
        fired = [
            self._operations.requests != self._applied_requests,
            not has_all_owners or laid_out_for != self.shards,
        ]
        if self.settings.dispatch != "hashed":
            awaited = self._membership.awaited_members(situation.now, self.settings.scheduled_rebalance_max_delay)
            fired.append(self.prior_owners.give_up(awaited, self._membership.live))
            fired.append(
                self.present.needs_probe
                and self.triggers.is_probe_due(situation, self._copies.readiness, self.settings)
            )
            if not between:
                fired.append(self.triggers.is_due_after_batch(situation, self._copies.lagging, self.settings))
        return any(fired)

    def _assign(self, situation: Situation) -> None:
        """Make a new assignment, and record it in members, copies, triggers and the next report."""
        requests = self._operations.requests
        previous = self.present
        self.triggers.start_assignment(situation, is_requested=requests != self._applied_requests)
        self._applied_requests = requests
        self.present, self.layout = self._next_assignment(situation, requests)
        self.triggers.record_assignment(self.present, situation, self.settings)
        self.prior_owners.forget_returned(self.present)
        self._copies.record_assignment(self.present, self._membership, self.groups, self.settings, situation.now)
        self._report(previous, situation, self.layout)
        awaited = self._membership.awaited_members(situation.now, self.settings.scheduled_rebalance_max_delay)
        self.prior_owners.awaited = frozenset(awaited)
        self._operations.set_members(readiness.member_states(replace(situation, present=self.present), awaited))

    def _next_assignment(self, situation: Situation, requests: OperatorRequests) -> tuple[Assignment, SlotLayout]:
        """Return a new assignment and its slots, from the assignor or, with ``hashed`` dispatch, from the hashes."""
        live = self._membership.live
        if self.settings.dispatch == "hashed" and self.shards is not None:
            present = slots.hashed_assignment(live, self.shards, self.present, situation.drained, requests.slots)
            return present, slots.hashed_layout(live, self.shards, situation.drained, requests.slots)
        view = view_of(self.triggers.with_measurements(situation, self.settings), self.settings)
        present = assign(view, assign_settings(self.settings, situation.drained))
        return present, slots.layout_of(live, present.owners, self.groups, requests.slots, self.shards)

    def _report(self, previous: Assignment, situation: Situation, layout: SlotLayout) -> None:
        """Pass the moves of a new assignment to the listener, and add moves and warnings to the next batch report."""
        names = self._membership.executor_names()
        moves = moves_of(previous.owners, self.present, names, situation.partitions)
        self._history.add(moves)
        warnings = list(self.present.warnings)
        if self.shards is None and (
            few_groups_warning := few_key_groups_warning(self.settings.key_groups, len(layout.slots))
        ):
            warnings.append(few_groups_warning)
        if self.listener:
            warnings += notify(self.listener, moves, self._membership.live)
        self._changes = self._changes.extended(moves, warnings)
