"""`riffle plan` and `riffle simulate`: what would be done with a cluster in a file, or with that of a running query.
Knows files and output. Does not know rules.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import click

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Strategy
from riffle_spark.console.options import a_root, conf_file_option, echo, settings_in
from riffle_spark.errors import ConfigError
from riffle_spark.printable import escape_unprintable
from riffle_spark.simulate.figures import Json, converge_of, single_of
from riffle_spark.simulate.group import group_of, run
from riffle_spark.simulate.scenario import Scenario, read_scenario
from riffle_spark.unknown_names import check_known

__all__ = ["plan_command", "simulate_command"]

_A_QUERY = "The root of a query that runs, instead of a file: its members, owners and state."
_WORDS = (("active", "owns"), ("standby", "standby"), ("warmup", "warms up"))


@click.command("plan")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A scenario file, or a folder of them; may be given several times.",
)
@click.option("--root", callback=a_root, help=_A_QUERY)
@click.option("--add", default=0, type=click.IntRange(0), help="With --root: what if so many members join?")
@click.option("--add-rack", "add_racks", multiple=True, help="With --add: racks for them, in turn, also with commas.")
@click.option("--drop", multiple=True, help="With --root: what if this member, executor or host goes?")
@click.option("--drop-rack", "drop_racks", multiple=True, help="With --root: what if all of this rack go?")
@click.option("--s3-endpoint", help="With --root: base URL of an S3-compatible server.")
@conf_file_option("With --root: the query's settings.")
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, a file each.")
def plan_command(
    scenarios: tuple[Path, ...],
    more: tuple[Path, ...],
    converge: bool,
    history: bool,
    strategy: str | None,
    owner_state: str,
    as_json: bool,
    **asked: object,
) -> None:
    """Show who would own, keep and warm up what, and why: in files, or in a running query and what if."""
    keep = owner_state == "keep"
    for scenario in _scenarios((*scenarios, *more), strategy, asked):
        planned = _plan(scenario, converge or history or asked["root"] is not None, history, keep)
        echo(json.dumps(planned) if as_json else _text(planned))
        if scenario.events and "converge" not in planned:
            echo(f"{scenario.name}: its events are left out; --converge plays them", err=True)


def _scenarios(paths: tuple[Path, ...], strategy: str | None, asked: Mapping[str, object]) -> Iterator[Scenario]:
    """Read the files, or make a scenario of a root."""
    root, of_a_root = cast("str | None", asked["root"]), ("add", "add_racks", "drop", "drop_racks")
    if asked["add_racks"] and not asked["add"]:
        raise click.UsageError("--add-rack sets the racks of new members, but --add is missing: give --add N too")
    if (root is None) == (not paths):
        raise click.UsageError(
            "riffle plan needs --scenario or --root, and not both\n"
            "  What to do: name files (--scenario FILE), or the root of a query that has run (--root ROOT)"
        )
    if root is None and any(asked[name] for name in of_a_root):
        raise click.UsageError(
            "--add changes a root, and so do --add-rack, --drop and --drop-rack; --scenario names files\n"
            "  What to do: name a root (--root ROOT), or write the changes as `events` into the file"
        )
    if root is None:
        yield from (read_scenario(path, strategy) for path in _files(paths))
        return
    from riffle_spark.offline.scenario_of_root import Changes, scenario_of_root
    from riffle_spark.worker.member_folders import options_of

    settings = settings_in(cast(Path, asked["conf_file"]), cast("str | None", asked["s3_endpoint"]), assigns=True)
    named = cast("Mapping[str, tuple[str, ...]]", asked)
    into = tuple(rack.strip() for each in named["add_racks"] for rack in each.split(",") if rack.strip())
    changes = Changes(cast(int, asked["add"]), named["drop"], named["drop_racks"], into)
    scenario = scenario_of_root(root, settings, changes, options_of(settings))
    chosen = strategy or scenario.settings.rack_aware_assignment_strategy
    yield replace(scenario, settings=replace(scenario.settings, rack_aware_assignment_strategy=cast(Strategy, chosen)))


@click.command("simulate")
@click.argument("world_file", metavar="FILE")
@click.option("--policy", "policies", multiple=True, help="Play this one only; may be given several times.")
@click.option("--seed", type=click.IntRange(0), help="Another seed than the file's.")
@click.option("--history", is_flag=True, help="With --json: every batch's figures, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, a policy each.")
def simulate_command(
    world_file: str, policies: tuple[str, ...], seed: int | None, history: bool, as_json: bool
) -> None:
    """Simulate a cluster over time, with riffle_spark and with Spark's own placement of state.

    FILE is a world in JSON, or the name of a world in the package: day, lost_member, rolling_bounce, scale_out,
    zone_outage.
    """
    from riffle_spark.simulate.outcomes import json_of, table_of
    from riffle_spark.simulate.play import play
    from riffle_spark.simulate.policy import POLICIES
    from riffle_spark.simulate.rules import rules_of
    from riffle_spark.simulate.world_file import read_world

    if history and not as_json:
        raise ConfigError(
            "--history goes with --json", remedy="say both, or neither", where="riffle simulate", id="RIFFLE-0114"
        )
    world = read_world(world_file, seed)
    check_known("policy", world.policies, POLICIES, source="the field policies", where=world_file)
    chosen = policies or world.policies or tuple(POLICIES)
    check_known("policy", chosen, POLICIES, source="--policy")
    outcomes = []
    batches = -int(-world.seconds // world.every) * len(chosen)
    with click.progressbar(length=batches, label=escape_unprintable(world.name), file=sys.stderr) as bar:
        for name in chosen:
            outcomes.append(play(world, POLICIES[name], rules_of(world), lambda _: bar.update(1)))
    if as_json:
        for outcome in outcomes:
            echo(json.dumps(json_of(world, outcome, history=history)))
    else:
        echo(table_of(world, outcomes))


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.name.endswith((".json", ".json.gz")))
            if not found:
                raise ConfigError("the folder holds no .json or .json.gz file", where=str(path), id="RIFFLE-0115")
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
    lines.append(f"  moves {_flat(single['moves']) or 'none'}")
    lines.append(f"  balance {_flat(single['balance']) or 'even'}")
    if single["probing_rebalance_needed"]:
        lines.append(f"  to be continued: {single['probe_reason']}")
    lines += [f"  warning: {warning}" for warning in cast("list[str]", single["warnings"])]
    converge = cast("Json | None", planned.get("converge"))
    for phase in cast("list[Json]", converge["phases"]) if converge else []:
        event = f" after {_flat(phase['event'])}" if "event" in phase else ""
        state = "settled" if phase["converged"] else "not settled"
        lines.append(f"  {state}{event} in {phase['rounds']} rounds, {phase['net_stateful_active_moves']} owners moved")
        lines += _placed(cast(Json, phase["assignment"]))
    return "\n".join(map(escape_unprintable, lines))


def _placed(assignment: Json) -> list[str]:
    lines = []
    for member, held in assignment.items():
        tasks = cast("dict[str, list[str]]", held)
        parts = [f"{word} {','.join(tasks[key])}" for key, word in _WORDS if tasks[key]]
        lines.append(f"    {member}: {'  '.join(parts) or 'nothing'}")
    return lines


def _flat(figures: object) -> str:
    return ", ".join(f"{name} {value}" for name, value in cast(Json, figures).items() if value not in (0, 0.0, ""))
