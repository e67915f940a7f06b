"""`riffle dispatch`: another dispatch, or another number of key-groups, for state that exists, and `riffle keys`. Knows
options and how to find a user's function. Does not know what a switch takes.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import called, of_a_root, settings_in, show
from riffle_spark.errors import ConfigError
from riffle_spark.settings import DISPATCHES

if TYPE_CHECKING:
    from riffle_spark.offline.switch import PartitionOf

__all__ = ["dispatch_command", "keys_command"]

_PARTITION_OF = "From a pyarrow table of key columns to one of topic and partition; needed from key_group."


@click.command("dispatch")
@of_a_root
@click.option("--to", type=click.Choice(DISPATCHES), required=True, help="The new dispatch.")
@click.option("--partition-of", metavar="MODULE:FUNCTION", help=_PARTITION_OF)
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="Another number of key-groups, or shards at most; else it stays.",
)
def dispatch_command(
    root: str, s3_endpoint: str | None, conf_file: Path, execute: bool, to: str, partition_of: str | None,
    key_groups: int | None,
) -> None:  # fmt: skip
    """Switch a stopped query's state to another dispatch."""
    from riffle_spark.offline.switch import switch_dispatch
    from riffle_spark.worker.member_folders import options_of

    settings = settings_in(conf_file, s3_endpoint)
    with called():
        function = named(partition_of) if partition_of else None
    plan = switch_dispatch(
        root, to, options=options_of(settings), partition_of=function, key_groups=key_groups, execute=execute,
        encryption_keys=settings.encryption_keys,
    )  # fmt: skip
    show(plan)


@click.command("keys")
@of_a_root
@click.option("--rewrite", is_flag=True, help="Write all state anew with the newest key; the query must be stopped.")
def keys_command(root: str, s3_endpoint: str | None, conf_file: Path, execute: bool, rewrite: bool) -> None:
    """Tell by which keys the parts of a query's state are encrypted."""
    from riffle_spark.offline.switch import switch_keys
    from riffle_spark.worker.member_folders import options_of

    settings = settings_in(conf_file, s3_endpoint)
    show(
        switch_keys(
            root, options=options_of(settings), encryption_keys=settings.encryption_keys, rewrite=rewrite,
            execute=execute,
        )
    )  # fmt: skip


def named(path: str) -> "PartitionOf":
    """Return what ``module:function`` names, looked for in the current folder too.

    Raises ``ConfigError`` if it names nothing that can be called.
    """
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: PartitionOf = getattr(import_module(module), name)
    except (Exception, SystemExit) as missing:
        raise ConfigError(
            f"no function is found at {path!r}: {missing!r}",
            remedy="write it as module:function, and run the command where the module is, or install it",
            where="--partition-of",
            id="RIFFLE-0112",
        ) from missing
    if not callable(found):
        raise ConfigError(
            f"{path!r} cannot be called", remedy="name a function", where="--partition-of", id="RIFFLE-0113"
        )
    return found
