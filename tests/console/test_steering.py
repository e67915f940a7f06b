"""Commands that send requests to a running query: the mailbox, the output and the exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import COMMANDS, main
from riffle_spark.console.steering import _end_of_drain
from riffle_spark.observe.status import Status, encode
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.offline import steering
from riffle_spark.offline.steering import DrainProgress
from riffle_spark.protocol.batch.mailbox import MailboxRequest, read_mailbox
from riffle_spark.protocol.facts import FailureFacts
from riffle_spark.state.log.paths import MAILBOX, STATUS
from riffle_spark.state.objects.open import open_store
from tests.kit.simulated.world import World, one_row


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the root of the query."""
    return f"file://{tmp_path}/root"


@pytest.fixture
def query(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a query after a batch that reads requests and whose clock replaces the machine's."""
    monkeypatch.setattr(steering, "_LOOK_SECONDS", 0.01)  # private: shortens the wait
    world = World(tmp_path / "local", root=root, control="on", status_interval=3_600)
    world.batch(0, one_row(1))
    monkeypatch.setattr("time.time_ns", lambda: world.clock.wall_ms() * 1_000_000)
    return world


def run(*arguments: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, arguments)


def status_exporter(query: World) -> StatusExporter:
    """Return the exporter of a query's status after it has written the first one."""
    moves = query.driver.ownership.moves.recent
    exporter = StatusExporter(query.memory, lambda: query.driver.settings, moves, "test", lambda _: None)
    exporter.export(None, query.driver.facts(), ())
    return exporter


@contextmanager
def resting(query: World, exporter: StatusExporter | None = None) -> Iterator[None]:
    """Let the idle driver read requests and write its status repeatedly while the block runs."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            query.rest()
            if exporter is not None:
                exporter.export(None, query.driver.facts(), ())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_drain_with_wait_prints_the_answer(query: World, root: str) -> None:
    """`riffle drain --wait` prints the answer, and `riffle requests` lists the request with its author."""
    with resting(query):
        result = run("drain", root, "1", "--wait")
    assert (result.exit_code, "applied" in result.output) == (0, True)
    assert len(query.driver.operations.requests.drained) == 1
    (listed,) = json.loads(run("requests", root, "--json").output)["requests"]
    assert (listed["command"], listed["arguments"], listed["state"]) == ("drain", {"member": "1"}, "applied")
    assert listed["host"]
    shown = run("requests", root).output.splitlines()
    assert shown[-2].split() == ["NUMBER", "TIME", "STATE", "BY", "REQUEST", "ANSWER"]
    assert shown[-1].split()[-3:] == ["drain", "member=1", "-"]
    assert shown[-1].index("applied") == shown[-2].index("STATE")


def test_an_empty_request_list_is_reported_in_words(query: World, root: str) -> None:
    """`riffle requests` without requests says so instead of printing an empty table."""
    assert run("requests", root).output.startswith("No requests.")
    assert json.loads(run("requests", root, "--json").output) == {"requests": []}


def test_until_empty_waits_until_the_member_has_no_copies(query: World, root: str) -> None:
    """`--until-empty` waits until the member has no copies, which the status shows within a second. With --json
    progress goes to stderr.
    """
    before = query.driver.facts()
    owned = next(member.owned for member in before.members if member.executor == "1")
    with resting(query, status_exporter(query)):
        result = run("drain", root, "1", "--until-empty", "--timeout", "100 s", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["is_empty"], answer["owned"], answer["state"]) == (0, True, 0, "applied"), result
    assert owned > 0
    assert "has no copy that is needed" in result.stderr
    assert query.driver.facts().time_ms - before.time_ms < 60_000, "the command waited for the next regular status"
    drained = next(member for member in query.driver.facts().members if member.executor == "1")
    assert (drained.state, drained.owned, drained.standbys, drained.warmups) == ("drained", 0, 0, 0)


def test_a_drain_that_is_not_finished_in_time_exits_with_4(query: World, root: str) -> None:
    """A drain that is not finished in time exits with 4, says what the member still has, and continues."""
    with resting(query):
        refused = run("drain", root, "7", "--until-empty")
        unwritten = run("drain", root, "1", "--until-empty", "--timeout", "0.2", "--json")
    assert (refused.exit_code, "RIFFLE-0756" in refused.output) == (1, True)
    assert (unwritten.exit_code, json.loads(unwritten.stdout)["is_empty"]) == (0, True), "the log shows an empty member"
    exporter = status_exporter(query)
    facts = query.driver.facts()
    full = [replace(each, owned=2, standbys=1, warmups=0) if each.executor == "1" else each for each in facts.members]
    exporter.export(None, replace(facts, time_ms=facts.time_ms + 1_000, answered=9, members=tuple(full)), ())
    with resting(query):
        late = run("drain", root, "1", "--until-empty", "--timeout", "0.2")
    assert (late.exit_code, "1 has 2 key-groups, 1 standby\n" in late.stdout) == (4, True), late


def test_a_running_query_creates_and_deletes_savepoints_itself(query: World, root: str) -> None:
    """The savepoint commands send a request to a running query, and print its answer."""
    write_running_status(query)
    with resting(query):
        created = run("savepoint", "create", root, "--name", "a", "--version", "0")
        newest = run("savepoint", "create", root, "--name", "b", "--json")
        unknown = run("savepoint", "delete", root, "c")
        deleted = run("savepoint", "delete", root, "b")
    assert (created.exit_code, "applied" in created.output) == (0, True), created
    assert (newest.exit_code, json.loads(newest.output)["arguments"]) == (0, {"name": "b"}), newest
    assert (unknown.exit_code, "RIFFLE-1571" in unknown.output) == (1, True), unknown
    assert (deleted.exit_code, "applied" in deleted.output) == (0, True), deleted
    listed = json.loads(run("savepoint", "list", root, "--json").output)["savepoints"]
    assert [(each["name"], each["version"], each["objects"] > 0) for each in listed] == [("a", 0, True)]
    assert query.driver.settings.control == "on", "the driver still runs"


def write_running_status(query: World) -> None:
    """Write the status of the running driver."""
    query.memory.delete([STATUS])
    assert query.memory.put_if_absent(STATUS, encode(Status(query.driver.facts(), "idle")))


@pytest.mark.parametrize(
    ("progress", "code", "text"),
    [
        (None, 4, "Nothing is known about 1 since the answer"),
        (DrainProgress(2, 0, 0, is_drained=False), 1, "Another request has ended the drain of member 1."),
        (DrainProgress(2, 0, 0, stopped="The query stopped 5 s ago."), 5, "The drain continues when it runs."),
        (DrainProgress(2, 0, 0), 4, "Member 1 is not empty yet. The drain continues."),
        (DrainProgress(0, 0, 0), 0, "Member 1 is empty. Its executor can be stopped."),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_end_of_an_awaited_drain_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], progress: DrainProgress | None, code: int, text: str, as_json: bool
) -> None:
    """A drain that a command waited for ends with a text and an exit code for each outcome."""
    request = MailboxRequest(1, "id", "drain", {"member": "1"}, "ann", "laptop", 1, 2)
    listed = steering.ListedRequest(request, "applied")
    with click.Context(main), pytest.raises(click.exceptions.Exit) as ended:
        _end_of_drain(listed, progress, as_json=as_json)
    assert ended.value.exit_code == code
    shown = capsys.readouterr().out
    if as_json:
        answer = json.loads(shown)
        assert (answer["is_empty"], answer.get("owned")) == (code == 0, None if progress is None else progress.owned)
        assert text in answer["warning"] if code else not answer["warning"]
    else:
        assert text in shown


def test_a_command_stops_waiting_if_another_operator_ends_the_drain(query: World, root: str) -> None:
    """A command that waits for a drain stops waiting if another operator ends the drain."""
    exporter = status_exporter(query)
    run("drain", root, "1")
    run("undrain", root, "1")
    query.rest(3)
    facts = query.driver.facts()
    member = replace(facts.members[0], executor="1", owned=3)
    exporter.export(None, replace(facts, members=(member,)), ())
    mailroom = steering.Mailroom(root)
    drained = replace(mailroom.requests()[0], state="applied")
    progress = mailroom.drain_progress(drained)
    assert progress is not None
    assert (progress.is_drained, progress.is_empty) == (False, False)
    query.memory.delete([STATUS])
    assert query.memory.put_if_absent(STATUS, encode(Status(replace(facts, members=()), "idle")))
    left = mailroom.drain_progress(drained)
    assert left is not None
    assert left.is_empty, "the member has left the query"


def test_a_command_warns_at_once_of_a_stopped_or_silent_query(query: World, root: str) -> None:
    """If the query is stopped or silent, the command warns at once, and the request stays for a driver that starts."""
    exporter = status_exporter(query)
    query.clock.advance(20_000)
    silent = run("pause", root, "--wait", "10 min")
    assert (silent.exit_code, "RIFFLE-1490" in silent.stderr, "has not written" in silent.stderr) == (5, True, True)
    exporter.close()
    for arguments in (["drain", root, "1"], ["drain", root, "1", "--until-empty"], ["rebalance", root, "--wait"]):
        stopped = run(*arguments, "--json")
        assert (stopped.exit_code, "RIFFLE-1490" in stopped.stderr) == (5, True)
        assert json.loads(stopped.stdout)["warning"].startswith("The query stopped")
    query.start()
    query.batch(1, one_row(1))
    query.batch(2, one_row(1))
    states = [each["state"] for each in json.loads(run("requests", root, "--json").stdout)["requests"]]
    assert states == ["refused", "superseded", "applied", "applied"]
    assert run("resume", root).exit_code == 0, "a driver has started since the status"


def test_a_command_warns_of_a_failed_query_with_its_error(query: World, root: str) -> None:
    """If the query has failed, the command exits with 5 and names the error."""
    facts = replace(query.driver.facts(), failure=FailureFacts("UserFunctionError", "RIFFLE-0500", 1_000))
    assert query.memory.put_if_absent(STATUS, encode(Status(facts, "failed")))
    failed = run("pause", root, "--wait", "10 min")
    assert (failed.exit_code, "UserFunctionError (RIFFLE-0500)" in failed.stderr) == (5, True), failed


def test_a_refused_request_exits_with_1_and_the_errors_id(query: World, root: str) -> None:
    """A refused request makes the command exit with 1 and print the error's id."""
    with resting(query):
        result = run("pin", root, "99", "1", "--wait", "10 s", "--json")
    answer = json.loads(result.output)
    assert (result.exit_code, answer["state"], answer["error_id"]) == (1, "refused", "RIFFLE-0757")


def test_a_request_without_an_answer_exits_with_4(query: World, root: str) -> None:
    """The command exits with 4 if its request gets no answer in time, and the request stays; without --wait it exits
    with 0.
    """
    assert run("drain", root, "1", "--wait", "0.05").exit_code == 4
    waiting = run("rebalance", root)
    assert (waiting.exit_code, "pending" in waiting.output) == (0, True)
    assert [each.command for each in read_mailbox(query.memory)[0].requests] == ["drain", "rebalance"]


@pytest.mark.parametrize(
    ("arguments", "command", "request_arguments"),
    [
        (["undrain", "ROOT", "1"], "undrain", {"member": "1"}),
        (["pin", "ROOT", "3", "m1", "--store", "totals"], "pin", {"key_group": 3, "member": "m1", "store": "totals"}),
        (["pin", "ROOT", "a:b:3", "m1"], "pin", {"key_group": ["a:b", 3], "member": "m1"}),
        (["unpin", "ROOT", "3"], "unpin", {"key_group": 3}),
        (["pause", "ROOT"], "pause", {}),
        (["resume", "ROOT"], "resume", {}),
        (["set", "ROOT", "num_standbys=2", "retained_for = 2 h"], "set", {"num_standbys": "2", "retained_for": "2 h"}),
    ],
)
def test_each_command_sends_its_request(
    query: World, root: str, arguments: list[str], command: str, request_arguments: dict[str, object]
) -> None:
    """Each command sends its request with its arguments by name and an expiry."""
    assert run(*[root if text == "ROOT" else text for text in arguments], "--expires", "1 h").exit_code == 0
    (request,) = read_mailbox(query.memory)[0].requests
    assert (request.command, request.arguments) == (command, request_arguments)
    assert request.expires_ms - request.time_ms == 3_600_000


@pytest.mark.parametrize(
    "arguments", [["pin", "ROOT", "x", "1"], ["pin", "ROOT", ":3", "1"], ["set", "ROOT", "a"], ["set", "ROOT"],
                  ["drain", "ROOT", "1", "--wait", "soon"]],
)  # fmt: skip
def test_wrong_arguments_are_usage_errors(query: World, root: str, arguments: list[str]) -> None:
    """Wrong arguments are usage errors and send no request."""
    assert run(*[root if text == "ROOT" else text for text in arguments]).exit_code == 2
    assert not query.memory.exists(MAILBOX)


def test_a_query_that_does_not_read_requests_is_refused_at_once(tmp_path: Path, root: str) -> None:
    """A query that does not read requests, and a root without a log, are refused at once."""
    missing = run("drain", root, "1")
    assert (missing.exit_code, "RIFFLE-1583" in missing.output) == (1, True)
    World(tmp_path / "local", root=root).batch(0, one_row(1))
    refused = run("drain", root, "1")
    assert (refused.exit_code, "RIFFLE-1358" in refused.output) == (1, True)
    assert not open_store(root).exists(MAILBOX)


def test_verify_and_orphan_scans_leave_the_mailbox_alone(query: World, root: str) -> None:
    """`riffle verify` accepts the mailbox, and a scan for orphans keeps it."""
    run("drain", root, "1")
    verified = run("verify", root, "--json")
    assert json.loads(verified.output)["is_whole"], verified.output
    assert json.loads(verified.output)["findings"] == []
    query.start()
    for version in range(1, 8):
        query.batch(version, one_row(version))
    query.rest(5, 100_000)
    assert query.memory.requests["list"] >= 2, "the root was scanned"
    assert query.memory.exists(MAILBOX)


def test_help_lists_every_steering_command() -> None:
    """The help of riffle lists every steering command."""
    listed = {name for name, (module, _) in COMMANDS.items() if module == "steering"}
    assert listed == {"drain", "undrain", "pin", "unpin", "rebalance", "pause", "resume", "set", "requests"}
