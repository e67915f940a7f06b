"""Play a world under the rebalance protocols of consumer groups. Each task runs by itself, without batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from benchmarks.protocols.kip441 import kip441
from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, TaskId, View
from riffle_spark.simulate.outcomes import Outcome
from riffle_spark.simulate.play import Play
from riffle_spark.simulate.policy import POLICIES, Policy, find_assignor
from riffle_spark.simulate.world import WARMING, Floats, World

__all__ = ["ALL", "GROUPS", "GroupPlay", "GroupPolicy", "play_under"]


@dataclass(frozen=True, slots=True)
class GroupPolicy(Policy):
    """A rebalance protocol of a consumer group.

    ``stops`` are the tasks that stop during a rebalance. ``is_static``: a member that leaves keeps its tasks until its
    session times out. ``defers``: tasks of a member that left wait without an owner until a delay ends. ``learns``: a
    task moves when its next owner has fetched the state. ``has_timer``: unfinished moves cause a rebalance by a timer.
    """

    stops: Literal["all", "moved"] = "moved"
    is_static: bool = False
    defers: bool = False
    learns: bool = False
    has_timer: bool = False


def assign_to_learners(view: View, settings: AssignSettings) -> Assignment:
    """Assign as the proposal before KIP-441: a task moves to its sticky target when that member has caught up."""
    target = find_assignor("sticky")(view, settings)
    owners = dict(target.owners)
    warmups: dict[TaskId, tuple[MemberId, ...]] = {}
    for task, owner in target.owners.items():
        previous = view.owners.get(task)
        lag = view.lags.get(task, {}).get(owner, -1)
        has_caught_up = lag is not None and 0 <= lag <= settings.acceptable_recovery_lag
        if previous is not None and previous != owner and not has_caught_up:
            owners[task] = previous
            warmups[task] = (owner,)
    standbys = {
        task: tuple(m for m in members if m != owners[task] and m not in warmups.get(task, ()))
        for task, members in target.standbys.items()
    }
    return Assignment(owners, standbys, warmups, target.target, needs_probe=bool(warmups))


_STICKY = find_assignor("sticky")
GROUPS: Final = {
    policy.name: policy
    for policy in (
        GroupPolicy("eager", "each rebalance revokes all tasks; the sticky assignor assigns", _STICKY, stops="all"),
        GroupPolicy(
            "static",
            "eager, but a member that leaves keeps its tasks, idle, until its session times out",
            _STICKY,
            stops="all",
            is_static=True,
        ),
        GroupPolicy("cooperative", "only moved tasks stop; a second rebalance if one was revoked", _STICKY),
        GroupPolicy(
            "deferred",
            "cooperative; tasks of a member that left wait without an owner until a delay ends",
            _STICKY,
            defers=True,
        ),
        GroupPolicy(
            "learner", "cooperative; a task moves when its next owner has learned it", assign_to_learners, learns=True
        ),
        GroupPolicy(
            "kip441", "Kafka Streams' assignor: stateless target, warm-ups, a probe by a timer", kip441, has_timer=True
        ),
    )
}
ALL: Final[dict[str, Policy]] = {**GROUPS, **POLICIES}


def play_under(policy: Policy, world: World, on_step: Callable[[float], object] | None = None) -> Outcome:
    """Play a world to its end under a policy."""
    if isinstance(policy, GroupPolicy):
        return GroupPlay(world, policy).run(on_step)
    return Play(world, policy).run(on_step)


class GroupPlay(Play):
    """The state of a simulation of a consumer group."""

    def __init__(self, world: World, policy: GroupPolicy) -> None:
        self.protocol = policy
        self._busy_until = 0.0
        self._deferred_until: float | None = None
        super().__init__(world, policy)

    def _add_member(self, member: MemberId, kind: str) -> None:
        if self.protocol.is_static and any(alarm[1:] == ("left", member) for alarm in self._alarms):
            self.live[member] = self.members[member]
            self._alarms = [alarm for alarm in self._alarms if alarm[1:] != ("left", member)]
            self.copies.apply_assignment(self.present, self.live, self.now)
        else:
            super()._add_member(member, kind)

    def _remove_member(self, member: MemberId, kind: str) -> None:
        del self.live[member]
        is_planned = kind == "remove"
        self.copies.stop_copies(self.copies.index[member], self.now, keeps_disk=not is_planned)
        is_unnoticed = kind == "lose" or (self.protocol.is_static and not is_planned)
        timeout = self.world.protocol["session_timeout"] if is_unnoticed else 0.0
        self._alarms.append((self.now + timeout, "left", member))

    def _rebalance_on_alarms(self) -> None:
        """Rebalance once for all alarms that are due, unless the group is in a rebalance."""
        if self.now < self._busy_until or not self.live:
            return
        if self.protocol.learns and self._has_learned():
            self._alarms.append((self.now, "learned", ""))
        reasons = self._take_due_reasons()
        if self.protocol.defers and reasons and self._is_deferred(reasons):
            self.outcome.rebalances += 1
        elif reasons:
            self._rebalance()

    def _is_deferred(self, reasons: set[str]) -> bool:
        """Return whether this rebalance assigns nothing, because the delay of a member that left has not ended."""
        if "left" in reasons and self._deferred_until is None:
            self._deferred_until = self.now + self.world.protocol["scheduled_rebalance_max_delay"]
            self._alarms.append((self._deferred_until, "delay over", ""))
        if self._deferred_until is not None and self.now < self._deferred_until:
            return True
        self._deferred_until = None
        return False

    def _has_learned(self) -> bool:
        """Return whether a member has caught up on all its warm-ups."""
        task, member, purpose, place = self.copies.fetching
        acceptable = self.world.settings.acceptable_recovery_lag * self.copies.row_bytes[task]
        has_caught_up = self.copies.changed[task] - place <= acceptable
        is_warming = purpose == WARMING
        return any(bool(has_caught_up[is_warming & (member == m)].all()) for m in np.unique(member[is_warming]))

    def _rebalance(self) -> None:
        previous = self.copies.owner
        super()._rebalance()
        changed = previous != self.copies.owner
        is_revoked = (changed & np.isin(previous, [self.copies.index[name] for name in self.live])).any()
        if self.protocol.stops == "moved" and is_revoked and not self.protocol.learns:
            self.outcome.rebalances += 1
        self._busy_until = self.now + self.world.protocol["rebalance_seconds"]
        self._paused_until[changed | (self.protocol.stops == "all")] = self._busy_until
        if self.protocol.has_timer:
            self._alarms = [alarm for alarm in self._alarms if alarm[1] != "probe"]
            if self.present.needs_probe:
                interval = self.world.protocol["probing_rebalance_interval"]
                self._alarms.append((self.now + interval, "probe", ""))

    def _batch_wait(self, restoring: Floats) -> float:
        return 0.0 * len(restoring)  # tasks do not wait for each other
