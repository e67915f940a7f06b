"""The commands that steer a running query: `riffle drain`, `pin`, `pause`, `set`, ... and `riffle requests`."""

import json
import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import echo, json_option, read_settings, root_argument, store_options, usage_errors
from riffle_spark.observe.units import show_time
from riffle_spark.setting_values import checked, seconds

if TYPE_CHECKING:
    from riffle_spark.offline.steering import ListedRequest, Mailroom
    from riffle_spark.protocol.batch.mailbox import MailboxRequest

__all__ = [
    "drain_command",
    "pause_command",
    "pin_command",
    "rebalance_command",
    "requests_command",
    "resume_command",
    "set_command",
    "undrain_command",
    "unpin_command",
]

_EXPIRES = "15 min"
_NO_ANSWER = 4
"""Exit code if no answer arrived in time."""


def _key_group(_context: click.Context, _parameter: click.Parameter, value: str) -> int | list[object]:
    """Return a key-group's number, or a list of a topic and a partition. Raises a usage error."""
    topic, colon, number = value.rpartition(":")
    if not number.isdecimal() or (colon and not topic):
        raise click.UsageError(
            f"{value!r} is not a key-group.\n  What to do: Give its number, or TOPIC:PARTITION with dispatch by "
            "partition."
        )
    return [topic, int(number)] if colon else int(number)


def _duration(_context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return a duration in seconds. Raises a usage error."""
    if value is None:
        return None
    name = f"--{parameter.name}"
    text = float(value) if value.replace(".", "", 1).isdigit() else value
    with usage_errors():
        return float(str(checked(name, text, seconds(0), remedy="Write a number and a unit.", where=name)))


def _steers(name: str) -> Callable[[Callable[..., dict[str, object]]], click.Command]:
    """Make a command of a function that returns the arguments of a request called ``name``."""

    def decorate(function: Callable[..., dict[str, object]]) -> click.Command:
        @wraps(function)
        def run(
            root: str,
            s3_endpoint: str | None,
            conf_file: Path,
            expires: float,
            wait: float | None,
            as_json: bool,
            **arguments: object,
        ) -> None:
            request = function(**arguments)
            mailroom = _mailroom(root, s3_endpoint, conf_file)
            _show_answer(mailroom, mailroom.post(name, request, expires), wait, as_json=as_json)

        return click.command(name)(_request_options(run))

    return decorate


def _request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ROOT as the first argument, and the options of a request."""
    wait = click.option(
        "--wait",
        is_flag=False,
        flag_value="60 s",
        metavar="DURATION",
        callback=_duration,
        help="Wait for the answer, by default 60 s. Exit code 1: not applied. 4: no answer in time.",
    )
    expires = click.option(
        "--expires",
        default=_EXPIRES,
        show_default=True,
        metavar="DURATION",
        callback=_duration,
        help="The driver does not apply the request after this time.",
    )
    return root_argument(store_options(wait(expires(json_option(command)))))


def _mailroom(root: str, s3_endpoint: str | None, conf_file: Path) -> "Mailroom":
    """Open the mailbox of the query below a root."""
    from riffle_spark.offline.steering import Mailroom
    from riffle_spark.worker.member_folders import options_of

    return Mailroom(root, options_of(read_settings(conf_file, s3_endpoint)))


def _show_answer(mailroom: "Mailroom", request: "MailboxRequest", wait: float | None, *, as_json: bool) -> None:
    """Print a request with its answer, for which the command waits up to ``wait`` seconds. Exit with its code."""
    listed = mailroom.wait(request, wait or 0.0)
    if as_json:
        echo(json.dumps(listed.to_json()))
    else:
        echo(_line(listed))
        if listed.state == "pending":
            echo(f"See the answer with: riffle requests {shlex.quote(mailroom.root)}")
    if wait is not None and listed.state != "applied":
        click.get_current_context().exit(_NO_ANSWER if listed.state == "pending" else 1)


def _line(listed: "ListedRequest") -> str:
    """Return a request and its answer as a line of text."""
    request = listed.request
    arguments = " ".join(f"{name}={value}" for name, value in request.arguments.items())
    error_id = f"  [{listed.answer.error_id}]" if listed.answer and listed.answer.error_id else ""
    text = f"  {listed.answer.text}" if listed.answer else ""
    head = f"{request.number:>6}  {show_time(request.time_ms)}  {listed.state:<10}  {request.user}@{request.host}"
    return f"{head}  {request.command} {arguments}{error_id}{text}".rstrip()


@_steers("drain")
@click.argument("member")
def drain_command(member: str) -> dict[str, object]:
    """Move all key-groups away from MEMBER, so that its executor can be stopped.

    MEMBER is the id of a member or of its executor.
    """
    return {"member": member}


@_steers("undrain")
@click.argument("member")
def undrain_command(member: str) -> dict[str, object]:
    """Let MEMBER own key-groups again after a drain."""
    return {"member": member}


@_steers("pin")
@click.argument("key_group", callback=_key_group)
@click.argument("member")
@click.option("--store", help="A store of the co-location group. Required if the query has several groups.")
def pin_command(key_group: int | list[object], member: str, store: str | None) -> dict[str, object]:
    """Keep KEY_GROUP on MEMBER.

    KEY_GROUP is a number, or TOPIC:PARTITION with dispatch by partition. It moves once MEMBER has a warm copy.
    """
    return {"key_group": key_group, "member": member, **({} if store is None else {"store": store})}


@_steers("unpin")
@click.argument("key_group", callback=_key_group)
@click.option("--store", help="A store of the co-location group. Required if the query has several groups.")
def unpin_command(key_group: int | list[object], store: str | None) -> dict[str, object]:
    """Remove the pin of KEY_GROUP."""
    return {"key_group": key_group, **({} if store is None else {"store": store})}


@_steers("rebalance")
def rebalance_command() -> dict[str, object]:
    """Compute an assignment now."""
    return {}


@_steers("pause")
def pause_command() -> dict[str, object]:
    """Hold the query after its current batch, until resume. A restart of the query ends the pause."""
    return {}


@_steers("resume")
def resume_command() -> dict[str, object]:
    """Continue a paused query."""
    return {}


@_steers("set")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
def set_command(settings: tuple[str, ...]) -> dict[str, object]:
    """Change live settings from the next batch on. They stay changed after a restart of the query."""
    changes: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{text!r} is not NAME=VALUE.\n  What to do: Write, for example, num_standbys=2.")
        changes[name.strip()] = value.strip()
    return changes


@click.command("requests")
@root_argument
@store_options
@json_option
def requests_command(root: str, s3_endpoint: str | None, conf_file: Path, as_json: bool) -> None:
    """List the requests to a query and their answers, oldest first."""
    listed = _mailroom(root, s3_endpoint, conf_file).requests()
    if as_json:
        echo(json.dumps({"requests": [each.to_json() for each in listed]}))
    for each in [] if as_json else listed:
        echo(_line(each))
