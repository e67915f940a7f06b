"""`riffle plan`: what the assignor would do with a cluster in a file. Knows files and output. Does not know rules."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import click

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Strategy
from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.simulate.figures import Json, converge_of, single_of
from riffle_spark.simulate.group import group_of, run
from riffle_spark.simulate.scenario import Scenario, read_scenario

__all__ = ["plan_command"]

_WORDS = (("active", "owns"), ("standby", "standby"), ("warmup", "warms up"))


@click.command("plan")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="A scenario file, or a folder of them; may be given several times.",
)
@click.argument("more", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--converge", is_flag=True, help="Go on, round by round and event by event, until nothing moves.")
@click.option("--history", is_flag=True, help="With --converge: every round's assignment and the lags before it.")
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    help="Use this rack-aware strategy instead of the file's.",
)
@click.option(
    "--owner-state",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Whether a member keeps state that it was told to let go of.",
)
@click.option("--no-store-balance", is_flag=True, help="Balance members only, not the tasks of each store.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, a file each.")
def plan_command(
    scenarios: tuple[Path, ...],
    more: tuple[Path, ...],
    converge: bool,
    history: bool,
    strategy: str | None,
    owner_state: str,
    no_store_balance: bool,
    as_json: bool,
) -> None:
    """Show who would own, keep and warm up what, and why."""
    keep = owner_state == "keep"
    try:
        for path in _files((*scenarios, *more)):
            scenario = read_scenario(path, strategy)
            if no_store_balance:
                scenario = replace(scenario, settings=replace(scenario.settings, store_balance=0.0))
            planned = _plan(scenario, converge or history, history, keep)
            click.echo(json.dumps(planned) if as_json else _text(planned))
    except RiffleError as error:
        raise click.ClickException(str(error)) from error


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.name.endswith((".json", ".json.gz")))
            if not found:
                raise ConfigError("the folder holds no .json or .json.gz file", where=str(path))
            yield from found
        else:
            yield path


def _plan(scenario: Scenario, converge: bool, history: bool, keep: bool) -> Json:
    group = group_of(scenario)
    planned: Json = {
        "scenario": scenario.name,
        "family": scenario.family,
        "assignor": f"riffle_spark {scenario.settings.assignor}",
        "strategy": scenario.settings.rack_aware_assignment_strategy,
        "clients": len(scenario.clients),
        "tasks": len(scenario.tasks),
        "stateful_tasks": sum(task.kind == "stateful" for task in scenario.tasks),
        "num_standby": scenario.settings.num_standbys,
        "max_warmup": scenario.settings.max_warmup_replicas,
        "single": single_of(scenario, group, assign(group.view(), scenario.settings)),
    }
    if converge:
        phases = run(scenario, keep=keep)
        planned["converge"] = converge_of(scenario, phases, keep=keep, history=history)
    return planned


def _text(planned: Json) -> str:
    single = cast(Json, planned["single"])
    lines = [f"{planned['scenario']}  ({planned['strategy']}, {planned['clients']} members, {planned['tasks']} tasks)"]
    lines += _placed(cast(Json, single["assignment"]))
    lines.append(f"  moves {_flat(single['moves'])}")
    lines.append(f"  balance {_flat(single['balance'])}")
    if single["probing_rebalance_needed"]:
        lines.append(f"  to be continued: {single['probe_reason']}")
    lines += [f"  warning: {warning}" for warning in cast("list[str]", single["warnings"])]
    converge = cast("Json | None", planned.get("converge"))
    for phase in cast("list[Json]", converge["phases"]) if converge else []:
        event = f" after {_flat(phase['event'])}" if "event" in phase else ""
        state = "settled" if phase["converged"] else "not settled"
        lines.append(f"  {state}{event} in {phase['rounds']} rounds, {phase['net_stateful_active_moves']} owners moved")
        lines += _placed(cast(Json, phase["assignment"]))
    return "\n".join(lines)


def _placed(assignment: Json) -> list[str]:
    lines = []
    for member, held in assignment.items():
        tasks = cast("dict[str, list[str]]", held)
        parts = [f"{word} {','.join(tasks[key])}" for key, word in _WORDS if tasks[key]]
        lines.append(f"    {member}: {'  '.join(parts) or 'nothing'}")
    return lines


def _flat(figures: object) -> str:
    return ", ".join(f"{name} {value}" for name, value in cast(Json, figures).items() if value not in (0, 0.0, ""))
