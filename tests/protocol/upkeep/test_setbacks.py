"""Failed upkeep is repeated less and less often, is given up, and starts again on request. The tests count rounds,
which are Spark jobs, and requests.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.messages.upkeep_orders import Drop, Follow, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.upkeep.setbacks import Setbacks
from riffle_spark.state.log.manifest import EMPTY
from riffle_spark.testing import InlineBackground, SimCluster, home_of
from tests.kit.simulated.elastic_world import Elastic, warnings

pytestmark = pytest.mark.usefixtures("names_in_order")

TRIES = 10
LONGEST_SECONDS = 300
BATCH_SECONDS = 60
HOURS = 1
ORDER = UpkeepOrder(home_of("memory://rows", Path("unused")), "m1", 1, 0, {})
MOST_ROUNDS = 1_000
"""Limit of the rounds of a test."""


class Rounds:
    """Counts the rounds of upkeep, which are jobs on a real cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[dict[str, UpkeepOrder]] = []
        run = SimCluster.upkeep

        def upkeep(cluster: SimCluster, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
            self.orders.append(dict(orders))
            return run(cluster, orders) if len(self.orders) < MOST_ROUNDS else []

        monkeypatch.setattr(SimCluster, "upkeep", upkeep)

    def take(self) -> int:
        """Return the number of rounds since the last call."""
        count = len(self.orders)
        self.orders.clear()
        return count


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Return the counted rounds of every simulated cluster."""
    return Rounds(monkeypatch)


def long_run(world: Elastic, hours: float = HOURS, keys: Sequence[str] | None = None) -> list[BatchReport]:
    """Run batches for some hours and return the reports."""
    return world.feed_every(BATCH_SECONDS, int(hours * 3600 / BATCH_SECONDS), keys)


BOUND = TRIES + HOURS * 3600 // LONGEST_SECONDS
"""Most tries of one copy: ten, then one in five minutes while its key-group changes."""


def started_again(folder: Path, disk_limit: float, **settings: Any) -> Elastic:
    """Return a restarted query of two members whose key-groups have snapshots and need one standby each."""
    world = Elastic(folder, key_groups=4, snapshot_chain_links=2, **settings)
    world.feed(6)
    world.settings = world.settings.but(num_standbys=1, snapshot_chain_links=1000, local_disk_limit=disk_limit)
    world.start()
    return world


def spoil_snapshots(world: Elastic) -> None:
    """Make every snapshot unreadable: the length is the same, the bytes are not."""
    for name in [name for name in world.memory.list("") if "/snapshot/" in name]:
        data = world.memory.get(name) or b""
        world.memory.delete([name])
        world.memory.put_if_absent(name, bytes(len(data)))


def test_a_full_disk_causes_a_bounded_number_of_rounds(tmp_path: Path, rounds: Rounds) -> None:
    """Standbys that cannot be created on a full disk are tried ten times, and then once in five minutes."""
    world = started_again(tmp_path, 0.0, retained_versions=1000)
    rounds.take()
    reports = long_run(world)
    assert TRIES <= rounds.take() <= BOUND
    assert len(warnings(reports, "RIFFLE-0820")) <= 2 * BOUND
    assert len(warnings(reports, "RIFFLE-0816")) == 2, "one warning per executor"
    world.check_state()


def test_an_unreadable_snapshot_causes_a_bounded_number_of_rounds(tmp_path: Path, rounds: Rounds) -> None:
    """A round that only fetched an unreadable snapshot counts as failed, so tries are bounded."""
    world = started_again(tmp_path, 1.0, retained_versions=1000)
    spoil_snapshots(world)
    rounds.take()
    reports = long_run(world)
    assert TRIES <= rounds.take() <= BOUND
    # Each batch reads the newest record, because the batch before was more than a minute ago.
    gets = sum(report.upkeep_requests.get("get", 0) - 1 for report in reports)
    assert gets <= BOUND * world.settings.key_groups * 2
    assert warnings(reports, "truncated or altered")


def test_unchanged_key_groups_are_tried_only_ten_times(tmp_path: Path, rounds: Rounds) -> None:
    """Key-groups that do not change are tried ten times and then never again. The others follow the log."""
    world = started_again(tmp_path, 1.0, retained_versions=1000)
    spoil_snapshots(world)
    long_run(world, 0.5, keys=world.keys[0][:1])
    rounds.take()
    long_run(world, 1, keys=world.keys[0][:1])
    tried = {follow.key_group for orders in rounds.orders for order in orders.values() for follow in order.follows}
    assert tried == {0}


@pytest.mark.parametrize("asks", ["rebalance", "setting", "restart", "clean up"])
@pytest.mark.sample(step=2)
def test_requests_and_restarts_cause_a_new_try_at_once(tmp_path: Path, rounds: Rounds, asks: str) -> None:
    """A rebalance, a changed setting, a clean-up and a restart each cause a new try at once."""
    world = started_again(tmp_path, 0.0, retained_versions=1000)
    long_run(world, 0.3)
    rounds.take()
    world.feed()
    assert rounds.take() == 0
    if asks == "rebalance":
        world.driver.operations.request_rebalance()
    elif asks == "setting":
        world.driver.operations.reconfigure(world.driver.settings, {"acceptable_recovery_lag": 1})
    elif asks == "clean up":
        world.driver.clean_up()
    else:
        world.settings = world.settings.but(local_disk_limit=1.0)
        world.start()
    rounds.take()
    world.feed(2)
    assert rounds.take() >= 1
    if asks == "restart":
        assert all(copy.warm for copy in world.ownership.copies.readiness)
        assert world.ownership.copies.readiness
    world.check_state()


def test_equal_warnings_are_merged_and_counted(tmp_path: Path) -> None:
    """Equal warnings since the last report are one warning with their number."""
    world = started_again(tmp_path, 0.0)
    deferred = InlineBackground(deferred=True)
    world.start(deferred)
    world.feed()
    for _ in range(3):
        orders = world.driver._rounds._next
        assert orders is not None
        deferred.run()
        world.driver._rounds.setbacks.retry_all()
        world.driver._rounds.submit(*orders)
    repeated_warnings = warnings([world.feed(), world.feed()], "RIFFLE-0820")
    assert len(repeated_warnings) == 2
    assert all(text.endswith(" (3 times)") for text in repeated_warnings), repeated_warnings


def test_an_executor_with_a_busy_folder_is_delayed_and_keeps_its_work(tmp_path: Path, rounds: Rounds) -> None:
    """If another process uses its folder for half an hour, an executor is tried rarely. Later all its work is done,
    also drops.
    """
    world = Elastic(tmp_path, num_standbys=1, state_cleanup_delay=0)
    world.feed(4)
    idle = world.copies_of("1") - world.owned("1")
    assert idle
    with (world.folder_of("1") / "upkeep").open("a") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 0})
        rounds.take()
        reports = long_run(world, 0.5)
        tried = [orders["1"] for orders in rounds.orders if "1" in orders]
        assert 0 < len(tried) <= TRIES + 1800 // LONGEST_SECONDS
        assert warnings(reports, "RIFFLE-0388")
        assert world.copies_of("1") & idle
    long_run(world, 0.2)
    assert world.copies_of("1") == world.owned("1")
    world.check_state()


def test_a_success_resets_failures_and_delay() -> None:
    """A success resets the number of failures and the delay."""
    setbacks, now = Setbacks(InlineBackground().lock()), 0.0
    order = replace(ORDER, follows=(Follow("s", 0, EMPTY),))
    failed = UpkeepReceipt("1", unfinished=(("s", 0, 0, 0),), failed=(("s", 0),), ran=True)
    for _ in range(2 * TRIES):
        setbacks.record_results({"1": order}, [failed], now)
        assert not setbacks.without_delayed({"1": order}, now + 0.5)
        now += 1.5
        assert setbacks.without_delayed({"1": order}, now)
        setbacks.record_results({"1": order}, [UpkeepReceipt("1", ran=True)], now)
    assert not setbacks.take_warnings()


def test_waiting_drops_are_not_sent_to_another_folder() -> None:
    """Waiting drops are not sent to an executor that has another folder now."""
    setbacks, drop = Setbacks(InlineBackground().lock()), Drop("s", 5, None)
    order = replace(ORDER, drops=(replace(drop, store="done"), drop))
    setbacks.record_results({"1": order}, [UpkeepReceipt("1", ran=True, drops_left=1)], 0.0)
    (later_order,) = setbacks.without_delayed({"1": replace(order, drops=(), measure=True)}, 1.0).values()
    assert later_order.drops == (drop,)
    setbacks.keep_drops({"1": order})
    (other,) = setbacks.without_delayed({"1": replace(order, member="m2", drops=(), measure=True)}, 2.0).values()
    assert other.drops == ()


def test_an_abandoned_snapshot_is_not_due() -> None:
    """A snapshot that was given up is not due, so it takes no place among those of its executor."""
    setbacks, due = Setbacks(InlineBackground().lock()), SnapshotOrder("s", 5, EMPTY)
    order = replace(ORDER, snapshots=(due,))
    assert setbacks.ready_snapshots("m1", [due], 0.0) == [due]
    setbacks.record_results({"1": order}, [UpkeepReceipt("1", ran=True, failed_snapshots=(("s", 5),))], 0.0)
    assert not setbacks.ready_snapshots("m1", [due], 0.5)
    assert setbacks.ready_snapshots("m2", [due], 0.5) == [due]
    assert setbacks.ready_snapshots("m1", [due], 2.0) == [due]
