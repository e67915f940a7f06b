"""The commands `riffle state delete` and `riffle state set`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from riffle_spark.console.options import check_folder, echo, read_settings, root_options, show_plan, usage_errors
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.offline.recovery import Plan
    from riffle_spark.offline.state_edits import Editor, KeyChoice

__all__ = ["delete_command", "set_command"]

_WAIT_SECONDS = 60.0
_Command = TypeVar("_Command", bound=Callable[..., None])


def _edit_options(command: _Command) -> _Command:
    """Add ``--store``, ``--variable`` and ``--reason``."""
    command = click.option(
        "--reason", required=True, metavar="TEXT", help="Why, at most 200 characters. The log keeps it: no keys."
    )(command)
    command = click.option("--variable", default="", help="A variable of a processor.")(command)
    command = click.option(
        "--request",
        is_flag=True,
        help="Request it from the running query (control = on), and wait 60 s for the answer.",
    )(command)
    return click.option("--store", required=True, help="The store of the keys (riffle stores ROOT).")(command)


@click.command("delete")
@root_options
@_edit_options
@click.option("--key", help="The key as JSON, text of a single text column as it is.")
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Parquet file with a row per key. Its columns are those of the key.",
)
@click.option("--purge", is_flag=True, help="Remove the keys from all objects and local files too. Nothing undoes it.")
@click.option("--delivered", is_flag=True, help="With --purge: sealed output was delivered, or is not needed.")
@click.option(
    "--checkpoint",
    callback=check_folder,
    help="With --purge and deliver_after_commit: the checkpointLocation. It shows whether output was delivered.",
)
def delete_command(  # noqa: PLR0913 - the command's options
    root: str,
    s3_endpoint: str | None,
    conf_file: Path,
    execute: bool,
    as_json: bool,
    store: str,
    variable: str,
    reason: str,
    request: bool,
    key: str | None,
    keys_file: Path | None,
    purge: bool,
    delivered: bool,
    checkpoint: str | None,
) -> None:
    """Delete keys from a store of a stopped query, with all their variables and timers.

    KEY is the text of a single text column. Other keys are JSON: 42, or for several columns [42, "a"] or {"id": 42,
    "name": "a"}. Bytes are {"base64": "AAEC"}. The null key of a text column is [null]. A rollback to the record before
    undoes the deletion.

    With --purge, for example for requests of erasure, all earlier versions end and their objects are deleted. Local
    copies on this machine are deleted too, and those of other hosts at the next start of the query.
    """
    from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys
    from riffle_spark.worker.member_folders import options_of

    if (key is None) == (keys_file is None):
        raise click.UsageError("Either --key or --keys is required.")
    if (purge and variable) or ((delivered or checkpoint) and not purge):
        raise click.UsageError("--delivered and --checkpoint require --purge, and --variable excludes it.")
    with usage_errors():
        editor = Editor.of_process(reason, key)
    settings = read_settings(conf_file, s3_endpoint)
    if request:
        if key is None or purge:
            raise click.UsageError("--request requires --key, and excludes --purge.")
        _request(root, settings, (store, key, None, editor, variable), execute=execute, as_json=as_json)
        return
    keys = KeyChoice(key, keys_file)
    if purge:
        plan = _purge(root, settings, store, keys, editor, delivered or checkpoint or False, execute=execute)
    else:
        plan = delete_keys(
            root,
            store,
            keys,
            editor,
            variable=variable,
            options=options_of(settings),
            encryption_keys=settings.encryption_keys,
            execute=execute,
        )
    show_plan(plan, as_json=as_json)


def _request(
    root: str,
    settings: Settings,
    change: "tuple[str, str, str | None, Editor, str]",
    *,
    execute: bool,
    as_json: bool,
) -> None:
    """Request a change from the running query, and show the answer. ``change`` are arguments of ``request_edit``."""
    from riffle_spark.console.steering import show_answer
    from riffle_spark.offline.requested_edits import request_edit
    from riffle_spark.offline.steering import Mailroom
    from riffle_spark.worker.member_folders import options_of

    mailroom = Mailroom(root, options_of(settings))
    request = request_edit(mailroom, *change, execute=execute)
    if request is None:
        echo("The change fits the store. Add --execute to request it.")
    else:
        show_answer(mailroom, request, _WAIT_SECONDS, as_json=as_json)


def _purge(
    root: str,
    settings: Settings,
    store: str,
    keys: "KeyChoice",
    editor: "Editor",
    delivered: bool | str,
    *,
    execute: bool,
) -> "Plan":
    """Purge keys, from local copies on this machine too; return the plan."""
    from riffle_spark.offline.purge import purge_keys
    from riffle_spark.state.copies.disk import default_local_dir
    from riffle_spark.worker.member_folders import executor_environment, options_of

    return purge_keys(
        root,
        store,
        keys,
        editor,
        options=options_of(settings),
        encryption_keys=settings.encryption_keys,
        local_dir=settings.local_dir or default_local_dir(executor_environment()),
        delivered=delivered,
        execute=execute,
    )


@click.command("set")
@root_options
@_edit_options
@click.option("--key", required=True, help="The key as JSON, text of a single text column as it is.")
@click.option("--value", required=True, help="JSON: an object by column, or the value of the variable.")
def set_command(  # noqa: PLR0913 - the command's options
    root: str,
    s3_endpoint: str | None,
    conf_file: Path,
    execute: bool,
    as_json: bool,
    store: str,
    variable: str,
    reason: str,
    request: bool,
    key: str,
    value: str,
) -> None:
    """Set the value of a key in a store of a stopped query.

    KEY is as for riffle state delete. VALUE is a JSON object by state column; columns that it omits stay. The value of
    a variable is an object by field, a list of them, or for a map a list of [key, value] pairs. A rollback to the
    record before undoes it.
    """
    from riffle_spark.offline.state_edits import Editor, set_value
    from riffle_spark.worker.member_folders import options_of

    with usage_errors():
        editor = Editor.of_process(reason, key)
    settings = read_settings(conf_file, s3_endpoint)
    if request:
        _request(root, settings, (store, key, value, editor, variable), execute=execute, as_json=as_json)
        return
    plan = set_value(
        root,
        store,
        key,
        value,
        editor,
        variable=variable,
        options=options_of(settings),
        encryption_keys=settings.encryption_keys,
        execute=execute,
    )
    show_plan(plan, as_json=as_json)
