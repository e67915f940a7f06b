"""The command `riffle status`."""

import json
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riffle_spark.console.moves import moves_table
from riffle_spark.console.options import echo, json_option, root_argument, store_options
from riffle_spark.console.periods import duration_parser
from riffle_spark.console.tables import Table, rate_text, show_facts, show_table
from riffle_spark.observe.units import show_bytes, show_count, show_duration, show_rows, show_time
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.observe.rates import Rates
    from riffle_spark.observe.status import Status
    from riffle_spark.offline.root_status import RootStatus
    from riffle_spark.protocol.facts import DriverFacts, MemberFacts

_WATCH_SECONDS = 2.0
_MOVES_SHOWN = 10
_WARNINGS_SHOWN = 5
_PARTITIONS_SHOWN = 10


@click.command("status")
@root_argument
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds until Ctrl-C.")
@click.option(
    "--max-age",
    metavar="DURATION",
    callback=duration_parser(1.0),
    help="Exit with 1 if records are unread and the last commit is older, or if the driver's status is older.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the status as a web page to this file, instead of showing it.",
)
@store_options
@json_option
def status_command(
    root: str,
    watch: bool,
    max_age: float | None,
    html: Path | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Show how a query runs: last commit, lag, cost, watermark, members, last moves, warnings and settings.

    Reads the root alone, while the query runs or after it. Members, lag and moves are those that the driver last wrote,
    at most a minute ago. The last commit is that of the log. Times are in UTC. Rates of batches are those of the last
    five minutes, requests those of the last ten. The price of requests is an estimate at the list price of S3, and is
    left out for a root on `file://`. STATE BYTES and ROWS IN PARTS are those of the key-groups that a member owns, at
    most 30 s old. ROWS IN PARTS counts a key once for each snapshot and delta that has it. DISK is the used share, and
    the limit beyond which a member gets no new copies.

    HEALTH is `ok`, or one of these. `failed`: an error ended the query; its class, id and time are shown. `paused`: an
    operator paused the query. `stopped`: the query was stopped. `behind`: records are unread, or a batch runs, and the
    last commit is older than three intervals of the status. `silent`: the status is more than 15 s older than its
    interval, so the driver is gone, hangs, or cannot reach the store. `skewed`: the driver's times are more than 60 s
    in the future. `unknown`: there is no status.

    Exit code 0: the status was read. 1: `--max-age` is exceeded, the root has no log, or an object is damaged. 3: the
    store cannot be reached or read.
    """
    from riffle_spark.offline.root_status import watch_status
    from riffle_spark.worker.member_folders import options_of

    options = options_of(settings)
    for state in islice(watch_status(root, options, _WATCH_SECONDS), None if watch else 1):
        failure = None if max_age is None else state.probe(max_age)
        if html is not None:
            _write_page(state, html)
        if as_json:
            echo(json.dumps(_to_json(state, failure), allow_nan=False))
        elif html is None:
            if watch:
                click.clear()
            _show(state)
        if failure is not None:
            echo(f"Error: {failure}", err=True)
            click.get_current_context().exit(1)


def _write_page(state: "RootStatus", file: Path) -> None:
    """Write the page of the status that the driver wrote. Raises ``ConfigError`` if there is none."""
    from riffle_spark.errors import ConfigError
    from riffle_spark.observe.page import page_of

    if state.status is None:
        # Cause: The query ran with status_interval = 0, with an earlier version, or has not committed a batch.
        raise ConfigError(
            "The driver has written no status, so there is no page.",
            remedy="Omit --html to show what the log has. For a page, run the query with status_interval above 0.",
            where=state.root,
            id="RIFFLE-1340",
        )
    try:
        file.write_text(page_of(state.status), "utf-8")
    except OSError as error:
        raise click.UsageError(
            f"--html {str(file)!r} cannot be written: {error.strerror}.\n"
            "  What to do: Name a file in a folder that exists."
        ) from None


def _to_json(state: "RootStatus", failure: str | None) -> dict[str, object]:
    from riffle_spark.observe.json_values import to_plain

    result = {**state.to_json(), "failure": failure, "facts": to_plain(state.facts), "status": None}
    if state.status is not None:
        names = [field.name for field in fields(state.status) if field.name != "facts"]
        result["status"] = {name: to_plain(getattr(state.status, name)) for name in names}
    return result


def _show(state: "RootStatus") -> None:
    show_facts(_summary(state))
    show_table(_members(state))
    show_table(_partitions(state.facts))
    if state.status is not None:
        show_table(_moves(state.status))
        show_table(_warnings(state.status))
        show_table(_settings(state.status))


def _summary(state: "RootStatus") -> list[tuple[str, str]]:
    facts = state.facts
    status = state.status
    name = facts.query_name or facts.query_id or "unknown"
    version = f", riffle_spark {status.product}" if status and status.product else ""
    rates = state.rates
    batches = [
        rate_text(rates.batches_per_minute, "per minute"),
        rate_text(rates.rows_per_second, "rows/s in all stores"),
        None if rates.batch_seconds is None else f"{show_duration(rates.batch_seconds)} each",
    ]
    watermark = "none"
    if watermark_ms := state.record.watermark_ms:  # 0 is Spark's watermark of a query without one
        age = show_duration((state.now_ms - watermark_ms) / 1000)
        watermark = f"{show_time(watermark_ms)} ({age} behind the clock)"
    commit = "none"
    if state.commit_ms is not None and state.commit_age is not None:
        commit = f"batch {state.record.version}, {show_duration(state.commit_age)} ago ({show_time(state.commit_ms)})"
    health: str = state.health
    if status is not None and health == "ok":
        health = f"ok ({status.state})"
    elif state.problem is not None:
        health = f"{health}. {state.problem}"
    return [
        ("Query", f"{name}{version}"),
        ("Root", state.root),
        ("Health", health),
        ("Last commit", commit),
        ("Batches", ", ".join(text for text in batches if text) or "unknown"),
        ("Lag", _lag_text(state)),
        ("Watermark", watermark),
        *(_store_line(state) if facts.stores else []),
        *([("Savepoints", _savepoints_text(state))] if state.record.savepoints else []),
        *([("Requests", cost_text(rates))] if rates.requests_per_hour is not None else []),
        *_steering_lines(facts),
        ("Status", _written_text(state)),
    ]


def _savepoints_text(state: "RootStatus") -> str:
    """Return the number of savepoints, and the oldest one. `riffle savepoint list` has their cost."""
    savepoints = state.record.savepoints
    oldest = min(savepoints, key=lambda savepoint: savepoint.committed_ms)
    return (
        f"{len(savepoints)}, the oldest is {oldest.name} of batch {oldest.version} ({show_time(oldest.committed_ms)})"
    )


def cost_text(rates: "Rates") -> str:
    """Return the requests per hour, with their estimated price if the store charges for requests."""
    if rates.requests_per_hour is None:
        return "unknown"
    requests = f"{show_count(rates.requests_per_hour)} per hour"
    if rates.dollars_per_hour is None:
        return requests
    return f"{requests}, about {rates.dollars_per_hour:.2g} USD per hour at the list price of S3 Standard in us-east-1"


def _steering_lines(facts: "DriverFacts") -> list[tuple[str, str]]:
    """Return the requests of operators that are in effect."""
    lines = []
    if facts.paused_since_ms is not None:
        lines.append(("Paused", f"since {show_time(facts.paused_since_ms)}"))
    if facts.drained:
        lines.append(("Drained", ", ".join(facts.drained)))
    if facts.pins:
        lines.append(("Pinned", ", ".join(f"{task} to {member}" for task, member in facts.pins.items())))
    if facts.slot_limit is not None:
        lines.append(("Slots", f"at most {facts.slot_limit} per executor"))
    return lines


def _store_line(state: "RootStatus") -> list[tuple[str, str]]:
    stores = state.facts.stores
    size = show_bytes(sum(store.bytes for store in stores))
    rows = show_rows(sum(store.rows for store in stores), is_exact=all(store.has_exact_rows for store in stores))
    return [("State", f"{rows} rows, {size}, {len(stores)} store{'s' * (len(stores) != 1)}")]


def _lag_text(state: "RootStatus") -> str:
    if state.lag_records is None:
        return "unknown"
    age = "" if state.lag_seconds is None else f", {show_duration(state.lag_seconds)}"
    return f"{show_count(state.lag_records)} records{age}, {len(state.facts.source)} partitions"


def _written_text(state: "RootStatus") -> str:
    """Return the time at which the driver wrote its status."""
    if state.status_age is None:
        return "none written: lag, moves and warnings are unknown"
    return f"written {show_duration(state.status_age)} ago, epoch {state.facts.epoch}"


def _members(state: "RootStatus") -> Table:
    """Return the members with the number of their copies, and their lags."""
    columns = (
        "MEMBER",
        "EXECUTOR",
        "HOST",
        "RACK",
        "STATE",
        "SLOTS",
        "OWNS",
        "STATE BYTES",
        "ROWS IN PARTS",
        "STANDBYS",
        "WARM-UPS",
        "REMAINING",
        "LAG",
        "DISK",
        "MEMORY",
    )
    limit = state.facts.disk_limit
    table = Table("MEMBERS", columns, right=frozenset(columns[5:]))
    for member in state.facts.members:
        table.add(
            member.id,
            member.executor,
            member.host,
            member.rack,
            member.state,
            member.slots,
            member.owned,
            None if member.state_bytes is None else show_bytes(member.state_bytes),
            None if member.state_rows is None else show_count(member.state_rows),
            member.standbys,
            member.warmups,
            _remaining(member),
            f"{show_count(member.lag_records)} rec",
            _disk_text(member, limit),
            None if member.memory_used is None else f"{member.memory_used:.0%}",
        )
    return table


def _disk_text(member: "MemberFacts", limit: float | None) -> str | None:
    """Return the used share of a member's disk, and the limit beyond which it gets no new copies."""
    if member.disk_used is None:
        return None
    return f"{member.disk_used:.0%}" if limit is None else f"{member.disk_used:.0%} of {limit:.0%}"


def _partitions(facts: "DriverFacts") -> Table:
    """Return the partitions of the source, those with the largest lag first."""
    worst = sorted(facts.source, key=lambda lag: (-lag.records, -(lag.seconds or 0.0), lag.topic, lag.partition))
    shown_partitions = worst[:_PARTITIONS_SHOWN]
    columns = ("TOPIC", "PARTITION", "RECORDS BEHIND", "TIME BEHIND")
    table = Table(
        f"LAG, WORST FIRST ({len(shown_partitions)} of {len(worst)} partitions)", columns, right=frozenset(columns[1:])
    )
    for lag in shown_partitions:
        seconds = None if lag.seconds is None else show_duration(lag.seconds)
        table.add(lag.topic, lag.partition, show_count(lag.records), seconds)
    return table


def _settings(status: "Status") -> Table:
    table = Table("SETTINGS IN EFFECT", ("SETTING", "VALUE"))
    for name, value in status.settings.items():
        table.add(name, value)
    return table


def _remaining(member: "MemberFacts") -> str | None:
    """Return the bytes that a member's warm-ups still have to read, and the estimated time."""
    if not member.warmups:
        return None
    time = "" if member.warmup_seconds is None else f", {show_duration(member.warmup_seconds)}"
    return f"{show_bytes(member.warmup_bytes)}{time}"


def _moves(status: "Status") -> Table:
    shown_moves = status.moves[-_MOVES_SHOWN:]
    return moves_table(f"LAST MOVES ({len(shown_moves)} of {len(status.moves)} in the status)", shown_moves)


def _warnings(status: "Status") -> Table:
    shown_warnings = status.warnings[-_WARNINGS_SHOWN:]
    title = f"LAST WARNINGS ({len(shown_warnings)} of {len(status.warnings)} in the status)"
    table = Table(title, ("TIME", "ID", "WARNING"))
    for warning in shown_warnings:
        table.add(show_time(warning.time_ms), warning.id, warning.text.splitlines()[0] if warning.text else "")
    return table
