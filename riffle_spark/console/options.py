"""What commands on a root share: options, the store's settings, showing a plan. Knows click. Does not know verbs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from riffle_spark.errors import ConfigError, RefusedError
from riffle_spark.printable import LINE_BREAKS, escape_unprintable
from riffle_spark.settings import Settings, from_sources

if TYPE_CHECKING:
    from riffle_spark.offline.recovery import Plan

__all__ = ["a_folder", "a_root", "called", "conf_file_option", "echo", "of_a_root", "of_a_store", "settings_in", "show"]

_Command = TypeVar("_Command", bound=Callable[..., object])


@contextmanager
def called() -> Iterator[None]:
    """Have what is wrong with the call itself end as click's own checks do, with 2: of the state nothing is known."""
    try:
        yield
    except RefusedError:
        raise
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def a_root(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    """Let through what can be a root."""
    from riffle_spark.state.objects.open import normalised

    with called():
        if given is not None:
            normalised(given)
    return given


def a_folder(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    """Let through what is not empty, as a variable is that was not set."""
    if given is not None and not given.strip():
        raise click.UsageError(f"{given!r} names no folder\n  What to do: give that of checkpointLocation")
    return given


def of_a_root(command: _Command) -> _Command:
    """Add ``--root``, ``--s3-endpoint``, ``--conf-file`` and ``--execute``."""
    command = click.option("--execute", is_flag=True, help="Do it; without this the plan is only shown.")(command)
    where = "Where the state is: s3://bucket/prefix or file:///path."
    return click.option("--root", required=True, callback=a_root, help=where)(of_a_store(command))


def of_a_store(command: _Command) -> _Command:
    """Add ``--s3-endpoint`` and ``--conf-file``."""
    command = conf_file_option("Settings of the store (endpoint, region, time-outs).")(command)
    return click.option("--s3-endpoint", help="Base URL of an S3-compatible server.")(command)


def conf_file_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return what adds ``--conf-file``, by default the file that lies beside the apps: only that one may be missing."""
    kind, default = click.Path(exists=True, dir_okay=False, path_type=Path), Path("conf/riffle.toml")
    return click.option(
        "--conf-file", type=kind, help=f"{help_text}  [default: {default}]",
        callback=lambda _, __, given: given or default,
    )  # fmt: skip


def settings_in(conf_file: Path, s3_endpoint: str | None, *, assigns: bool = False) -> Settings:
    """Return the settings of the file, with the endpoint of the command line.

    A command that ``assigns`` nothing leaves out the settings that need SciPy, so that it runs without SciPy.
    """
    with called():
        own = Settings() if s3_endpoint is None else Settings(s3_endpoint=s3_endpoint)
        if not assigns:
            own = own.but(rack_aware_assignment_strategy="none")
        return from_sources(own, {}, conf_file)


def show(plan: "Plan") -> None:
    """Print a plan's steps, and whether they were taken."""
    for step in plan.steps:
        echo(escape_unprintable(step))
    if not plan.executed:
        echo("nothing was done; add --execute to do it")


def echo(text: object, *, err: bool = False) -> None:
    """Print a text in printable characters, as commands print all that they say."""
    click.echo(escape_unprintable(str(text), LINE_BREAKS), err=err)  # noqa: TID251 - the one place
