"""Play a world under a policy, batch by batch: ownership, fetched bytes, and how long each task is stopped.

The policy decides placement, and the triggers of a running query decide when to assign. Each batch runs all tasks. A
task is stopped while no live member owns it, while its batch runs again, while its owner fetches its state, and while
the owner of any other task fetches.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from riffle_spark.assign.model import Assignment, Lag, Member, MemberId, TaskId, Traffic, View
from riffle_spark.protocol.ownership.triggers import Patience, Probes, is_outside_band
from riffle_spark.simulate.outcomes import CAUSES, Outcome
from riffle_spark.simulate.policy import Policy
from riffle_spark.simulate.world import NOBODY, OWNED, STANDBY, WARMING, Floats, World, WorldCopies, WorldEvent
from riffle_spark.simulate.world_rules import MeasuredWorld, WorldRules

__all__ = ["Outcome", "Play", "play"]

_ROW_SECONDS: Final = 1e-6
"""The core time of one row outside the user's code."""
_PARTS: Final = 1000


def play(world: World, policy: Policy, on_step: Callable[[float], object] | None = None) -> Outcome:
    """Play a world to its end, and return the figures.

    ``on_step`` is called after each batch with the seconds that it took.
    """
    return Play(world, policy).run(on_step)


class Play:
    """The state of a simulation at second ``now``, under a policy.

    The triggers are those of a running query, the code of ``protocol/ownership``.
    """

    def __init__(self, world: World, policy: Policy) -> None:
        """Start at second 0 with the members that are present, and make the first assignment."""
        self.world = world
        self.policy = policy
        self.now = 0.0
        self.outcome = Outcome(policy)
        self.copies = WorldCopies(world)
        self._probes = Probes()
        self._patience = Patience()
        self._world_rules = WorldRules(world)
        self.names = [member.member.id for member in world.members]
        self.members = {member.member.id: member.member for member in world.members}
        self.live = {name: member for name, member in self.members.items() if name in world.present}
        self.ids = [task.task.id for task in world.tasks]
        self.tasks = tuple(task.task for task in world.tasks)
        self._usual_rate = np.array([task.rows_per_second for task in world.tasks])
        self._rate = self._usual_rate.copy()
        self._slot_rate = np.array([*(member.rows_per_second for member in world.members), 0.0])
        self._member_rate = np.array([member.rows_per_second * member.member.slots for member in world.members])
        self._row_seconds = np.array([task.row_seconds for task in world.tasks])
        self._source_racks = [task.rows_from for task in world.tasks]
        self._foreign_bytes = {member.member.id: member.disk_used_bytes for member in world.members}
        self._backlog = np.zeros(len(self.ids))
        self._paused_until = np.zeros(len(self.ids))
        self._streak = np.zeros(len(self.ids))
        self._lost_at: dict[MemberId, float] = {}
        self._homes: dict[TaskId, MemberId] = {}
        self._alarms: list[tuple[float, str, MemberId]] = []
        self._is_outside_band: bool | None = None
        self._levelled: object = None
        self._events = list(world.events)
        self.present = Assignment({})
        self.present = self._assign()
        self._make_first_assignment()

    def _make_first_assignment(self) -> None:
        """Make the first assignment, and count all its copies as caught up."""
        copies = self.copies
        copies.apply_assignment(self.present, self.live, self.now)
        copies.fetching = copies.fetching._replace(place=copies.changed[copies.fetching.task])
        copies.fetch_copies(0.0)
        self._probes.record_assignment(self.present, self.now)

    def run(self, on_step: Callable[[float], object] | None = None) -> Outcome:
        """Play all batches to the end of the world, and return the figures.

        ``on_step`` is called after each batch with its seconds.
        """
        while self.now < self.world.seconds:
            self.step()
            if on_step is not None:
                on_step(self.world.every)
        return self.outcome

    def step(self) -> None:
        """Play one batch: its events, an assignment if one is due, fetching, and rows."""
        seconds = self.world.every
        moves = self.outcome.moves
        while self._events and self._events[0].second <= self.now:
            self._apply_event(self._events.pop(0))
        self._rebalance_on_alarms()
        if self.policy.has_triggers and self.live and self._is_triggered():
            self._rebalance()
        restoring, fetched = self.copies.fetch_copies(seconds)
        self.outcome.bytes_owned += fetched[OWNED]
        self.outcome.bytes_kept += fetched[STANDBY]
        self.outcome.bytes_warmed += fetched[WARMING]
        stopped = self._stop_tasks(restoring, seconds)
        self._process_rows(stopped, seconds)
        self._record_batch(float(stopped.sum()), self.outcome.moves - moves)
        self.copies.remove_unused(self.now - self.world.protocol["state_cleanup_delay"])
        self.now += seconds

    def view(self) -> View:
        """Return the assignor's view at the present second."""
        ids = self.ids
        names = self.names
        live = self.live
        owners = {ids[t]: names[m] for t, m in enumerate(self.copies.owner.tolist()) if m >= 0 and names[m] in live}
        lags: dict[TaskId, dict[MemberId, Lag]] = {}
        for t, m, lag in self.copies.lags():
            if names[m] in live:
                lags.setdefault(ids[t], {})[names[m]] = lag
        awaited = self._awaited_members()
        present = self.present if owners else Assignment({})
        return View(
            tuple(live.values()),
            self.tasks,
            owners,
            self._on_live_members(present.standbys),
            self._on_live_members(present.warmups),
            lags,
            target=present.target,
            awaited=tuple(awaited.values()),
            prior_owners={t: home for t, home in self._homes.items() if home in live or home in awaited},
        )

    def measure(self) -> MeasuredWorld:
        """Return what a running query would measure after this batch: copies, disks, memory and racks."""
        view = self.view()
        rate = self._rate
        members = {member.member.id: member for member in self.world.members}
        live = {name: members[name] for name in self.live}
        memory = {
            t: task.memory_bytes * rate[t] / (self._usual_rate[t] or 1.0) for t, task in enumerate(self.world.tasks)
        }
        disk_bytes = dict(self._foreign_bytes)
        owned_memory = dict.fromkeys(self._foreign_bytes, 0.0)
        for t, task in enumerate(self.ids):
            for name in view.lags.get(task, ()):
                disk_bytes[name] += float(self.copies.size[t])
            if task in view.owners:
                owned_memory[view.owners[task]] += memory[t]
        disks = {m: (disk_bytes[m] / x.disk_bytes, int(x.disk_bytes)) for m, x in live.items() if x.disk_bytes}
        used_memory = {m: min(owned_memory[m], x.memory_bytes) for m, x in live.items() if x.memory_bytes}
        memories = {m: (int(used), int(live[m].memory_bytes - used)) for m, used in used_memory.items()}
        sizes = dict(enumerate(map(round, self.copies.size.tolist())))
        return MeasuredWorld(view, self.present, self.now, live, sizes, memory, self._traffic(), disks, memories)

    def _traffic(self) -> dict[int, Traffic]:
        """Return each task's rows by the rack that has them, in thousandths of the mean task's rows."""
        parts = np.round(_PARTS * self._rate / (self._rate.mean() or 1.0)).astype(int).tolist()
        return {
            t: Traffic(parts[t], dict.fromkeys(racks, parts[t]), _PARTS)
            for t, racks in enumerate(self._source_racks)
            if racks
        }

    def _on_live_members(self, copies: Mapping[TaskId, tuple[MemberId, ...]]) -> dict[TaskId, tuple[MemberId, ...]]:
        """Return the live members with a copy of each task. Tasks without one are left out."""
        live = {t: tuple(m for m in members if m in self.live) for t, members in copies.items()}
        return {t: members for t, members in live.items() if members}

    def _awaited_members(self) -> dict[MemberId, Member]:
        """Return the lost members that may still return, by name; none under a policy without triggers."""
        if not self.policy.has_triggers:
            return {}
        oldest = self.now - self.world.protocol["scheduled_rebalance_max_delay"]
        return {name: self.members[name] for name, lost_at in sorted(self._lost_at.items()) if lost_at > oldest}

    # --- Membership and load ------------------------------------------------------------------------------------------

    def _apply_event(self, event: WorldEvent) -> None:
        """Apply a change of load, row times, racks, disks or membership."""
        chosen = [t for t, task in enumerate(self.ids) if not event.tasks or str(task) in event.tasks]
        if event.kind == "load":
            self._rate[chosen] = self._usual_rate[chosen] * event.amount
        elif event.kind == "time":
            self._row_seconds[chosen] = event.amount
        elif event.kind == "racks":
            self._source_racks = [event.racks if t in chosen else racks for t, racks in enumerate(self._source_racks)]
        elif event.kind == "disk":
            self._foreign_bytes.update(dict.fromkeys(event.members or self.names, event.amount))
            return
        self._is_outside_band = None
        for member in event.members:
            (self._add_member if event.kind in ("join", "return") else self._remove_member)(member, event.kind)

    def _add_member(self, member: MemberId, kind: str) -> None:
        """Make a member live. ``kind`` is the kind of the event: ``join`` or ``return``."""
        self.live[member] = self.members[member]
        self._lost_at.pop(member, None)
        self._alarms = [alarm for alarm in self._alarms if alarm[1:] != ("left", member)]
        self._alarms.append((self.now, kind, member))

    def _remove_member(self, member: MemberId, kind: str) -> None:
        """Remove a live member, and schedule the reactions to its loss.

        ``kind`` is the kind of the event, such as ``lose``.
        """
        del self.live[member]
        protocol = self.world.protocol
        self.copies.stop_copies(
            self.copies.index[member], self.now, keeps_disk=self.policy.keeps_copies and kind != "remove"
        )
        if kind != "remove":
            self._lost_at[member] = self.now
            if self.policy.has_triggers:
                self._remember_homes(member)
                self._alarms.append((self.now + protocol["scheduled_rebalance_max_delay"], "waited", member))
        self._alarms.append((self.now, "left", member))
        self._paused_until = np.maximum(self._paused_until, self.now + protocol["retry_seconds"])

    def _remember_homes(self, member: MemberId) -> None:
        """Record the lost member as the home of its tasks, to which they may return, unless another awaited member is
        their home.
        """
        other_awaited = self._awaited_members().keys() - {member}
        for task, owner in self.present.owners.items():
            if owner == member and self._homes.get(task) not in other_awaited:
                self._homes[task] = member

    # --- When to assign -----------------------------------------------------------------------------------------------

    def _take_due_reasons(self) -> set[str]:
        """Remove the scheduled reactions that are due, and return their reasons."""
        due_alarms = [alarm for alarm in self._alarms if alarm[0] <= self.now]
        self._alarms = [alarm for alarm in self._alarms if alarm[0] > self.now]
        return {reason for _, reason, member in due_alarms if reason != "waited" or member not in self.live}

    def _rebalance_on_alarms(self) -> None:
        """Assign if a scheduled reaction is due and a member is live."""
        if self.live and self._take_due_reasons():
            self._rebalance()

    def _is_triggered(self) -> bool:
        """Evaluate the triggers of a running query after a batch. Return whether one causes an assignment now."""
        settings = self.world.settings
        rules = self._world_rules
        present = self.present
        patience = (settings.acceptable_recovery_lag, self.world.protocol["probing_rebalance_interval"])
        warmup_lags, standby_lags = self._lags_of_copies()
        slow = self._patience.count_growing_lags(standby_lags)
        triggers = [self._probes.is_due(present, warmup_lags, patience, self.now)]
        if rules.can_fire(slow):
            triggers.append(rules.is_due(self.measure(), slow))
            for member in rules.members_to_empty:
                self.copies.unused[self.copies.index[member]].clear()
        work = self._rate * (1 + self._row_seconds / _ROW_SECONDS)
        if self._is_outside_band is None:  # computed only after a change of its inputs
            owners = {t: self.names[m] for t, m in enumerate(self.copies.owner.tolist())}
            slots = {name: member.slots for name, member in self.live.items()}
            self._is_outside_band = is_outside_band(
                dict(enumerate(work.tolist())), owners, slots, settings.balance_band
            )
        inputs = (work.tobytes(), *self.live)
        if self._patience.count_outside_band(
            self._is_outside_band and not present.warmups and inputs != self._levelled
        ):
            self._levelled = inputs
            weights = [round(1000 * seconds) for seconds in work.tolist()]
            self.tasks = tuple(replace(task, weight=weights[t]) for t, task in enumerate(self.tasks))
            triggers.append(True)
        return any(triggers)

    def _lags_of_copies(self) -> tuple[list[int], dict[tuple[TaskId, MemberId], int]]:
        """Return the lags of the copies that become owners, and the lag of each standby that is behind by (task,
        member).
        """
        warmup_lags: list[int] = []
        standby_lags: dict[tuple[TaskId, MemberId], int] = {}
        for t, m, purpose, place in self.copies.fetching.rows():
            becomes_owner = self.present.target.get(self.ids[t]) == self.names[m]
            if purpose == WARMING or (purpose == STANDBY and becomes_owner):
                warmup_lags.append(self.copies.lag(t, place))
            if purpose == STANDBY and place < self.copies.changed[t]:
                standby_lags[self.ids[t], self.names[m]] = self.copies.lag(t, place)
        return warmup_lags, standby_lags

    def _assign(self) -> Assignment:
        """Call the policy's assignor on the present view, and return its assignment."""
        rules = self._world_rules
        measured = self.measure() if self.policy.has_triggers and rules.can_fire({}) else None
        view = self.view() if measured is None else rules.measured_view(measured)
        assignment = self.policy.assignor(view, self.world.settings)
        self.outcome.warnings += [w for w in assignment.warnings if w not in self.outcome.warnings]
        if measured is not None:
            rules.note_assignment(assignment, measured)
        return assignment

    def _rebalance(self) -> None:
        """Assign and apply the assignment. Count its moves."""
        previous_owner = self.copies.owner
        self.present = assignment = self._assign()
        self.copies.apply_assignment(assignment, self.live, self.now)
        self._is_outside_band = None
        self.outcome.assigned += 1
        self.outcome.rebalances += 1
        self.outcome.moves += int((previous_owner != self.copies.owner).sum())
        self._homes = {task: home for task, home in self._homes.items() if assignment.owners.get(task) != home}
        self._probes.record_assignment(assignment, self.now)
        self._patience.reset()

    # --- Processing ---------------------------------------------------------------------------------------------------

    def _batch_wait(self, restoring: Floats) -> float:
        """Return the seconds that all tasks wait for the slowest restore.

        ``restoring`` has the seconds that each task's owner restores.
        """
        return float(restoring.max(initial=0.0))

    def _stop_tasks(self, restoring: Floats, seconds: float) -> Floats:
        """Return how many of the batch's ``seconds`` each task is stopped, and count each second under its first cause.
        ``restoring`` has the seconds that each task's owner restores.
        """
        copies = self.copies
        alive = np.array([name in self.live for name in self.names] + [False])
        has_copy = copies.synced.copy()
        has_copy[copies.fetching.task[copies.fetching.purpose == OWNED]] = True
        unowned = np.where(alive[copies.owner] & has_copy, 0.0, seconds)
        self.outcome.unowned += bool(self.live) and bool((copies.owner == NOBODY).any())
        paused = np.clip(self._paused_until - self.now, 0.0, seconds)
        waiting = np.full(len(paused), self._batch_wait(restoring * (unowned == 0)))
        stopped = np.zeros(len(paused))
        for cause, durations in zip(CAUSES, (unowned, paused, restoring, waiting), strict=True):
            longer = np.maximum(stopped, durations)
            self.outcome.stopped[cause] += float((longer - stopped).sum())
            stopped = longer
        return stopped

    def _process_rows(self, stopped: Floats, seconds: float) -> None:
        """Add the batch's rows to the backlog, and process as many as the owners have time for.

        ``stopped`` has the seconds that each task was stopped.
        """
        self._backlog += self._rate * self.world.relative_load(self.now) * seconds
        owner = self.copies.owner
        ready = np.where(stopped < seconds, self._backlog, 0.0)
        capacity = np.where(self._member_rate > 0, self._member_rate * seconds, np.inf)
        demand = ready * (1 + self._row_seconds * self._slot_rate[owner])
        member_demand = np.bincount(owner[owner >= 0], demand[owner >= 0], minlength=len(capacity))
        share = np.append(np.minimum(1.0, capacity / np.maximum(member_demand, 1e-9)), 0.0)
        is_unlimited = np.isinf(np.append(capacity, np.inf))[owner]
        processed_rows = ready * share[owner] * np.where(is_unlimited, 1.0, 1 - stopped / seconds)
        self._backlog -= processed_rows
        self.copies.changed += processed_rows * self.copies.row_bytes
        self._streak += stopped
        self.outcome.longest = max(self.outcome.longest, float(self._streak.max(initial=0.0)))
        self._streak[stopped < seconds] = 0.0

    def _record_batch(self, stopped_seconds: float, moves: int) -> None:
        """Append the figures of a batch to the outcome."""
        outcome = self.outcome
        owner = self.copies.owner
        outcome.seconds.append(self.now)
        outcome.owners.append(np.bincount(owner[owner >= 0], minlength=len(self.names)))
        outcome.standing.append(stopped_seconds)
        outcome.waiting.append(float(self._backlog.sum()))
        outcome.lacking.append(self.copies.lacking_bytes())
        outcome.moved.append(moves)
        outcome.rows_waiting = max(outcome.rows_waiting, outcome.waiting[-1])
