"""Rounds of assignment for a simulated group, without a clock.

After each round all assigned copies have caught up, and the state does not change. A member keeps the state of tasks
that it no longer has (``keep``) or forgets it (``drop``). Rounds continue until the assignor asks for no probe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Lag, Member, MemberId, Task, TaskId, View
from riffle_spark.simulate.scenario import Client, Event, Scenario

Assign = Callable[[View, AssignSettings], Assignment]


@dataclass(frozen=True, slots=True)
class Group:
    """Members, owners, standbys, the lag of each copy, and the members that left with their state."""

    tasks: tuple[Task, ...]
    members: Mapping[MemberId, Member]
    owners: Mapping[TaskId, MemberId] = field(default_factory=dict)
    standbys: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=dict)
    warmups: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=dict)
    target: Mapping[TaskId, MemberId] = field(default_factory=dict)
    lags: Mapping[MemberId, Mapping[TaskId, Lag]] = field(default_factory=dict)
    departed: Mapping[MemberId, Client] = field(default_factory=dict)
    pins: Mapping[TaskId, MemberId] = field(default_factory=dict)

    def view(self) -> View:
        """Return the assignor's view of the group."""
        lags: dict[TaskId, dict[MemberId, Lag]] = {}
        for member in sorted(self.members):
            for task, lag in self.lags.get(member, {}).items():
                lags.setdefault(task, {})[member] = lag
        members = tuple(self.members[m] for m in sorted(self.members))
        pins = {task: member for task, member in self.pins.items() if member in self.members}
        return View(members, self.tasks, self.owners, self.standbys, self.warmups, lags, pins, target=self.target)

    def settle(self, assignment: Assignment, *, keep: bool) -> "Group":
        """Return the group with this assignment after all its copies have caught up.

        With ``keep`` members keep the state of tasks that they lost.
        """
        lags: dict[MemberId, dict[TaskId, Lag]] = {m: dict(self.lags.get(m, {})) if keep else {} for m in self.members}
        stateful = {task.id for task in self.tasks if task.kind == "stateful"}
        for task, owner in assignment.owners.items():
            if task in stateful:
                lags[owner][task] = 0
        for copies in (assignment.standbys, assignment.warmups):
            for task, members in copies.items():
                for member in members:
                    lags[member][task] = 0
        return replace(
            self,
            owners=assignment.owners,
            standbys=assignment.standbys,
            warmups=assignment.warmups,
            target=assignment.target,
            lags=lags,
        )

    def apply_event(self, event: Event) -> "Group":
        """Return the group after the event's members left, joined or returned."""
        departed = dict(self.departed)
        for member in event.drop:
            departed[member] = Client(self.members[member], lags=self.lags.get(member, {}))
        members = {m: member for m, member in self.members.items() if m not in event.drop}
        lags = {m: member_lags for m, member_lags in self.lags.items() if m not in event.drop}
        for client in event.add:
            members[client.member.id] = client.member
            lags[client.member.id] = client.lags
        for member, behind in event.resurrect:
            members[member] = departed[member].member
            lags[member] = {t: None if lag is None else lag + behind for t, lag in departed.pop(member).lags.items()}
        return replace(self._keep_members(set(members)), members=members, lags=lags, departed=departed)

    def _keep_members(self, live: set[MemberId]) -> "Group":
        """Return the group with the owners and copies on ``live`` members only."""
        owners = {task: owner for task, owner in self.owners.items() if owner in live}
        standbys = {task: tuple(m for m in members if m in live) for task, members in self.standbys.items()}
        warmups = {task: tuple(m for m in members if m in live) for task, members in self.warmups.items()}
        return replace(self, owners=owners, standbys=standbys, warmups=warmups)


@dataclass(frozen=True, slots=True)
class Round:
    """An assignment and the group before it."""

    before: Group
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Phase:
    """The rounds after one event (``None``: the start), and the group after them.

    It is ``converged`` if the assignor asked for no further round within the limit, and ``stable`` if another round
    would change nothing.
    """

    event: Event | None
    rounds: tuple[Round, ...]
    after: Group
    converged: bool
    stable: bool
    limit: int


def initial_group(scenario: Scenario) -> Group:
    """Return the group at the start of a scenario, before any assignment."""
    standbys: dict[TaskId, tuple[MemberId, ...]] = {}
    for client in scenario.clients:
        for task in client.standbys:
            standbys[task] = (*standbys.get(task, ()), client.member.id)
    return Group(
        tasks=scenario.tasks,
        members={client.member.id: client.member for client in scenario.clients},
        owners={task: client.member.id for client in scenario.clients for task in client.owned},
        standbys=standbys,
        lags={client.member.id: client.lags for client in scenario.clients},
        pins=scenario.pins,
    )


def run_scenario(scenario: Scenario, *, keep: bool = True, assignor: Assign = assign) -> tuple[Phase, ...]:
    """Assign until the group settles, at the start of the scenario and after each of its events. A phase that does not
    settle ends the run.

    ``keep``: whether members keep the state of tasks that they lost.
    """
    group = initial_group(scenario)
    phases: list[Phase] = []
    for event in (None, *scenario.events):
        if event is not None:
            group = group.apply_event(event)
        phase = _settle_group(group, event, scenario.settings, keep, assignor)
        phases.append(phase)
        if not phase.converged:
            break
        group = phase.after
    return tuple(phases)


def _settle_group(group: Group, event: Event | None, settings: AssignSettings, keep: bool, assignor: Assign) -> Phase:
    """Assign round by round until the assignor asks for no probe, or up to a limit. Return the rounds as a phase."""
    stateful = sum(task.kind == "stateful" for task in group.tasks)
    limit = 2 * (stateful + stateful * settings.num_standbys) + 10
    rounds: list[Round] = []
    while len(rounds) < limit:
        assignment = assignor(group.view(), settings)
        rounds.append(Round(group, assignment))
        group = group.settle(assignment, keep=keep)
        if not assignment.needs_probe:
            repeated = assignor(group.view(), settings)
            stable = _owners_and_copies(repeated) == _owners_and_copies(assignment) and not repeated.needs_probe
            return Phase(event, tuple(rounds), group, True, stable, limit)
    return Phase(event, tuple(rounds), group, False, False, limit)


def _owners_and_copies(assignment: Assignment) -> tuple[object, ...]:
    """Return the owners, standbys and warm-ups of an assignment, to compare them."""
    return (dict(assignment.owners), dict(assignment.standbys), dict(assignment.warmups))
