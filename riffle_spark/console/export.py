"""The commands `riffle export` and `riffle state load`."""

import json

import click

from riffle_spark.console.options import (
    echo,
    json_option,
    root_argument,
    root_options,
    show_plan,
    store_options,
    usage_errors,
)
from riffle_spark.settings import Settings


@click.command("export")
@root_argument
@click.option("--store", required=True, help="The store to export (riffle stores ROOT).")
@click.option("--to", required=True, metavar="PATH", help="An empty folder: a local path or a URL of an object store.")
@store_options
@json_option
def export_command(root: str, settings: Settings, as_json: bool, store: str, to: str) -> None:
    """Export the newest state of a store to Parquet files, which are not encrypted.

    The command only reads the root, also while the query runs. `riffle state load` loads the files.

    Exit code 1: the root has no such store, or the folder is not empty. 3: an object store cannot be reached or read.
    """
    from riffle_spark.offline.export import export_state
    from riffle_spark.worker.member_folders import options_of

    exported = export_state(root, store, to, options=options_of(settings), encryption_keys=settings.encryption_keys)
    if as_json:
        echo(
            json.dumps(
                {
                    "root": root,
                    "store": store,
                    "to": to,
                    "version": exported.version,
                    "files": exported.files,
                    "rows": exported.rows,
                    "bytes": exported.bytes,
                }
            )
        )
        return
    echo(
        f"Wrote {exported.rows} rows of store {store!r} as of batch {exported.version}: {exported.files} files, "
        f"{exported.bytes} bytes."
    )


@click.command("load")
@root_options
@click.option("--from", "source", required=True, metavar="PATH", help="The folder of an export.")
@click.option("--store", help="The name of the new store. By default that of the exported one.")
@click.option(
    "--reason",
    required=True,
    metavar="TEXT",
    help="Why the state is loaded, in at most 200 characters. The log keeps the text.",
)
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="The number of key-groups of a new root. By default key_groups of the settings file.",
)
def load_command(
    root: str,
    settings: Settings,
    execute: bool,
    as_json: bool,
    source: str,
    store: str | None,
    reason: str,
    key_groups: int | None,
) -> None:
    """Load an exported store into a new root, or into the root of a stopped query that lacks the store.

    `riffle export` writes such files.
    """
    from riffle_spark.offline.export import load_state
    from riffle_spark.offline.state_edits import Editor
    from riffle_spark.worker.member_folders import options_of

    with usage_errors():
        editor = Editor.of_process(reason)
    plan = load_state(
        root,
        source,
        editor,
        store=store,
        key_groups=key_groups or settings.key_groups,
        options=options_of(settings),
        encryption_keys=settings.encryption_keys,
        execute=execute,
    )
    show_plan(plan, as_json=as_json)
