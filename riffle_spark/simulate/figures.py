"""The figures of assignments as JSON values, under the same names as in `tests/data/kafka_streams`.

``single`` is one assignment of a scenario, ``converge`` all rounds until nothing moves.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from riffle_spark.assign.demand import fair_range
from riffle_spark.assign.explain import balance_of, spread_per_slot
from riffle_spark.assign.model import Assignment, AssignSettings, MemberId, Task, TaskId
from riffle_spark.assign.racks import have_racks_effect
from riffle_spark.assign.validity import find_violations
from riffle_spark.simulate.group import Group, Phase, Round
from riffle_spark.simulate.scenario import Scenario

Json = dict[str, object]


def figures_of_assignment(scenario: Scenario, group: Group, assignment: Assignment) -> Json:
    """Return the figures of one assignment of a scenario as JSON values."""
    settings = scenario.settings
    return {
        "probing_rebalance_needed": assignment.needs_probe,
        "probe_reason": assignment.probe_reason,
        "rack_aware_enabled": have_racks_effect(group.view(), settings),
        "moves": figures_of_moves([Round(group, assignment)], settings),
        "warmups": sum(map(len, assignment.warmups.values())),
        "balance": balance_figures(group, assignment),
        "cross_rack": cross_rack_figures(group, assignment, settings),
        "broken": find_broken_properties(group, assignment, settings),
        "warnings": list(assignment.warnings),
        "assignment": assignment_by_name(scenario, group, assignment),
    }


def figures_of_run(scenario: Scenario, phases: Sequence[Phase], *, keep: bool, history: bool) -> Json:
    """Return the figures of all phases of a scenario's run as JSON values.

    ``keep``: whether members kept the state of tasks that they lost. ``history`` adds each round.
    """
    rounds = [round_ for phase in phases for round_ in phase.rounds]
    return {
        "owner_state": "keep" if keep else "drop",
        "phases": [_figures_of_phase(scenario, phase, history) for phase in phases],
        "rounds": len(rounds),
        "converged": all(phase.converged for phase in phases),
        "moves": figures_of_moves(rounds, scenario.settings),
    }


def _figures_of_phase(scenario: Scenario, phase: Phase, history: bool) -> Json:
    """Return the figures of the rounds after one event. ``history`` adds each round."""
    settings = scenario.settings
    start = phase.rounds[0].before
    last = phase.rounds[-1].assignment
    broken = {
        str(number): properties
        for number, round_ in enumerate(phase.rounds, 1)
        if (properties := find_broken_properties(round_.before, round_.assignment, settings))
    }
    figures: Json = {
        "clients": len(start.members),
        "iteration_limit": phase.limit,
        "fewest_stateful_active_moves": count_fewest_moves(start),
        "net_stateful_active_moves": count_net_moves(start, last),
        "warmups_by_round": [sum(map(len, round_.assignment.warmups.values())) for round_ in phase.rounds],
        "active_moves_by_round": [_count_owner_moves(round_) for round_ in phase.rounds],
        "stateful_imbalance_before": _imbalance(start, start.owners),
        "stateful_imbalance_by_round": [_imbalance(round_.before, round_.assignment.owners) for round_ in phase.rounds],
        "rounds": len(phase.rounds),
        "converged": phase.converged,
        "stable": phase.stable,
        "moves": figures_of_moves(phase.rounds, settings),
        "broken_rounds": broken,
        "broken": find_balance_violations(start, last) if phase.converged else ["not_converged"],
        "balance": balance_figures(start, last),
        "cross_rack": cross_rack_figures(start, last, settings),
        "assignment": assignment_by_name(scenario, start, last),
    }
    if phase.event is not None:
        figures["event"] = {
            "drop": ",".join(phase.event.drop),
            "add": ",".join(client.member.id for client in phase.event.add),
            "resurrect": ",".join(member for member, _ in phase.event.resurrect),
        }
    if history:
        figures["history"] = [_figures_of_round(scenario, round_) for round_ in phase.rounds]
    return figures


def _figures_of_round(scenario: Scenario, round_: Round) -> Json:
    """Return one round with the lags before it. A lag of -3 is unknown, as in the scenario file."""
    names = scenario.names
    lags = {
        member: {names[task]: -3 if lag is None else lag for task, lag in sorted(member_lags.items())}
        for member, member_lags in sorted(round_.before.lags.items())
        if member in round_.before.members
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
        for move in round_.assignment.moves
    ]
    owners = {names[task]: owner for task, owner in sorted(round_.before.owners.items())}
    return {
        "owners_before": owners,
        "lags_before": lags,
        "assignment": assignment_by_name(scenario, round_.before, round_.assignment),
        "probing_rebalance_needed": round_.assignment.needs_probe,
        "moves": moves,
    }


def assignment_by_name(scenario: Scenario, group: Group, assignment: Assignment) -> Json:
    """Return the tasks of each member under their names in the scenario file."""
    owned: dict[MemberId, list[TaskId]] = {member: [] for member in sorted(group.members)}
    standbys: dict[MemberId, list[TaskId]] = {member: [] for member in owned}
    warmups: dict[MemberId, list[TaskId]] = {member: [] for member in owned}
    for task, owner in sorted(assignment.owners.items()):
        owned[owner].append(task)
    for copies, tasks_of in ((assignment.standbys, standbys), (assignment.warmups, warmups)):
        for task, members in sorted(copies.items()):
            for member in members:
                tasks_of[member].append(task)
    names = scenario.names
    return {
        member: {
            "active": [names[task] for task in owned[member]],
            "standby": [names[task] for task in standbys[member]],
            "warmup": [names[task] for task in warmups[member]],
        }
        for member in owned
    }


def _count_owner_moves(round_: Round) -> int:
    """Return how many stateful tasks the round gives to another owner."""
    return sum(owner != round_.assignment.owners[task] for task, owner in _stateful_owners(round_.before).items())


def _stateful_owners(group: Group) -> dict[TaskId, MemberId]:
    return {
        task.id: group.owners[task.id] for task in group.tasks if task.kind == "stateful" and task.id in group.owners
    }


def _imbalance(group: Group, owners: Mapping[TaskId, MemberId]) -> float:
    """Return the difference between the fullest and the emptiest member, in stateful tasks per slot."""
    stateful = [owners[task.id] for task in group.tasks if task.kind == "stateful" and task.id in owners]
    return spread_per_slot(group.view(), stateful)


def count_net_moves(start: Group, last: Assignment) -> int:
    """Return how many stateful tasks had a live owner at the start and have another one in the last assignment."""
    return sum(owner != last.owners[task] for task, owner in _stateful_owners(start).items())


def count_fewest_moves(start: Group) -> int:
    """Return the fewest moves that balance the stateful tasks over the members, without regard to stores."""
    members = sorted(start.members)
    stateful = sum(task.kind == "stateful" for task in start.tasks)
    low, high = fair_range(stateful, [start.members[member].slots for member in members])
    owned = Counter(_stateful_owners(start).values())
    surplus = stateful - sum(low)
    staying = sum(min(owned[member], least) for member, least in zip(members, low, strict=True))
    above_low = sum(owned[m] > least and limit > least for m, least, limit in zip(members, low, high, strict=True))
    return sum(owned.values()) - staying - min(surplus, above_low)


def figures_of_moves(rounds: Sequence[Round], settings: AssignSettings) -> Json:
    """Return the number of moves in ``rounds`` by kind, and the records that the moves restore."""
    counts: Counter[str] = Counter()
    for round_ in rounds:
        kinds = {task.id: task for task in round_.before.tasks}
        for task, owner in round_.assignment.owners.items():
            previous = round_.before.owners.get(task)
            if previous is None:
                counts["active_first_placed"] += 1
            elif previous != owner:
                counts["active_stateful" if kinds[task].kind == "stateful" else "active_stateless"] += 1
        _count_restores(round_, kinds, settings.acceptable_recovery_lag, counts)
    fields = ("active_stateful", "active_stateless", "active_first_placed", "state_copies_from_lagging")
    return {name: counts[name] for name in (*fields, "offsets_to_restore", "active_placed_not_caught_up")}


def _count_restores(round_: Round, kinds: Mapping[TaskId, Task], acceptable: int, counts: Counter[str]) -> None:
    """Add to ``counts`` the records that the copies placed by a round lack, and the number of copies that lag more than
    ``acceptable``.
    """
    placed: list[tuple[TaskId, tuple[MemberId, ...], bool]]
    placed = [(task, (owner,), True) for task, owner in round_.assignment.owners.items()]
    placed += [(task, members, False) for task, members in round_.assignment.standbys.items()]
    placed += [(task, members, False) for task, members in round_.assignment.warmups.items()]
    for task, members, owns in placed:
        if kinds[task].kind != "stateful":
            continue
        for member in members:
            lag = round_.before.lags.get(member, {}).get(task, kinds[task].size)
            lag = kinds[task].size if lag is None else lag
            counts["offsets_to_restore"] += lag
            if lag > acceptable:
                counts["state_copies_from_lagging"] += 1
                counts["active_placed_not_caught_up"] += owns


def balance_figures(group: Group, assignment: Assignment) -> Json:
    """Return the largest minus the smallest number of tasks per slot, for several kinds of tasks."""
    view = group.view()
    figures = balance_of(view, assignment)
    stateful = [assignment.owners[task.id] for task in group.tasks if task.kind == "stateful"]
    copies = [*chain(*assignment.standbys.values()), *chain(*assignment.warmups.values())]
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
        "subtopologies_over_1": sum(group > 1 for group in groups),
    }


def cross_rack_figures(group: Group, assignment: Assignment, settings: AssignSettings) -> Json:
    """Return how many partitions owners and standbys read across racks, and their cost."""
    racks = {member.id: member.rack for member in group.members.values()}
    counts: Counter[str] = Counter()
    for task in group.tasks:
        kind = "active_stateful_partitions" if task.kind == "stateful" else "active_stateless_partitions"
        counts["of_source_partitions"] += task.owner_traffic.total
        counts[kind] += task.owner_traffic.parts_read_across(racks[assignment.owners[task.id]])
        for member in (*assignment.standbys.get(task.id, ()), *assignment.warmups.get(task.id, ())):
            counts["of_changelog_partitions"] += task.standby_traffic.total
            counts["standby_partitions"] += task.standby_traffic.parts_read_across(racks[member])
    parts = ("active_stateful_partitions", "active_stateless_partitions", "standby_partitions")
    totals = ("of_source_partitions", "of_changelog_partitions")
    return {
        "known": all(rack is not None for rack in racks.values()),
        **{name: counts[name] for name in (*parts, *totals)},
        "total_cost": settings.rack_aware_assignment_traffic_cost * sum(counts[name] for name in parts),
    }


def find_broken_properties(group: Group, assignment: Assignment, settings: AssignSettings) -> list[str]:
    """Return the properties that an assignment violates: the rules of all placements, the number of standbys, and that
    the most caught-up members are owners and standbys.
    """
    return [*find_violations(group.view(), assignment, settings), *_copy_violations(group, assignment, settings)]


def _copy_violations(group: Group, assignment: Assignment, settings: AssignSettings) -> Iterator[str]:
    """Yield a text for each stateful task with too few standbys, or whose owner or standbys are not the most caught-up
    members.
    """
    num_standbys = min(settings.num_standbys, len(group.members) - 1)
    for task in group.tasks:
        if task.kind != "stateful":
            continue
        if len(assignment.standbys.get(task.id, ())) < num_standbys:
            yield f"standby_missing {task.id}"
        owner = assignment.owners.get(task.id)
        ranks = {member: _rank(group, task, member, settings.acceptable_recovery_lag) for member in group.members}
        if owner in ranks and ranks[owner] > min(ranks.values()):
            yield f"owner_not_most_caught_up {task.id}"
        standby_ranks = [ranks[member] for member in assignment.standbys.get(task.id, ()) if member in ranks]
        spare = sorted(rank for member, rank in ranks.items() if member != owner)
        if sorted(standby_ranks) != spare[: len(standby_ranks)]:
            yield f"standby_not_next_most_caught_up {task.id}"


def _rank(group: Group, task: Task, member: MemberId, acceptable: int) -> float:
    """Return the lag of a member's copy of a task, 0 if it is acceptable.

    A member without a copy lacks the whole state, and an unknown lag is infinite.
    """
    lag = group.lags.get(member, {}).get(task.id, task.size)
    if lag is None:
        return float("inf")
    return 0 if lag <= acceptable else lag


def find_balance_violations(group: Group, last: Assignment) -> list[str]:
    """Return the balance properties that the last assignment of a settled group violates: more than one task per slot
    between any two members, for stateful tasks and for all tasks.
    """
    view = group.view()
    stateful = [last.owners[task.id] for task in group.tasks if task.kind == "stateful"]
    properties = []
    if spread_per_slot(view, stateful) > 1:
        properties.append("stateful_owners_not_balanced")
    if spread_per_slot(view, last.owners.values()) > 1:
        properties.append("owners_not_balanced")
    return properties
