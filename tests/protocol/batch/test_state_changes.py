"""A running query applies each requested change of state once, between two batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.console import state_edits
from riffle_spark.errors import FencedError, RefusedError, UnavailableError
from riffle_spark.protocol.batch.mailbox import Answer, MailboxRequest, add_request, last_number, read_mailbox
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.state.log import paths
from riffle_spark.state.log.paths import MAILBOX
from riffle_spark.state.log.record import Record, encode
from tests.kit.root_commands import run_command
from tests.kit.simulated.world import Crash, World, one_row
from tests.kit.state.faulty_store import Fault, Kind

HOUR_MS = 3_600_000
SECRET = "secret-key"  # noqa: S105 - a key of rows


def ask(world: World, action: str, expires_ms: int = HOUR_MS, **arguments: object) -> MailboxRequest:
    """Request to delete a key or to set its value."""
    now_ms = world.clock.wall_ms()
    value: list[object] = [arguments.pop("value")] if action == "set" else []
    every = {"store": "totals", "key": SECRET, "variable": "", "reason": "ticket 7", "value": value, **arguments}
    name = f"{action}-{len(read_mailbox(world.memory)[0].requests)}"
    request = MailboxRequest(0, name, "edit_state", every, "ann", "laptop", now_ms, now_ms + expires_ms)
    return add_request(world.memory, request, lambda: last_number(answers(world)))


def tail_of(world: World) -> Record:
    """Return the newest record."""
    tail = world.log().tail
    assert tail is not None
    return tail


def answers(world: World) -> tuple[Answer, ...]:
    """Return the answers in the newest record."""
    return read_requests(tail_of(world).orders).answers


def changes(world: World) -> list[Record]:
    """Return the records of changes of state."""
    log = world.log()
    assert log.tail is not None
    records = (log.find(sequence) for sequence in range(log.first, log.tail.sequence + 1))
    return [record for record in records if record is not None and record.kind == "state"]


def keys(world: World) -> set[object]:
    """Return the keys of the store."""
    return set(world.state("totals"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query of two executors that reads requests, after two batches."""
    query = World(tmp_path, control="on", retained_versions=100)
    query.batch(0, one_row(1, SECRET))
    query.batch(1, one_row(2, "b"))
    return query


def test_an_unknown_row_count_stays_unknown_after_a_requested_deletion(world: World) -> None:
    """If the log has no row count of a store, as in records of old versions, a requested deletion invents none."""
    tail = tail_of(world)
    world.memory.delete([paths.record_name(tail.sequence)])
    assert world.memory.put_if_absent(paths.record_name(tail.sequence), encode(replace(tail, row_counts={})))
    world.start()
    ask(world, "delete")
    for version in (2, 3):
        world.batch(version, one_row(5, "b"))
    (record,) = changes(world)
    assert record.row_counts == {}
    assert keys(world) == {"b"}


def test_a_key_is_removed_from_the_mailbox_after_a_race(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another operator writes while the driver removes an answered key from the mailbox, it is removed later, and no
    request is lost.
    """
    ask(world, "delete")
    write = world.store.replace_if_unchanged

    def overtaken(name: str, data: bytes, tag: str) -> Any:
        monkeypatch.setattr(world.store, "replace_if_unchanged", write)
        ask(world, "delete", key="b")
        return write(name, data, tag)

    monkeypatch.setattr(world.store, "replace_if_unchanged", overtaken)
    for version in range(2, 6):
        world.batch(version, one_row(5, "c"))
    assert [answer.state for answer in answers(world)] == ["applied", "applied"]
    assert keys(world) == {"c"}
    assert SECRET.encode() not in (world.memory.get(MAILBOX) or b"")


def test_a_requested_deletion_is_applied_before_the_next_batch(world: World) -> None:
    """The record of the change has the operator, but not the key, which is also removed from the mailbox."""
    ask(world, "delete")
    world.batch(2, one_row(5, SECRET))
    world.batch(3, one_row(6, "b"))
    (record,) = changes(world)
    assert dict(record.edit) == {
        "action": "delete", "store": "totals", "keys": 1, "user": "ann", "host": "laptop", "reason": "ticket 7",
    }  # fmt: skip
    assert record.version == 1
    assert [answer.state for answer in answers(world)] == ["applied"]
    assert world.state("totals")[SECRET] == (1, 5)
    mailbox = world.memory.get(MAILBOX)
    assert mailbox is not None
    assert SECRET.encode() not in mailbox
    assert SECRET not in json.dumps(dict(tail_of(world).orders))


def test_requests_are_applied_in_their_order(world: World) -> None:
    """Two changes of one key are two records, and the second change sees the first."""
    ask(world, "delete")
    ask(world, "delete")
    ask(world, "delete", key="b")
    world.batch(2, one_row(5, "c"))
    states = [(answer.state, answer.error_id) for answer in answers(world)]
    assert states == [("applied", ""), ("refused", "RIFFLE-1607"), ("applied", "")]
    assert len(changes(world)) == 2
    assert keys(world) == {"c"}


@pytest.mark.parametrize(
    ("arguments", "error_id"),
    [
        ({"store": "nothing"}, "RIFFLE-0480"),
        ({"variable": "x"}, "RIFFLE-1606"),
        ({"key": '["' + SECRET + '", 1]'}, "RIFFLE-1606"),
        ({"key": 7}, "RIFFLE-1356"),
        ({"value": [{"nothing": SECRET}]}, "RIFFLE-1606"),
    ],
)
def test_the_answer_of_a_refused_request_omits_key_and_value(
    world: World, arguments: dict[str, Any], error_id: str
) -> None:
    """A request that does not fit is refused. The answer in the log does not have the key or the value."""
    ask(world, "delete", **arguments)
    world.batch(2, one_row(5, "c"))
    (answer,) = answers(world)
    assert (answer.state, answer.error_id) == ("refused", error_id)
    assert SECRET not in answer.text
    assert changes(world) == []


def test_the_key_of_an_expired_request_is_removed(world: World) -> None:
    """An expired request is not applied, and its key is removed from the mailbox."""
    ask(world, "delete", expires_ms=0)
    world.batch(2, one_row(5, "c"))
    world.batch(3, one_row(5, "c"))
    assert [answer.state for answer in answers(world)] == ["expired"]
    assert SECRET in keys(world)
    assert SECRET.encode() not in (world.memory.get(MAILBOX) or b"")


@pytest.mark.parametrize("step", ["before change", "after change", "before run", "after seal", "after record"])
def test_a_change_is_applied_once_despite_a_crash(world: World, step: str) -> None:
    """After a crash a change is applied once: if it has no record, the next driver applies it."""
    ask(world, "delete")
    world.crash_at = step
    with pytest.raises(Crash):
        world.batch(2, one_row(5, SECRET))
    world.start()
    world.batch(2, one_row(5, SECRET))
    world.batch(3, one_row(6, "b"))
    assert len(changes(world)) == 1
    assert [answer.state for answer in answers(world)] == ["applied"]
    if step == "before change":  # a driver reads no requests before its first batch
        assert SECRET not in keys(world)
    else:
        assert world.state("totals")[SECRET] == (1, 5)


def test_a_fenced_driver_changes_nothing(world: World) -> None:
    """A fenced driver appends no record of a change. The new driver applies the request."""
    older = world.driver
    world.start()
    world.batch(2, one_row(5, "c"))
    newer = world.driver
    ask(world, "delete")
    world.driver = older
    with pytest.raises(FencedError):
        world.rest()
    world.rest()
    assert changes(world) == []
    world.driver = newer
    world.batch(3, one_row(6, "b"))
    assert len(changes(world)) == 1
    assert SECRET not in keys(world)


@pytest.mark.parametrize("kind", ["answer_lost", "request_lost"])
def test_a_lost_answer_of_the_store_applies_a_change_once(world: World, kind: Kind) -> None:
    """If the answer of the store is lost, no request is read until it is known whether the record exists."""
    ask(world, "delete")
    world.at_step = {"before change": lambda: world.store.script(Fault(kind, name="log/", times=9))}
    with pytest.raises(UnavailableError):
        world.rest()
    world.at_step = {}
    world.store.heal()
    world.rest(30)
    assert len(changes(world)) == 1
    world.batch(2, one_row(5, SECRET))
    assert [answer.state for answer in answers(world)] == ["applied"]
    assert world.state("totals")[SECRET] == (1, 5)


def test_an_idle_query_applies_a_change_at_once(world: World) -> None:
    """An idle query applies a change without a batch. The next batch continues with the set value."""
    ask(world, "set", value={"total": 40})
    world.rest()
    assert world.state("totals")[SECRET] == (1, 40)
    world.batch(2, one_row(2, SECRET))
    assert world.state("totals")[SECRET] == (2, 42)
    assert SECRET.encode() not in (world.memory.get(MAILBOX) or b"")


def test_riffle_requests_lists_a_change_without_its_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`riffle state` checks the key and the value. `riffle requests` lists the request without them."""
    monkeypatch.setattr(state_edits, "_WAIT_SECONDS", 0.0)  # private: no answer arrives during the command
    common = (world.home.root, "--store", "totals", "--key", SECRET, "--request")
    assert run_command("state", "delete", *common, "--reason", f"of {SECRET}").exit_code == 2
    wrong = run_command("state", "set", *common, "--reason", "r", "--value", '{"total": "x"}', "--execute")
    assert "total must be int64" in wrong.output
    assert "Add --execute" in run_command("state", "delete", *common, "--reason", "r").output
    assert world.memory.get(MAILBOX) is None
    done = run_command("state", "set", *common, "--reason", "r", "--value", '{"total": 40}', "--execute")
    assert done.exit_code == 4, done.output
    for output in (done.output, run_command("requests", world.home.root).output):
        assert "pending" in output
        assert SECRET not in output
    assert SECRET not in run_command("requests", world.home.root, "--json").output
    world.rest()
    assert "applied" in run_command("requests", world.home.root).output
    assert world.state("totals")[SECRET] == (1, 40)


def test_a_change_stays_unanswered_if_the_store_refuses_its_record(world: World) -> None:
    """If the store refuses the record of a change, the request has no answer and is applied later."""

    def refuse() -> None:
        raise RefusedError("No rights.", remedy="Grant them.")

    ask(world, "delete")
    world.at_step = {"before change": refuse}
    with pytest.raises(RefusedError):
        world.rest()
    world.at_step = {}
    world.rest(5)
    assert len(changes(world)) == 1
    assert [answer.state for answer in answers(world)] == ["applied"]
    assert SECRET not in keys(world)
