"""A world played under a policy, batch by batch: who owns what, what is fetched, what stands and for how long. Knows
time as it is told. Does not know any placement rule, and is given the rules of when to assign.

A task stands while nobody that lives owns it, while its group rebalances, while its owner fetches and, where all tasks
run in one batch, while any other's owner does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from riffle_spark.assign.model import Assignment, Lag, Member, MemberId, TaskId, View
from riffle_spark.simulate.policy import Policy
from riffle_spark.simulate.world import KEPT, NOBODY, OWNED, WARMING, Floats, Ints, World, WorldCopies, WorldEvent

__all__ = ["CAUSES", "Outcome", "Play", "Probing", "Rules", "Waiting", "play"]

CAUSES: Final = ("no owner", "pause", "restore", "batch")
"""Why a task stands: nobody has it, its group rebalances or a batch runs again, its state is fetched, another's is."""


class Probing(Protocol):
    """What is asked of the protocol's probes."""

    def assigned(self, assignment: Assignment, now: float) -> None:
        """Note an assignment."""

    def due(self, assignment: Assignment, lags: Iterable[int], settings: tuple[int, float], now: float) -> bool:
        """Tell whether to probe."""


class Waiting(Protocol):
    """What is asked of the protocol's patience."""

    def weights_are_outside(self, outside: bool) -> bool:
        """Note whether work is outside its band; tell whether it has been for long enough."""

    def fall_behind(self, lags: Mapping[tuple[TaskId, MemberId], int]) -> Mapping[tuple[TaskId, MemberId], int]:
        """Note the standbys' lags; return those that have grown for long enough."""

    def start_over(self) -> None:
        """Begin to count again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a running query assigns anew without a change of members: the protocol's own, which is above this room."""

    probes: Probing
    patience: Waiting
    outside_band: Callable[[Mapping[int, float], Mapping[int, MemberId], Mapping[MemberId, int], float], bool]


@dataclass(slots=True)
class Outcome:
    """What a play came to, as sums and, from ``seconds`` on, batch by batch.

    ``stopped`` are task-seconds by cause, ``longest`` the seconds for which one task stood in one go, ``rows_waiting``
    the most rows that waited at a time. ``assigned`` counts calls of the assignor, ``unowned`` batches in which members
    lived and a task had nobody.
    """

    policy: str
    assigned: int = 0
    rebalances: int = 0
    moves: int = 0
    bytes_owned: float = 0.0
    bytes_warmed: float = 0.0
    bytes_kept: float = 0.0
    stopped: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    longest: float = 0.0
    rows_waiting: float = 0.0
    unowned: int = 0
    seconds: list[float] = field(default_factory=list)
    owners: list[Ints] = field(default_factory=list)
    standing: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    lacking: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        """Return for how long tasks stood, all together."""
        return sum(self.stopped.values())


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
        self._work = np.array([one.rows_per_second * one.member.slots for one in world.members])
        self._rate, self._backlog = self._usual.copy(), np.zeros(len(self.ids))
        self._paused, self._streak = np.zeros(len(self.ids)), np.zeros(len(self.ids))
        self._lost: dict[MemberId, float] = {}
        self._homes: dict[TaskId, MemberId] = {}
        self._alarms: list[tuple[float, str, MemberId]] = []
        self._busy_until = 0.0
        self._deferred_until: float | None = None
        self._outside: bool | None = None
        self._events = list(world.events)
        self.present = policy.assignor(self.view(), world.settings)
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
            homes={t: home for t, home in self._homes.items() if home in live or home in awaited},
        )  # fmt: skip

    def _living(self, copies: Mapping[TaskId, tuple[MemberId, ...]]) -> dict[TaskId, tuple[MemberId, ...]]:
        kept = {t: tuple(m for m in held if m in self.live) for t, held in copies.items()}
        return {t: held for t, held in kept.items() if held}

    def _awaited(self) -> dict[MemberId, Member]:
        delay = self.world.protocol["scheduled_rebalance_max_delay"]
        waited = sorted(m for m, at in self._lost.items() if self.policy.awaits and self.now - at < delay)
        return {name: self.members[name] for name in waited}

    # --- Who comes and goes -------------------------------------------------------------------------------------------

    def _struck(self, event: WorldEvent) -> None:
        if event.kind == "load":
            chosen = [t for t, task in enumerate(self.ids) if not event.tasks or str(task) in event.tasks]
            self._rate[chosen] = self._usual[chosen] * event.load
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
        fired = [rules.probes.due(present, warming, patience, self.now), bool(rules.patience.fall_behind(behind))]
        if self._outside is None:  # nothing that it depends on has changed since it was last known
            owners = {t: self.names[m] for t, m in enumerate(self.copies.owner.tolist())}
            slots = {name: member.slots for name, member in self.live.items()}
            self._outside = rules.outside_band(
                dict(enumerate(self._rate.tolist())), owners, slots, settings.balance_band
            )
        if rules.patience.weights_are_outside(self._outside and not present.warmups):
            weights = [round(1000 * rate) for rate in self._rate.tolist()]
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

    def _rebalance(self) -> None:
        policy, before = self.policy, self.copies.owner
        self.present = answer = policy.assignor(self.view(), self.world.settings)
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
        wanted = np.bincount(owner[owner >= 0], ready[owner >= 0], minlength=len(able))
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
