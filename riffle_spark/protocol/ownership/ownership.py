"""Who owns what from one batch to the next. Knows members, copies, triggers and the assignor. Does not know batches,
rows or the log.

Before each batch it looks who is there; only on a trigger is anything assigned anew, else owners, slots and even the
layout object stay.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, MemberId, TaskId, Traffic
from riffle_spark.keygroups import few_key_groups_warning
from riffle_spark.messages.slot_orders import Home, Receipt
from riffle_spark.protocol.ownership import readiness, slots
from riffle_spark.protocol.ownership.arrivals import Arrivals
from riffle_spark.protocol.ownership.cleaner import Cleaner
from riffle_spark.protocol.ownership.groups import ONE_GROUP, Groups
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.members import Homes, LostMember, MemberChanges, Members
from riffle_spark.protocol.ownership.operations import Operations
from riffle_spark.protocol.ownership.rebalance import Rebalance, RebalanceListener, moves_of, notify
from riffle_spark.protocol.ownership.shunned import Shunned
from riffle_spark.protocol.ownership.triggers import Measured, Patience, Probes
from riffle_spark.protocol.ownership.view import Situation, assign_settings, recorded, view_of
from riffle_spark.protocol.ownership.weights import Weights, memory_by_member
from riffle_spark.protocol.ports import Executor, SlotLayout
from riffle_spark.protocol.receipts import error_of, is_refused
from riffle_spark.protocol.shards import Shards, number_asked
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import Address, Entry, Manifest
from riffle_spark.state.log.record import Record

__all__ = ["Ownership"]


class Ownership:
    """Keeps the assignment and its layout; assigns anew on a trigger."""

    def __init__(self, settings: Settings, arrivals: Arrivals, operations: Operations) -> None:
        self._settings = settings
        self._arrivals = arrivals
        self._operations = operations
        self._obeyed = operations.orders
        self._rebalance = Rebalance()
        self._layout: SlotLayout | None = None
        self._homes = Homes()
        self._patience = Patience()
        self._measured = Measured(Weights(), self._patience)
        self.lags = readiness.LagTrend()
        self.executors: tuple[Executor, ...] = ()
        self.members = Members()
        self.copies = KnownCopies()
        self.cleaner = Cleaner()
        self.probes = Probes()
        self.shunned = Shunned()
        self.present = Assignment({})
        self.readiness: tuple[readiness.Readiness, ...] = ()
        self.listener: RebalanceListener | None = None
        self.groups = ONE_GROUP
        """The co-location groups of the query's stores."""
        self.shards: Shards | None = None
        """What the key-groups stand for where dispatch is by partition."""

    @property
    def points(self) -> bool:
        """Whether standbys hold pointers instead of copies."""
        return self._settings.standby_mode == "snapshot_pointer"

    def begin(self, tail: Record | None, groups: Groups) -> None:
        """Begin with what the newest record says of owners and standbys; another driver may have been at work. Where
        groups are others by now, what has no owner goes where copies are.
        """
        self._arrivals.forget()
        self.members.forget()
        self.copies.forget()
        self.cleaner.forget()
        self._homes = Homes()
        self._layout = None
        self.groups = groups
        self.present = recorded(tail, groups) if tail else Assignment({})

    def serves(self, groups: Groups, shards: Shards | None) -> None:
        """Take the groups of a batch's stores, of which some join in the midst of a run, and its shards."""
        self.shards, known = shards, self.groups.with_those(groups)
        if known != self.groups:
            self.groups = known
            self.forget_layout()

    def reads(self, racks: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """Take the racks of the partitions that the query reads, by (topic, partition)."""
        self.weights.reads(racks)

    @property
    def reads_racks(self) -> bool:
        """Whether it is known in which racks the input lies."""
        return bool(self.weights.racks_of)

    def obey(self, settings: Settings) -> None:
        """Take changed settings: they count from the next assignment on, which is now."""
        if idle := [n for n in slots.without_effect(settings) if getattr(settings, n) != getattr(self._settings, n)]:
            self.warn(f"with dispatch = hashed these settings have no effect: {', '.join(idle)}")
        self._settings = settings
        self._arrivals.obey(settings)
        self._layout = None

    def layout_for(
        self, executors: Sequence[Executor], manifest: Manifest, stores: tuple[str, ...], home: Home, now: float,
        *, between: bool = False,
    ) -> SlotLayout:  # fmt: skip
        """Return the slots for these live executors: the same object as long as nothing has to change. ``between`` two
        batches only those triggers count that count none.
        """
        self.executors = tuple(executors)
        changes = self._look(home, now)
        key_groups = range(self._settings.key_groups if self.shards is None else len(self.shards))
        situation = self._situation(manifest, stores, key_groups, now)
        self.readiness = readiness.readiness_of(situation, self._settings.acceptable_recovery_lag, pointers=self.points)
        if not between:
            self.lags.note(self.readiness)
        is_triggered = self._is_due if between else self._is_triggered
        if self._layout is None or changes or is_triggered(situation):
            self._assign(self._situation(manifest, stores, key_groups, now))
        assert self._layout is not None
        return self._layout

    def is_asked(self) -> bool:
        """Tell whether something was asked for, or has come to be known, that no assignment has answered yet."""
        return self._layout is None or self._asked_for()

    @property
    def weights(self) -> Weights:
        """What each key-group costs, as measured."""
        return self._measured.weights

    def waits(self, now: float) -> tuple[list[LostMember], dict[TaskId, MemberId]]:
        """Return the lost members that are waited for, and to whom tasks are to return."""
        awaited = self.members.awaited(now, self._settings.scheduled_rebalance_max_delay)
        homes = self._homes.of({*awaited, *self.members.live})
        return [self.members.lost[member] for member in awaited], homes

    def wait_again(self, lost: Iterable[LostMember], homes: Mapping[TaskId, MemberId]) -> None:
        """Go on waiting where an earlier driver left off."""
        self.members.lost.update({one.living.id: one for one in lost})
        self._homes.owners.update(self.groups.only(homes))
        self._homes.awaited = frozenset(self.members.lost)

    def warn(self, warning: str) -> None:
        """Have the next report tell something."""
        self._rebalance = self._rebalance.and_((), [warning])

    def _look(self, home: Home, now: float) -> list[MemberChanges]:
        """Take in who left, joined and returned."""
        self.members.forget_lost(now, self._settings.scheduled_rebalance_max_delay)
        unnamed = [name for name, living in self.members.live.items() if not living.counted]
        found = self._arrivals.look(self.executors, self.members, self.copies, home, now)
        by_executor = {name: self.members.of_executor(name) for name in unnamed}
        if names := {name: living.id for name, living in by_executor.items() if living and living.counted}:
            self._operations.known_as(names)
        self.copies.only_of(self.members.live)
        awaited = self.members.awaited(now, self._settings.scheduled_rebalance_max_delay)
        for changes in found:
            self._homes.remember(changes.left, awaited, self.present)
        return [changes for changes in found if changes]

    def _situation(
        self, manifest: Manifest, stores: tuple[str, ...], key_groups: Collection[int], now: float
    ) -> Situation:
        orders, live = self._operations.orders, self.members.live
        return Situation(
            self.members, self.copies, manifest, stores, key_groups, now, self.present, self.groups,
            pins={t: member for t, member in self.groups.only(orders.pins).items() if member in live},
            drained=orders.drained & set(live), homes=self._homes.owners, weights=self.weights.latched,
            partitions=self._partitions or (), flooded=self.shunned.flooded, memory=self.weights.memory,
        )  # fmt: skip

    def _is_triggered(self, situation: Situation) -> bool:
        """Look at every trigger: some count batches. Where hashes name the owners, most are none."""
        fired = [self._is_due(situation)]
        if self._settings.dispatch == "hashed":
            return any(fired)
        settings, present = self._settings, self.present
        kept = {(r.task, r.member): r.lag_records for r in self.readiness if r.role == "standby"}
        slow = {} if self.points else self._patience.fall_behind(kept)
        fired.append(self.shunned.fall_behind(slow, situation))
        fired.append(self.shunned.marks_changed(situation, settings))
        settled = not present.warmups and not present.needs_probe
        band, moved = settings.balance_band, not present.warmups
        fired.append(self._measured.is_unlevel(present.owners, self._slots, band, settled=moved))
        fired.append(self._reads_across(settled=settled))
        return any(fired)

    def _is_due(self, situation: Situation) -> bool:
        """Look at the triggers that need no batch."""
        fired = [self._asked_for(), self._tasks_changed(situation)]
        if self._settings.dispatch != "hashed":
            settings, target = self._settings, self.present.target  # a standby that shall own warms up as well
            fired.append(self._waited_long_enough(situation.now))
            warming = [r for r in self.readiness if r.role == "warmup" or target.get(r.task) == r.member]
            patience = (settings.acceptable_recovery_lag, settings.probing_rebalance_interval)
            fired.append(self.probes.due(self.present, [r.lag_records for r in warming], patience, situation.now))
        return any(fired)

    @property
    def _slots(self) -> dict[MemberId, int]:
        return slots.slots_to_level(self.members.live, self._settings, self._operations.orders.drained)

    @property
    def _racks(self) -> dict[MemberId, str | None]:
        return {name: living.rack for name, living in self.members.live.items()}

    def _reads_across(self, *, settled: bool) -> bool:
        if not self.reads_racks or self._settings.rack_aware_assignment_strategy == "none":
            return False
        return self._measured.reads_across(self._traffic_now(), self.present.owners, self._racks, settled=settled)

    @property
    def _partitions(self) -> tuple[tuple[str, int], ...] | None:
        return None if self.shards is None else self.shards.partitions

    def _traffic_now(self) -> dict[TaskId, Traffic]:
        return self.weights.traffic(self.groups, self._partitions)

    def looked_at(self, now: float) -> frozenset[MemberId]:
        """Return the members with full disks that nothing else tells of: they are to be looked at."""
        return self.shunned.looked_at(self.present.owners.values(), now)

    def _asked_for(self) -> bool:
        return self._operations.orders != self._obeyed

    def _tasks_changed(self, situation: Situation) -> bool:
        laid_out_for = self._layout.shards if self._layout else None
        return self.present.owners.keys() != set(situation.tasks) or laid_out_for != self.shards

    def _waited_long_enough(self, now: float) -> bool:
        """Tell whether a lost member is waited for no longer."""
        awaited = self.members.awaited(now, self._settings.scheduled_rebalance_max_delay)
        return self._homes.given_up(awaited, self.members.live)

    def _assign(self, situation: Situation) -> None:
        if self._asked_for():
            self.shunned.forgive()
        self._obeyed = self._operations.orders
        before = self.present
        if not before.needs_probe or not self._measured.traffic:
            self._measured.traffic = self._traffic_now()
        self.present = self._assigned(situation)
        self._measured.assigned(self.present.target, self._slots, self._racks, self._settings.balance_band)
        self._homes.returned(self.present)
        self.probes.assigned(self.present, situation.now)
        self._patience.start_over()
        now = situation.now
        self.cleaner.assigned(self.present, self.copies, self.members, now, pointers=self.points, groups=self.groups)
        self._layout = self._laid_out(situation)
        few = few_key_groups_warning(self._settings.key_groups, len(self._layout.slots)) if self.shards is None else ""
        moves = moves_of(before.owners, self.present, self._executors(), situation.partitions)
        heard = notify(self.listener, moves, self.members.live) if self.listener else []
        self._rebalance = self._rebalance.and_(moves, [*self.present.warnings, *([few] if few else []), *heard])
        self._show(replace(situation, present=self.present))

    def _assigned(self, situation: Situation) -> Assignment:
        if self._settings.dispatch == "hashed" and self.shards is not None:
            most = self._obeyed.slots
            return slots.hashed_assignment(self.members.live, self.shards, self.present, situation.drained, most)
        self.shunned.marks_changed(situation, self._settings)  # a new driver knows them from censuses
        shunned = self.shunned.of(situation)
        view = view_of(replace(situation, traffic=self._measured.traffic, shunned=shunned), self._settings)
        return assign(view, assign_settings(self._settings, situation.drained))

    def _laid_out(self, situation: Situation) -> SlotLayout:
        if self._settings.dispatch == "hashed" and self.shards is not None:
            return slots.hashed_layout(self.members.live, self.shards, situation.drained, self._obeyed.slots)
        return slots.laid_out(self.members.live, self.present.owners, self.groups, self._obeyed.slots, self.shards)

    def _show(self, situation: Situation) -> None:
        """Let operators see who is there."""
        awaited = self.members.awaited(situation.now, self._settings.scheduled_rebalance_max_delay)
        self._homes.awaited = frozenset(awaited)
        self._operations.saw(readiness.member_states(situation, awaited))

    def member_states(self) -> tuple[readiness.MemberState, ...]:
        """Return the members as the last assignment saw them, with load, lag, disk and memory as of the last batch."""
        told = (readiness.with_room(self.lags.told(state), self.members) for state in self._operations.members)
        return readiness.with_load(told, self.present.owners, self.weights.measured)

    def task_of(self, asked: int | tuple[str, int], store: str | None) -> TaskId:
        """Return the task of a key-group, or (topic, partition), and a store: without one where there is one group."""
        return TaskId(self.groups.meant(store), number_asked(asked, self.shards))

    def place_of(self, one: TaskId) -> readiness.KeyPlace | None:
        """Return where a task is, ``None`` while nobody owns it."""
        return readiness.place_of(one, self.present, self.members, self._partitions or ())

    def _executors(self) -> dict[MemberId, str]:
        lost = (lost.living for lost in self.members.lost.values())
        return {living.id: living.executor.id for living in (*lost, *self.members.live.values())}

    def others_are_left(self, now: float) -> bool:
        """Tell whether somebody's disk has not refused in this batch; if none is left, the next try is a fresh one."""
        return self._arrivals.are_left(self.executors, now)

    def forget_layout(self) -> None:
        """Assign anew before the next run."""
        self._layout = None

    def answered(self, receipts: Sequence[Receipt], now: float) -> None:
        """Note in which folders slots ran, what they did not find there, what room is left, and whose disks refused."""
        memory = memory_by_member(receipts, self.groups)
        for receipt in receipts:
            if is_refused(receipt):
                self._arrivals.refused(receipt.executor, str(error_of(receipt)), now)
            self.works_in(receipt.executor, receipt.member)
            self.members.measured(receipt.member, receipt.disk, memory.get(receipt.member, (0, 0)))
            for key_group in receipt.missing:
                self.copies.gone(receipt.member, (receipt.store, key_group))

    def works_in(self, executor: str, folder: str) -> None:
        """Note in which folder an executor works: if it is not its member's, that one is gone, and its copies are."""
        self.members.works_in(executor, folder)
        living = self.members.of_executor(executor)
        if folder and living is not None and living.counted and living.id != folder:
            self.members.leave([living], 0.0, frozenset({executor}))
            self.copies.wiped(living.id)
            self._layout = None

    def committed(
        self, record: Record, before: Manifest, changes: Mapping[Address, Entry], receipts: Sequence[Receipt]
    ) -> None:
        """Note a commit: what slots had and sealed, and the links that snapshots took off chains."""
        self.copies.ran(receipts, before)
        self.copies.replaced(record.sequence, before, changes)
        self.weights.ran(receipts, before, self.groups, dict(self._settings.store_weights))
        self._arrivals.committed()

    def standing_by(self, manifest: Manifest, store: str) -> dict[int, tuple[MemberId, ...]]:
        """Return, for each key-group of a store, the live standbys with a copy that could take over at once."""
        told = self._situation(manifest, (store,), (), 0.0), self._settings.acceptable_recovery_lag
        able = readiness.standing_by(*told)
        return {t.key_group: members for t, members in able.items()}

    def followed_by(self, store: str) -> dict[int, tuple[MemberId, ...]]:
        """Return, by key-group of a store, who will read its deltas: those that it awaits, warm-ups, standbys."""
        return readiness.followed_by(self.present, self._homes, self.groups.of(store))

    def take_rebalance(self) -> Rebalance:
        """Return what changed since the last call."""
        told = [*self._arrivals.take_warnings(), *self.shunned.take_warnings(), *self._measured.take_warnings()]
        rebalance, self._rebalance = self._rebalance.and_((), told), Rebalance()
        return rebalance
