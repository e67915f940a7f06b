"""Lost answers, failed starts and wrong clocks leave a bounded number of objects and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.upkeep import scan as scan_module
from riffle_spark.protocol.upkeep.claim_work import run_to_end
from riffle_spark.protocol.upkeep.scan import scan
from riffle_spark.protocol.upkeep.snapshots import TakenSnapshots
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Head, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.testing import Attempt, InlineBackground, ManualClock, SimCluster
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import World, one_row, rows_of, totals
from tests.kit.state.faulty_store import Fault

YEAR_SECONDS = 365 * 86_400
DAY_SECONDS = 86_400


class UserError(Exception):
    """An error of user code."""


class WallClock(ManualClock):
    """A clock whose wall time is wrong by some seconds. Elapsed seconds are correct."""

    wrong_seconds = 0

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch by this clock."""
        return super().wall_ms() + self.wrong_seconds * 1000


def clocked(tmp_path: Path, **settings: Any) -> tuple[World, WallClock]:
    """Return a query and the clock of its driver."""
    world = World(tmp_path, operators=[totals()], executors=["1"], **settings)
    world.clock = WallClock()
    world.start()
    return world, world.clock


def keys(count: int) -> tuple[tuple[str, int, int], ...]:
    """Return a row for each of ``count`` keys."""
    return tuple((f"k{n}", 1, n) for n in range(count))


def snapshots_of(world: World) -> set[str]:
    """Return the names of the snapshots in the store."""
    return {name for name in world.memory.list("") if "/snapshot/" in name}


def losing_answers(world: World, monkeypatch: pytest.MonkeyPatch, loses: list[bool]) -> None:
    """Let upkeep run and lose its answer while ``loses`` has True."""
    run = SimCluster.upkeep

    def upkeep(self: SimCluster, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        receipts = run(self, orders)
        if loses[0] and any(receipt.snapshots for receipt in receipts):
            raise UnavailableError("the executor was lost with its answer", remedy="none", where="a test")
        return receipts

    monkeypatch.setattr(SimCluster, "upkeep", upkeep)


@pytest.mark.usefixtures("short_cycles")
def test_snapshots_with_a_lost_receipt_are_deleted_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots whose receipt was lost are deleted after ten minutes, without a restart."""
    world = World(tmp_path, operators=[totals()], executors=["1"])
    history, loses = History(world), [True]
    losing_answers(world, monkeypatch, loses)
    most = 0
    for version in range(20):
        world.batch(version, rows_of(*keys(12)))
        world.clock.advance(200)
        history.look()
        most = max(most, len(snapshots_of(world)))
    assert 8 < most <= 40, "eight snapshots per batch, for ten minutes and some batches"
    loses[0] = False
    world.clock.advance(DAY_SECONDS)
    for version in range(20, 26):
        world.batch(version, rows_of(*keys(12)))
        world.clock.advance(200)
        history.look()
    assert len(snapshots_of(world)) <= 3 * world.settings.key_groups
    assert world.state("totals") == {f"k{n}": (26, 26) for n in range(12)}


def test_a_reported_snapshot_stays_before_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan keeps a snapshot that was reported but is not listed yet (I5)."""
    monkeypatch.setattr(scan_module, "_RETRY_SECONDS", 0.0)
    world = World(tmp_path, operators=[totals()], executors=["1"], orphan_scan_interval=1)
    history = History(world)
    world.start(InlineBackground(deferred=True))
    for version in range(12):
        world.batch(version, rows_of(*keys(20)))
        world.background.run()  # rounds run before the scan
        history.look()
    assert snapshots_of(world)
    assert world.state("totals") == {f"k{n}": (12, 12) for n in range(20)}


@pytest.mark.usefixtures("short_cycles")
def test_unlisted_snapshots_from_an_unclear_record_are_deleted(tmp_path: Path) -> None:
    """Snapshots that were taken while a record was unclear are deleted by a later scan, if no record lists them."""
    world = World(tmp_path, operators=[totals()], executors=["1"], snapshot_chain_links=2)
    world.start(InlineBackground(deferred=True))
    for version in range(3):
        world.batch(version, rows_of(*keys(20)))
        world.background.run()
    world.batch(3, rows_of(*keys(20)))
    before = snapshots_of(world)
    world.driver.operations.pin(0, "1")
    world.store.script(*[Fault("unavailable", method, paths.LOG, times=None) for method in ("put", "get")])
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.rest(2)
    world.background.run()
    world.rest(1, 0.5)
    world.store.heal()
    world.rest(2, 30)
    new_snapshots = snapshots_of(world) - before
    assert len(new_snapshots) > world.settings.key_groups // 2
    for version in range(4, 12):
        world.batch(version, rows_of(*keys(20)))
        world.background.run()
        world.clock.advance(DAY_SECONDS)
    assert not new_snapshots & snapshots_of(world)
    assert world.state("totals") == {f"k{n}": (12, 12) for n in range(20)}


def test_no_snapshot_counts_as_lost_while_upkeep_runs(tmp_path: Path) -> None:
    """While upkeep runs, no snapshot counts as lost, because its receipt may have it."""
    world, seen = World(tmp_path, operators=[totals()]), list[object]()
    snapshot = Snapshot(paths.snapshot_id(3, f"1-{7:032x}"), Head(3, "1-a"), 1, 0, 1)
    receipt = UpkeepReceipt("1", snapshots=(("totals", 2, snapshot),))

    class ListingCluster(SimCluster):
        """A cluster that looks at the listable names while its call runs."""

        def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
            """Return a receipt with a snapshot."""
            seen.append((taken_snapshots.listable_names(), sorted(orders)))
            return [receipt]

    taken_snapshots = TakenSnapshots(ListingCluster(world.home, world.store), InlineBackground().lock())
    order = UpkeepOrder(world.home, "", 1, 0, {})
    assert taken_snapshots.listable_names() == frozenset()
    taken_snapshots.upkeep({"1": order})
    assert seen == [(None, ["1"])]
    name = paths.snapshot_name("totals", 2, snapshot.id)
    assert taken_snapshots.listable_names() == frozenset({name})
    taken_snapshots.forget_before(1)
    assert taken_snapshots.listable_names() == frozenset({name})
    taken_snapshots.forget_before(2)
    assert taken_snapshots.listable_names() == frozenset()


def failing(attempt: Attempt) -> object:
    """Seal a delta, then fail as a user's sink would."""
    attempt.run()
    raise UserError


@pytest.mark.usefixtures("short_cycles")
def test_starts_that_fail_in_the_first_batch_leave_few_objects(tmp_path: Path) -> None:
    """Starts that fail in their first batch leave few objects, because the next start deletes them. Old records are
    deleted too.
    """
    world = World(tmp_path, operators=[totals()], retained_versions=3, retained_for=100)
    history = History(world)
    world.batch(0, rows_of(*keys(10)))
    objects, records = [], []
    for _ in range(24):
        world.start()
        world.clock.advance(20)
        with pytest.raises(UserError):
            world.batch(1, rows_of(*keys(10)), failing)
        history.look()
        records.append(len(world.memory.list(paths.LOG)))
        objects.append(len(world.memory.list("")) - records[-1])
    assert max(objects) <= 8, objects
    assert max(records) <= 100 // 20 + 4 + 4, records
    world.start()
    assert world.batch(1, rows_of(*keys(10))).decision == "run"
    assert world.state("totals") == {f"k{n}": (2, 2) for n in range(10)}


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("wrong", [YEAR_SECONDS, -YEAR_SECONDS])
def test_deletes_of_records_do_not_depend_on_the_wall_clock(tmp_path: Path, wrong: int) -> None:
    """Records are deleted when the driver's elapsed time exceeds `retained_for`, whatever the wall clock says."""
    world, clock = clocked(tmp_path, retained_versions=2, retained_for=100)
    for version in range(4):
        world.batch(version, one_row(1))
    clock.wrong_seconds = wrong
    for version in range(4, 8):
        world.batch(version, one_row(1))
    assert world.memory.list(paths.LOG)[0] == paths.record_name(0), "the records are seconds old"
    clock.wrong_seconds = 0
    for version in range(8, 12):
        clock.advance(60)
        world.batch(version, one_row(1))
    assert len(world.memory.list(paths.LOG)) <= 4 + 4 + 2
    world.memory.put_if_absent(paths.delta_name(0, f"0-{7:032x}"), b"an orphan")
    clock.advance(DAY_SECONDS)
    world.batch(12, one_row(1))
    assert not world.memory.exists(paths.delta_name(0, f"0-{7:032x}")), "scans use the same clock"
    assert world.state("totals") == {"a": (13, 13)}


def stamped(*written: int) -> tuple[MemoryStore, Record]:
    """Return a log with records of these times in seconds, and its last record."""
    store = MemoryStore()
    log = Log(store, "")
    log.open()
    first = first_record("query", 8, "key_group", Stamp("c", 0))
    for number, seconds in enumerate(written):
        log.append(replace(first, kind="batch", version=number, written_ms=1000 * seconds), log.manifest)
    assert log.tail is not None
    return store, log.tail


NOW = 10 * YEAR_SECONDS


@pytest.mark.parametrize(
    ("written", "oldest"),
    [
        ([*range(40), NOW], 39),
        ([*range(20), NOW + YEAR_SECONDS, *range(21, 40), NOW], 39),
        ([NOW + YEAR_SECONDS] * 20 + [NOW - 5000] * 20 + [NOW - 50] * 3, 40),
        ([NOW + YEAR_SECONDS] * 20 + [NOW - 50] * 23, 0),
        ([*range(20), NOW + YEAR_SECONDS, NOW - 50, NOW - 40, NOW - 30, NOW], 20),
        ([*range(20), NOW - 90, 0, NOW - 50, NOW - 40, NOW], 20),
        ([NOW - 50] * 20 + [NOW - YEAR_SECONDS] * 3, 0),
        ([NOW - YEAR_SECONDS] * 20 + [NOW - 50] * 3, 20),
    ],
    ids=["correct", "one ahead", "a driver ahead", "ahead just now", "one unsure", "one behind", "behind now", "gap"],
)  # fmt: skip
def test_a_record_with_a_future_time_counts_as_old_as_the_next_one(written: list[int], oldest: int) -> None:
    """A record with a time in the future counts as old as the next one. Records that may be recent stay, and wrong
    clocks do not keep records for ever.
    """
    store, tail = stamped(*written)
    assert run_to_end(scan(store, tail, 2, 100_000)).oldest == oldest


@pytest.mark.usefixtures("names_in_order")
def test_a_lost_member_is_forgotten_after_the_rebalance_delay(tmp_path: Path) -> None:
    """A lost member is forgotten after the rebalance delay, so memory is bounded."""
    world = Elastic(tmp_path, key_groups=2, scheduled_rebalance_max_delay=10)
    world.feed()
    for number in range(6):
        name, lost = str(number + 3), world.owned("2" if number == 0 else str(number + 2))
        world.cluster.lose("2" if number == 0 else str(number + 2), disk=True, planned=number % 2 == 0)
        report = world.feed()
        assert {m["key_group"] for m in report.moves if m["from_executor"] and m["role"] == "owner"} >= lost
        world.cluster.add(name)
        world.clock.advance(4)
        world.settle()
        assert len(world.ownership.membership.lost) <= 3
    world.clock.advance(10)
    world.feed()
    assert not world.ownership.membership.lost
    world.check_state()


@pytest.mark.usefixtures("nothing_is_young")
def test_replaced_links_are_forgotten_with_the_retained_records(tmp_path: Path) -> None:
    """Links that snapshots replaced are forgotten with the retained records. A copy that is further behind fetches the
    whole state.
    """
    world = World(tmp_path, operators=[totals()], snapshot_chain_links=2, key_groups=1)
    for version in range(40):
        world.batch(version, one_row(1))
    trails = world.driver.ownership.copies.reported._trails  # private: no public figure
    assert sum(len(trail.links) for trail in trails.values()) <= 20


@pytest.mark.usefixtures("names_in_order")
def test_copies_of_executors_that_never_join_are_forgotten(tmp_path: Path) -> None:
    """If Spark runs a slot on an executor that never becomes a member, its copies are forgotten when it leaves."""
    world = Elastic(tmp_path, key_groups=2)
    world.feed()
    world.cluster.silent = {"9"}
    world.cluster.add("9")
    world.feed(perform=lambda attempt: replace(attempt, executor="9").run())
    folder = world.folder_of("9").name
    assert folder not in world.ownership.membership.live
    assert world.ownership.copies.reported.of_member(folder)
    world.cluster.lose("9")
    world.feed()
    assert not world.ownership.copies.reported.of_member(folder)
    world.check_state()
