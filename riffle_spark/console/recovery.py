"""The commands `riffle adopt` and `riffle rollback`."""

import click

from riffle_spark.console.options import (
    check_folder,
    check_location,
    checkpoint_option,
    root_options,
    show_offsets,
    show_plan,
    usage_errors,
    warn_if_running,
)
from riffle_spark.settings import DISPATCHES, Settings


@click.command("adopt")
@root_options
@checkpoint_option
@click.option("--empty", is_flag=True, help="Bind a root that holds no state.")
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="With --empty: the number of key-groups. By default key_groups of the settings file.",
)
@click.option(
    "--dispatch",
    type=click.Choice(DISPATCHES),
    help="With --empty: how state is divided (riffle dispatch --help). By default dispatch of the settings file.",
)
@click.option(
    "--previous",
    metavar="CHECKPOINT",
    callback=check_folder,
    help="With deliver_after_commit: the checkpointLocation of the previous query. It shows whether the sink has the "
    "output of the last batch.",
)
@click.option(
    "--delivered",
    is_flag=True,
    help="With deliver_after_commit: the sink has the output of the last batch, or does not need it.",
)
def adopt_command(  # noqa: PLR0913 - the command's options
    root: str,
    checkpoint: str,
    settings: Settings,
    execute: bool,
    as_json: bool,
    empty: bool,
    key_groups: int | None,
    dispatch: str | None,
    previous: str | None,
    delivered: bool,
) -> None:
    """Bind the state below a root to the query of another checkpoint.

    State belongs to the query of one checkpoint, and every other query is refused. After this command the query of
    --checkpoint continues from the state. It must start at the offsets that the command prints.
    """
    from riffle_spark.offline import recovery
    from riffle_spark.worker.member_folders import options_of

    check_location(checkpoint, options_of(settings))
    warn_if_running(root, options_of(settings))
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
    if not as_json:
        show_offsets(plan)


@click.command("rollback")
@root_options
@checkpoint_option
@click.option(
    "--to",
    metavar="BATCH|record:N",
    help="The batch to return to, or -1 for the state before the first batch. Or a record of the log, even one that an "
    "earlier rollback undid.",
)
@click.option(
    "--to-time",
    metavar="TIME",
    help="Return to the last batch that was committed by this time: an ISO time with its zone (2026-11-26T14:00:00Z), "
    "or a duration before now (15m).",
)
@click.option("--to-savepoint", metavar="NAME", help="Return to the batch of a savepoint.")
def rollback_command(
    root: str,
    checkpoint: str,
    settings: Settings,
    execute: bool,
    as_json: bool,
    to: str | None,
    to_time: str | None,
    to_savepoint: str | None,
) -> None:
    """Roll a query's state and Spark's offsets back to a retained batch or a savepoint, together.

    Stop the query first. Give one of --to, --to-time and --to-savepoint. `riffle log ROOT` lists the possible targets.
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
    options = options_of(settings)
    check_location(checkpoint, options)
    warn_if_running(root, options)
    show_plan(recovery.rollback(root, target, checkpoint, options=options, execute=execute), as_json=as_json)
