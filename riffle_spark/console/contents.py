"""The commands `riffle log`, `riffle stores` and `riffle where`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import echo, json_option, root_argument, store_options
from riffle_spark.console.periods import period_options
from riffle_spark.console.tables import Table, show_facts, show_table
from riffle_spark.observe.units import show_bytes, show_count, show_rows, show_time
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.observe.status import WarningSummary
    from riffle_spark.offline.periods import Period
    from riffle_spark.offline.root_contents import LoggedRecord
    from riffle_spark.state.log.record import RecordedMember
    from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint

_OFFSETS_SHOWN = 60
_TASKS_SHOWN = 8
_LIMIT = 20
_PERIOD_LIMIT = 10_000


@click.command("log")
@root_argument
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    help="Show the last records. By default 20, and with --since or --until 10000.",
)
@period_options
@store_options
@json_option
def log_command(root: str, limit: int | None, period: "Period", settings: Settings, as_json: bool) -> None:
    """List the records of a query's log, its savepoints, moves and warnings, and the targets of a rollback.

    Times are in UTC. CHANGED ROWS are stored rows that the batch changed. MOVES counts key-groups with a new owner.
    ROLLBACK is the target for `riffle rollback --to`, and `-` if the record is not retained. `riffle rollback
    --to-time` returns to the newest of these records that was not written after that time. All savepoints are listed.
    Reads only the root, also while the query runs.

    What happened at 14:05: `riffle log ROOT --since 2026-03-01T14:00Z --until 2026-03-01T14:10Z`. With a period,
    the moves of its records are shown too, with their reasons. The warnings are the last 20, from the driver's
    status.

    Missing and damaged records are left out; `riffle verify` finds them.

    Exit code 1: the root has no log, or its newest record is damaged. 3: the object store cannot be reached or read.
    """
    from riffle_spark.observe.json_values import to_plain
    from riffle_spark.offline.periods import ALWAYS
    from riffle_spark.offline.root_contents import read_records, read_savepoints, read_warnings
    from riffle_spark.worker.member_folders import options_of

    options = options_of(settings)
    has_period = period != ALWAYS
    records = read_records(root, limit or (_PERIOD_LIMIT if has_period else _LIMIT), options, period)
    warnings = read_warnings(root, options, period)
    savepoints = read_savepoints(root, options)
    if as_json:
        result = {
            "records": [record.to_json() for record in records],
            "savepoints": to_plain(savepoints),
            "warnings": to_plain(tuple(warnings)),
        }
        echo(json.dumps({"root": root, **result}))
        return
    if has_period and not records:
        echo("No retained record was written in this period.")
    show_table(_records_table(records))
    show_table(_savepoints_table(savepoints))
    show_table(_edits_table(records))
    if has_period:
        show_table(_moves_table(records))
    show_table(_warnings_table(warnings))


def _records_table(records: "Sequence[LoggedRecord]") -> Table:
    right = frozenset({"RECORD", "BATCH", "EPOCH", "CHANGED ROWS", "BYTES", "MOVES", "ROLLBACK"})
    columns = ("RECORD", "TIME", "KIND", "BATCH", "EPOCH", "CHANGED ROWS", "BYTES", "MOVES", "ROLLBACK", "OFFSETS")
    table = Table("", columns, right=right)
    for record in records:
        is_batch = record.kind == "batch"
        table.add(
            record.sequence,
            show_time(record.time_ms),
            record.kind,
            record.version if record.version >= 0 else None,
            record.epoch,
            show_count(record.changed_rows) if is_batch else None,
            show_bytes(record.sealed_bytes) if is_batch else None,
            len(record.owner_moves),
            record.rollback_to,
            _offsets_text(record),
        )
    return table


def _savepoints_table(savepoints: "Sequence[RecordedSavepoint]") -> Table:
    columns = ("NAME", "BATCH", "COMMITTED", "CREATED", "ROLLBACK")
    table = Table("SAVEPOINTS", columns, right=frozenset({"BATCH"}))
    for savepoint in savepoints:
        times = show_time(savepoint.committed_ms), show_time(savepoint.created_ms)
        table.add(savepoint.name, savepoint.version, *times, f"savepoint:{savepoint.name}")
    return table


def _edits_table(records: "Sequence[LoggedRecord]") -> Table:
    """Return the changes of state that operators made, a row each."""
    columns = ("RECORD", "ACTION", "STORE", "KEYS", "BY", "REASON")
    table = Table("CHANGES OF STATE", columns, right=frozenset({"RECORD", "KEYS"}))
    for record in records:
        edit = record.edit
        if edit:
            editor = f"{edit.get('user')}@{edit.get('host')}"
            table.add(
                record.sequence, edit.get("action"), edit.get("store"), edit.get("keys"), editor, edit.get("reason")
            )
    return table


def _moves_table(records: "Sequence[LoggedRecord]") -> Table:
    """Return the moves of records, a row for those with the same time, members and reason."""
    table = Table("MOVES", ("TIME", "ROLE", "KEY-GROUPS", "FROM", "TO", "REASON"), right=frozenset({"KEY-GROUPS"}))
    for moves in (moves for record in records for moves in record.moves):
        names = ", ".join(moves.tasks[:_TASKS_SHOWN])
        more = len(moves.tasks) - _TASKS_SHOWN
        table.add(
            show_time(moves.time_ms),
            moves.role,
            f"{names} and {more} more" if more > 0 else names,
            moves.source or None,
            moves.target or None,
            moves.reason,
        )
    return table


def _warnings_table(warnings: "Sequence[WarningSummary]") -> Table:
    table = Table("WARNINGS (of the last 20)", ("TIME", "ID", "WARNING"))
    for warning in warnings:
        table.add(show_time(warning.time_ms), warning.id, warning.text)
    return table


def _offsets_text(record: "LoggedRecord") -> str | None:
    text = " ".join(record.offsets)
    return None if not text else text if len(text) <= _OFFSETS_SHOWN else f"{text[:_OFFSETS_SHOWN]}..."


@click.command("stores")
@root_argument
@store_options
@json_option
def stores_command(root: str, settings: Settings, as_json: bool) -> None:
    """Show the stores of a query: columns, rows, bytes, parts and the largest key-groups.

    ROWS is the number of state rows, as in Spark's `numRowsTotal`. It is `at most` a number if it is unknown: an
    earlier version of riffle_spark wrote the store first, or its variables have changed. A part is a snapshot or a
    delta of a key-group. ROWS IN PARTS counts a key once for each part that has it. SKEW is the bytes of the largest
    key-group as a multiple of the mean. Requests are those of the whole query in the ten minutes before its last
    status. Their price is an estimate at the list price of S3, and is left out for a root on `file://`. Reads the log
    and the status, also while the query runs.

    Exit code 1: the root has no log, or it is damaged. 3: the object store cannot be reached or read.
    """
    from riffle_spark.console.status import cost_text
    from riffle_spark.offline.root_contents import read_rates, read_stores
    from riffle_spark.worker.member_folders import options_of

    options = options_of(settings)
    stores = read_stores(root, options)
    rates = read_rates(root, options)
    if as_json:
        cost = {name: getattr(rates, name) for name in ("requests_per_hour", "dollars_per_hour")}
        echo(json.dumps({"root": root, **cost, "stores": [store.to_json() for store in stores]}))
        return
    columns = ("STORE", "ROWS", "BYTES", "KEY-GROUPS", "SNAPSHOTS", "DELTAS", "LONGEST CHAIN", "SKEW")
    sizes = Table("", columns, right=frozenset(columns[1:]))
    schemas = Table("COLUMNS", ("STORE", "COLUMN", "TYPE", "PART"))
    largest = Table("LARGEST KEY-GROUPS", ("STORE", "KEY-GROUP", "ROWS IN PARTS", "BYTES"))
    largest.right = frozenset(largest.columns[1:])
    for store in stores:
        sizes.add(
            store.store,
            show_rows(store.rows, is_exact=store.has_exact_rows),
            show_bytes(store.bytes),
            show_count(store.key_groups),
            show_count(store.snapshots),
            show_count(store.deltas),
            store.longest_chain,
            f"{store.skew:.1f}",
        )
        for name, kind in store.key:
            schemas.add(store.store, name, kind, "key")
        for name, kind in store.columns:
            schemas.add(store.store, name, kind, "state")
        for key_group, rows, size in store.largest:
            largest.add(store.store, key_group, show_count(rows), show_bytes(size))
    for table in (sizes, schemas, largest):
        show_table(table)
    echo("")
    show_facts([("Requests", cost_text(rates))])


@click.command("where")
@root_argument
@click.argument("key", metavar="KEY")
@click.option("--store", help="The state store of the key. Required if the query's stores have different keys.")
@store_options
@json_option
def where_command(root: str, key: str, store: str | None, settings: Settings, as_json: bool) -> None:
    """Show the key-group of a key, its owner and its standbys, as of the newest record.

    KEY is written as for `riffle state`. It may consist of only the columns that determine the key-group. If the query
    dispatches by partition, KEY is TOPIC:PARTITION. The state of the key is not read.

    Exit code 1: the key does not fit, or the root has no log. 3: the object store cannot be reached or read.
    """
    from riffle_spark.offline.root_contents import find_key
    from riffle_spark.worker.member_folders import options_of

    place = find_key(root, key, store, options_of(settings))
    if as_json:
        echo(json.dumps({"root": root, **place.to_json()}))
        return
    number = str(place.key_group)
    if place.topic is not None:
        number += f" ({place.topic}:{place.partition})"
    facts = [
        ("Key-group", number),
        ("Owner", "none" if place.owner is None else _member_text(place.owner)),
        ("Standbys", ", ".join(map(_member_text, place.standbys)) or "none"),
        ("As of batch", str(place.version)),
    ]
    show_facts(facts)


def _member_text(member: "RecordedMember") -> str:
    rack = f", rack {member.rack}" if member.rack else ""
    return f"{member.id} (executor {member.executor or 'unknown'} on {member.host or 'unknown'}{rack})"
