"""The commands that steer a running query: `riffle drain`, `pin`, `pause`, `set`, ... and `riffle requests`."""

import json
import shlex
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import echo, json_option, root_argument, store_options
from riffle_spark.console.periods import duration_parser
from riffle_spark.console.tables import Table, show_table
from riffle_spark.observe.units import show_time
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.offline.steering import DrainProgress, ListedRequest, Mailroom
    from riffle_spark.protocol.batch.mailbox import MailboxRequest

_EXPIRES = "15 min"
_NOT_IN_TIME = 4
"""Exit code if no answer arrived, or a drain did not end, in time."""
_NOT_RUNNING = 5
"""Exit code if the query has stopped or is silent, so that nothing answers the request now."""
_HELP_OF_WAIT = (
    "Wait for the answer: for DURATION, or 60 s if it is omitted. Exit code 1: the request was not applied. 4: no "
    "answer in time. 5: the query does not run."
)


def _key_group(_context: click.Context, _parameter: click.Parameter, value: str) -> int | list[object]:
    """Return a key-group's number, or a list of a topic and a partition. Raises a usage error."""
    topic, colon, number = value.rpartition(":")
    if not number.isdecimal() or (colon and not topic):
        raise click.UsageError(
            f"{value!r} is not a key-group.\n  What to do: Give its number, or TOPIC:PARTITION with dispatch by "
            "partition."
        )
    return [topic, int(number)] if colon else int(number)


def _steers(name: str) -> Callable[[Callable[..., dict[str, object]]], click.Command]:
    """Make a command of a function that returns the arguments of a request called ``name``."""

    def decorate(function: Callable[..., dict[str, object]]) -> click.Command:
        @wraps(function)
        def run(
            root: str,
            settings: Settings,
            expires: float,
            wait: float | None,
            as_json: bool,
            **arguments: object,
        ) -> None:
            request = function(**arguments)
            mailroom = open_mailroom(root, settings)
            show_answer(mailroom, mailroom.post(name, request, expires), wait, as_json=as_json)

        return click.command(name)(_request_options(run))

    return decorate


def _request_options(command: Callable[..., None]) -> Callable[..., None]:
    wait = click.option(
        "--wait",
        is_flag=False,
        flag_value="60 s",
        metavar="DURATION",
        callback=duration_parser(),
        help=_HELP_OF_WAIT,
    )
    expires = click.option(
        "--expires",
        default=_EXPIRES,
        show_default=True,
        metavar="DURATION",
        callback=duration_parser(),
        help="The driver does not apply the request after this time.",
    )
    return root_argument(store_options(wait(expires(json_option(command)))))


def open_mailroom(root: str, settings: Settings) -> "Mailroom":
    """Open the mailbox of the query below a root."""
    from riffle_spark.offline.steering import Mailroom
    from riffle_spark.worker.member_folders import options_of

    return Mailroom(root, options_of(settings))


def show_answer(mailroom: "Mailroom", request: "MailboxRequest", wait: float | None, *, as_json: bool) -> None:
    """Print a request with its answer, for which the command waits up to ``wait`` seconds. Exit with its code."""
    stop_reason = _warn_of_stop(mailroom, request)
    listed_request = mailroom.wait(request, 0.0 if stop_reason else wait or 0.0)
    _show(mailroom, listed_request, {"warning": stop_reason}, as_json=as_json)
    if listed_request.state == "pending" and stop_reason:
        click.get_current_context().exit(_NOT_RUNNING)
    if wait is not None and listed_request.state != "applied":
        click.get_current_context().exit(_NOT_IN_TIME if listed_request.state == "pending" else 1)


def _warn_of_stop(mailroom: "Mailroom", request: "MailboxRequest") -> str:
    """Return why the query does not run, after a warning. Empty if it runs, or has no status."""
    stop_reason = mailroom.describe_stop()
    if stop_reason:
        # Cause: The query was stopped, has failed, or its driver does not reach the store. The request is stored.
        echo(
            f"[RIFFLE-1490] No driver answers requests now. {stop_reason} The request is applied if the query starts "
            f"before {show_time(request.expires_ms)}.\n"
            "  What to do: Start the query, or repeat the command once it runs.",
            err=True,
        )
    return stop_reason


def _show(mailroom: "Mailroom", listed_request: "ListedRequest", more: dict[str, object], *, as_json: bool) -> None:
    """Print a request with its answer. ``more`` are further fields of the JSON object."""
    if as_json:
        echo(json.dumps({**listed_request.to_json(), **more}))
        return
    echo(_line(listed_request))
    if listed_request.state == "pending":
        echo(f"See the answer with: riffle requests {shlex.quote(mailroom.root)}")


def _wait_until_empty(mailroom: "Mailroom", request: "MailboxRequest", seconds: float, *, as_json: bool) -> None:
    """Wait up to ``seconds`` for the answer to a drain, and up to ``seconds`` more until its member is empty.

    Print progress, and exit with a code.
    """
    stop_reason = _warn_of_stop(mailroom, request)
    listed_request = mailroom.wait(request, 0.0 if stop_reason else seconds)
    if listed_request.state != "applied":
        _show(mailroom, listed_request, {"warning": stop_reason, "is_empty": False}, as_json=as_json)
        not_in_time = _NOT_RUNNING if stop_reason else _NOT_IN_TIME
        click.get_current_context().exit(not_in_time if listed_request.state == "pending" else 1)
    echo(_line(listed_request), err=as_json)
    last_progress: DrainProgress | None = None
    for progress in mailroom.watch_drain(listed_request, seconds):
        last_progress = progress
        echo(_text_of_progress(request, progress), err=as_json)
    _end_of_drain(listed_request, last_progress, as_json=as_json)


def _text_of_progress(request: "MailboxRequest", progress: "DrainProgress") -> str:
    """Return the remaining copies of a drained member, as a line of text."""
    counts = [
        f"{number} {noun if number == 1 else noun + 's'}"
        for number, noun in (
            (progress.owned, "key-group"),
            (progress.standbys, "standby"),
            (progress.warmups, "warm-up"),
        )
        if number
    ]
    return f"Member {request.arguments['member']} has {', '.join(counts) or 'no copy that is needed'}"


def _end_of_drain(listed_request: "ListedRequest", last_progress: "DrainProgress | None", *, as_json: bool) -> None:
    """Print the end of a drain that the command waited for. Exit with its code."""
    member = listed_request.request.arguments["member"]
    if last_progress is None:
        code, text = (
            _NOT_IN_TIME,
            f"Nothing is known about {member} since the answer, because the query wrote no status.",
        )
    elif last_progress.is_empty:
        code, text = 0, f"Member {member} is empty. Its executor can be stopped."
    elif not last_progress.is_drained:
        code, text = 1, f"Another request has ended the drain of member {member}."
    elif last_progress.stopped:
        code, text = _NOT_RUNNING, f"{last_progress.stopped} The drain continues when it runs."
    else:
        code, text = _NOT_IN_TIME, f"Member {member} is not empty yet. The drain continues."
    if as_json:
        counts = (
            {}
            if last_progress is None
            else {"owned": last_progress.owned, "standbys": last_progress.standbys, "warmups": last_progress.warmups}
        )
        echo(
            json.dumps(
                {**listed_request.to_json(), **counts, "is_empty": code == 0, "warning": "" if code == 0 else text}
            )
        )
    else:
        echo(text)
    click.get_current_context().exit(code)


def _line(listed_request: "ListedRequest") -> str:
    """Return a request and its answer as a line of text."""
    request = listed_request.request
    error_id = (
        f"  [{listed_request.answer.error_id}]" if listed_request.answer and listed_request.answer.error_id else ""
    )
    text = f"  {listed_request.answer.text}" if listed_request.answer else ""
    head = (
        f"{request.number:>6}  {show_time(request.time_ms)}  {listed_request.state:<10}  {request.user}@{request.host}"
    )
    return f"{head}  {_command_text(request)}{error_id}{text}"


def _command_text(request: "MailboxRequest") -> str:
    return " ".join([request.command, *(f"{name}={value}" for name, value in request.shown_arguments.items())])


@click.command("drain")
@_request_options
@click.argument("member")
@click.option("--until-empty", is_flag=True, help="Wait until MEMBER is empty. Print what it still has.")
@click.option(
    "--timeout",
    default="10 min",
    show_default=True,
    metavar="DURATION",
    callback=duration_parser(),
    help="With --until-empty: wait this long.",
)
def drain_command(
    root: str,
    settings: Settings,
    member: str,
    until_empty: bool,
    timeout: float,
    expires: float,
    wait: float | None,
    as_json: bool,
) -> None:
    """Move all key-groups away from MEMBER, so that its executor can be stopped.

    MEMBER is the id of a member or of its executor. With --until-empty the command ends once MEMBER owns no key-group
    and has no standby or warm-up.

    Exit codes with --until-empty: 0: MEMBER is empty. 1: the drain was refused, has expired, or was ended. 4: no
    answer, or not empty, in time. The drain continues. 5: the query does not run.
    """
    mailroom = open_mailroom(root, settings)
    request = mailroom.post("drain", {"member": member}, expires)
    if until_empty:
        _wait_until_empty(mailroom, request, timeout, as_json=as_json)
    else:
        show_answer(mailroom, request, wait, as_json=as_json)


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
    """Compute a new assignment of key-groups to members now."""
    return {}


@_steers("pause")
def pause_command() -> dict[str, object]:
    """Pause the query after its current batch, until `riffle resume`. A restart of the query ends the pause."""
    return {}


@_steers("resume")
def resume_command() -> dict[str, object]:
    """Continue a paused query."""
    return {}


@_steers("set")
@click.argument("pairs", nargs=-1, required=True, metavar="NAME=VALUE...")
def set_command(pairs: tuple[str, ...]) -> dict[str, object]:
    """Change live settings from the next batch on. They stay changed after a restart of the query.

    docs/configuration.md marks these settings as live. Example: `riffle set ROOT num_standbys=2`.
    """
    changes: dict[str, object] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{text!r} is not NAME=VALUE.\n  What to do: Write, for example, num_standbys=2.")
        changes[name.strip()] = value.strip()
    return changes


@click.command("requests")
@root_argument
@store_options
@json_option
def requests_command(root: str, settings: Settings, as_json: bool) -> None:
    """List the requests to a query and their answers, oldest first.

    STATE is `pending` without an answer. A refusal shows the id and the text of its error. Times are in UTC.
    """
    listed = open_mailroom(root, settings).requests()
    if as_json:
        echo(json.dumps({"requests": [each.to_json() for each in listed]}))
        return
    table = Table("", ("NUMBER", "TIME", "STATE", "BY", "REQUEST", "ANSWER"), right=frozenset({"NUMBER"}))
    for each in listed:
        request = each.request
        answer = " ".join(filter(None, (each.answer.error_id, each.answer.text))) if each.answer else ""
        by = f"{request.user}@{request.host}"
        table.add(request.number, show_time(request.time_ms), each.state, by, _command_text(request), answer or None)
    if not listed:
        echo("No requests. Commands such as riffle drain make them.")
    show_table(table)
