"""Options and output that the commands share."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from riffle_spark.errors import ConfigError, RefusedError, RiffleError
from riffle_spark.printable import LINE_BREAKS, escape_unprintable
from riffle_spark.settings import Settings, from_sources

if TYPE_CHECKING:
    from riffle_spark.offline.recovery import Plan
    from riffle_spark.state.objects.options import StoreOptions

UNREACHABLE = 3
"""Exit code if a store cannot be reached or read, so that nothing is known about the state."""
STOP_FIRST = "Stop the query first."
"""The remedy if a query runs that the command would fence."""
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


def check_root(_context: click.Context | None, _parameter: click.Parameter | None, root: str | None) -> str | None:
    """Refuse text that is not a root."""
    from riffle_spark.state.objects.open import normalised

    with usage_errors():
        if root is not None:
            normalised(root)
    return root


def check_location(checkpoint: str, options: "StoreOptions") -> None:
    """Refuse a checkpoint on an unknown file system."""
    from riffle_spark.offline.checkpoint import Checkpoint

    with usage_errors():
        Checkpoint(checkpoint, options).find_query_id()


def check_folder(_context: click.Context, _parameter: click.Parameter, folder: str | None) -> str | None:
    """Refuse an empty text, the value of an unset shell variable."""
    if folder is not None and not folder.strip():
        raise click.UsageError(
            f"The checkpoint {folder!r} has no folder in its path.\n  What to do: Give the checkpointLocation."
        )
    return folder


def root_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument ``ROOT``, which the command gets as ``root``.

    The command raises a usage error without it.
    """

    @click.argument("root", metavar="ROOT", required=False, callback=check_root)
    @wraps(command)
    def with_root(*, root: str | None, **options: object) -> None:
        if root is None:
            raise click.UsageError(
                "The root is required.\n"
                "  What to do: Name the place of the state, such as s3://bucket/prefix, as the first argument."
            )
        command(root=root, **options)

    return with_root


def root_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``ROOT``, ``--s3-endpoint``, ``--conf-file``, ``--execute`` and ``--json``."""
    execute = click.option("--execute", is_flag=True, help="Execute the steps. Without it they are only printed.")
    return root_argument(store_options(execute(json_option(command))))


def json_option(command: _Command) -> _Command:
    """Add ``--json``, which the command gets as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--s3-endpoint`` and ``--conf-file``. The command gets their ``settings``."""

    @click.option("--s3-endpoint", help="Base URL of an S3-compatible server.")
    @conf_file_option("A settings file, with the endpoint, region and time-outs of the object store.")
    @wraps(command)
    def with_settings(*, s3_endpoint: str | None, conf_file: Path, **options: object) -> None:
        command(settings=read_settings(conf_file, s3_endpoint), **options)

    return with_settings


def checkpoint_option(command: _Command) -> _Command:
    """Add ``--checkpoint``."""
    help_text = "The query's checkpointLocation."
    return click.option("--checkpoint", required=True, callback=check_folder, help=help_text)(command)


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


def show_plan(plan: "Plan", *, as_json: bool) -> None:
    """Print a plan's steps, whether they were executed, and what to do then."""
    if as_json:
        echo(json.dumps({"executed": plan.executed, "steps": list(plan.steps), "offsets": plan.offsets}))
        return
    for step in plan.steps:
        echo(escape_unprintable(step))
    if not plan.executed:
        echo("Nothing was changed. Add --execute to execute these steps.")
    elif plan.next_step:
        echo(escape_unprintable(f"Done: the steps above were executed. {plan.next_step}"))


def show_offsets(plan: "Plan") -> None:
    """Print the offsets at which a new query must start, a line per source. Spark's other lines are left out."""
    from riffle_spark.protocol.source_lag import offsets_of_entry

    if plan.offsets:
        lines = "\n".join(offsets_of_entry(plan.offsets) or [plan.offsets])
        echo(f"The state is at these offsets, one line per source. The new query must start there:\n{lines}")


def warn_if_running(root: str, options: "StoreOptions", remedy: str = STOP_FIRST) -> None:
    """Warn on standard error if the query below a root runs by its status. The command's record would fence it."""
    from riffle_spark.observe.units import show_duration
    from riffle_spark.offline.root_status import read_status

    try:
        state = read_status(root, options)
    except RiffleError:
        return  # The command itself reports what is wrong with the root.
    if state.health in ("ok", "behind", "paused"):
        # Cause: The status of the driver is fresh, and says neither that the query has stopped nor that it has failed.
        echo(
            f"[RIFFLE-1783] The query runs: its status is {show_duration(state.status_age or 0.0)} old. The steps of "
            f"this command stop it with an error.\n  What to do: {remedy}",
            err=True,
        )


def echo(text: object, *, err: bool = False) -> None:
    """Print text with unprintable characters escaped."""
    click.echo(escape_unprintable(str(text), LINE_BREAKS), err=err)  # noqa: TID251 - the one place
