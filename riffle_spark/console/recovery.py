"""The commands `riffle adopt` and `riffle rollback`."""

from pathlib import Path

import click

from riffle_spark.console.options import (
    check_folder,
    check_location,
    checkpoint_option,
    echo,
    read_settings,
    root_options,
    show_plan,
    usage_errors,
)
from riffle_spark.settings import DISPATCHES

__all__ = ["adopt_command", "rollback_command"]


@click.command("adopt")
@root_options
@checkpoint_option
@click.option("--empty", is_flag=True, help="Start without state.")
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="With --empty: the number of key-groups. By default that of the settings file.",
)
@click.option("--dispatch", type=click.Choice(DISPATCHES), help="With --empty: the dispatch. By default the file's.")
@click.option(
    "--previous",
    metavar="CHECKPOINT",
    callback=check_folder,
    help="With deliver_after_commit: checkpoint of the previous query. It shows whether output was delivered.",
)
@click.option("--delivered", is_flag=True, help="Sealed output was delivered, or is not needed.")
def adopt_command(  # noqa: PLR0913 - the command's options
    root: str,
    checkpoint: str,
    s3_endpoint: str | None,
    conf_file: Path,
    execute: bool,
    as_json: bool,
    empty: bool,
    key_groups: int | None,
    dispatch: str | None,
    previous: str | None,
    delivered: bool,
) -> None:
    """Bind the state below a root to the query of another checkpoint."""
    from riffle_spark.offline import recovery
    from riffle_spark.worker.member_folders import options_of

    settings = read_settings(conf_file, s3_endpoint)
    check_location(checkpoint, options_of(settings))
    plan = recovery.adopt(
        root,
        checkpoint,
        options=options_of(settings),
        empty=empty,
        key_groups=settings.key_groups if key_groups is None else key_groups,
        dispatch=dispatch or settings.dispatch,
        delivered=delivered or previous or False,
        execute=execute,
    )
    show_plan(plan, as_json=as_json)
    if plan.offsets and not as_json:
        echo(f"The state is at these offsets. The new query must start there:\n{plan.offsets}")


@click.command("rollback")
@root_options
@checkpoint_option
@click.option(
    "--to",
    metavar="BATCH|record:N",
    help="The batch to return to, -1 for the state before the first. Or a record of the log, also one that an earlier "
    "rollback gave up.",
)
@click.option(
    "--to-time",
    metavar="TIME",
    help="Return to the last batch that was committed by this time: an ISO time with its zone (2026-11-26T14:00:00Z), "
    "or a duration before now (15m).",
)
@click.option("--to-savepoint", metavar="NAME", help="Return to the batch of a savepoint.")
def rollback_command(  # noqa: PLR0913 - the command's options
    root: str,
    checkpoint: str,
    s3_endpoint: str | None,
    conf_file: Path,
    execute: bool,
    as_json: bool,
    to: str | None,
    to_time: str | None,
    to_savepoint: str | None,
) -> None:
    """Roll a query's state and Spark's offsets back to a retained batch or a savepoint, together.

    Give one of --to, --to-time and --to-savepoint. `riffle log ROOT` lists what is possible.
    """
    from riffle_spark.offline import recovery
    from riffle_spark.offline.rollback_targets import parse_target
    from riffle_spark.worker.member_folders import options_of

    options_given = (("", to), ("time:", to_time), ("savepoint:", to_savepoint))
    targets = [f"{kind}{text}" for kind, text in options_given if text is not None]
    if len(targets) != 1:
        raise click.UsageError(
            "The target is required, once.\n  What to do: Give one of --to, --to-time and --to-savepoint."
        )
    target = targets[0]
    with usage_errors():
        parse_target(target)
    options = options_of(read_settings(conf_file, s3_endpoint))
    check_location(checkpoint, options)
    show_plan(recovery.rollback(root, target, checkpoint, options=options, execute=execute), as_json=as_json)
