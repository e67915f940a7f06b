"""Decide which member owns each task, which keep standbys and warm-ups, and which slots serve a batch.

The assignment changes only on a trigger. Otherwise owners, slots and even the layout object are those of the batch
before.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.keygroups import few_key_groups_warning
from riffle_spark.protocol.ownership import readiness, slots
from riffle_spark.protocol.ownership.copy_tracking import CopyTracking
from riffle_spark.protocol.ownership.groups import ONE_GROUP, Groups
from riffle_spark.protocol.ownership.membership import LostMember, Membership
from riffle_spark.protocol.ownership.operations import Operations, OperatorRequests
from riffle_spark.protocol.ownership.prior_owners import PriorOwners
from riffle_spark.protocol.ownership.rebalance import Rebalance, RebalanceListener, moves_of, notify
from riffle_spark.protocol.ownership.rebalance_triggers import RebalanceTriggers
from riffle_spark.protocol.ownership.view import Situation, assign_settings, recorded, view_of
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.protocol.shards import Shards, number_asked
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record

__all__ = ["Placement"]


class Placement:
    """The present assignment, the slots that follow from it, and the triggers that change it.

    ``groups`` are the co-location groups of the query's stores. ``shards`` are the partitions that key-groups stand
    for; they are ``None`` unless dispatch is by partition. ``settings`` are those in force.
    """

    def __init__(
        self, settings: Settings, membership: Membership, copies: CopyTracking, operations: Operations
    ) -> None:
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
        self._answered = operations.orders
        self._changes = Rebalance()

    def begin(self, tail: Record | None, groups: Groups) -> None:
        """Start with the owners and standbys of the newest record, as far as their groups still exist."""
        self.prior_owners = PriorOwners()
        self.layout = None
        self.groups = groups
        self.present = recorded(tail, groups) if tail else Assignment({})

    def change_settings(self, settings: Settings) -> None:
        """Use changed settings from the next assignment on, which is due now."""
        idle = [n for n in slots.without_effect(settings) if getattr(settings, n) != getattr(self.settings, n)]
        if idle:
            self.warn(f"with dispatch = hashed these settings have no effect: {', '.join(idle)}")
        self.settings = settings
        self.layout = None

    def set_tasks(self, groups: Groups, shards: Shards | None) -> None:
        """Set the shards of a batch, and add the groups of its stores: stores may join while a query runs."""
        self.shards = shards
        known = self.groups.with_those(groups)
        if known != self.groups:
            self.groups = known
            self.layout = None

    def forget_layout(self) -> None:
        """Assign anew before the next run."""
        self.layout = None

    def warn(self, warning: str) -> None:
        """Add a warning to the next report."""
        self._changes = self._changes.and_((), [warning])

    def take_changes(self) -> Rebalance:
        """Return the moves and warnings since the last call."""
        changes = self._changes.and_((), self.triggers.take_warnings())
        self._changes = Rebalance()
        return changes

    def situation(self, manifest: Manifest, stores: tuple[str, ...], now: float) -> Situation:
        """Return all that the next assignment depends on, for all key-groups of durable ``stores``."""
        return self._situation(manifest, stores, range(self._key_groups), now)

    def layout_for(self, situation: Situation, *, members_changed: bool, between: bool) -> SlotLayout:
        """Return the slots for the live members, after a new assignment if one is due.

        ``between`` two batches, triggers that count batches are left out.
        """
        is_due = self._is_due if between else self._is_due_after_batch
        if self.layout is None or members_changed or is_due(situation):
            self._assign(self._situation(situation.manifest, situation.stores, situation.key_groups, situation.now))
        assert self.layout is not None
        return self.layout

    def is_requested(self) -> bool:
        """Return whether a request, or a change of tasks or settings, still waits for an assignment."""
        return self.layout is None or self._has_requests()

    def awaited(self, now: float) -> tuple[list[LostMember], dict[TaskId, MemberId]]:
        """Return the lost members that are awaited, and the tasks that return to them or to members that are back."""
        awaited = self._membership.awaited(now, self.settings.scheduled_rebalance_max_delay)
        prior_owners = self.prior_owners.of({*awaited, *self._membership.live})
        return [self._membership.lost[member] for member in awaited], prior_owners

    def task_of(self, asked: int | tuple[str, int], store: str | None) -> TaskId:
        """Return the task of a key-group, or (topic, partition), and a store, which may be left out in one group."""
        return TaskId(self.groups.meant(store), number_asked(asked, self.shards))

    def place_of(self, task: TaskId) -> readiness.KeyPlace | None:
        """Return where a task is, ``None`` while it has no owner."""
        return readiness.place_of(task, self.present, self._membership, self._partitions)

    def standing_by(self, manifest: Manifest, store: str) -> dict[int, tuple[MemberId, ...]]:
        """Return, by key-group of a store, the live standbys whose copy could take over at once."""
        situation = self._situation(manifest, (store,), (), 0.0)
        able = readiness.standing_by(situation, self.settings.acceptable_recovery_lag)
        return {t.key_group: members for t, members in able.items()}

    def followed_by(self, store: str) -> dict[int, tuple[MemberId, ...]]:
        """Return, by key-group of a store, the members that will read its deltas, awaited ones included."""
        return readiness.followed_by(self.present, self.prior_owners, self.groups.of(store))

    @property
    def _key_groups(self) -> int:
        return self.settings.key_groups if self.shards is None else len(self.shards)

    @property
    def _partitions(self) -> tuple[tuple[str, int], ...]:
        return () if self.shards is None else self.shards.partitions

    def _situation(
        self, manifest: Manifest, stores: tuple[str, ...], key_groups: Collection[int], now: float
    ) -> Situation:
        orders = self._operations.orders
        live = self._membership.live
        return Situation(
            self._membership,
            self._copies.known,
            manifest,
            stores,
            key_groups,
            now,
            self.present,
            self.groups,
            pins={t: member for t, member in self.groups.only(orders.pins).items() if member in live},
            drained=orders.drained & set(live),
            prior_owners=self.prior_owners.owners,
            weights=self.weights.latched,
            partitions=self._partitions,
            flooded=self.triggers.quarantine.flooded,
            memory=self.weights.memory,
        )

    def _is_due_after_batch(self, situation: Situation) -> bool:
        fired = [self._is_due(situation)]
        if self.settings.dispatch != "hashed":
            fired.append(self.triggers.is_due_after_batch(situation, self._copies.readiness, self.settings))
        return any(fired)

    def _is_due(self, situation: Situation) -> bool:
        """Check the triggers that need no batch. Hashed owners change only with requests, tasks and members."""
        fired = [self._has_requests(), self._tasks_changed(situation)]
        if self.settings.dispatch != "hashed":
            awaited = self._membership.awaited(situation.now, self.settings.scheduled_rebalance_max_delay)
            fired.append(self.prior_owners.give_up(awaited, self._membership.live))
            fired.append(self.triggers.is_probe_due(situation, self._copies.readiness, self.settings))
        return any(fired)

    def _has_requests(self) -> bool:
        return self._operations.orders != self._answered

    def _tasks_changed(self, situation: Situation) -> bool:
        laid_out_for = self.layout.shards if self.layout else None
        return self.present.owners.keys() != set(situation.tasks) or laid_out_for != self.shards

    def _assign(self, situation: Situation) -> None:
        orders = self._operations.orders
        before = self.present
        self.triggers.start_assignment(situation, is_requested=orders != self._answered)
        self._answered = orders
        self.present, self.layout = self._assigned(situation, orders)
        self.triggers.record_assignment(self.present, situation, self.settings)
        self.prior_owners.forget_returned(self.present)
        self._copies.record_assignment(self.present, self._membership, self.groups, self.settings, situation.now)
        self._report(before, situation, self.layout)
        self._show(replace(situation, present=self.present))

    def _assigned(self, situation: Situation, orders: OperatorRequests) -> tuple[Assignment, SlotLayout]:
        """Return the next assignment and its slots."""
        live = self._membership.live
        if self.settings.dispatch == "hashed" and self.shards is not None:
            present = slots.hashed_assignment(live, self.shards, self.present, situation.drained, orders.slots)
            return present, slots.hashed_layout(live, self.shards, situation.drained, orders.slots)
        view = view_of(self.triggers.with_measurements(situation, self.settings), self.settings)
        present = assign(view, assign_settings(self.settings, situation.drained))
        return present, slots.laid_out(live, present.owners, self.groups, orders.slots, self.shards)

    def _report(self, before: Assignment, situation: Situation, layout: SlotLayout) -> None:
        """Tell the listener and the next report what an assignment changed."""
        names = self._membership.executor_names()
        moves = moves_of(before.owners, self.present, names, situation.partitions)
        few = few_key_groups_warning(self.settings.key_groups, len(layout.slots)) if self.shards is None else ""
        failures: Sequence[str] = notify(self.listener, moves, self._membership.live) if self.listener else ()
        self._changes = self._changes.and_(moves, [*self.present.warnings, *([few] if few else []), *failures])

    def _show(self, situation: Situation) -> None:
        """Publish the members to operators."""
        awaited = self._membership.awaited(situation.now, self.settings.scheduled_rebalance_max_delay)
        self.prior_owners.awaited = frozenset(awaited)
        self._operations.saw(readiness.member_states(situation, awaited))
