"""The commands `riffle state ...`: the state of a key, its history, and what changed between two batches."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from riffle_spark.console.lazy_group import LazyGroup
from riffle_spark.console.options import echo, json_option, root_argument, store_options
from riffle_spark.console.periods import parse_time_option
from riffle_spark.console.tables import Table, show_facts, show_table
from riffle_spark.observe.units import show_time
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.state_tables.requested_keys import RequestedKeys
    from riffle_spark.state_tables.state_view import StateRoot, StateTable

_CHANGES_SHOWN = 1000
_STATES_SHOWN = 20


class _StateGroup(LazyGroup):
    """The commands on the state of a query. Those that change it are in modules of their own."""

    lazy: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            "delete": ("state_edits", "Delete keys from a store of a stopped query."),
            "load": ("export", "Load an exported store into a new root, or into one that lacks the store."),
            "set": ("state_edits", "Set the value of a key in a store of a stopped query."),
        }
    )


@click.group("state", cls=_StateGroup)
def state_command() -> None:
    """Show the state of keys, what changed in it, and repair it.

    The commands that show state only read the root, also while the query runs. For encrypted state, set encryption_keys
    in the settings file. You also need the right to use the keys.

    KEY is plain text if the key is a single text column. Other keys are JSON, such as 42. A key of several columns is
    [42, "a"] or {"id": 42, "name": "a"}. Dates, times and decimals are JSON texts. Bytes are {"base64": "AAE="}. The
    null key is null, and [null] for a text column. Write a text key that is itself a JSON list or object as a list of
    one text.
    """


def _table_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--store``, ``--variable`` and the options of the store."""
    command = store_options(command)
    help_text = (
        "A state variable of a StatefulProcessor, a side of a join (left or right), or __timer for timers. Required "
        "if the store has several of these."
    )
    command = click.option("--variable", help=help_text)(command)
    return click.option("--store", help="The state store (riffle stores ROOT). Required if the query has several.")(
        command
    )


@state_command.command("show")
@root_argument
@click.argument("key", metavar="KEY")
@_table_options
@click.option(
    "--version", metavar="BATCH|savepoint:NAME", help="Show the state after this batch. By default the newest."
)
@click.option(
    "--time",
    metavar="TIME",
    callback=parse_time_option,
    help="Show the newest batch at or before this time: an ISO time with its zone (2026-11-26T14:00:00Z), or a "
    "duration before now (15m).",
)
@json_option
def show_command(
    root: str,
    key: str,
    store: str | None,
    variable: str | None,
    version: str | None,
    time: int | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Show the state of a key.

    The field `version` of a row is a batch: the row has not changed since then.

    Exit code 1: the key does not fit the store, the batch is not retained, or the root holds no state. 3: the
    object store cannot be reached or read.
    """
    from riffle_spark.state.formats.json_keys import to_json_rows
    from riffle_spark.state_tables.read_state import read_table

    state_root = _open(root, settings)
    moment = None if time is None else datetime.fromtimestamp(time / 1000, timezone.utc)
    table = state_root.view(_parse_version(version), moment).table(store, variable)
    rows = to_json_rows(read_table(table, _parse_key(key, table)).read_all())
    result = {"root": root, "store": table.store, "variable": table.variable, "version": table.view.record.version}
    if as_json:
        echo(json.dumps({**result, "rows": rows}))
        return
    if not rows:
        echo(f"No state of this key in batch {table.view.record.version}.")
    elif len(rows) == 1:
        show_facts([(name, _show(value)) for name, value in rows[0].items()])
    else:
        show_table(_as_table(rows))


@state_command.command("diff")
@root_argument
@click.option(
    "--from",
    "from_version",
    required=True,
    metavar="BATCH|savepoint:NAME",
    help="The batch before the changes.",
)
@click.option(
    "--to",
    "to_version",
    metavar="BATCH|savepoint:NAME",
    help="The batch after the changes. By default the newest.",
)
@click.option("--key", help="Show only the changes of this key.")
@click.option(
    "--limit", type=click.IntRange(1), default=_CHANGES_SHOWN, show_default=True, help="Show at most this many changes."
)
@_table_options
@json_option
def diff_command(  # noqa: PLR0913 - one argument for each option
    root: str,
    from_version: str,
    to_version: str | None,
    key: str | None,
    limit: int,
    store: str | None,
    variable: str | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Show what changed in a store between two batches: the rows before and after.

    Only net changes are shown. A key that was inserted and deleted between the two batches is left out. Both batches
    must be retained.

    Exit code 1: a batch is not retained, or the root holds no state. 3: the object store cannot be reached or read.
    """
    from riffle_spark.state.formats.json_keys import to_json_rows
    from riffle_spark.state_tables.differences import iterate_differences

    state_root = _open(root, settings)
    after = state_root.view(_parse_version(to_version)).table(store, variable)
    before = state_root.view(_parse_version(from_version)).table(after.store, variable)
    keys = None if key is None else _parse_key(key, after)
    changes: list[dict[str, object]] = []
    count = 0
    for difference in iterate_differences(before, after, keys):
        count += len(difference.changes)
        shown_rows = slice(0, max(0, limit - len(changes)))
        old_rows = to_json_rows(difference.before[shown_rows])
        new_rows = to_json_rows(difference.after[shown_rows])
        for change, old_row, new_row in zip(
            difference.changes[shown_rows].to_pylist(), old_rows, new_rows, strict=True
        ):
            sides = {
                "before": None if change == "insert" else old_row,
                "after": None if change == "delete" else new_row,
            }
            changes.append({"change": change, **sides})
    versions = {"from": before.view.record.version, "to": after.view.record.version}
    if as_json:
        summary = {"root": root, "store": after.store, "variable": after.variable, **versions, "count": count}
        echo(json.dumps({**summary, "changes": changes}))
        return
    rows = [_change_row(change, after) for change in changes]
    show_table(_as_table(rows))
    echo(f"{count} {'row' if count == 1 else 'rows'} changed from batch {versions['from']} to {versions['to']}.")


@state_command.command("history")
@root_argument
@click.argument("key", metavar="KEY")
@_table_options
@click.option(
    "--limit", type=click.IntRange(1), default=_STATES_SHOWN, show_default=True, help="Show at most this many states."
)
@json_option
def history_command(
    root: str,
    key: str,
    limit: int,
    store: str | None,
    variable: str | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Show the states of a key in all retained batches, newest first.

    Each state is shown with the first batch that has it. The oldest state may be from an earlier batch that is no
    longer retained. The command reads all retained records of the log.

    Exit code 1: the key does not fit the store, or the root holds no state. 3: the object store cannot be reached or
    read.
    """
    from itertools import islice

    from riffle_spark.state.formats.json_keys import to_json_rows
    from riffle_spark.state_tables.key_history import iterate_key_states

    state_root = _open(root, settings)
    table = state_root.view().table(store, variable)
    states = [*islice(iterate_key_states(state_root, table, _parse_key(key, table)), limit)]
    if as_json:
        result = [
            {
                "version": state.version,
                "time_ms": state.time_ms,
                "is_oldest": state.is_oldest,
                "rows": to_json_rows(state.rows),
            }
            for state in states
        ]
        echo(json.dumps({"root": root, "store": table.store, "variable": table.variable, "states": result}))
        return
    for state in states:
        batch = "the first batch" if state.version < 0 else f"batch {state.version}"
        since = "since" if not state.is_oldest else "before" if state.version < 0 else "at or before"
        echo(f"{since} {batch}, {show_time(state.time_ms)}")
        for row in to_json_rows(state.rows) or [{"": "no state"}]:
            echo("  " + ", ".join(f"{name} = {_show(value)}" if name else _show(value) for name, value in row.items()))


def _open(root: str, settings: Settings) -> "StateRoot":
    """Return a root to read, with the options and keys that the settings name."""
    from riffle_spark.state_tables.state_view import open_root
    from riffle_spark.worker.member_folders import options_of

    return open_root(root, options_of(settings), settings.encryption_keys)


def _parse_version(text: str | None) -> int | str | None:
    """Return the version that an option names, ``None`` for the newest."""
    from riffle_spark.state_tables.state_view import parse_version

    return None if text is None else parse_version(text)


def _parse_key(key: str, table: "StateTable") -> "RequestedKeys":
    """Return the key that the command line names."""
    from riffle_spark.state.formats.json_keys import parse_key
    from riffle_spark.state_tables.requested_keys import requested_keys

    schema = table.store_schema
    return requested_keys(parse_key(key, schema.key, schema.store), schema)


def _change_row(change: dict[str, object], table: "StateTable") -> dict[str, object]:
    """Return a change as a row: the key, the change, and each other column as ``old -> new`` if it changed."""
    before = change["before"]
    after = change["after"]
    newest = before if after is None else after
    assert isinstance(newest, dict)
    row: dict[str, object] = {"change": change["change"]}
    for name in [name for name in newest if name not in (table.columns.key_group, table.columns.version)]:
        row[name] = newest[name]
        if isinstance(before, dict) and isinstance(after, dict) and before[name] != after[name]:
            row[name] = f"{_show(before[name])} -> {_show(after[name])}"
    return row


def _as_table(rows: list[dict[str, object]]) -> Table:
    """Return rows with the same columns as a table."""
    table = Table("", [*rows[0]] if rows else [])
    for row in rows:
        table.add(*(_show(value) for value in row.values()))
    return table


def _show(value: object) -> str:
    """Return a value as text for a terminal: a text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
