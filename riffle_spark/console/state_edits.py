"""The commands `riffle state delete` and `riffle state set`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from riffle_spark.console.options import (
    STOP_FIRST,
    check_folder,
    echo,
    root_options,
    show_plan,
    usage_errors,
    warn_if_running,
)
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.offline.recovery import Plan
    from riffle_spark.offline.state_edits import Editor, KeyChoice

_WAIT_SECONDS = 60.0
_STOP_OR_REQUEST = "Stop the query first, or let it change one key itself (--request, with control = on)."
_Command = TypeVar("_Command", bound=Callable[..., None])


def _edit_options(command: _Command) -> _Command:
    command = click.option(
        "--reason",
        required=True,
        metavar="TEXT",
        help="Why the state is changed, in at most 200 characters. The log keeps the text, so name no keys in it.",
    )(command)
    command = click.option("--variable", default="", help="Change only this state variable of a StatefulProcessor.")(
        command
    )
    command = click.option(
        "--request",
        is_flag=True,
        help="Let the running query make the change, and wait 60 s for its answer. The query needs control = on.",
    )(command)
    return click.option("--store", required=True, help="The store of the keys (riffle stores ROOT).")(command)


@click.command("delete")
@root_options
@_edit_options
@click.option("--key", help="The key: plain text for a single text column, otherwise JSON.")
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Parquet file with the columns of the key, and one row per key.",
)
@click.option("--purge", is_flag=True, help="Also remove the keys from all earlier batches. This cannot be undone.")
@click.option(
    "--delivered",
    is_flag=True,
    help="With --purge and deliver_after_commit: the sink has the output of the last batch, or does not need it.",
)
@click.option(
    "--checkpoint",
    callback=check_folder,
    help="With --purge and deliver_after_commit: the query's checkpointLocation. It shows whether the sink has the "
    "output of the last batch.",
)
def delete_command(  # noqa: PLR0913 - the command's options
    root: str,
    settings: Settings,
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

    A key is plain text if it is a single text column. Other keys are JSON, such as 42. A key of several columns is
    [42, "a"] or {"id": 42, "name": "a"}. Bytes are {"base64": "AAEC"}. The null key of a text column is [null]. To undo
    the deletion, roll back to the record before it.

    With --purge the keys are erased, for example because a user demands it. The command deletes all earlier batches and
    all savepoints, so no rollback is possible. It also deletes local copies on this machine. Other hosts delete theirs
    when the query starts there again.
    """
    from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys
    from riffle_spark.worker.member_folders import options_of

    _check_keys(key, keys_file, request=request, purge=purge)
    _check_purge(variable, purge=purge, names_delivery=delivered or checkpoint is not None)
    with usage_errors():
        editor = Editor.of_process(reason, key)
    if request:
        assert key is not None, "the options are checked"
        _request(root, settings, (store, key, None, editor, variable), execute=execute, as_json=as_json)
        return
    keys = KeyChoice(key, keys_file)
    warn_if_running(root, options_of(settings), STOP_FIRST if purge or key is None else _STOP_OR_REQUEST)
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


def _check_keys(key: str | None, keys_file: Path | None, *, request: bool, purge: bool) -> None:
    """Raise a usage error unless the keys are given once, and a request is to delete one key."""
    if (key is None) == (keys_file is None):
        raise click.UsageError("The keys are required, once.\n  What to do: Give --key or --keys.")
    if request and (key is None or purge):
        raise click.UsageError(
            "--request is allowed only with --key, and not with --purge.\n"
            "  What to do: Give one key, or stop the query and run the command without --request."
        )


def _check_purge(variable: str, *, purge: bool, names_delivery: bool) -> None:
    """Raise a usage error if options of a purge are given without one, or others with one."""
    if purge and variable:
        raise click.UsageError(
            "--purge deletes all variables of a key, so --variable is not allowed with it.\n"
            "  What to do: Remove one of the two options."
        )
    if names_delivery and not purge:
        raise click.UsageError(
            "--delivered and --checkpoint are allowed only with --purge.\n  What to do: Remove them, or add --purge."
        )


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
@click.option("--key", required=True, help="The key: plain text for a single text column, otherwise JSON.")
@click.option(
    "--value", required=True, help="The value as JSON: an object of state columns, or the value of the variable."
)
def set_command(  # noqa: PLR0913 - the command's options
    root: str,
    settings: Settings,
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

    The key is written as for `riffle state delete`. The value is a JSON object of state columns, such as {"total": 40}.
    Columns that it omits keep their values. With --variable, the value of a value state is an object of its fields, the
    value of a list state a list of such objects, and the value of a map state a list of [key, value] pairs. To undo the
    change, roll back to the record before it.
    """
    from riffle_spark.offline.state_edits import Editor, set_value
    from riffle_spark.worker.member_folders import options_of

    with usage_errors():
        editor = Editor.of_process(reason, key)
    if request:
        _request(root, settings, (store, key, value, editor, variable), execute=execute, as_json=as_json)
        return
    warn_if_running(root, options_of(settings), _STOP_OR_REQUEST)
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
