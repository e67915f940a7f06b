"""The command ``riffle``. Knows its verbs. Does not know how they work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from riffle_spark.console.plan import plan_command
from riffle_spark.errors import RiffleError
from riffle_spark.settings import Settings, from_sources

if TYPE_CHECKING:
    from riffle_spark.protocol.recovery import Plan

__all__ = ["main"]

_Command = TypeVar("_Command", bound=Callable[..., object])


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


def _of_a_root(command: _Command) -> _Command:
    for option in (
        click.option("--execute", is_flag=True, help="Do it; without this the plan is only shown."),
        click.option("--conf-file", type=click.Path(dir_okay=False, path_type=Path), default=Path("conf/riffle.toml"),
                     show_default=True, help="Settings of the store (endpoint, region, time-outs)."),
        click.option("--s3-endpoint", help="Base URL of an S3-compatible server."),
        click.option("--checkpoint", required=True, help="The query's checkpointLocation."),
        click.option("--root", required=True, help="Where the state is: s3://bucket/prefix or file:///path."),
    ):  # fmt: skip
        command = option(command)
    return command


def _settings(conf_file: Path, s3_endpoint: str | None) -> Settings:
    return from_sources(Settings(s3_endpoint=s3_endpoint) if s3_endpoint else None, {}, conf_file)


@main.command()
@_of_a_root
@click.option("--empty", is_flag=True, help="Begin with no state on purpose.")
def adopt(root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, empty: bool) -> None:
    """Bind the state below a root to the query of another checkpoint."""
    from riffle_spark.protocol import recovery
    from riffle_spark.worker.homes import options_of

    settings = _settings(conf_file, s3_endpoint)
    plan = recovery.adopt(
        root, checkpoint, options=options_of(settings), empty=empty, key_groups=settings.key_groups, execute=execute
    )
    _show(plan)
    if plan.offsets:
        click.echo(f"the state is at these offsets; the new query must start there:\n{plan.offsets}")


@main.command()
@_of_a_root
@click.option("--to", type=int, required=True, help="The batch to go back to; -1 is before the first.")
def rollback(root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, to: int) -> None:
    """Take a query's state and Spark's offsets back to a retained batch, together."""
    from riffle_spark.protocol import recovery
    from riffle_spark.worker.homes import options_of

    options = options_of(_settings(conf_file, s3_endpoint))
    _show(recovery.rollback(root, to, checkpoint, options=options, execute=execute))


def _show(plan: Plan) -> None:
    for step in plan.steps:
        click.echo(step)
    if not plan.executed:
        click.echo("nothing was done; add --execute to do it")


main.add_command(plan_command)
