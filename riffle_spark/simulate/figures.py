"""A run as figures, named as those of `tests/data/kafka_streams`. Knows how each is counted. Decides nothing.

All values are plain JSON. ``single`` is one assignment of a file's state, ``converge`` the rounds until it is settled.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from riffle_spark.assign.demand import fair_range
from riffle_spark.assign.explain import balance_of, spread_per_slot
from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Task, TaskId
from riffle_spark.assign.racks import racks_count
from riffle_spark.assign.validity import violations
from riffle_spark.simulate.group import Group, Phase, Round
from riffle_spark.simulate.scenario import Scenario

__all__ = ["Json", "broken_properties", "converge_of", "fewest_moves", "net_moves", "single_of", "unsettled_properties"]

Json = dict[str, object]


def single_of(scenario: Scenario, group: Group, assignment: Assignment) -> Json:
    """Return the figures of one assignment."""
    settings = scenario.settings
    return {
        "probing_rebalance_needed": assignment.needs_probe,
        "probe_reason": assignment.probe_reason,
        "rack_aware_enabled": racks_count(group.view(), settings),
        "moves": moves_of([Round(group, assignment)], settings),
        "warmups": sum(map(len, assignment.warmups.values())),
        "balance": balance_figures(group, assignment),
        "cross_rack": cross_rack_of(group, assignment, settings),
        "broken": broken_properties(group, assignment, settings),
        "warnings": list(assignment.warnings),
        "assignment": named(scenario, group, assignment),
    }


def converge_of(scenario: Scenario, phases: Sequence[Phase], *, keep: bool, history: bool) -> Json:
    """Return the figures of all phases of a run."""
    rounds = [each for phase in phases for each in phase.rounds]
    return {
        "owner_state": "keep" if keep else "drop",
        "phases": [_phase(scenario, phase, history) for phase in phases],
        "rounds": len(rounds),
        "converged": all(phase.converged for phase in phases),
        "moves": moves_of(rounds, scenario.settings),
    }


def _phase(scenario: Scenario, phase: Phase, history: bool) -> Json:
    settings, start, last = scenario.settings, phase.rounds[0].before, phase.rounds[-1].assignment
    broken = {
        str(number): found
        for number, each in enumerate(phase.rounds, 1)
        if (found := broken_properties(each.before, each.assignment, settings))
    }
    figures: Json = {
        "clients": len(start.members),
        "iteration_limit": phase.limit,
        "fewest_stateful_active_moves": fewest_moves(start),
        "net_stateful_active_moves": net_moves(start, last),
        "warmups_by_round": [sum(map(len, each.assignment.warmups.values())) for each in phase.rounds],
        "active_moves_by_round": [_owner_moves(each) for each in phase.rounds],
        "stateful_imbalance_before": _imbalance(start, start.owners),
        "stateful_imbalance_by_round": [_imbalance(each.before, each.assignment.owners) for each in phase.rounds],
        "rounds": len(phase.rounds),
        "converged": phase.converged,
        "stable": phase.stable,
        "moves": moves_of(phase.rounds, settings),
        "broken_rounds": broken,
        "broken": unsettled_properties(start, last) if phase.converged else ["not_converged"],
        "balance": balance_figures(start, last),
        "cross_rack": cross_rack_of(start, last, settings),
        "assignment": named(scenario, start, last),
    }
    if phase.event is not None:
        figures["event"] = {
            "drop": ",".join(phase.event.drop),
            "add": ",".join(client.member.id for client in phase.event.add),
            "resurrect": ",".join(member for member, _ in phase.event.resurrect),
        }
    if history:
        figures["history"] = [_step(scenario, each) for each in phase.rounds]
    return figures


def _step(scenario: Scenario, each: Round) -> Json:
    """Return one round with the lags it was decided on; a lag of -3 is unknown, as in the scenario file."""
    names = scenario.names
    lags = {
        member: {names[task]: -3 if lag is None else lag for task, lag in sorted(held.items())}
        for member, held in sorted(each.before.lags.items())
        if member in each.before.members
    }
    moves = [
        {
            "task": names[move.task],
            "role": move.role,
            "from": move.source,
            "to": move.target,
            "goal": move.goal,
            "reason": move.reason,
        }
        for move in each.assignment.moves
    ]
    owners = {names[task]: owner for task, owner in sorted(each.before.owners.items())}
    return {
        "owners_before": owners,
        "lags_before": lags,
        "assignment": named(scenario, each.before, each.assignment),
        "probing_rebalance_needed": each.assignment.needs_probe,
        "moves": moves,
    }


def named(scenario: Scenario, group: Group, assignment: Assignment) -> Json:
    """Return the tasks of each member, as the file names them."""
    owned: dict[MemberId, list[TaskId]] = {member: [] for member in sorted(group.members)}
    kept: dict[MemberId, list[TaskId]] = {member: [] for member in owned}
    warming: dict[MemberId, list[TaskId]] = {member: [] for member in owned}
    for task, owner in sorted(assignment.owners.items()):
        owned[owner].append(task)
    for copies, into in ((assignment.standbys, kept), (assignment.warmups, warming)):
        for task, members in sorted(copies.items()):
            for member in members:
                into[member].append(task)
    names = scenario.names
    return {
        member: {
            "active": [names[task] for task in owned[member]],
            "standby": [names[task] for task in kept[member]],
            "warmup": [names[task] for task in warming[member]],
        }
        for member in owned
    }


def _owner_moves(each: Round) -> int:
    return sum(before != each.assignment.owners[task] for task, before in _stateful_owners(each.before).items())


def _stateful_owners(group: Group) -> dict[TaskId, MemberId]:
    return {
        task.id: group.owners[task.id] for task in group.tasks if task.kind == "stateful" and task.id in group.owners
    }


def _imbalance(group: Group, owners: Mapping[TaskId, MemberId]) -> float:
    stateful = [owners[task.id] for task in group.tasks if task.kind == "stateful" and task.id in owners]
    return spread_per_slot(group.view(), stateful)


def net_moves(start: Group, last: Assignment) -> int:
    """Return how many stateful tasks with a living owner have another one in the end."""
    return sum(before != last.owners[task] for task, before in _stateful_owners(start).items())


def fewest_moves(start: Group) -> int:
    """Return how many stateful owners must move at least to reach instance balance, stores not considered."""
    members = sorted(start.members)
    stateful = sum(task.kind == "stateful" for task in start.tasks)
    low, high = fair_range(stateful, [start.members[member].slots for member in members])
    owned = Counter(_stateful_owners(start).values())
    above = stateful - sum(low)  # owners beyond the least that each member has
    kept = sum(min(owned[member], least) for member, least in zip(members, low, strict=True))
    more = sum(owned[m] > least and most > least for m, least, most in zip(members, low, high, strict=True))
    return sum(owned.values()) - kept - min(above, more)


def moves_of(rounds: Sequence[Round], settings: AssignSettings) -> Json:
    """Count what moved in these rounds, and what has to be restored for it."""
    counted: Counter[str] = Counter()
    for each in rounds:
        kinds = {task.id: task for task in each.before.tasks}
        for task, owner in each.assignment.owners.items():
            before = each.before.owners.get(task)
            if before is None:
                counted["active_first_placed"] += 1
            elif before != owner:
                counted["active_stateful" if kinds[task].kind == "stateful" else "active_stateless"] += 1
        _count_restores(each, kinds, settings.acceptable_recovery_lag, counted)
    fields = ("active_stateful", "active_stateless", "active_first_placed", "state_copies_from_lagging")
    return {name: counted[name] for name in (*fields, "offsets_to_restore", "active_placed_not_caught_up")}


def _count_restores(each: Round, kinds: Mapping[TaskId, Task], acceptable: int, counted: Counter[str]) -> None:
    placed: list[tuple[TaskId, tuple[MemberId, ...], bool]]
    placed = [(task, (owner,), True) for task, owner in each.assignment.owners.items()]
    placed += [(task, held, False) for task, held in each.assignment.standbys.items()]
    placed += [(task, held, False) for task, held in each.assignment.warmups.items()]
    for task, members, owns in placed:
        if kinds[task].kind != "stateful":
            continue
        for member in members:
            lag = each.before.lags.get(member, {}).get(task, kinds[task].size)
            lag = kinds[task].size if lag is None else lag
            counted["offsets_to_restore"] += lag
            if lag > acceptable:
                counted["state_copies_from_lagging"] += 1
                counted["active_placed_not_caught_up"] += owns


def balance_figures(group: Group, assignment: Assignment) -> Json:
    """Return most minus fewest per thread for several kinds of tasks."""
    view = group.view()
    figures = balance_of(view, assignment)
    stateful = [assignment.owners[task.id] for task in group.tasks if task.kind == "stateful"]
    copies = [m for held in (assignment.standbys, assignment.warmups) for each in held.values() for m in each]
    groups = [
        spread_per_slot(view, (assignment.owners[task.id] for task in group.tasks if task.id.group == name))
        for name in sorted({task.id.group for task in group.tasks})
    ]
    return {
        "active_all": figures.owners,
        "active_stateful": spread_per_slot(view, stateful),
        "stateful_active_plus_standby": spread_per_slot(view, [*stateful, *copies]),
        "all_active_plus_standby": spread_per_slot(view, [*assignment.owners.values(), *copies]),
        "subtopology_active_worst": max(groups, default=0.0),
        "subtopologies_over_1": sum(each > 1 for each in groups),
    }


def cross_rack_of(group: Group, assignment: Assignment, settings: AssignSettings) -> Json:
    """Count partitions read across racks."""
    racks = {member.id: member.rack for member in group.members.values()}
    counted: Counter[str] = Counter()
    for task in group.tasks:
        kind = "active_stateful_partitions" if task.kind == "stateful" else "active_stateless_partitions"
        counted["of_source_partitions"] += task.owner_traffic.total
        counted[kind] += task.owner_traffic.parts_read_across(racks[assignment.owners[task.id]])
        for member in (*assignment.standbys.get(task.id, ()), *assignment.warmups.get(task.id, ())):
            counted["of_changelog_partitions"] += task.standby_traffic.total
            counted["standby_partitions"] += task.standby_traffic.parts_read_across(racks[member])
    parts = ("active_stateful_partitions", "active_stateless_partitions", "standby_partitions")
    totals = ("of_source_partitions", "of_changelog_partitions")
    return {
        "known": all(rack is not None for rack in racks.values()),
        **{name: counted[name] for name in (*parts, *totals)},
        "total_cost": settings.rack_aware_assignment_traffic_cost * sum(counted[name] for name in parts),
    }


def broken_properties(group: Group, assignment: Assignment, settings: AssignSettings) -> list[str]:
    """Return what this placement breaks: validity, standbys wanted, owners caught up, warm-ups bounded."""
    return [*violations(group.view(), assignment, settings), *_not_met(group, assignment, settings)]


def _not_met(group: Group, assignment: Assignment, settings: AssignSettings) -> Iterator[str]:
    wanted = min(settings.num_standbys, len(group.members) - 1)
    for task in group.tasks:
        if task.kind != "stateful":
            continue
        if len(assignment.standbys.get(task.id, ())) < wanted:
            yield f"standby_missing {task.id}"
        owner = assignment.owners.get(task.id)
        ranks = {member: _rank(group, task, member, settings.acceptable_recovery_lag) for member in group.members}
        if owner in ranks and ranks[owner] > min(ranks.values()):
            yield f"owner_not_most_caught_up {task.id}"
        others = [ranks[member] for member in assignment.standbys.get(task.id, ()) if member in ranks]
        spare = sorted(rank for member, rank in ranks.items() if member != owner)
        if sorted(others) != spare[: len(others)]:
            yield f"standby_not_next_most_caught_up {task.id}"


def _rank(group: Group, task: Task, member: MemberId, acceptable: int) -> float:
    lag = group.lags.get(member, {}).get(task.id, task.size)
    if lag is None:
        return float("inf")
    return 0 if lag <= acceptable else lag


def unsettled_properties(group: Group, last: Assignment) -> list[str]:
    """Return what a settled group must have and this one has not."""
    view = group.view()
    stateful = [last.owners[task.id] for task in group.tasks if task.kind == "stateful"]
    found = []
    if spread_per_slot(view, stateful) > 1:
        found.append("stateful_owners_not_balanced")
    if spread_per_slot(view, last.owners.values()) > 1:
        found.append("owners_not_balanced")
    return found
