"""Rates, costs, members, operator requests and periods in the status, the page and the log."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from riffle_spark.observe.rates import Rates, rates_of
from riffle_spark.observe.readings import readings
from riffle_spark.observe.status import BatchSummary, MoveSummary, Status, WarningSummary, encode
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.observe.units import show_bytes
from riffle_spark.offline.root_status import read_status
from riffle_spark.protocol.facts import DriverFacts, PartitionLag
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.request_prices import price_of
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import encode as encode_record
from riffle_spark.state.objects.open import open_store
from tests.kit.root_commands import query_with_standbys, read_json, run_command, stored_query, write_status
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World, one_row
from tests.kit.state.drawn_records import PLAIN

pytestmark = pytest.mark.usefixtures("names_in_order")


@pytest.fixture
def query(tmp_path: Path) -> Elastic:
    """Return a query over two executors with a standby each, whose newest full record lists its members."""
    return query_with_standbys(tmp_path / "local")


@pytest.fixture
def stored(tmp_path: Path) -> Elastic:
    """Return a query over two executors with a standby each, of which tests only read the root."""
    return stored_query(tmp_path / "local")


def test_rates_are_those_of_the_last_five_minutes() -> None:
    """Rates are those of the last five minutes, so that an idle query has a rate of 0."""
    batches = tuple(BatchSummary(n, n * 10_000, 600, {"total": n / 60}) for n in range(60))
    running = rates_of(Status(DriverFacts(590_000), batches=batches))
    assert (running.batches_per_minute, running.rows_per_second) == (6.0, 60.0)
    assert running.batch_seconds == pytest.approx(sum(range(30, 60)) / 30 / 60)
    idle = rates_of(Status(DriverFacts(10_000_000), batches=batches))
    assert (idle.batches_per_minute, idle.rows_per_second, idle.batch_seconds) == (0.0, 0.0, 59 / 60)
    young = rates_of(Status(DriverFacts(20_000), batches=batches[:3]))
    assert (young.batches_per_minute, young.rows_per_second) == (6.0, 60.0)
    for now_ms in (0, 10_000):  # a single batch has no rate
        assert rates_of(Status(DriverFacts(now_ms), batches=batches[:1])) == Rates(batch_seconds=0.0)


def test_requests_of_the_last_ten_minutes_are_shown_with_a_price(stored: Elastic) -> None:
    """`status` and `stores` show the requests of the last ten minutes per hour with their price."""
    settings = Settings(status_interval=60)
    exporter = StatusExporter(stored.memory, lambda: settings, tuple, "1.2.3", lambda _: None)
    now_ms = read_status(stored.home.root).now_ms
    for minute in range(31):
        requests = {"put": 1000 * minute if minute < 20 else 20_000, "get": 10 * minute}
        counts = {f"requests/batch/{kind}": count for kind, count in requests.items()}
        counters = {**counts, "requests_price_dollars": price_of(requests)}
        exporter.export(None, DriverFacts(now_ms + minute * 60_000 - 1_800_000, "q", counters=counters), ())
        if minute == 15:
            halfway = read_json("status", stored.home.root)
            assert halfway["requests_per_hour"] == 60 * 1010
    shown = read_json("status", stored.home.root)
    summary = shown["status"]["requests"]
    assert (summary["seconds"], summary["by_kind"]) == (600.0, {"get": 100})
    assert shown["requests_per_hour"] == 600
    assert shown["dollars_per_hour"] == pytest.approx(600 * 0.0004 / 1000)
    stores = read_json("stores", stored.home.root)
    assert (stores["requests_per_hour"], stores["dollars_per_hour"]) == (600, shown["dollars_per_hour"])
    for command in ("status", "stores"):
        assert "600 per hour, about 0.00024 USD per hour" in run_command(command, stored.home.root).output


def test_a_root_on_files_shows_no_request_price(tmp_path: Path) -> None:
    """A root on files has no price of requests in any output or counter."""
    world = World(tmp_path / "local", root=f"file://{tmp_path}/state")
    exporter = StatusExporter(world.memory, lambda: world.settings, tuple, "1.2.3", lambda _: None)
    for version in range(2):
        world.clock.advance(600)
        exporter.export(world.batch(version, one_row(version)), world.driver.facts(), ())
    world.driver.count_requests("status", {"put": 7})
    assert "requests_price_dollars" not in world.driver.facts().counters
    stores = read_json("stores", world.home.root)
    assert stores["requests_per_hour"] > 0
    for command in ("status", "stores"):
        assert read_json(command, world.home.root)["dollars_per_hour"] is None
        assert re.search(r"Requests +\d+ per hour\n", run_command(command, world.home.root).output)
    page = tmp_path / "page.html"
    assert run_command("status", world.home.root, "--html", page).exit_code == 0
    assert "USD" not in page.read_text("utf-8")


def test_the_row_count_of_a_store_is_exact_or_an_upper_bound(query: Elastic, tmp_path: Path) -> None:
    """The row count of a store is exact if the records have it, and otherwise an upper bound."""
    log = query.log()
    tail = log.tail
    assert tail is not None
    count = tail.row_counts["totals"]
    (size,) = log.manifest.measure_stores().values()
    assert count == len(query.state("totals")) < size.rows
    _check_rows(query, tmp_path, count, is_exact=True)
    name = paths.record_name(tail.sequence)
    query.memory.delete([name])
    assert query.memory.put_if_absent(name, encode_record(replace(tail, row_counts={})))
    query.start()
    query.feed(1)
    _check_rows(query, tmp_path, query.log().manifest.measure_stores()["totals"].rows, is_exact=False)


def _check_rows(query: Elastic, folder: Path, rows: int, *, is_exact: bool) -> None:
    """Check the rows of the only store in the commands and the page."""
    write_status(query, stores=query.driver.facts().stores)
    shown = f"{rows}" if is_exact else f"at most {rows}"
    (store,) = read_json("stores", query.home.root)["stores"]
    (stored,) = read_json("status", query.home.root)["facts"]["stores"]
    for figures in (store, stored):
        assert (figures["rows"], figures["has_exact_rows"]) == (rows, is_exact)
    assert re.search(rf"^totals +{shown} ", run_command("stores", query.home.root).output, re.MULTILINE)
    assert re.search(rf"State +{shown} rows, .*, 1 store\n", run_command("status", query.home.root).output)
    page = folder / "page.html"
    assert run_command("status", query.home.root, "--html", page).exit_code == 0
    assert page.read_text("utf-8").count(f'<data value="{rows}">{shown}</data>') == 2


def test_stores_shows_no_requests_without_a_status(stored: Elastic) -> None:
    """`stores` shows no requests without a status, because the log does not have them."""
    assert read_json("stores", stored.home.root)["requests_per_hour"] is None
    assert re.search(r"Requests +unknown", run_command("stores", stored.home.root).output)


def test_all_outputs_agree_on_members_and_operator_requests(query: Elastic, tmp_path: Path) -> None:
    """The driver's facts, the metrics, the text, the JSON and the page agree on members and operator requests."""
    query.driver.operations.pin(4, query.member("1"))
    query.driver.operations.reconfigure(query.settings, {"local_disk_limit": 0.7})
    query.settle()
    query.driver.operations.drain(query.member("2"))
    query.settle()
    query.clock.advance(30)
    facts = replace(query.driver.facts(), paused_since_ms=1_000, slot_limit=1)
    _check_state_of_members(query, facts)
    assert (facts.drained, facts.pins, facts.disk_limit) == ((query.member("2"),), {"4": query.member("1")}, 0.7)
    used = replace(facts.members[0], disk_used=0.42, warmups=1, warmup_bytes=3 << 30, warmup_seconds=90.0)
    facts = replace(facts, time_ms=read_status(query.home.root).now_ms, members=(used, *facts.members[1:]))
    query.memory.delete([paths.STATUS])
    assert query.memory.put_if_absent(paths.STATUS, encode(Status(facts, "paused", settings={"num_standbys": "1"})))
    values = {(r.metric.name, r.labels): r.value for r in readings(None, facts)}
    shown = read_json("status", query.home.root)["facts"]
    for member in shown["members"]:
        labels = (member["executor"],)
        assert values["riffle_owned_state_bytes", labels] == member["state_bytes"]
        assert values["riffle_owned_state_rows", labels] == member["state_rows"]
    assert values["riffle_local_disk_limit_ratio", ()] == shown["disk_limit"] == 0.7
    assert (values["riffle_paused", ()], shown["paused_since_ms"]) == (1, 1_000)
    text = run_command("status", query.home.root).output
    page = tmp_path / "page.html"
    assert run_command("status", query.home.root, "--html", page).exit_code == 0
    html = page.read_text("utf-8")
    largest = max(facts.members, key=lambda member: member.state_bytes or 0)
    assert largest.state_bytes
    for part in (
        show_bytes(largest.state_bytes),
        "42% of 70%",
        "3.00 GiB, 1 min 30 s",
        "Paused",
        "4 to m",
        "num_standbys",
    ):
        assert part in text
    for part in (
        f'value="{largest.state_bytes}"',
        "Disk of 70%",
        "key-group 4 pinned",
        "drained",
        "per executor at most",
    ):
        assert part in html


def _check_state_of_members(query: Elastic, facts: DriverFacts) -> None:
    """Compare the state of each member with the entries of the log."""
    entries = query.log().manifest.entries
    owners = query.ownership.placement.present.owners
    for member in facts.members:
        sizes = [entry.measure() for (_, kg), entry in entries.items() if owners[task(kg)] == member.id]
        assert (member.state_rows, member.state_bytes) == (sum(s.rows for s in sizes), sum(s.bytes for s in sizes))


def test_the_state_of_members_is_measured_once_in_30_seconds(query: Elastic) -> None:
    """The state of members is measured at most once in 30 seconds, because it reads all entries."""
    query.clock.advance(30)
    before = query.driver.facts()
    _check_state_of_members(query, before)
    query.clock.advance(1)
    query.feed(1)
    after = query.driver.facts()
    assert [member.state_bytes for member in after.members] == [member.state_bytes for member in before.members]
    assert after.stores[0].bytes > before.stores[0].bytes
    query.clock.advance(29)
    _check_state_of_members(query, query.driver.facts())


def test_the_text_lists_the_partitions_with_the_largest_lag_first(stored: Elastic) -> None:
    """The text lists the ten partitions with the largest lag in records, and among equal ones in time."""
    source = tuple(PartitionLag("orders", number, number * 10, None) for number in range(12))
    write_status(stored, source=(*source, PartitionLag("late", 0, 110, 5.0), PartitionLag("late", 1, 110, 9.0)))
    lines = (
        run_command("status", stored.home.root).output.split("LAG, WORST FIRST (10 of 14 partitions)\n")[1].split("\n")
    )
    worst = [["late", "1", "110"], ["late", "0", "110"], ["orders", "11", "110"], ["orders", "10", "100"]]
    assert [line.split()[:3] for line in lines[1:5]] == worst
    assert not lines[11]


def test_the_log_of_a_period_shows_records_moves_and_warnings(query: Elastic) -> None:
    """`riffle log` of a period shows its records, moves and warnings, including both ends."""
    query.clock.advance(600)
    query.cluster.lose("2")
    query.clock.advance(1_000)
    query.settle()
    query.feed(3)
    records = read_json("log", query.home.root, "--limit", 1000)["records"]
    first = next(record for record in records if record["moves"] and record["sequence"] > 5)
    since, until = first["time_ms"], records[-2]["time_ms"]
    warnings = tuple(WarningSummary(ms, "RIFFLE-0801", f"At {ms}.") for ms in (since - 1, since, until, until + 1))
    write_status(query, warnings=warnings)
    period = ("--since", _iso(since), "--until", _iso(until))
    shown = read_json("log", query.home.root, *period)
    assert shown["records"] == [record for record in records if since <= record["time_ms"] <= until]
    assert [warning["time_ms"] for warning in shown["warnings"]] == [since, until]
    text = run_command("log", query.home.root, *period).output
    assert "MOVES\n" in text
    assert first["moves"][0]["reason"] in text
    assert f"At {until}." in text
    assert f"At {until + 1}." not in text
    assert "No retained record" in run_command("log", query.home.root, "--since", "1s").output
    assert read_json("log", query.home.root, "--until", _iso(since), "--limit", 1)["records"][0]["time_ms"] <= since


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat()


def test_the_last_moves_and_warnings_are_shown(stored: Elastic) -> None:
    """The text shows the last moves and warnings of the status."""
    moves = tuple(MoveSummary(n, n, n, "query", "owner", "a", "b", f"reason {n}.") for n in range(12))
    warnings = tuple(WarningSummary(n, "RIFFLE-0801", f"Warning {n}.") for n in range(7))
    write_status(stored, moves=moves, warnings=warnings, slot_limit=1)
    text = run_command("status", stored.home.root).output
    assert "LAST MOVES (10 of 12 in the status)" in text
    assert [n for n in range(12) if f"reason {n}." in text] == list(range(2, 12))
    assert "LAST WARNINGS (5 of 7 in the status)" in text
    assert [n for n in range(7) if f"Warning {n}." in text] == list(range(2, 7))
    assert re.search(r"Slots +at most 1 per executor", text)


@pytest.mark.parametrize(("watermark_ms", "shown"), [(None, "none"), (0, "none"), (1, "1970-01-01 00:00:00 UTC")])
def test_a_watermark_of_0_is_shown_as_none(watermark_ms: int | None, shown: str, tmp_path: Path) -> None:
    """A watermark of 0 is shown as none, because Spark reports 0 for a query without a watermark."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    log.append(replace(PLAIN, kind="batch", version=0, watermark_ms=watermark_ms), Manifest())
    assert re.search(rf"Watermark +{shown}", run_command("status", root).output)
