"""The commands that show a query by its root alone: status, log, stores, where."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.observe.status import BatchSummary, MoveSummary, Status, WarningSummary, encode
from riffle_spark.offline.root_status import read_status
from riffle_spark.protocol.facts import DriverFacts, PartitionLag
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import FULL_EVERY, Log
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World

pytestmark = pytest.mark.usefixtures("names_in_order")


@pytest.fixture
def query(tmp_path: Path) -> Elastic:
    """A query over two executors with a standby each, whose newest full record lists its members."""
    world = Elastic(tmp_path / "local", executors=("1", "2"), num_standbys=1)
    world.feed(FULL_EVERY + 2)
    return world


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def _json(*arguments: object) -> dict[str, Any]:
    done = _run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    shown: dict[str, Any] = json.loads(done.output)
    return shown


def _write_status(query: World, **changes: object) -> None:
    """Write a status as the driver does, as of the newest record."""
    now_ms = read_status(query.home.root).now_ms
    facts = DriverFacts(
        now_ms, "q", "counts", source=(PartitionLag("orders", 0, 70, 3.0), PartitionLag("orders", 1, 5, None))
    )
    status = Status(facts, product="0.1.0", **changes)  # type: ignore[arg-type]
    query.memory.delete([paths.STATUS])
    assert query.memory.put_if_absent(paths.STATUS, encode(status))


def test_without_a_status_the_log_shows_the_members(query: Elastic) -> None:
    """A root of an earlier version, or with `status_interval = 0`: members and owners are those of the log."""
    shown = _json("status", query.home.root)
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    assert (shown["health"], shown["version"], shown["lag_records"]) == ("unknown", tail.version, None)
    members = shown["facts"]["members"]
    owned = {member["id"]: member["owned"] for member in members}
    assert owned == {member["id"]: [*tail.owners.values()].count(member["id"]) for member in members}
    owners = [members[number]["id"] for number in shown["facts"]["groups"][0]["owners"]]
    assert owners == [tail.owners[str(key_group)] for key_group in range(6)]
    text = _run("status", query.home.root)
    assert text.exit_code == 0
    assert "none written: lag, moves and warnings are unknown" in text.output
    assert f"batch {tail.version}, " in text.output


def test_the_status_shows_lag_moves_and_warnings_with_units(query: Elastic) -> None:
    """What only the driver knows is read from its status."""
    batches = tuple(BatchSummary(n, n * 30_000, 600, {"total": 0.5}) for n in range(3))
    moves = (MoveSummary(60_000, 2, 4, "query", "owner", "m1", "m2", "member joined"),)
    warnings = (WarningSummary(60_000, "RIFFLE-0809", "Batch 2 has 3 dead letters."),)
    _write_status(query, batches=batches, moves=moves, warnings=warnings)
    shown = _json("status", query.home.root)
    assert (shown["lag_records"], shown["lag_seconds"]) == (75, 3.0)
    assert (shown["batches_per_minute"], shown["rows_per_second"], shown["batch_seconds"]) == (2.0, 20.0, 0.5)
    assert shown["status"]["moves"][0]["reason"] == "member joined"
    text = _run("status", query.home.root).output
    for part in (
        "counts, riffle_spark 0.1.0",
        "2 per minute, 20 rows/s, 0.5 s each",
        "75 records, 3.0 s, 2 partitions",
        "1970-01-01 00:01:00Z",
        "member joined",
        "Batch 2 has 3 dead letters.",
    ):
        assert part in text


def test_the_page_has_the_status_of_status_json(query: Elastic, tmp_path: Path) -> None:
    """``--html`` writes a page with the numbers of ``--json``, and shows nothing."""
    file = tmp_path / "status.html"
    assert _run("status", query.home.root, "--html", file).exit_code == 1
    assert not file.exists()
    _write_status(query, batches=tuple(BatchSummary(n, n * 30_000, 600, {"total": 0.5}) for n in range(3)))
    done = _run("status", query.home.root, "--html", file)
    assert (done.exit_code, done.output) == (0, "")
    page = file.read_text("utf-8")
    shown = _json("status", query.home.root)
    (data,) = re.findall(r'<script id="status" type="application/json">(.*?)</script>', page)
    assert {**json.loads(data), "format": None} == {**shown["status"], "format": None}
    for figure in (f'value="{shown["lag_records"]}"', f'value="{shown["batches_per_minute"]}"'):
        assert figure in page
    missing = _run("status", query.home.root, "--html", tmp_path / "no" / "status.html")
    assert missing.exit_code == 2
    assert "Name a file in a folder that exists" in missing.output


@pytest.mark.parametrize(
    ("state", "age", "lag", "commit_age", "health", "failure"),
    [
        ("running", 5, 0, 500, "ok", None),
        ("running", 5, 9, 10, "ok", None),
        ("running", 5, 9, 400, "behind", "9 records are unread"),
        ("idle", 200, 0, 10, "silent", None),
        ("idle", 400, 0, 10, "silent", "wrote its status 400 s ago"),
        ("stopped", 200, 0, 200, "stopped", None),
        ("stopped", 400, 0, 400, "stopped", "wrote its status 400 s ago"),
    ],
)
def test_a_probe_fails_if_records_wait_or_the_driver_is_silent(
    query: Elastic, state: Any, age: int, lag: int, commit_age: int, health: str, failure: str | None
) -> None:
    """`--max-age 5m` as a liveness probe: an idle query is alive, one with unread records and no commit is not."""
    read = read_status(query.home.root)
    facts = DriverFacts(read.now_ms - age * 1000, "q", source=(PartitionLag("orders", 0, lag, None),))
    record = replace(read.record, written_ms=read.now_ms - commit_age * 1000)
    probed = replace(read, record=record, status=Status(facts, state), facts=facts)
    assert probed.health == health
    reason = probed.probe(300)
    assert (reason is None) if failure is None else (reason is not None and failure in reason)


def test_the_probe_is_an_exit_code(query: Elastic) -> None:
    """0 for a query that is alive, 1 otherwise, 2 for a wrong duration."""
    assert _run("status", query.home.root, "--max-age", "5m").exit_code == 1
    _write_status(query)
    assert _run("status", query.home.root, "--max-age", "36500d").exit_code == 0
    assert _run("status", query.home.root, "--max-age", "soon").exit_code == 2


def test_the_log_lists_records_with_what_a_rollback_may_go_to(query: Elastic) -> None:
    """Each retained batch is a target, each record before the promise is none."""
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    records = _json("log", query.home.root, "--limit", 100)["records"]
    assert [record["sequence"] for record in records] == sorted(record["sequence"] for record in records)
    assert records[-1]["version"] == tail.version
    for record in records:
        named = str(record["version"]) if record["kind"] == "batch" else f"record:{record['sequence']}"
        assert record["rollback_to"] == (None if record["sequence"] < tail.promised else named)
        assert (record["changed_rows"] > 0) == (record["sealed_bytes"] > 0) == (record["kind"] == "batch")
    assert len(_json("log", query.home.root, "--limit", 3)["records"]) == 3
    text = _run("log", query.home.root).output
    assert "CHANGED ROWS" in text
    assert str(tail.version) in text


def test_the_log_shows_which_key_groups_moved(query: Elastic) -> None:
    """A lost executor: its key-groups have another owner in the next record."""
    query.cluster.lose("2")
    query.feed(3)
    records = _json("log", query.home.root, "--limit", 4)["records"]
    moved = [move for record in records for move in record["owner_moves"]]
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    assert moved
    assert all(tail.owners[task] == owner for task, _, owner in moved)


def test_stores_have_their_columns_and_sizes(query: Elastic) -> None:
    """Rows, bytes and parts are those of the manifest; the largest key-groups come first."""
    (store,) = _json("stores", query.home.root)["stores"]
    log = Log(query.memory, query.home.root)
    log.open()
    entries = log.manifest.entries
    assert store["rows"] == sum(entry.measure().rows for entry in entries.values())
    assert store["deltas"] == sum(len(entry.chain) for entry in entries.values())
    assert store["key"] == [["k", "string"]]
    sizes = [size for _, _, size in store["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert store["skew"] == pytest.approx(sizes[0] * 6 / store["bytes"])
    text = _run("stores", query.home.root).output
    assert "LARGEST KEY-GROUPS" in text
    assert "KiB" in text


def test_where_names_the_owner_that_the_log_has(query: Elastic) -> None:
    """Every key of the query is where the driver routes it."""
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    for key_group, keys in enumerate(query.keys):
        place = _json("where", query.home.root, keys[0])
        assert place["key_group"] == key_group
        assert place["owner"]["id"] == tail.owners[str(key_group)]
        assert tuple(standby["id"] for standby in place["standbys"]) == tail.standbys[str(key_group)]
    assert "Owner" in _run("where", query.home.root, query.keys[0][0]).output


def test_a_root_without_a_log_is_refused_by_every_command(tmp_path: Path) -> None:
    """Exit code 1 and the remedy."""
    for command in (("status",), ("log",), ("stores",), ("where", "k")):
        done = _run(command[0], f"file://{tmp_path}/none", *command[1:])
        assert done.exit_code == 1, done.output
        assert "holds no state" in done.output
