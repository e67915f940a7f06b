"""`riffle moves` explains why key-groups moved, from the log and the status."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.observe.status import MoveSummary, Status, encode
from riffle_spark.protocol.facts import DriverFacts
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import decode
from riffle_spark.state.log.record import encode as encode_record
from riffle_spark.state.log.recorded_moves import RecordedMoves
from riffle_spark.state.objects.open import open_store
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.state.drawn_records import PLAIN

pytestmark = pytest.mark.usefixtures("names_in_order")


@pytest.fixture
def query(tmp_path: Path) -> Elastic:
    """Return a query over two executors with a standby each."""
    return Elastic(tmp_path / "local", executors=("1", "2"), num_standbys=1, retained_versions=100)


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def _moves(*arguments: object) -> list[dict[str, Any]]:
    done = _run("moves", *arguments, "--json")
    assert done.exit_code == 0, done.output
    moves: list[dict[str, Any]] = json.loads(done.output)["moves"]
    return moves


def _write_status(query: Elastic) -> None:
    """Write the status like the driver's exporter."""
    query.memory.delete([paths.STATUS])
    status = Status(query.driver.facts(), "stopped", moves=query.ownership.moves.recent())
    assert query.memory.put_if_absent(paths.STATUS, encode(status))


def test_the_log_has_each_reported_move_with_its_reason(query: Elastic) -> None:
    """The log has each move of the batch reports with its reason, when executors join, are drained and are lost."""
    reports = query.settle()
    query.cluster.add("3")
    reports += query.settle()
    query.driver.operations.drain(query.member("3"))
    reports += query.settle()
    query.cluster.lose("2")
    query.clock.advance(1_000)
    reports += query.settle()
    reported = [(report.version, move) for report in reports for move in report.moves]
    shown = _moves(query.home.root, "--limit", 10_000)
    logged = [(m["version"], m["key_group"], m["role"], m["from_member"], m["to_member"], m["reason"]) for m in shown]
    assert sorted(logged) == sorted(
        (v, m["key_group"], m["role"], m["from"], m["to"], m["reason"]) for v, m in reported
    )
    assert {move["role"] for move in shown} >= {"owner", "standby"}
    assert len({move["reason"] for move in shown}) > 2
    times = [move["time_ms"] for move in shown]
    assert times == sorted(times)


def test_the_moves_of_a_key_group_explain_its_owner(query: Elastic) -> None:
    """Moves of a key-group are found by its number and by a key, and the last one leads to the owner in the log."""
    query.feed(2)
    query.cluster.lose("2")
    query.clock.advance(1_000)
    query.settle()
    tail = query.log().tail
    assert tail is not None
    for key_group, keys in enumerate(query.keys):
        moves = _moves(query.home.root, "--key-group", key_group)
        assert moves == _moves(query.home.root, keys[0])
        assert {move["key_group"] for move in moves} == {key_group}
        assert [m["to_member"] for m in moves if m["role"] == "owner"][-1] == tail.owners[str(key_group)]
        assert all(move["reason"] for move in moves)
    text = _run("moves", query.home.root, "--key-group", 0)
    assert text.exit_code == 0
    assert "REASON" in text.output
    assert "The retained records have no such move." in _run("moves", query.home.root, "--key-group", 99).output


def test_moves_of_an_idle_query_are_shown_from_the_status_then_the_log(query: Elastic) -> None:
    """Moves between batches are shown from the status, and from the log after the next batch."""
    query.feed(3)
    logged = _moves(query.home.root, "--limit", 1000)
    query.cluster.add("3")
    query.rest(3, 5)
    assert _moves(query.home.root, "--limit", 1000) == logged
    recent = query.ownership.moves.recent()
    _write_status(query)
    shown = _moves(query.home.root, "--limit", 1000)
    idle = shown[len(logged) :]
    assert shown[: len(logged)] == logged
    assert idle
    assert all(move["reason"] and move["record"] is None and move["version"] == 3 for move in idle)
    assert [move["key_group"] for move in idle] == [move.key_group for move in recent[-len(idle) :]]
    query.feed()
    later = _moves(query.home.root, "--limit", 1000)
    assert [{**move, "record": None} for move in later[: len(shown)]] == [{**move, "record": None} for move in shown]
    assert all(move["record"] is not None for move in later)


def test_moves_are_recorded_once_and_not_repeated_by_the_next_driver(query: Elastic) -> None:
    """A move is recorded once, although the claim of the next driver copies other fields of the record."""
    query.feed(2)
    before = _moves(query.home.root, "--limit", 1000)
    query.start()
    query.feed()
    after = _moves(query.home.root, "--limit", 1000)
    assert after[: len(before)] == before
    assert len({(m["time_ms"], m["key_group"], m["role"], m["to_member"]) for m in after}) == len(after)


def test_records_of_earlier_versions_show_their_moves_without_a_reason(tmp_path: Path) -> None:
    """Records of earlier versions show moves without a reason, derived from the owners of successive records."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    for version, owners in enumerate([{"0": "a", "1": "a"}, {"0": "a", "1": "b"}, {"0": "a", "1": "b"}]):
        draft = replace(PLAIN, kind="batch", version=version, owners=owners, written_ms=1000 * version, total=2)
        log.append(draft, Manifest())
    (move,) = _moves(root)
    assert (move["key_group"], move["from_member"], move["to_member"], move["reason"]) == (1, "a", "b", None)
    assert (move["time_ms"], move["version"], move["record"]) == (1000, 1, 1)
    assert "not recorded" in _run("moves", root).output


def test_a_rollback_is_the_reason_of_the_owners_that_it_restores(tmp_path: Path) -> None:
    """Owners that a rollback restores have moved with the reason "rollback", because no assignment chose them."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    log.append(replace(PLAIN, kind="batch", version=0, owners={"0": "a"}), Manifest())
    log.append(replace(PLAIN, kind="rollback", version=0, target=0, owners={"0": "b"}), Manifest())
    (move,) = _moves(root)
    assert (move["reason"], move["to_member"], move["version"]) == ("rollback", "b", 1)


def _root_of(folder: Path, *changes: dict[str, Any]) -> str:
    """Return a root with one batch per second, whose records have these fields."""
    root = f"file://{folder}/state"
    log = Log(open_store(root), root)
    log.open()
    for version, fields in enumerate(changes):
        draft = replace(PLAIN, kind="batch", version=version, written_ms=1000 * version, **fields)
        log.append(draft, Manifest(), draft.moves)
    return root


def test_owners_before_a_change_of_the_dispatch_are_not_compared(tmp_path: Path) -> None:
    """Owners before and after a change of dispatch are not compared, because key-groups have another meaning."""
    partitions = {"dispatch": "partition", "shards": (("events", 0),), "owners": {"0": "b"}}
    assert _moves(_root_of(tmp_path, {"owners": {"0": "a", "1": "a"}}, partitions)) == []


def test_owners_around_a_missing_record_are_not_compared(tmp_path: Path) -> None:
    """Owners around a missing record are not compared, because the time and the reason of their change are unknown."""
    root = _root_of(tmp_path, *({"owners": {"0": owner}} for owner in "abbc"))
    open_store(root).delete([paths.record_name(1)])
    assert [(move["to_member"], move["version"]) for move in _moves(root)] == [("c", 3)]


def test_losing_an_owner_is_a_move_to_no_member(tmp_path: Path) -> None:
    """Losing an owner is a move to no member, and a period includes a move at its start."""
    root = _root_of(tmp_path, {"owners": {"0": "a"}}, {"owners": {}}, {"owners": {"0": "b"}})
    shown = [(move["from_member"], move["to_member"]) for move in _moves(root)]
    assert shown == [("a", ""), ("", "b")]
    assert len(_moves(root, "--since", "1970-01-01T00:00:01Z")) == 2
    assert len(_moves(root, "--since", "1970-01-01T00:00:02Z")) == 1


def test_the_reason_of_a_standby_does_not_explain_the_owner(tmp_path: Path) -> None:
    """The reason of a standby's move is not shown for the owner's move of the same key-group."""
    standby = RecordedMoves(900, "standby", "", "c", "member joined", "", ("0",))
    root = _root_of(tmp_path, {"owners": {"0": "a"}}, {"owners": {"0": "b"}, "moves": (standby,)})
    shown = {(move["role"], move["to_member"], move["reason"]) for move in _moves(root)}
    assert shown == {("standby", "c", "member joined"), ("owner", "b", None)}


def test_a_move_at_the_time_of_the_newest_record_is_read_from_the_status(tmp_path: Path) -> None:
    """A move at the time of the newest record is read from the status if the record does not have it."""
    root = _root_of(tmp_path, {"owners": {"0": "a"}})
    move = MoveSummary(0, 1, 0, "query", "owner", "a", "b", "member joined")
    status = Status(DriverFacts(0, "q"), moves=(move,))
    assert open_store(root).put_if_absent(paths.STATUS, encode(status))
    assert [(shown["to_member"], shown["record"]) for shown in _moves(root)] == [("b", None)]


def test_moves_are_selected_by_a_period_and_a_limit(query: Elastic) -> None:
    """A period includes both ends, a limit keeps the newest moves, and times without a zone are refused."""
    query.feed()
    query.clock.advance(100)
    query.cluster.add("3")
    query.settle()
    moves = _moves(query.home.root, "--limit", 1000)
    times = sorted({move["time_ms"] for move in moves})
    assert len(times) > 1

    def iso(time_ms: int) -> str:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat()

    since = _moves(query.home.root, "--limit", 1000, "--since", iso(times[1]))
    assert since == [move for move in moves if move["time_ms"] >= times[1]]
    until = _moves(query.home.root, "--limit", 1000, "--until", iso(times[0]))
    assert until == [move for move in moves if move["time_ms"] <= times[0]]
    assert _moves(query.home.root, "--limit", 2) == moves[-2:]
    assert _moves(query.home.root, "--since", "15m") == []
    assert _moves(query.home.root, "--since", "2000-01-01T00:00Z", "--limit", 2) == moves[-2:]
    for wrong in ("1970-01-01T00:00", "soon"):
        done = _run("moves", query.home.root, "--since", wrong)
        assert done.exit_code == 2
        assert "Give an ISO time with its zone" in done.output


def test_a_damaged_record_hides_only_its_own_moves(query: Elastic) -> None:
    """A damaged record hides only its own moves, and changes of owners across it are not shown as moves."""
    query.feed(2)
    moves = _moves(query.home.root, "--limit", 1000)
    record = moves[0]["record"]
    name = paths.record_name(record)
    data = query.memory.get(name)
    assert data is not None
    assert task_name(query.ownership.placement.groups.tasks([0])[0]) in decode(data, name).moves[0].tasks
    query.memory.delete([name])
    assert query.memory.put_if_absent(name, data[:-1])
    assert _moves(query.home.root, "--limit", 1000) == [move for move in moves if move["record"] != record]
    assert encode_record(decode(data, name)) == data
