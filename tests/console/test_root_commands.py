"""The commands that show a query from its root: status, log, stores, where and ls."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.keygroups import key_groups
from riffle_spark.observe.status import BatchSummary, MoveSummary, Status, WarningSummary, encode
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.offline.root_status import read_status
from riffle_spark.protocol.facts import DriverFacts, FailureFacts, GroupFacts, PartitionLag
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.plain_columns import PlainColumns
from tests.kit.root_commands import query_with_standbys, read_json, run_command, stored_query, write_status
from tests.kit.servers.object_server import ObjectServer
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.state.drawn_records import PLAIN

pytestmark = pytest.mark.usefixtures("names_in_order")


@pytest.fixture
def query(tmp_path: Path) -> Elastic:
    """Return a query over two executors with a standby each, whose newest full record lists its members."""
    return stored_query(tmp_path / "local")


@pytest.fixture
def running_query(tmp_path: Path) -> Elastic:
    """Return a query over two executors with a standby each, which can run further batches."""
    return query_with_standbys(tmp_path / "local")


def test_without_a_status_the_log_shows_the_members(query: Elastic) -> None:
    """Without a status, members and owners are those of the log."""
    shown = read_json("status", query.home.root)
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    assert (shown["health"], shown["version"], shown["lag_records"]) == ("unknown", tail.version, None)
    members = shown["facts"]["members"]
    owned = {member["id"]: member["owned"] for member in members}
    assert owned == {member["id"]: [*tail.owners.values()].count(member["id"]) for member in members}
    owners = [members[number]["id"] for number in shown["facts"]["groups"][0]["owners"]]
    assert owners == [tail.owners[str(key_group)] for key_group in range(6)]
    text = run_command("status", query.home.root)
    assert text.exit_code == 0
    assert "none written: lag, moves and warnings are unknown" in text.output
    assert f"batch {tail.version}, " in text.output


def test_the_status_shows_lag_moves_and_warnings_with_units(query: Elastic) -> None:
    """`riffle status` shows lag, rates, moves and warnings with their units from the driver's status."""
    now_ms = read_status(query.home.root).now_ms
    batches = tuple(BatchSummary(n, now_ms - 60_000 + n * 30_000, 600, {"total": 0.5}) for n in range(3))
    moves = (MoveSummary(60_000, 2, 4, "query", "owner", "m1", "m2", "member joined"),)
    warnings = (WarningSummary(60_000, "RIFFLE-0809", "Batch 2 has 3 dead letters."),)
    write_status(query, time_ms=now_ms, batches=batches, moves=moves, warnings=warnings)
    shown = read_json("status", query.home.root)
    assert (shown["lag_records"], shown["lag_seconds"]) == (75, 3.0)
    assert (shown["batches_per_minute"], shown["rows_per_second"], shown["batch_seconds"]) == (2.0, 20.0, 0.5)
    assert shown["status"]["moves"][0]["reason"] == "member joined"
    text = run_command("status", query.home.root).output
    for part in (
        "counts, riffle_spark 0.1.0",
        "2 per minute, 20 rows/s in all stores, 500 ms each",
        "75 records, 3 s, 2 partitions",
        "1970-01-01 00:01:00 UTC",
        "member joined",
        "Batch 2 has 3 dead letters.",
    ):
        assert part in text


def test_the_html_page_has_the_numbers_of_json(query: Elastic, tmp_path: Path) -> None:
    """`--html` writes a page with the numbers of `--json`, and prints nothing."""
    file = tmp_path / "status.html"
    assert run_command("status", query.home.root, "--html", file).exit_code == 1
    assert not file.exists()
    write_status(query, batches=tuple(BatchSummary(n, n * 30_000, 600, {"total": 0.5}) for n in range(3)))
    done = run_command("status", query.home.root, "--html", file)
    assert (done.exit_code, done.output) == (0, "")
    page = file.read_text("utf-8")
    shown = read_json("status", query.home.root)
    (data,) = re.findall(r'<script id="status" type="application/json">(.*?)</script>', page)
    stored = {**shown["status"], "facts": shown["facts"], "format": None}
    assert {**json.loads(data), "format": None} == stored
    for figure in (f'value="{shown["lag_records"]}"', f'value="{shown["batches_per_minute"]}"'):
        assert figure in page
    missing = run_command("status", query.home.root, "--html", tmp_path / "no" / "status.html")
    assert missing.exit_code == 2
    assert "Name a file in a folder that exists" in missing.output


@pytest.mark.parametrize(
    ("state", "age", "lag", "commit_age", "health", "failure"),
    [
        ("running", 5, 0, 500, "ok", None),
        ("running", 5, 9, 10, "ok", None),
        ("running", 5, 9, 400, "behind", "9 records are unread"),
        ("idle", 200, 0, 10, "silent", None),
        ("idle", 400, 0, 10, "silent", "wrote its status 6 min 40 s ago"),
        ("stopped", 200, 0, 200, "stopped", None),
        ("stopped", 400, 0, 400, "stopped", "wrote its status 6 min 40 s ago"),
    ],
)
def test_a_probe_fails_if_records_wait_or_the_driver_is_silent(
    query: Elastic, state: Any, age: int, lag: int, commit_age: int, health: str, failure: str | None
) -> None:
    """`--max-age` fails for unread records without a commit and for a silent driver, but not for an idle query."""
    read = read_status(query.home.root)
    facts = DriverFacts(read.now_ms - age * 1000, "q", source=(PartitionLag("orders", 0, lag, None),))
    record = replace(read.record, written_ms=read.now_ms - commit_age * 1000)
    probed = replace(read, record=record, status=Status(facts, state), facts=facts)
    assert probed.health == health
    reason = probed.probe(300)
    assert (reason is None) if failure is None else (reason is not None and failure in reason)


@pytest.mark.parametrize(
    ("state", "facts_age", "commit_age", "health", "problem"),
    [
        ("failed", 9, 9, "failed", "The query failed with ConflictError (RIFFLE-0201) 9 s ago"),
        ("failed", 9_000, 9_000, "failed", "The query failed with ConflictError (RIFFLE-0201) 2 h 30 min ago"),
        ("paused", 9, 9_000, "paused", "The query was paused 9 s ago"),
        ("paused", 90, 90, "silent", "wrote its status 1 min 30 s ago"),
        ("running", 74, 9, "ok", None),
        ("running", 76, 9, "silent", "but writes it every 1 min"),
        ("running", -30, -30, "ok", None),
        ("running", -90, 9, "skewed", "times are 1 min 30 s in the future"),
        ("idle", 9, -7_200, "skewed", "times are 2 h in the future"),
        ("stopped", -90, -90, "stopped", None),
    ],
)
def test_a_late_status_or_a_clock_ahead_is_unhealthy(
    query: Elastic, state: Any, facts_age: int, commit_age: int, health: str, problem: str | None
) -> None:
    """A late status and a status from a clock that is ahead are unhealthy, and small clock differences are allowed."""
    read = read_status(query.home.root)
    time_ms = read.now_ms - facts_age * 1000
    failure = FailureFacts("ConflictError", "RIFFLE-0201", time_ms) if state == "failed" else None
    facts = DriverFacts(time_ms, "q", failure=failure, paused_since_ms=time_ms if state == "paused" else None)
    record = replace(read.record, kind="batch", written_ms=read.now_ms - commit_age * 1000)
    shown = replace(read, record=record, status=Status(facts, state), facts=facts)
    assert shown.health == health
    assert (shown.problem is None) if problem is None else (shown.problem is not None and problem in shown.problem)
    assert shown.to_json()["problem"] == shown.problem
    if health in ("failed", "skewed"):
        assert shown.probe(36_000) == shown.problem


@pytest.mark.parametrize(("batch_seconds", "health"), [(0.0, "ok"), (400.0, "behind")])
def test_a_long_batch_is_unhealthy(query: Elastic, batch_seconds: float, health: str) -> None:
    """A long batch is unhealthy even without known unread records, and an idle query with an old commit is healthy."""
    read = read_status(query.home.root)
    facts = DriverFacts(read.now_ms, "q", batch_seconds=batch_seconds)
    record = replace(read.record, kind="batch", written_ms=read.now_ms - 400_000)
    shown = replace(read, record=record, status=Status(facts, "running"), facts=facts)
    assert shown.health == health
    assert shown.probe(300) == ("A batch runs, and the last commit was 6 min 40 s ago." if batch_seconds else None)


def test_the_status_shows_the_failure_of_a_query_in_text_json_and_page(query: Elastic, tmp_path: Path) -> None:
    """The class, id and time of a query's failure are in text, JSON and page, and the probe fails."""
    now_ms = read_status(query.home.root).now_ms
    write_status(query, state="failed", failure=FailureFacts("UserFunctionError", "RIFFLE-0500", now_ms))
    text = run_command("status", query.home.root).output
    assert "failed. The query failed with UserFunctionError (RIFFLE-0500) " in text
    shown = read_json("status", query.home.root)
    assert (shown["health"], shown["status"]["state"]) == ("failed", "failed")
    assert shown["facts"]["failure"] == {"error": "UserFunctionError", "id": "RIFFLE-0500", "time_ms": now_ms}
    assert run_command("status", query.home.root, "--html", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert 'id="failure">UserFunctionError (<code>RIFFLE-0500</code>) at <data' in page
    assert run_command("status", query.home.root, "--max-age", "1d").exit_code == 1


def test_a_damaged_status_is_an_error_and_not_a_traceback(query: Elastic) -> None:
    """A status without the total seconds of a batch is reported as damaged."""
    write_status(query, batches=(BatchSummary(1, 1, 1, {"total": 0.5, "run": 0.4}),))
    data = query.memory.get(paths.STATUS)
    assert data is not None
    query.memory.delete([paths.STATUS])
    assert query.memory.put_if_absent(paths.STATUS, data.replace(b'"total":0.5,', b""))
    done = run_command("status", query.home.root, "--json")
    assert done.exit_code == 1
    assert "RIFFLE-1310" in done.output


def test_max_age_exits_with_0_for_a_live_query_and_1_otherwise(query: Elastic) -> None:
    """`--max-age` exits with 0 for a live query, 1 otherwise, and 2 for a wrong duration."""
    for options in ((), ("--json",), ("--watch",)):
        assert run_command("status", query.home.root, "--max-age", "5m", *options).exit_code == 1
    write_status(query)
    assert run_command("status", query.home.root, "--max-age", "36500d").exit_code == 0
    assert run_command("status", query.home.root, "--max-age", "soon").exit_code == 2


def test_the_log_shows_rollback_targets_of_retained_records(query: Elastic) -> None:
    """`riffle log` shows a rollback target for each retained batch and record, and none before the promise."""
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    records = read_json("log", query.home.root, "--limit", 100)["records"]
    assert [record["sequence"] for record in records] == sorted(record["sequence"] for record in records)
    assert records[-1]["version"] == tail.version
    for record in records:
        named = str(record["version"]) if record["kind"] == "batch" else f"record:{record['sequence']}"
        assert record["rollback_to"] == (None if record["sequence"] < tail.promised else named)
        assert (record["changed_rows"] > 0) == (record["sealed_bytes"] > 0) == (record["kind"] == "batch")
    assert len(read_json("log", query.home.root, "--limit", 3)["records"]) == 3
    text = run_command("log", query.home.root).output
    assert "CHANGED ROWS" in text
    assert str(tail.version) in text


def test_the_log_shows_which_key_groups_moved(running_query: Elastic) -> None:
    """`riffle log` shows the new owners of a lost executor's key-groups."""
    running_query.cluster.lose("2")
    running_query.feed(3)
    records = read_json("log", running_query.home.root, "--limit", 4)["records"]
    moved = [move for record in records for move in record["owner_moves"]]
    tail = Log(running_query.memory, running_query.home.root).open()
    assert tail is not None
    assert moved
    assert all(tail.owners[task] == owner for task, _, owner in moved)


def test_stores_shows_sizes_and_the_largest_key_groups_first(query: Elastic) -> None:
    """`riffle stores` shows sizes from the manifest and the largest key-groups first."""
    (store,) = read_json("stores", query.home.root)["stores"]
    log = Log(query.memory, query.home.root)
    log.open()
    entries = log.manifest.entries
    assert store["deltas"] == sum(len(entry.chain) for entry in entries.values())
    assert store["key"] == [["k", "string"]]
    sizes = [size for _, _, size in store["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert store["skew"] == pytest.approx(sizes[0] * 6 / store["bytes"])
    text = run_command("stores", query.home.root).output
    assert "LARGEST KEY-GROUPS" in text
    assert "KiB" in text


def test_where_names_the_owner_and_standbys_of_the_log(query: Elastic) -> None:
    """`riffle where` names the key-group, the owner and the standbys of each key as in the log."""
    tail = Log(query.memory, query.home.root).open()
    assert tail is not None
    for key_group, keys in enumerate(query.keys):
        place = read_json("where", query.home.root, keys[0])
        assert place["key_group"] == key_group
        assert place["owner"]["id"] == tail.owners[str(key_group)]
        assert tuple(standby["id"] for standby in place["standbys"]) == tail.standbys[str(key_group)]
    assert "Owner" in run_command("where", query.home.root, query.keys[0][0]).output


def test_a_root_without_a_log_is_refused_by_every_command(tmp_path: Path) -> None:
    """Every command exits with 1 for a root without a log, and says so."""
    root = f"file://{tmp_path}/none"
    of_store = ("--store", "totals")
    for command in (
        ("status", root),
        ("log", root),
        ("stores", root),
        ("where", root, "k"),
        ("moves", root),
        ("savepoint", "list", root),
        ("dispatch", root, "--to", "hashed"),
        ("keys", root),
        ("rollback", root, "--checkpoint", tmp_path, "--to", "1"),
        ("state", "show", root, "k", *of_store),
        ("state", "delete", root, "--key", "k", "--reason", "r", *of_store),
    ):
        done = run_command(*command)
        assert done.exit_code == 1, done.output
        assert f"{root} holds no state" in done.output, done.output


def test_ls_lists_the_queries_below_a_prefix(tmp_path: Path) -> None:
    """`riffle ls` lists roots in folders, roots of wrapped queries and a damaged root, and searches no folder below a
    root.
    """
    prefix = tmp_path / "team"
    source = Log(open_store(f"file://{prefix}/orders/counts"), "r")
    source.open()
    source.append(replace(PLAIN, version=4, query_id="q1"), Manifest())
    wrapped = Log(open_store(f"file://{prefix}/shared/query=clicks"), "r")
    wrapped.open()
    wrapped.append(replace(PLAIN, version=7, query_id="q2"), Manifest())
    damaged = open_store(f"file://{prefix}/zz")
    damaged.put_if_absent(paths.record_name(0), b"damaged")
    done = run_command("ls", f"file://{prefix}", "--json")
    assert done.exit_code == 1
    queries = json.loads(done.output)["queries"]
    assert [(query["root"], query["health"]) for query in queries] == [
        (f"file://{prefix}/orders/counts", "unknown"),
        (f"file://{prefix}/shared/query=clicks", "unknown"),
        (f"file://{prefix}/zz", "damaged"),
    ]
    assert [query.get("version") for query in queries] == [4, 7, None]
    text = run_command("ls", f"file://{prefix}/orders")
    assert text.exit_code == 0
    assert "q1" in text.output
    assert "No root of a query" in run_command("ls", f"file://{prefix}/none").output


KEYS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("price", pa.decimal128(10, 2)), ("name", pa.string())])


def _root_with_key(url: str, *names: str) -> None:
    """Write a log with one store whose key has these columns of ``KEYS``."""
    schema = PlainColumns("s", pa.schema([KEYS.field(name) for name in names]), pa.schema([("v", pa.int64())]))
    log = Log(open_store(url), url)
    log.open()
    log.append(replace(PLAIN, version=1, total=1000, schemas={"s": schema.to_text()}), Manifest())


@pytest.mark.parametrize(
    ("names", "key", "values"),
    [
        (["id"], "42", [42]),
        (["id"], "[42]", [42]),
        (["name"], "42", ["42"]),
        (["name"], '"quoted"', ['"quoted"']),
        (["day"], "2026-03-01", [date(2026, 3, 1)]),
        (["price"], '"12.50"', [Decimal("12.50")]),
        (["price"], "12.5", [Decimal("12.50")]),
        (["id", "name"], '[7, "x"]', [7, "x"]),
        (["id", "name"], '{"name": "x", "id": 7}', [7, "x"]),
        (["id", "day"], '[7, "2026-03-01"]', [7, date(2026, 3, 1)]),
        (["id", "name"], "[7, null]", [7, None]),
    ],
)
def test_where_hashes_typed_and_composite_keys_as_the_query_does(
    tmp_path: Path, names: list[str], key: str, values: list[object]
) -> None:
    """`riffle where` hashes a key with the stored types of its columns."""
    root = f"file://{tmp_path}/state"
    _root_with_key(root, *names)
    columns = [pa.array([value], type=KEYS.field(name).type) for name, value in zip(names, values, strict=True)]
    place = read_json("where", root, key)
    assert place["key_group"] == key_groups(columns, 1000)[0]
    assert place["owner"] is None


@pytest.mark.parametrize(
    ("names", "key"), [(["id"], "many"), (["id"], "1.5"), (["id", "name"], "7"), (["id", "name"], '{"id": 7}')]
)
def test_where_refuses_a_key_that_does_not_fit_with_the_columns(tmp_path: Path, names: list[str], key: str) -> None:
    """The error for a key that does not fit names the columns and their types."""
    root = f"file://{tmp_path}/state"
    _root_with_key(root, *names)
    done = run_command("where", root, key)
    assert done.exit_code == 1
    assert "RIFFLE-1590" in done.output
    assert "id (int64)" in done.output


def test_where_takes_a_topic_and_partition_with_partition_dispatch(tmp_path: Path) -> None:
    """With partition dispatch `riffle where` takes a topic and a partition instead of a key."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    shards = (("orders", 0), ("orders", 3), ("a:b", 1))
    log.append(replace(PLAIN, version=1, dispatch="partition", shards=shards, owners={"1": "m"}), Manifest())
    assert read_json("where", root, "orders:3")["key_group"] == 1
    assert read_json("where", root, "a:b:1")["key_group"] == 2
    assert re.search(r"Key-group +1 \(orders:3\)\n", run_command("where", root, "orders:3").output)
    for key, id in (("orders", "RIFFLE-1316"), ("orders:9", "RIFFLE-0239")):
        done = run_command("where", root, key)
        assert (done.exit_code, id in done.output) == (1, True), done.output


def test_where_requires_a_store_if_the_keys_differ(tmp_path: Path) -> None:
    """`riffle where` requires --store if stores have different keys, and refuses an unknown one."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    state = pa.schema([("v", pa.int64())])
    texts = {name: PlainColumns(name, pa.schema([KEYS.field(name)]), state).to_text() for name in ("id", "name")}
    log.append(replace(PLAIN, version=1, schemas=texts), Manifest())
    assert "RIFFLE-1314" in run_command("where", root, "7").output
    assert "Unknown store 'nme'" in run_command("where", root, "7", "--store", "nme").output
    assert read_json("where", root, "7", "--store", "name")["key_group"] == key_groups([pa.array(["7"])], 8)[0]


def test_where_finds_the_group_of_a_store_in_the_status(tmp_path: Path) -> None:
    """With several co-location groups `riffle where` needs a store, and the driver's status for its group."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    log.append(replace(PLAIN, version=1), Manifest())
    assert "RIFFLE-1313" in run_command("where", root, "7").output, "no batch has run"
    schema = PlainColumns("s", pa.schema([KEYS.field("id")]), pa.schema([("v", pa.int64())])).to_text()
    owners = {"0": "m", "models/0": "n"}
    log.append(replace(PLAIN, version=1, total=1, schemas={"s": schema, "t": schema}, owners=owners), Manifest())
    for words in (("7",), ("7", "--store", "t")):
        refused = run_command("where", root, *words)
        assert (refused.exit_code, "RIFFLE-1312" in refused.output) == (1, True), refused.output
    facts = DriverFacts(1_000, "q", groups=(GroupFacts("query", ("s",)), GroupFacts("models", ("t",))))
    assert open_store(root).put_if_absent(paths.STATUS, encode(Status(facts)))
    assert read_json("where", root, "7", "--store", "t")["group"] == "models"
    assert read_json("where", root, "7", "--store", "s")["group"] == "query"


def test_key_groups_beyond_the_last_one_have_no_place(tmp_path: Path) -> None:
    """Owners and standbys of key-groups beyond the last one, as after a change of their number, are left out."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    standbys: dict[str, tuple[str, ...]] = {"0": ("n",), "5": ("n",)}
    log.append(replace(PLAIN, version=1, total=2, owners={"0": "m", "5": "m"}, standbys=standbys), Manifest())
    (group,) = read_json("status", root)["facts"]["groups"]
    assert (len(group["owners"]), len(group["standbys"])) == (2, 2)


@pytest.mark.cluster
def test_the_commands_read_a_root_in_s3(object_server: ObjectServer) -> None:
    """Status, log, where and ls read a root on an S3 server."""
    root = object_server.new_root()
    objects = open_store(root, object_server.options)
    log = Log(objects, root)
    log.open()
    schema = PlainColumns("s", pa.schema([KEYS.field("id")]), pa.schema([("v", pa.int64())]))
    log.append(replace(PLAIN, version=3, schemas={"s": schema.to_text()}), Manifest())
    counted: Counter[str] = Counter()
    exporter = StatusExporter(objects, Settings, tuple, "1.2.3", counted.update)
    exporter.export(None, DriverFacts(1_000_000, "q", "counts", version=3), ())
    exporter.export(None, DriverFacts(1_070_000, "q", "counts", version=3), ())
    assert counted == {"get": 2, "put": 2}
    options = ("--s3-endpoint", object_server.options.s3.endpoint)
    shown = read_json("status", root, *options)
    assert (shown["version"], shown["facts"]["time_ms"], shown["status"]["state"]) == (3, 1_070_000, "idle")
    assert read_json("log", root, *options)["records"][0]["version"] == 3
    assert read_json("where", root, "7", *options)["key_group"] == key_groups([pa.array([7])], 8)[0]
    assert [query["root"] for query in read_json("ls", root.rpartition("/")[0], *options)["queries"]] == [root]
