"""The command ``riffle``. Knows its verbs. Does not know how they work."""

from pathlib import Path

import click

from riffle_spark.console.dispatch import dispatch_command
from riffle_spark.console.options import of_a_root, settings_in, show
from riffle_spark.console.plan import plan_command
from riffle_spark.errors import RiffleError

__all__ = ["main"]

_TO = "The batch to go back to, -1 is before the first; or a record of the log, also of a line that was given up."
_checkpoint = click.option("--checkpoint", required=True, help="The query's checkpointLocation.")


class _Group(click.Group):
    """Shows our errors as a sentence with its remedy, not as a traceback."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except RiffleError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
@click.version_option(package_name="riffle-spark")
def main() -> None:
    """Look after the state of riffle_spark queries."""


@main.command()
@of_a_root
@_checkpoint
@click.option("--empty", is_flag=True, help="Begin with no state on purpose.")
def adopt(root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, empty: bool) -> None:
    """Bind the state below a root to the query of another checkpoint."""
    from riffle_spark.offline import recovery
    from riffle_spark.worker.member_folders import options_of

    settings = settings_in(conf_file, s3_endpoint)
    plan = recovery.adopt(
        root, checkpoint, options=options_of(settings), empty=empty, key_groups=settings.key_groups,
        dispatch=settings.dispatch, execute=execute,
    )  # fmt: skip
    show(plan)
    if plan.offsets:
        click.echo(f"the state is at these offsets; the new query must start there:\n{plan.offsets}")


@main.command()
@of_a_root
@_checkpoint
@click.option("--to", required=True, metavar="BATCH|record:N", help=_TO)
def rollback(root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, to: str) -> None:
    """Take a query's state and Spark's offsets back to a retained batch, together."""
    from riffle_spark.offline import recovery
    from riffle_spark.worker.member_folders import options_of

    options = options_of(settings_in(conf_file, s3_endpoint))
    show(recovery.rollback(root, to, checkpoint, options=options, execute=execute))


main.add_command(dispatch_command)
main.add_command(plan_command)
