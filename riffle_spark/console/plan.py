"""The commands `riffle plan` and `riffle simulate`."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from riffle_spark.console.options import check_root, conf_file_option, echo, read_settings
from riffle_spark.errors import ConfigError
from riffle_spark.printable import escape_unprintable
from riffle_spark.unknown_names import check_known

if TYPE_CHECKING:
    from riffle_spark.assign.model import Strategy
    from riffle_spark.simulate.scenario import Scenario

STRATEGIES = ("none", "min_cost", "balance_subtopology")


@click.command("plan")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A scenario file, or a folder of them. May be given several times.",
)
@click.option("--add", default=0, type=click.IntRange(0), help="With ROOT: add this many members.")
@click.option("--add-rack", "add_racks", multiple=True, help="With --add: the racks of these members, in turn: A,B.")
@click.option("--drop", multiple=True, help="With ROOT: drop this member, executor or host.")
@click.option("--drop-rack", "drop_racks", multiple=True, help="With ROOT: drop all members of this rack.")
@click.option("--s3-endpoint", help="With ROOT: base URL of an S3-compatible server.")
@conf_file_option("With ROOT: the query's settings.")
@click.argument("arguments", metavar="[ROOT]", nargs=-1)
@click.option("--converge", is_flag=True, help="Continue round by round and event by event until nothing moves.")
@click.option("--history", is_flag=True, help="With --converge: add every round's assignment and the lags before it.")
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="Use this rack-aware strategy instead of the configured one.",
)
@click.option(
    "--owner-state",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Whether a member keeps state of tasks that it no longer owns.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file, each on one line.")
def plan_command(
    scenarios: tuple[Path, ...],
    arguments: tuple[str, ...],
    converge: bool,
    history: bool,
    strategy: str | None,
    owner_state: str,
    as_json: bool,
    **root_options: object,
) -> None:
    """Show the assignment of a scenario, or of a running query with changed members, and why."""
    from riffle_spark.console.plan_output import plan_scenario, plan_text

    keep = owner_state == "keep"
    paths = [Path(text) for text in arguments if text and Path(text).exists()]
    roots = [text for text in arguments if not text or not Path(text).exists()]
    if len(roots) > 1:
        raise click.UsageError(f"There are several roots: {', '.join(roots)}.\n  What to do: Give one of them.")
    root_options["root"] = check_root(None, None, roots[0] if roots else None)
    for scenario in _scenarios((*scenarios, *paths), strategy, root_options):
        plan = plan_scenario(scenario, converge or history or root_options["root"] is not None, history, keep)
        echo(json.dumps(plan) if as_json else plan_text(plan))
        if scenario.events and "converge" not in plan:
            echo(f"{scenario.name}: its events are left out. Use --converge to play them.", err=True)


def _scenarios(
    paths: tuple[Path, ...], strategy: str | None, root_options: Mapping[str, object]
) -> "Iterator[Scenario]":
    from riffle_spark.simulate.scenario import read_scenario

    root = cast("str | None", root_options["root"])
    if root_options["add_racks"] and not root_options["add"]:
        raise click.UsageError("--add-rack requires --add.")
    if (root is None) == (not paths):
        raise click.UsageError("Either ROOT or --scenario is required.")
    if root is None and any(root_options[name] for name in ("add", "add_racks", "drop", "drop_racks")):
        raise click.UsageError(
            "--add, --add-rack, --drop and --drop-rack require ROOT.\n"
            "  What to do: Write the changes of a scenario file as its `events`."
        )
    if root is None:
        yield from (read_scenario(path, strategy) for path in _files(paths))
        return
    from riffle_spark.offline.scenario_of_root import Changes, scenario_of_root
    from riffle_spark.worker.member_folders import options_of

    conf_file = cast(Path, root_options["conf_file"])
    settings = read_settings(conf_file, cast("str | None", root_options["s3_endpoint"]), assigns=True)
    names = cast("Mapping[str, tuple[str, ...]]", root_options)
    racks = tuple(rack.strip() for text in names["add_racks"] for rack in text.split(",") if rack.strip())
    changes = Changes(cast(int, root_options["add"]), names["drop"], names["drop_racks"], racks)
    scenario = scenario_of_root(root, settings, changes, options_of(settings))
    chosen = strategy or scenario.settings.rack_aware_assignment_strategy
    yield replace(
        scenario, settings=replace(scenario.settings, rack_aware_assignment_strategy=cast("Strategy", chosen))
    )


@click.command("simulate")
@click.argument("world_file", metavar="FILE")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="Simulate only this placement: riffle or spark. May be given several times.",
)
@click.option("--seed", type=click.IntRange(0), help="Use this seed instead of the file's.")
@click.option("--history", is_flag=True, help="With --json: add every batch's figures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per policy, each on one line.")
def simulate_command(
    world_file: str, policies: tuple[str, ...], seed: int | None, history: bool, as_json: bool
) -> None:
    """Simulate a cluster over time, with riffle_spark and with Spark's own placement of state.

    FILE describes the cluster, its load and its events in JSON (docs/simulator.md). Or it is the name of a file in the
    package: day, lost_member, rolling_bounce, scale_out, zone_outage.
    """
    from riffle_spark.simulate.outcomes import format_table, outcome_to_json
    from riffle_spark.simulate.play import play
    from riffle_spark.simulate.policy import POLICIES
    from riffle_spark.simulate.world_file import read_world

    if history and not as_json:
        raise click.UsageError("--history requires --json.")
    world = read_world(world_file, seed)
    check_known("policy", world.policies, POLICIES, source="the field policies", where=world_file)
    chosen = policies or world.policies or tuple(POLICIES)
    check_known("policy", chosen, POLICIES, source="--policy")
    outcomes = []
    batches = -int(-world.seconds // world.every) * len(chosen)
    with click.progressbar(length=batches, label=escape_unprintable(world.name), file=sys.stderr) as bar:
        for name in chosen:
            outcomes.append(play(world, POLICIES[name], lambda _: bar.update(1)))
    if as_json:
        for outcome in outcomes:
            echo(json.dumps(outcome_to_json(world, outcome, history=history)))
    else:
        echo(format_table(world, outcomes))


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.name.endswith((".json", ".json.gz")))
            if not files:
                raise ConfigError(
                    "The folder has no .json or .json.gz file.",
                    remedy="Name a folder of scenarios.",
                    where=str(path),
                    id="RIFFLE-0115",
                )
            yield from files
        else:
            yield path
