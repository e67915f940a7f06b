"""Upkeep runs in rounds within its bandwidth. Newer plans replace waiting ones without losing drops, and errors never
fail a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Drop, Follow, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.upkeep import rounds, upkeep
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.testing import InlineBackground, ManualClock, SimCluster
from tests.kit.simulated.elastic_world import Elastic, warnings
from tests.kit.simulated.world import World, rows_of, totals
from tests.kit.state.faulty_store import Fault

HOME = Home("memory://root", StoreOptions(), None, "app", frozenset())
pytestmark = pytest.mark.usefixtures("names_in_order")


def watched(world: Elastic, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[dict[str, UpkeepOrder]]:
    """Return a list of the orders of each round. Each round takes ``seconds``."""
    pieces: list[dict[str, UpkeepOrder]] = []
    run = SimCluster.upkeep

    def upkeep(self: SimCluster, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        pieces.append(dict(orders))
        world.clock.advance(seconds)
        return run(self, orders)

    monkeypatch.setattr(SimCluster, "upkeep", upkeep)
    return pieces


def test_granted_bytes_stay_within_the_bandwidth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes granted to an executor are at most the bandwidth times the elapsed time."""
    bandwidth = 1_000
    world = Elastic(tmp_path, num_standbys=0, upkeep_bandwidth=bandwidth)
    world.feed(4)
    pieces = watched(world, monkeypatch, seconds=2)
    began = world.clock.seconds()
    world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 1})
    world.feed(6)
    granted = sum(orders["1"].fetch_bytes or 0 for orders in pieces if "1" in orders)
    assert 0 < granted <= bandwidth * (world.clock.seconds() - began + 1)
    assert all(order.fetch_bytes is not None for orders in pieces for order in orders.values())
    world.settle()
    world.check_state()


def test_a_newer_plan_keeps_the_drops_of_the_waiting_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer plan takes over the drops of the waiting plan."""
    world = Elastic(tmp_path, num_standbys=1, state_cleanup_delay=0)
    world.feed(4)
    deferred = InlineBackground(deferred=True)
    monkeypatch.setattr(world.driver._rounds, "_background", deferred)
    idle = {executor: world.copies_of(executor) - world.owned(executor) for executor in ("1", "2")}
    assert all(idle.values())
    world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 0})
    pieces = watched(world, monkeypatch)
    world.feed(3)
    assert pieces == []
    deferred.run()
    assert len(pieces) == 1, "only the newest plan ran"
    assert {name: {drop.key_group for drop in order.drops} for name, order in pieces[0].items() if order.drops} == idle
    assert all(world.copies_of(executor) == world.owned(executor) for executor in ("1", "2"))
    world.feed()
    world.check_state()


def test_failed_upkeep_is_a_warning_and_does_not_fail_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If upkeep raises an error, the report has a warning, and upkeep is repeated with the next batches."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(2)
    broken = {"left": 3}
    run = SimCluster.upkeep

    def upkeep(self: SimCluster, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        if broken["left"]:
            broken["left"] -= 1
            raise RuntimeError("no task slot was free")
        return run(self, orders)

    monkeypatch.setattr(SimCluster, "upkeep", upkeep)
    warnings = [warning for _ in range(5) for warning in world.feed().warnings]
    assert sum("no task slot was free" in warning for warning in warnings) == 3
    world.feed()
    assert all(copy.lag_records <= 4 for copy in world.ownership.copies.readiness)
    world.check_state()


def test_a_standby_repeats_a_failed_fetch_of_a_delta(tmp_path: Path) -> None:
    """A standby that could not fetch a delta fetches it later, and the batches run once."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(3)
    world.store.script(Fault("unavailable", "get", "delta/", times=4))
    reports = [world.feed() for _ in range(4)]
    assert any("will be retried" in warning for report in reports for warning in report.warnings)
    assert [report.runs for report in reports] == [1] * 4
    world.feed(2)
    assert all(copy.warm for copy in world.ownership.copies.readiness)
    world.check_state()


def test_a_damaged_copy_is_removed_with_a_warning_and_restored(tmp_path: Path) -> None:
    """A damaged copy is removed with a warning, and the standby restores it without a retry."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(3)
    standby = world.holds("2")[1]
    for key_group in standby:
        stack = Folder(world.folder_of("2"), "").stacks("totals").read(key_group)
        assert stack is not None
        (world.folder_of("2") / stack.parts[0].file).write_bytes(bytes(stack.parts[0].start + stack.parts[0].length))
    reports = [world.feed() for _ in range(5)]
    (warning, *_) = warnings(reports, "key-group")
    assert f"[RIFFLE-0819] Executor 2 removed its damaged copy of totals, key-group {min(standby)}." in warning
    assert warnings(reports, "will be retried") == []
    assert standby <= world.copies_of("2")
    assert all(copy.warm for copy in world.ownership.copies.readiness)
    world.check_state()


def test_upkeep_rounds_are_shorter_during_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round has 0.25 s during a batch, and 1 s between batches."""
    world = Elastic(tmp_path, num_standbys=1)
    world.start(InlineBackground(deferred=True))
    pieces = watched(world, monkeypatch)
    world.feed(2)
    world.at_step = {"before run": world.background.run}
    world.feed()
    beside = len(pieces)
    assert beside
    assert {order.seconds for orders in pieces for order in orders.values()} == {0.25}
    world.at_step = {}
    world.feed()
    world.background.run()
    assert {order.seconds for orders in pieces[beside:] for order in orders.values()} == {1.0}


def test_a_copy_without_progress_is_retried_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a copy makes no progress, its plan ends. Later tries come with batches, less and less often."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(4)
    pieces = watched(world, monkeypatch)
    get = world.store.get
    monkeypatch.setattr(type(world.store), "get", lambda _, name, *at: None if "delta/" in name else get(name, *at))
    world.feed(3)
    assert len(pieces) == 2


def test_key_groups_with_the_oldest_snapshots_are_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If snapshots are due faster than they are taken, the key-groups with the oldest snapshots are first. So all
    chains have a similar length.
    """
    monkeypatch.setattr(upkeep, "_SNAPSHOTS_PER_EXECUTOR", 2)
    world = World(
        tmp_path, operators=[totals()], executors=("1",), key_groups=48, snapshot_chain_links=6, retained_versions=100
    )
    world.start(InlineBackground())
    for version in range(40):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(400))))
    chains = [len(entry.chain) for entry in world.log().manifest.entries.values()]
    assert len(chains) == 48
    assert max(chains) <= 48 // 2 + 6, chains


def test_a_due_snapshot_is_taken_once(tmp_path: Path) -> None:
    """A snapshot that is put but not listed yet is not taken again."""
    world = World(tmp_path, operators=[totals()], snapshot_chain_links=2, retained_versions=100)
    world.start(InlineBackground(deferred=True))
    world.at_step = {"after record": world.background.run}  # between a commit and its plan
    for version in range(12):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(20))))
    world.at_step = {}
    world.batch(12, rows_of(("k0", 1, 0)))
    listed: set[str] = set()
    log = world.log()
    assert log.tail is not None
    for sequence in range(log.first, log.tail.sequence + 1):
        entries = log.manifest_of(log.read(sequence)).entries.items()
        listed |= {paths.snapshot_name(s, kg, e.snapshot.id) for (s, kg), e in entries if e.snapshot}
    put = [name for name in world.memory.list("") if "/snapshot/" in name]
    by_key_group = Counter(name.rsplit("/", 1)[0] for name in put)
    assert len(by_key_group) == world.settings.key_groups
    assert max(by_key_group.values()) <= 13 // 2, by_key_group
    assert set(put) <= listed


class PauseRecorder(InlineBackground):
    """A background that records the pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def rest(self, seconds: float) -> None:
        """Record a pause."""
        self.pauses.append(seconds)


@pytest.mark.parametrize(
    ("in_batch", "follows", "pauses"), [(True, False, [0.9]), (True, True, [0.4]), (False, True, [0])]
)
def test_upkeep_during_a_batch_pauses_longer_than_it_works(in_batch: bool, follows: bool, pauses: list[float]) -> None:
    """During a batch, upkeep with snapshots works a tenth of the time, and upkeep with copies that follow a fifth.
    Between batches it does not pause.
    """
    clock = ManualClock()
    background = PauseRecorder()

    class Slow(SimCluster):
        def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
            clock.advance(0.1)
            return [UpkeepReceipt(executor) for executor in orders]

    running = rounds.Rounds(Slow(HOME, MemoryStore()), background, clock)
    running.in_batch = in_batch
    order = _order("m1", Drop("totals", 1, None))
    running.submit({"1": replace(order, follows=(Follow("totals", 1, EMPTY),)) if follows else order}, 0)
    assert background.collect() == [None] * 2
    assert background.pauses == pytest.approx(pauses)


def test_waiting_drops_are_sent_only_to_the_same_folder() -> None:
    """Waiting drops are sent with the next plan, if the executor still has the same folder."""
    drop, later = Drop("totals", 1, None), Drop("totals", 2, None)
    old = _order("m1", drop)

    def merged(**orders: UpkeepOrder) -> dict[str, tuple[Drop, ...]]:
        orders_with_drops = rounds._with_drops_of({"1": old, "2": _order("m2")}, orders)
        return {executor: order.drops for executor, order in orders_with_drops.items()}

    assert merged() == {"1": (drop,)}
    assert merged(**{"1": _order("m1", later)}) == {"1": (drop, later)}
    assert merged(**{"1": _order("m9", later)}) == {"1": (later,)}


def _order(member: str, *drops: Drop) -> UpkeepOrder:
    return UpkeepOrder(HOME, member, 1, 1, {}, drops)
