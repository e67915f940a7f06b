"""Compute the plans of `riffle plan` and show them as text."""

from typing import cast

from riffle_spark.assign.assignor import assign
from riffle_spark.printable import escape_unprintable
from riffle_spark.simulate.figures import Json, figures_of_assignment, figures_of_run
from riffle_spark.simulate.group import initial_group, run_scenario
from riffle_spark.simulate.scenario import Scenario

_WORDS = (("active", "owns"), ("standby", "standby"), ("warmup", "warms up"))


def plan_scenario(scenario: Scenario, converge: bool, history: bool, keep: bool) -> Json:
    """Return the assignment of a scenario, and with ``converge`` all rounds until nothing moves, as JSON.

    ``history`` adds every round's assignment. ``keep`` is whether members keep state that they no longer own.
    """
    group = initial_group(scenario)
    plan: Json = {
        "scenario": scenario.name,
        "family": scenario.family,
        "assignor": f"riffle_spark {scenario.settings.assignor}",
        "strategy": scenario.settings.rack_aware_assignment_strategy,
        "clients": len(scenario.clients),
        "tasks": len(scenario.tasks),
        "stateful_tasks": sum(task.kind == "stateful" for task in scenario.tasks),
        "num_standby": scenario.settings.num_standbys,
        "max_warmup": scenario.settings.max_warmup_replicas,
        "single": figures_of_assignment(scenario, group, assign(group.view(), scenario.settings)),
    }
    if converge:
        phases = run_scenario(scenario, keep=keep)
        plan["converge"] = figures_of_run(scenario, phases, keep=keep, history=history)
    return plan


def plan_text(plan: Json) -> str:
    """Return a plan as text."""
    single = cast(Json, plan["single"])
    lines = [f"{plan['scenario']}  ({plan['strategy']}, {plan['clients']} members, {plan['tasks']} tasks)"]
    lines += _assignment_lines(cast(Json, single["assignment"]))
    lines.append(f"  moves {_nonzero(single['moves']) or 'none'}")
    lines.append(f"  balance {_nonzero(single['balance']) or 'even'}")
    if single["probing_rebalance_needed"]:
        lines.append(f"  another rebalance follows: {single['probe_reason']}")
    lines += [f"  warning: {warning}" for warning in cast("list[str]", single["warnings"])]
    converge = cast("Json | None", plan.get("converge"))
    for phase in cast("list[Json]", converge["phases"]) if converge else []:
        event = f" after {_nonzero(phase['event'])}" if "event" in phase else ""
        state = "settled" if phase["converged"] else "not settled"
        lines.append(f"  {state}{event} in {phase['rounds']} rounds, {phase['net_stateful_active_moves']} owners moved")
        lines += _assignment_lines(cast(Json, phase["assignment"]))
    return "\n".join(map(escape_unprintable, lines))


def _assignment_lines(assignment: Json) -> list[str]:
    lines = []
    for member, member_tasks in assignment.items():
        tasks = cast("dict[str, list[str]]", member_tasks)
        parts = [f"{word} {','.join(tasks[key])}" for key, word in _WORDS if tasks[key]]
        lines.append(f"    {member}: {'  '.join(parts) or 'nothing'}")
    return lines


def _nonzero(figures: object) -> str:
    return ", ".join(f"{name} {value}" for name, value in cast(Json, figures).items() if value not in (0, 0.0, ""))
