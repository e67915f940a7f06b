"""Play a world under a policy, batch by batch: ownership, fetched bytes, and how long each task is stopped.

The policy decides placement, and ``Rules`` decide when to assign. A task is stopped while no live member owns it, while
its group rebalances, and while its owner fetches its state. If all tasks run in one batch, a task is also stopped while
the owner of any other task fetches.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from riffle_spark.assign.model import Assignment, Lag, Member, MemberId, TaskId, Traffic, View
from riffle_spark.simulate.outcomes import CAUSES, Outcome
from riffle_spark.simulate.policy import Policy
from riffle_spark.simulate.rules import Rules
from riffle_spark.simulate.world import KEPT, NOBODY, OWNED, WARMING, Floats, World, WorldCopies, WorldEvent
from riffle_spark.simulate.world_rules import MeasuredWorld, WorldRules

__all__ = ["Outcome", "Play", "Rules", "play"]

_ROW_SECONDS: Final = 1e-6
"""What a row takes of a core beside the user's code."""
_PARTS: Final = 1000


def play(world: World, policy: Policy, rules: Rules, told: Callable[[float], object] | None = None) -> Outcome:
    """Play a world to its end; ``told`` hears of the seconds that passed."""
    game = Play(world, policy, rules)
    while game.now < world.seconds:
        game.step()
        if told is not None:
            told(world.every)
    return game.outcome


class Play:
    """A world at a moment, under a policy."""

    def __init__(self, world: World, policy: Policy, rules: Rules) -> None:
        self.world, self.policy, self.rules, self.now = world, policy, rules, 0.0
        self.outcome = Outcome(policy.name)
        self.copies = WorldCopies(world)
        self.names = [one.member.id for one in world.members]
        self.members = {one.member.id: one.member for one in world.members}
        self.live = {name: member for name, member in self.members.items() if name in world.present}
        self.ids = [one.task.id for one in world.tasks]
        self.tasks = tuple(one.task for one in world.tasks)
        self._usual = np.array([one.rows_per_second for one in world.tasks])
        self._slot = np.array([*(one.rows_per_second for one in world.members), 0.0])
        self._work = np.array([one.rows_per_second * one.member.slots for one in world.members])
        self._took = np.array([one.row_seconds for one in world.tasks])
        self._from = [one.rows_from for one in world.tasks]
        self._used = {one.member.id: one.disk_used_bytes for one in world.members}
        self._rate, self._backlog = self._usual.copy(), np.zeros(len(self.ids))
        self._paused, self._streak = np.zeros(len(self.ids)), np.zeros(len(self.ids))
        self._lost: dict[MemberId, float] = {}
        self._homes: dict[TaskId, MemberId] = {}
        self._alarms: list[tuple[float, str, MemberId]] = []
        self._busy_until = 0.0
        self._deferred_until: float | None = None
        self._outside: bool | None = None
        self._levelled: object = None
        self._events = list(world.events)
        self.present = Assignment({})
        self.present = self._assigned()
        self._settle()

    def _settle(self) -> None:
        """Begin as if everything had been where the policy wants it for long."""
        copies = self.copies
        copies.placed(self.present, self.live, self.now)
        copies.fetching = copies.fetching._replace(place=copies.changed[copies.fetching.task])
        copies.fetch(0.0)
        self.rules.probes.assigned(self.present, self.now)

    def step(self) -> None:
        """Play one batch's seconds."""
        seconds, before = self.world.every, self.outcome.moves
        while self._events and self._events[0].at <= self.now:
            self._struck(self._events.pop(0))
        self._ring()
        if self.policy.probes == "rules" and self.live and self._rules_say_so():
            self._rebalance()
        restoring, got = self.copies.fetch(seconds)
        self.outcome.bytes_owned += got[OWNED]
        self.outcome.bytes_kept += got[KEPT]
        self.outcome.bytes_warmed += got[WARMING]
        stopped = self._stopped(restoring, seconds)
        self._run(stopped, seconds)
        self._note(float(stopped.sum()), self.outcome.moves - before)
        self.copies.forget(self.now - self.world.protocol["state_cleanup_delay"])
        self.now += seconds

    def view(self) -> View:
        """Return what the assignor is told now."""
        ids, names, live = self.ids, self.names, self.live
        owners = {ids[t]: names[m] for t, m in enumerate(self.copies.owner.tolist()) if m >= 0 and names[m] in live}
        lags: dict[TaskId, dict[MemberId, Lag]] = {}
        for t, m, lag in self.copies.lags():
            if names[m] in live:
                lags.setdefault(ids[t], {})[names[m]] = lag
        awaited = self._awaited()
        present = self.present if owners else Assignment({})
        return View(
            tuple(live.values()), self.tasks, owners, self._living(present.standbys), self._living(present.warmups),
            lags, target=present.target, awaited=tuple(awaited.values()),
            prior_owners={t: home for t, home in self._homes.items() if home in live or home in awaited},
        )  # fmt: skip

    def seen(self) -> MeasuredWorld:
        """Return what a running query would know of copies, disks, memory and racks after this batch."""
        view, members, load = self.view(), {one.member.id: one for one in self.world.members}, self._rate
        live = {name: members[name] for name in self.live}
        memory = {t: one.memory_bytes * load[t] / (self._usual[t] or 1.0) for t, one in enumerate(self.world.tasks)}
        kept, owned = dict(self._used), dict.fromkeys(self._used, 0.0)
        for t, task in enumerate(self.ids):
            for name in view.lags.get(task, ()):
                kept[name] += float(self.copies.size[t])
            if task in view.owners:
                owned[view.owners[task]] += memory[t]
        disks = {m: (kept[m] / one.disk_bytes, int(one.disk_bytes)) for m, one in live.items() if one.disk_bytes}
        taken = {m: min(owned[m], one.memory_bytes) for m, one in live.items() if one.memory_bytes}
        memories = {m: (int(taken[m]), int(live[m].memory_bytes - taken[m])) for m in taken}
        sizes = dict(enumerate(map(round, self.copies.size.tolist())))
        return MeasuredWorld(view, self.present, self.now, live, sizes, memory, self._traffic(), disks, memories)

    def _traffic(self) -> dict[int, Traffic]:
        """Return where tasks' rows come from, in thousandths of the mean task's rows, for those that tell it."""
        parts = np.round(_PARTS * self._rate / (self._rate.mean() or 1.0)).astype(int).tolist()
        return {
            t: Traffic(parts[t], dict.fromkeys(racks, parts[t]), _PARTS) for t, racks in enumerate(self._from) if racks
        }

    def _living(self, copies: Mapping[TaskId, tuple[MemberId, ...]]) -> dict[TaskId, tuple[MemberId, ...]]:
        kept = {t: tuple(m for m in held if m in self.live) for t, held in copies.items()}
        return {t: held for t, held in kept.items() if held}

    def _awaited(self) -> dict[MemberId, Member]:
        delay = self.world.protocol["scheduled_rebalance_max_delay"]
        waited = sorted(m for m, at in self._lost.items() if self.policy.awaits and self.now - at < delay)
        return {name: self.members[name] for name in waited}

    # --- Who comes and goes -------------------------------------------------------------------------------------------

    def _struck(self, event: WorldEvent) -> None:
        chosen = [t for t, task in enumerate(self.ids) if not event.tasks or str(task) in event.tasks]
        if event.kind == "load":
            self._rate[chosen] = self._usual[chosen] * event.amount
        elif event.kind == "time":
            self._took[chosen] = event.amount
        elif event.kind == "racks":
            self._from = [event.racks if t in chosen else racks for t, racks in enumerate(self._from)]
        elif event.kind == "disk":
            self._used.update(dict.fromkeys(event.members or self.names, event.amount))
            return
        self._outside = None
        for member in event.members:
            (self._arrives if event.kind in ("join", "return") else self._goes)(member, event.kind)

    def _arrives(self, member: MemberId, kind: str) -> None:
        self.live[member] = self.members[member]
        self._lost.pop(member, None)
        is_missed = all(each[1:] != ("left", member) for each in self._alarms)
        self._alarms = [each for each in self._alarms if each[1:] != ("left", member)]
        if is_missed or not self.policy.static:
            self._alarms.append((self.now, kind, member))
        else:
            self.copies.placed(self.present, self.live, self.now)

    def _goes(self, member: MemberId, kind: str) -> None:
        del self.live[member]
        policy, protocol = self.policy, self.world.protocol
        self.copies.left(self.copies.index[member], self.now, on_disk=policy.keeps_copies and kind != "remove")
        if kind != "remove":
            self._lost[member] = self.now
            if policy.awaits:
                self._remember_homes(member)
                self._alarms.append((self.now + protocol["scheduled_rebalance_max_delay"], "waited", member))
        is_unnoticed = (kind == "lose" and not policy.batches) or (policy.static and kind != "remove")
        self._alarms.append((self.now + protocol["session_timeout"] * is_unnoticed, "left", member))
        if policy.batches:
            self._paused = np.maximum(self._paused, self.now + protocol["retry_seconds"])

    def _remember_homes(self, member: MemberId) -> None:
        """Keep whose tasks they are, unless they still are somebody else's who is waited for."""
        others = self._awaited().keys() - {member}
        for task, owner in self.present.owners.items():
            if owner == member and self._homes.get(task) not in others:
                self._homes[task] = member

    # --- When to assign -----------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Rebalance for the alarms that are due, all at once; never while the group does so already."""
        if self.now < self._busy_until or not self.live:
            return
        if self.policy.learns and self._some_member_learned():
            self._alarms.append((self.now, "learned", ""))
        due = [each for each in self._alarms if each[0] <= self.now]
        self._alarms = [each for each in self._alarms if each[0] > self.now]
        reasons = {reason for _, reason, member in due if reason != "waited" or member not in self.live}
        if self.policy.defers and reasons and self._is_deferred(reasons):
            self.outcome.rebalances += 1
        elif reasons:
            self._rebalance()

    def _is_deferred(self, reasons: set[str]) -> bool:
        """Tell whether this rebalance only notes who is there, as tasks of who left are not dealt out yet."""
        if "left" in reasons and self._deferred_until is None:
            self._deferred_until = self.now + self.world.protocol["scheduled_rebalance_max_delay"]
            self._alarms.append((self._deferred_until, "delay over", ""))
        if self._deferred_until is not None and self.now < self._deferred_until:
            return True
        self._deferred_until = None
        return False

    def _some_member_learned(self) -> bool:
        task, member, why, place = self.copies.fetching
        acceptable = self.world.settings.acceptable_recovery_lag * self.copies.row_bytes[task]
        is_learned, is_learning = self.copies.changed[task] - place <= acceptable, why == WARMING
        return any(bool(is_learned[is_learning & (member == m)].all()) for m in np.unique(member[is_learning]))

    def _rules_say_so(self) -> bool:
        settings, rules, present = self.world.settings, self.rules, self.present
        patience = (settings.acceptable_recovery_lag, self.world.protocol["probing_rebalance_interval"])
        warming, behind = self._lags_beside()
        slow, acting = rules.patience.fall_behind(behind), self._acting
        fired = [rules.probes.due(present, warming, patience, self.now), bool(slow) and acting is None]
        if acting is not None and acting.looks(slow):
            fired.append(acting.due(self.seen(), slow))
            for member in acting.emptied:
                self.copies.kept[self.copies.index[member]].clear()
        work = self._rate * (1 + self._took / _ROW_SECONDS)
        if self._outside is None:  # nothing that it depends on has changed since it was last known
            owners = {t: self.names[m] for t, m in enumerate(self.copies.owner.tolist())}
            slots = {name: member.slots for name, member in self.live.items()}
            self._outside = rules.outside_band(dict(enumerate(work.tolist())), owners, slots, settings.balance_band)
        tried = (work.tobytes(), *self.live)
        if rules.patience.weights_are_outside(self._outside and not present.warmups and tried != self._levelled):
            self._levelled = tried
            weights = [round(1000 * each) for each in work.tolist()]
            self.tasks = tuple(replace(task, weight=weights[t]) for t, task in enumerate(self.tasks))
            fired.append(True)
        return any(fired)

    def _lags_beside(self) -> tuple[list[int], dict[tuple[TaskId, MemberId], int]]:
        """Return the lags of what warms up, and those of standbys that are behind: no other can have fallen behind."""
        warming: list[int] = []
        behind: dict[tuple[TaskId, MemberId], int] = {}
        for t, m, why, place in self.copies.fetching.rows():
            if why == WARMING or (why == KEPT and self.present.target.get(self.ids[t]) == self.names[m]):
                warming.append(self.copies.lag(t, place))
            if why == KEPT and place < self.copies.changed[t]:
                behind[self.ids[t], self.names[m]] = self.copies.lag(t, place)
        return warming, behind

    @property
    def _acting(self) -> WorldRules | None:
        return self.rules.acting if self.policy.probes == "rules" else None

    def _assigned(self) -> Assignment:
        acting = self._acting
        seen = self.seen() if acting is not None and acting.looks({}) else None
        view = acting.told(seen) if acting is not None and seen is not None else self.view()
        answer = self.policy.assignor(view, self.world.settings)
        self.outcome.warnings += [each for each in answer.warnings if each not in self.outcome.warnings]
        if acting is not None and seen is not None:
            acting.assigned(answer, seen)
        return answer

    def _rebalance(self) -> None:
        policy, before = self.policy, self.copies.owner
        self.present = answer = self._assigned()
        self.copies.placed(answer, self.live, self.now)
        self._outside = None
        changed = before != self.copies.owner
        is_revoked = bool((changed & np.isin(before, [self.copies.index[name] for name in self.live])).any())
        self.outcome.assigned += 1
        self.outcome.rebalances += 1 + (policy.stops == "moved" and is_revoked and not policy.learns)
        self.outcome.moves += int(changed.sum())
        if policy.stops != "none":
            self._busy_until = self.now + self.world.protocol["rebalance_seconds"]
            self._paused[changed | (policy.stops == "all")] = self._busy_until
        if policy.probes == "timer":
            self._alarms = [each for each in self._alarms if each[1] != "probe"]
            interval = self.world.protocol["probing_rebalance_interval"]
            self._alarms += [(self.now + interval, "probe", "")] if answer.needs_probe else []
        self._homes = {task: home for task, home in self._homes.items() if answer.owners.get(task) != home}
        self.rules.probes.assigned(answer, self.now)
        self.rules.patience.start_over()

    # --- What becomes of it -------------------------------------------------------------------------------------------

    def _stopped(self, restoring: Floats, seconds: float) -> Floats:
        """Return for how long each task stands in this batch, and count it under the first cause that there is."""
        alive, copies = np.array([name in self.live for name in self.names] + [False]), self.copies
        taken_up = copies.synced.copy()
        taken_up[copies.fetching.task[copies.fetching.why == OWNED]] = True
        unowned = np.where(alive[copies.owner] & taken_up, 0.0, seconds)
        self.outcome.unowned += bool(self.live) and bool((copies.owner == NOBODY).any())
        paused = np.clip(self._paused - self.now, 0.0, seconds)
        held_up = np.full(len(paused), (restoring * (unowned == 0)).max(initial=0.0) if self.policy.batches else 0.0)
        stopped = np.zeros(len(paused))
        for cause, taken in zip(CAUSES, (unowned, paused, restoring, held_up), strict=True):
            longer = np.maximum(stopped, taken)
            self.outcome.stopped[cause] += float((longer - stopped).sum())
            stopped = longer
        return stopped

    def _run(self, stopped: Floats, seconds: float) -> None:
        """Take in rows, and process what members have time for."""
        self._backlog += self._rate * self.world.swung(self.now) * seconds
        ready, owner = np.where(stopped < seconds, self._backlog, 0.0), self.copies.owner
        able = np.where(self._work > 0, self._work * seconds, np.inf)
        taking = ready * (1 + self._took * self._slot[owner])
        wanted = np.bincount(owner[owner >= 0], taking[owner >= 0], minlength=len(able))
        share = np.append(np.minimum(1.0, able / np.maximum(wanted, 1e-9)), 0.0)
        done = ready * share[owner] * np.where(np.isinf(np.append(able, np.inf))[owner], 1.0, 1 - stopped / seconds)
        self._backlog -= done
        self.copies.changed += done * self.copies.row_bytes
        self._streak += stopped
        self.outcome.longest = max(self.outcome.longest, float(self._streak.max(initial=0.0)))
        self._streak[stopped < seconds] = 0.0

    def _note(self, standing: float, moved: int) -> None:
        outcome, owner = self.outcome, self.copies.owner
        outcome.seconds.append(self.now)
        outcome.owners.append(np.bincount(owner[owner >= 0], minlength=len(self.names)))
        outcome.standing.append(standing)
        outcome.waiting.append(float(self._backlog.sum()))
        outcome.lacking.append(self.copies.lacking())
        outcome.moved.append(moved)
        outcome.rows_waiting = max(outcome.rows_waiting, outcome.waiting[-1])
