"""The command `riffle fork`."""

import click

from riffle_spark.console.options import check_root, root_options, show_offsets, show_plan, usage_errors
from riffle_spark.settings import Settings


@click.command("fork")
@root_options
@click.argument("new_root", metavar="NEW_ROOT", callback=check_root)
@click.option("--at", metavar="BATCH|record:N", help="The retained batch to copy, or a record of the log.")
@click.option("--savepoint", metavar="NAME", help="The savepoint to copy.")
def fork_command(
    root: str,
    new_root: str,
    settings: Settings,
    execute: bool,
    as_json: bool,
    at: str | None,
    savepoint: str | None,
) -> None:
    """Copy the state of a batch or a savepoint to NEW_ROOT, so that another query starts from it.

    Give one of --at and --savepoint. The query below ROOT may run, and is not changed. While it runs, prefer a
    savepoint: a batch may be deleted before it is copied. If the command is interrupted, run it again. The state below
    NEW_ROOT belongs to no query until `riffle adopt` binds it.

    If both roots are in the same object store, that store copies the objects. Otherwise this machine downloads and
    uploads them.
    """
    from riffle_spark.offline.fork import fork
    from riffle_spark.offline.rollback_targets import parse_target
    from riffle_spark.worker.member_folders import options_of

    targets = [f"{kind}{text}" for kind, text in (("", at), ("savepoint:", savepoint)) if text is not None]
    if len(targets) != 1:
        raise click.UsageError("The batch is required, once.\n  What to do: Give one of --at and --savepoint.")
    with usage_errors():
        parse_target(targets[0])
    options = options_of(settings)
    plan = fork(root, new_root, targets[0], options=options, execute=execute)
    show_plan(plan, as_json=as_json)
    if not as_json:
        show_offsets(plan)
