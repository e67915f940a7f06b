"""The commands `riffle savepoint create`, `list` and `delete`."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import (
    echo,
    json_option,
    root_argument,
    store_options,
    usage_errors,
)
from riffle_spark.console.periods import duration_parser
from riffle_spark.console.steering import open_mailroom, show_answer
from riffle_spark.console.tables import Table, show_table
from riffle_spark.observe.units import show_bytes, show_count, show_time
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.offline.savepoints import SavepointCosts, Savepoints
    from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint

_EXPIRES_SECONDS = 900.0


@click.group("savepoint")
def savepoint_command() -> None:
    """Keep a batch of a query until its savepoint is deleted.

    A savepoint copies nothing. The query deletes no object of its batch, however old the batch is. `riffle rollback
    --to-savepoint` returns to it, and `riffle fork --savepoint` starts another query from it. To create or delete a
    savepoint, stop the query or set control = on.
    """


def _change_options(command: Callable[..., None]) -> Callable[..., None]:
    stopped = click.option(
        "--stopped",
        is_flag=True,
        help="Confirm that the query has stopped. Required if its status does not show it. A query that still runs "
        "then fails.",
    )
    wait = click.option(
        "--wait",
        default="60 s",
        show_default=True,
        metavar="DURATION",
        callback=duration_parser(),
        help="Wait this long for the answer of a running query.",
    )
    return root_argument(store_options(stopped(wait(json_option(command)))))


def _open_savepoints(root: str, settings: Settings) -> "Savepoints":
    from riffle_spark.offline.savepoints import Savepoints
    from riffle_spark.worker.member_folders import options_of

    return Savepoints(root, options_of(settings))


@savepoint_command.command("create")
@_change_options
@click.option("--name", required=True, help="The name: letters, digits, '.', '_' and '-', at most 64.")
@click.option(
    "--version",
    metavar="BATCH|record:N",
    help="The retained batch to keep (riffle log ROOT). By default the newest one.",
)
def create_command(
    root: str,
    settings: Settings,
    stopped: bool,
    wait: float,
    as_json: bool,
    name: str,
    version: str | None,
) -> None:
    """Keep a batch under a name until the savepoint is deleted.

    A running query creates the savepoint with its next record. A batch that is no longer retained is refused.

    Exit code 1: the savepoint was refused. 4: no answer in time. 5: the query does not run.
    """
    from riffle_spark.offline.rollback_targets import parse_target
    from riffle_spark.state.log.recorded_savepoints import check_savepoint_name

    with usage_errors():
        check_savepoint_name(name)
        if version is not None:
            parse_target(version)
    savepoints = _open_savepoints(root, settings)
    if savepoints.is_left_to_driver(is_stopped=stopped):
        arguments = savepoints.request_of(name, version)
        _request("create_savepoint", arguments, root, settings, wait, as_json=as_json)
        return
    _show_savepoint(savepoints.create(name, version), "keeps", as_json=as_json)


@savepoint_command.command("delete")
@_change_options
@click.argument("name")
def delete_command(root: str, settings: Settings, stopped: bool, wait: float, as_json: bool, name: str) -> None:
    """Delete the savepoint NAME. The query then deletes the objects that only the savepoint kept.

    Exit code 1: there is no such savepoint. 4: no answer in time. 5: the query does not run.
    """
    from riffle_spark.state.log.recorded_savepoints import find_savepoint

    savepoints = _open_savepoints(root, settings)
    if savepoints.is_left_to_driver(is_stopped=stopped):
        find_savepoint(savepoints.tail.savepoints, name)
        _request("delete_savepoint", {"name": name}, root, settings, wait, as_json=as_json)
        return
    _show_savepoint(savepoints.delete(name), "no longer keeps", as_json=as_json)


def _request(
    command: str,
    arguments: Mapping[str, object],
    root: str,
    settings: Settings,
    wait: float,
    *,
    as_json: bool,
) -> None:
    """Post a request to the running query and print its answer."""
    mailroom = open_mailroom(root, settings)
    show_answer(mailroom, mailroom.post(command, arguments, _EXPIRES_SECONDS), wait, as_json=as_json)


def _show_savepoint(savepoint: "RecordedSavepoint", verb: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        echo(json.dumps(asdict(savepoint)))
        return
    echo(f"Savepoint {savepoint.name} {verb} batch {savepoint.version} of {show_time(savepoint.committed_ms)}.")


@savepoint_command.command("list")
@root_argument
@store_options
@json_option
def list_command(root: str, settings: Settings, as_json: bool) -> None:
    """List the savepoints of a query with what they cost. Times are in UTC.

    COMMITTED is when the batch was committed, and CREATED when the savepoint was created. BYTES is the size of all
    objects of a savepoint. ONLY KEPT BYTES is the size of those that nothing else needs: no retained batch and no other
    savepoint. The command reads the records of all retained batches, also while the query runs.

    Exit code 1: a savepoint is damaged, or the root holds no state. 3: the object store cannot be reached or read.
    """
    costs = _open_savepoints(root, settings).measure()
    if as_json:
        echo(json.dumps({"root": root, **costs.to_json()}))
    else:
        _show_costs(costs)
    problems = [each.problem for each in costs.savepoints if each.problem]
    for problem in () if as_json else problems:
        echo(problem, err=True)
    click.get_current_context().exit(1 if problems else 0)


def _show_costs(costs: "SavepointCosts") -> None:
    """Print a table of savepoints, and the sum of what only savepoints keep."""
    columns = (
        "NAME",
        "BATCH",
        "COMMITTED",
        "CREATED",
        "BY",
        "OBJECTS",
        "BYTES",
        "ONLY KEPT OBJECTS",
        "ONLY KEPT BYTES",
    )
    table = Table("", columns, right=frozenset({"BATCH", *columns[5:]}))
    for each in costs.savepoints:
        savepoint = each.savepoint
        sizes = [
            show_count(each.objects),
            show_bytes(each.bytes),
            show_count(each.only_objects),
            show_bytes(each.only_bytes),
        ]
        table.add(
            savepoint.name,
            savepoint.version,
            show_time(savepoint.committed_ms),
            show_time(savepoint.created_ms),
            savepoint.user,
            *([None] * len(sizes) if each.problem else sizes),
        )
    if not costs.savepoints:
        echo("The query has no savepoints.")
        return
    show_table(table)
    objects = show_count(costs.only_objects)
    echo(f"Without the savepoints, {objects} objects with {show_bytes(costs.only_bytes)} would be deleted.")
