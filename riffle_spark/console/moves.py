"""The command `riffle moves`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import echo, json_option, root_argument, store_options
from riffle_spark.console.periods import period_options
from riffle_spark.console.tables import Table, show_table
from riffle_spark.observe.units import show_time
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.assign.model import TaskId
    from riffle_spark.offline.periods import Period
    from riffle_spark.offline.root_moves import LoggedMove
    from riffle_spark.protocol.facts import MoveSummary

_NOT_RECORDED = "not recorded"


@click.command("moves")
@root_argument
@click.argument("key", metavar="[KEY]", required=False)
@click.option("--key-group", type=click.IntRange(0), metavar="NUMBER", help="Show the moves of this key-group.")
@click.option("--store", help="The state store of KEY. Required if the query's stores have different keys.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Show the last moves.")
@period_options
@store_options
@json_option
def moves_command(
    root: str,
    key: str | None,
    key_group: int | None,
    store: str | None,
    limit: int,
    period: "Period",
    settings: Settings,
    as_json: bool,
) -> None:
    """Show which key-groups moved, when and why.

    Without KEY and `--key-group` the moves of all key-groups are shown. KEY is written as for `riffle where`. BATCH is
    the first batch after the move. FROM and TO are members; FROM is `-` if there was none.

    The log has the moves of all retained records. A record of a batch, or of an operator's request, has the moves since
    the record before. Moves since the newest record, made while the query was idle or paused, are read from the
    driver's status, which has the last 100 and is written once per status interval. If the query ends before its next
    record, these moves are lost: the next run starts with the owners of the newest record, and its first status
    replaces the old one. Records of earlier formats have no moves: their changes of owners are shown with the reason
    `not recorded`.

    Exit code 1: the root has no log, or the key does not fit. 3: the object store cannot be reached or read.
    """
    from riffle_spark.offline.root_contents import find_key
    from riffle_spark.offline.root_moves import read_moves
    from riffle_spark.worker.member_folders import options_of

    if key is not None and key_group is not None:
        raise click.UsageError("Both KEY and --key-group are given.\n  What to do: Give one of them.")
    options = options_of(settings)
    group: str | None = None
    if key is not None:
        place = find_key(root, key, store, options)
        key_group = place.key_group
        group = place.group

    def is_wanted(task: "TaskId") -> bool:
        return (key_group is None or task.key_group == key_group) and (group is None or task.group == group)

    moves = read_moves(root, is_wanted, limit, period, options)
    if as_json:
        echo(json.dumps({"root": root, "key_group": key_group, "moves": [move.to_json() for move in moves]}))
    elif moves:
        show_table(moves_table("", moves))
    else:
        echo("The retained records have no such move.")


def moves_table(title: str, moves: "Sequence[LoggedMove | MoveSummary]") -> Table:
    """Return moves as a table."""
    table = Table(title, ("TIME", "BATCH", "KEY-GROUP", "ROLE", "FROM", "TO", "REASON"))
    table.right = frozenset({"BATCH", "KEY-GROUP"})
    for move in moves:
        partition = f" ({move.topic}:{move.partition})" if move.topic else ""
        group = "" if move.group in ("", "query") else f"{move.group}/"
        table.add(
            show_time(move.time_ms),
            move.version,
            f"{group}{move.key_group}{partition}",
            move.role,
            move.from_member or None,
            move.to_member or None,
            _NOT_RECORDED if move.reason is None else move.reason,
        )
    return table
