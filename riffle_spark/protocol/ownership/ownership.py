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
from riffle_spark.protocol.ownership.arrivals import Arrivals
from riffle_spark.protocol.ownership.cleaner import Cleaner
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.members import LiveMember, MemberChanges, Members
from riffle_spark.protocol.ownership.operations import Operations
from riffle_spark.protocol.ownership.readiness import Readiness, Shunned, member_states, readiness_of, standing_by
from riffle_spark.protocol.ownership.rebalance import Rebalance, RebalanceListener, moves_of, notify
from riffle_spark.protocol.ownership.slots import hashed_assignment, hashed_layout, laid_out
from riffle_spark.protocol.ownership.triggers import Measured, Patience, Probes
from riffle_spark.protocol.ownership.view import GROUP, Situation, assign_settings, task, view_of
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import Executor, SlotLayout
from riffle_spark.protocol.receipts import error_of, is_refused
from riffle_spark.protocol.shards import Shards
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
        self._homes: dict[TaskId, MemberId] = {}
        self._kept: dict[TaskId, MemberId] = {}
        self._patience = Patience()
        self._measured = Measured(Weights(), self._patience)
        self._awaited: frozenset[MemberId] = frozenset()
        self.executors: tuple[Executor, ...] = ()
        self.members = Members()
        self.copies = KnownCopies()
        self.cleaner = Cleaner()
        self.probes = Probes()
        self.shunned = Shunned()
        self.present = Assignment({})
        self.readiness: tuple[Readiness, ...] = ()
        self.listener: RebalanceListener | None = None
        self.shards: Shards | None = None
        """What the key-groups stand for where dispatch is by partition."""

    @property
    def owners(self) -> dict[int, MemberId]:
        """The owner of each key-group."""
        return {t.key_group: owner for t, owner in self.present.owners.items()}

    @property
    def points(self) -> bool:
        """Whether standbys hold pointers instead of copies."""
        return self._settings.standby_mode == "snapshot_pointer"

    def begin(self, tail: Record | None) -> None:
        """Begin with what the newest record says of owners and standbys; another driver may have been at work."""
        self._arrivals.forget()
        self.members.forget()
        self.copies.forget()
        self.cleaner.forget()
        self._homes.clear()
        self._kept.clear()
        self._awaited = frozenset()
        self._layout = None
        self.present = _recorded(tail) if tail else Assignment({})

    def reads(self, racks: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """Take the racks of the partitions that the query reads, by (topic, partition)."""
        self._measured.weights.reads(racks)

    @property
    def reads_racks(self) -> bool:
        """Whether it is known in which racks the input lies."""
        return bool(self._measured.weights.racks_of)

    def obey(self, settings: Settings) -> None:
        """Take changed settings: they count from the next assignment on, which is now."""
        self._settings = settings
        self._arrivals.obey(settings)
        self._layout = None

    def layout_for(
        self, executors: Sequence[Executor], manifest: Manifest, stores: tuple[str, ...], home: Home, now: float
    ) -> SlotLayout:
        """Return the slots for these live executors: the same object as long as nothing has to change."""
        self.executors = tuple(executors)
        changes = self._look(home, now)
        key_groups = range(self._settings.key_groups if self.shards is None else len(self.shards))
        situation = self._situation(manifest, stores, key_groups, now)
        self.readiness = readiness_of(situation, self._settings.acceptable_recovery_lag, pointers=self.points)
        if self._layout is None or changes or self._is_triggered(situation):
            self._assign(self._situation(manifest, stores, key_groups, now))
        assert self._layout is not None
        return self._layout

    def _look(self, home: Home, now: float) -> list[MemberChanges]:
        """Take in who left, joined and returned."""
        self.members.forget_lost(now, self._settings.scheduled_rebalance_max_delay)
        found = self._arrivals.look(self.executors, self.members, self.copies, home, now)
        self.copies.only_of(self.members.live)
        for changes in found:
            self._remember_homes(changes.left, now)
        return [changes for changes in found if changes]

    def _remember_homes(self, left: Iterable[MemberId], now: float) -> None:
        """Keep the tasks of members that may come back for them, and of what they kept copies."""
        awaited = self.members.awaited(now, self._settings.scheduled_rebalance_max_delay)
        for member in left:
            if member in awaited:
                owned = [t for t, owner in self.present.owners.items() if owner == member]
                self._homes.update({t: member for t in owned if self._homes.get(t) not in awaited})
                self._kept.update({t: member for t, kept in self.present.standbys.items() if member in kept})

    def _situation(
        self, manifest: Manifest, stores: tuple[str, ...], key_groups: Collection[int], now: float
    ) -> Situation:
        orders, live = self._operations.orders, self.members.live
        return Situation(
            self.members, self.copies, manifest, stores, key_groups, now, self.present,
            pins={key_group: member for key_group, member in orders.pins.items() if member in live},
            drained=orders.drained & set(live), homes=self._homes, weights=self._measured.weights.latched,
            flooded=self.shunned.flooded,
        )  # fmt: skip

    def _is_triggered(self, situation: Situation) -> bool:
        """Look at every trigger: some count batches. Where hashes name the owners, most are none."""
        if self._settings.dispatch == "hashed":
            return self._asked_for() or self._tasks_changed(situation)
        settings, present = self._settings, self.present
        fired = [self._asked_for(), self._tasks_changed(situation), self._waited_long_enough(situation.now)]
        warming = [r.lag_records for r in self.readiness if r.role == "warmup" or self._shall_own(r)]
        patience = (settings.acceptable_recovery_lag, settings.probing_rebalance_interval)
        fired.append(self.probes.due(present, warming, patience, situation.now))
        kept = {(task(r.key_group), r.member): r.lag_records for r in self.readiness if r.role == "standby"}
        slow = {} if self.points else self._patience.fall_behind(kept)
        fired.append(self.shunned.fall_behind(slow, situation))
        fired.append(self.shunned.disks_changed(situation, settings))
        settled = not present.warmups and not present.needs_probe
        level = self._measured.is_unlevel(self.owners, self._slots, settings.balance_band, settled=not present.warmups)
        fired += [level, self._reads_across(settled=settled)]
        return any(fired)

    @property
    def _slots(self) -> dict[MemberId, int]:
        drained = self._operations.orders.drained
        return {name: living.executor.cores for name, living in self.members.live.items() if name not in drained}

    @property
    def _racks(self) -> dict[MemberId, str | None]:
        return {name: living.rack for name, living in self.members.live.items()}

    def _reads_across(self, *, settled: bool) -> bool:
        if not self.reads_racks or self._settings.rack_aware_assignment_strategy == "none":
            return False
        return self._measured.reads_across(self._traffic_now(), self.owners, self._racks, settled=settled)

    def _traffic_now(self) -> dict[int, Traffic]:
        return self._measured.weights.traffic(self.shards.partitions if self.shards is not None else None)

    def looked_at(self, now: float) -> frozenset[MemberId]:
        """Return the members with full disks that nothing else tells of: they are to be looked at."""
        return self.shunned.looked_at(self.owners.values(), now)

    def _shall_own(self, copy: Readiness) -> bool:
        """Tell whether an owner waits for this standby: it warms up as a warm-up does."""
        return self.present.target.get(task(copy.key_group)) == copy.member

    def _asked_for(self) -> bool:
        return self._operations.orders != self._obeyed

    def _tasks_changed(self, situation: Situation) -> bool:
        owned = {t.key_group for t in self.present.owners}
        laid_out_for = self._layout.shards if self._layout else None
        return owned != set(situation.key_groups) or laid_out_for != self.shards

    def _waited_long_enough(self, now: float) -> bool:
        """Tell whether a lost member is waited for no longer."""
        awaited = frozenset(self.members.awaited(now, self._settings.scheduled_rebalance_max_delay))
        self._homes = {t: home for t, home in self._homes.items() if home in awaited or home in self.members.live}
        self._kept = {t: member for t, member in self._kept.items() if member in awaited}
        return bool(self._awaited - awaited - set(self.members.live))

    def _assign(self, situation: Situation) -> None:
        if self._asked_for():
            self.shunned.forgive()
        self._obeyed = self._operations.orders
        before = self.present
        if not before.needs_probe or not self._measured.traffic:
            self._measured.traffic = self._traffic_now()
        self.present = self._assigned(situation)
        target = {t.key_group: member for t, member in self.present.target.items()}
        self._measured.assigned(target, self._slots, self._racks, self._settings.balance_band)
        self._homes = {t: home for t, home in self._homes.items() if self.present.owners.get(t) != home}
        self.probes.assigned(self.present, situation.now)
        self._patience.start_over()
        self.cleaner.assigned(self.present, self.copies, self.members, situation.now, pointers=self.points)
        self._layout = self._laid_out(situation)
        few = few_key_groups_warning(self._settings.key_groups, len(self._layout.slots)) if self.shards is None else ""
        moves = moves_of(before.owners, self.present, self._executors())
        heard = notify(self.listener, moves, self.members.live) if self.listener else []
        self._rebalance = self._rebalance.and_(moves, [*self.present.warnings, *([few] if few else []), *heard])
        self._show(replace(situation, present=self.present))

    def _assigned(self, situation: Situation) -> Assignment:
        if self._settings.dispatch == "hashed" and self.shards is not None:
            most = self._obeyed.slots
            return hashed_assignment(self.members.live, self.shards, self.present, situation.drained, most)
        shunned = self.shunned.of(situation)
        view = view_of(replace(situation, traffic=self._measured.traffic, shunned=shunned), self._settings)
        return assign(view, assign_settings(self._settings, situation.drained))

    def _laid_out(self, situation: Situation) -> SlotLayout:
        if self._settings.dispatch == "hashed" and self.shards is not None:
            return hashed_layout(self.members.live, self.shards, situation.drained, self._obeyed.slots)
        return laid_out(self.members.live, self.owners, self._obeyed.slots, self.shards)

    def _show(self, situation: Situation) -> None:
        """Let operators see who is there."""
        awaited = self.members.awaited(situation.now, self._settings.scheduled_rebalance_max_delay)
        self._awaited = frozenset(awaited)
        self._operations.saw(member_states(situation, awaited))

    def _executors(self) -> dict[MemberId, str]:
        living_members: list[LiveMember] = [
            *(lost.living for lost in self.members.lost.values()),
            *self.members.live.values(),
        ]
        return {living.id: living.executor.id for living in living_members}

    def others_are_left(self, now: float) -> bool:
        """Tell whether somebody's disk has not refused; if nobody is left, forget it: the next try is a fresh one."""
        left = self._arrivals.are_left(self.executors, now)
        if not left:
            self._arrivals.forget()
        return left

    def forget_layout(self) -> None:
        """Assign anew before the next run."""
        self._layout = None

    def answered(self, receipts: Iterable[Receipt], now: float) -> None:
        """Note in which folders slots ran, which copies they did not find there, and whose disks refused."""
        for receipt in receipts:
            if is_refused(receipt):
                self._arrivals.refused(receipt.executor, str(error_of(receipt)), now)
            self.works_in(receipt.executor, receipt.member)
            self.members.measured(receipt.member, receipt.disk)
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
        self._measured.weights.ran(receipts, before)

    def standing_by(self, manifest: Manifest, stores: tuple[str, ...]) -> dict[int, tuple[MemberId, ...]]:
        """Return, for each key-group, the live standbys with a copy that could take over at once."""
        return standing_by(self._situation(manifest, stores, (), 0.0), self._settings.acceptable_recovery_lag)

    def followed_by(self) -> dict[int, tuple[MemberId, ...]]:
        """Return, by key-group, the members that will read its deltas: those that it awaits, warm-ups, standbys."""
        copies = (self.present.warmups, self.present.standbys)
        every = {
            t: dict.fromkeys(
                [self._homes.get(t, ""), self._kept.get(t, ""), *(m for held in copies for m in held.get(t, ()))]
            )
            for t in self.present.owners
        }
        named = {t.key_group: tuple(filter(None, members)) for t, members in every.items()}
        return {key_group: members for key_group, members in named.items() if members}

    def take_rebalance(self) -> Rebalance:
        """Return what changed since the last call."""
        told = [*self._arrivals.take_warnings(), *self.shunned.take_warnings(), *self._measured.take_warnings()]
        rebalance, self._rebalance = self._rebalance.and_((), told), Rebalance()
        return rebalance


def _recorded(tail: Record) -> Assignment:
    return Assignment(
        owners={TaskId(GROUP, int(key_group)): owner for key_group, owner in tail.owners.items()},
        standbys={TaskId(GROUP, int(key_group)): tuple(members) for key_group, members in tail.standbys.items()},
    )
