"""Options and output that the commands share."""

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

__all__ = [
    "check_folder",
    "check_root",
    "conf_file_option",
    "echo",
    "read_settings",
    "required_root",
    "root_option",
    "root_options",
    "show_plan",
    "store_options",
    "usage_errors",
]

_Command = TypeVar("_Command", bound=Callable[..., object])


@contextmanager
def usage_errors() -> Iterator[None]:
    """Convert a ``ConfigError`` of the command's arguments to a usage error of click, which ends with code 2."""
    try:
        yield
    except RefusedError:
        raise
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def check_root(_context: click.Context, _parameter: click.Parameter, root: str | None) -> str | None:
    """Refuse text that is not a root."""
    from riffle_spark.state.objects.open import normalised

    with usage_errors():
        if root is not None:
            normalised(root)
    return root


def check_folder(_context: click.Context, _parameter: click.Parameter, folder: str | None) -> str | None:
    """Refuse an empty text, the value of an unset shell variable."""
    if folder is not None and not folder.strip():
        raise click.UsageError(
            f"The checkpoint {folder!r} has no folder in its path.\n  What to do: Give the checkpointLocation."
        )
    return folder


def root_options(command: _Command) -> _Command:
    """Add ``--root``, ``--s3-endpoint``, ``--conf-file`` and ``--execute``."""
    execute = click.option("--execute", is_flag=True, help="Change the root. Without it the plan is only shown.")
    where = "Where the state is stored, such as s3://bucket/prefix or file:///path."
    return click.option("--root", required=True, callback=check_root, help=where)(store_options(execute(command)))


def root_option(command: _Command) -> _Command:
    """Add ``--root``, which earlier versions took as an argument."""
    where = "Where the state is stored, such as s3://bucket/prefix or file:///path.  [required]"
    argument = click.argument("root_argument", metavar="", required=False, callback=check_root)
    return click.option("--root", callback=check_root, help=where)(argument(command))


def required_root(root: str | None, root_argument: str | None) -> str:
    """Return the root of ``root_option``."""
    if (root is None) == (root_argument is None):
        raise click.UsageError("--root is required.\n  What to do: Give the root once.")
    return root or root_argument or ""


def store_options(command: _Command) -> _Command:
    """Add ``--s3-endpoint`` and ``--conf-file``."""
    command = conf_file_option("Settings of the store (endpoint, region, time-outs).")(command)
    return click.option("--s3-endpoint", help="Base URL of an S3-compatible server.")(command)


def conf_file_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds ``--conf-file``. Only the default file may be missing."""
    default = Path("conf/riffle.toml")
    return click.option(
        "--conf-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"{help_text}  [default: {default}]",
        callback=lambda _context, _parameter, path: path or default,
    )


def read_settings(conf_file: Path, s3_endpoint: str | None, *, assigns: bool = False) -> Settings:
    """Return the settings of the file, with the endpoint of the command line.

    Unless the command ``assigns``, settings that need SciPy are left out.
    """
    with usage_errors():
        options = Settings() if s3_endpoint is None else Settings(s3_endpoint=s3_endpoint)
        if not assigns:
            options = options.but(rack_aware_assignment_strategy="none")
        return from_sources(options, {}, conf_file)


def show_plan(plan: "Plan") -> None:
    """Print a plan's steps, and whether they were executed."""
    for step in plan.steps:
        echo(escape_unprintable(step))
    if not plan.executed:
        echo("Nothing was changed. Add --execute to execute these steps.")


def echo(text: object, *, err: bool = False) -> None:
    """Print text with unprintable characters escaped."""
    click.echo(escape_unprintable(str(text), LINE_BREAKS), err=err)  # noqa: TID251 - the one place
