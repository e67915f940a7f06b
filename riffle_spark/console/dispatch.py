"""The commands `riffle dispatch` and `riffle keys`."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from riffle_spark.console.options import root_options, show_plan, usage_errors, warn_if_running
from riffle_spark.errors import ConfigError
from riffle_spark.settings import DISPATCHES, Settings

if TYPE_CHECKING:
    from riffle_spark.offline.switch import PartitionOf


@click.command("dispatch")
@root_options
@click.option("--to", type=click.Choice(DISPATCHES), required=True, help="The new dispatch.")
@click.option(
    "--partition-of",
    metavar="MODULE:FUNCTION",
    help="A function that gets a pyarrow table of key columns, and returns one with the topic and partition of each "
    "key. Required if the dispatch was key_group.",
)
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="The new number of key-groups, or the new maximum number of partitions. By default it stays.",
)
def dispatch_command(
    root: str,
    settings: Settings,
    execute: bool,
    as_json: bool,
    to: str,
    partition_of: str | None,
    key_groups: int | None,
) -> None:
    """Switch a stopped query's state to another dispatch.

    The dispatch is how state is divided. `key_group` divides it by the hash of the key, `partition` and `hashed` by the
    partition of the source. With `hashed`, state is placed by a hash, without standbys. Start the query with the new
    setting afterwards.
    """
    from riffle_spark.offline.switch import switch_dispatch
    from riffle_spark.worker.member_folders import options_of

    with usage_errors():
        function: PartitionOf | None = load_function(partition_of, "--partition-of") if partition_of else None
    warn_if_running(root, options_of(settings))
    plan = switch_dispatch(
        root,
        to,
        options=options_of(settings),
        partition_of=function,
        key_groups=key_groups,
        execute=execute,
        encryption_keys=settings.encryption_keys,
    )
    show_plan(plan, as_json=as_json)


@click.command("keys")
@root_options
@click.option("--rewrite", is_flag=True, help="Write all state again with the newest key. The query must be stopped.")
def keys_command(root: str, settings: Settings, execute: bool, as_json: bool, rewrite: bool) -> None:
    """Show which keys encrypt the parts of a query's state."""
    from riffle_spark.offline.switch import switch_keys
    from riffle_spark.worker.member_folders import options_of

    if rewrite:
        warn_if_running(root, options_of(settings))
    plan = switch_keys(
        root,
        options=options_of(settings),
        encryption_keys=settings.encryption_keys,
        rewrite=rewrite,
        execute=execute,
    )
    show_plan(plan, as_json=as_json)


def load_function(path: str, option: str) -> Callable[..., Any]:
    """Return the function ``module:function``, also from the current folder. Raises ``ConfigError`` if there is no such
    function. ``option`` is the option that names it.
    """
    module, _, name = path.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"Cannot import {path!r}: {error!r}",
            remedy="Write it as module:function. Run the command in the folder of the module, or install it.",
            where=option,
            id="RIFFLE-0112",
        ) from error
    if not callable(function):
        raise ConfigError(f"{path!r} is not a function.", remedy="Name a function.", where=option, id="RIFFLE-0113")
    return function
