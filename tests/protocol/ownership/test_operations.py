"""Drains, pins, rebalances and settings of a running query are applied without a restore, or refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.protocol.ownership.operations import RequestRegister
from riffle_spark.protocol.ownership.readiness import MemberState
from riffle_spark.settings import Settings
from riffle_spark.spark.stateful import JobOperations
from riffle_spark.testing import InlineBackground
from tests.kit.simulated.elastic_world import Elastic

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")


def running(tmp_path: Path, **settings: Any) -> Elastic:
    """Return a query with three executors after some batches."""
    world = Elastic(tmp_path, executors=THREE, **settings)
    world.feed(4)
    return world


def orders(world: Elastic) -> RequestRegister:
    """Return the register of operator requests."""
    return world.driver.operations


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_drain_moves_all_tasks_without_a_restore(tmp_path: Path, standbys: int) -> None:
    """A drained member ends without tasks and can be removed without loss. No batch restores or fetches a snapshot."""
    world = running(tmp_path, num_standbys=standbys, max_warmup_replicas=1)
    orders(world).drain("1")
    first = world.feed()
    assert bool(world.owned("1")) == (standbys == 0), "tasks stay until another member has caught up"
    reports = [first, *world.settle()]
    assert world.holds("1") == (set(), set(), set())
    assert [(report.restores, report.fetched_snapshot_bytes) for report in reports] == [(0, 0)] * len(reports)
    states = {state.executor: state for state in orders(world).members}
    assert states["1"].state == "draining"
    assert (states["1"].owned, states["1"].standbys, states["1"].warmups) == (0, 0, 0)
    world.cluster.lose("1", planned=True)
    last = world.feed()
    assert (last.moves, last.restores) == ((), 0)
    world.check_state()


def test_a_pinned_key_group_warms_up_moves_and_stays(tmp_path: Path) -> None:
    """A key-group warms up on its pinned member, moves, and stays when other members are lost. After the unpin it can
    move.
    """
    world = running(tmp_path)
    group = min(world.owned("1"))
    for _ in range(2):
        orders(world).pin(group, "2")
    report = world.feed()
    assert group in world.owned("1")
    reports = [report, *world.settle()]
    assert group in world.owned("2")
    assert [report.restores for report in reports] == [0] * len(reports)
    assert "operator" in {move["goal"] for report in reports for move in report.moves}
    world.cluster.lose("3", planned=True)
    world.settle()
    assert group in world.owned("2")
    orders(world).pin((group + 1) % 6, "2")
    assert orders(world).unpin((group + 1) % 6) == {str(group): world.member("2")}
    for _ in range(2):
        assert orders(world).unpin(group) == {}
    world.settle()
    orders(world).drain("2")
    world.settle()
    assert world.owned("2") == set()
    world.check_state()


def test_a_pin_to_a_lost_member_waits_for_it(tmp_path: Path) -> None:
    """While the pinned member is lost, another member owns the key-group. It moves back when the member returns."""
    world = running(tmp_path)
    group = min(world.owned("1"))
    orders(world).pin(group, "2")
    world.settle()
    world.cluster.lose("2")
    world.feed()
    assert group in world.owned("1") | world.owned("3")
    world.cluster.add("2b")
    world.settle()
    assert group in world.owned("2b")
    world.check_state()


def test_requests_for_an_executor_apply_to_the_member_of_its_census(tmp_path: Path) -> None:
    """Requests that name an executor apply to the member of its census, also if they were made before the census."""
    world = Elastic(tmp_path, executors=THREE)
    census = world.cluster.census

    def unanswered(*_: object) -> list[Census]:
        raise UnavailableError("nobody answers", remedy="wait")

    world.cluster.census = unanswered  # type: ignore[method-assign, assignment]
    world.feed()
    group = min(world.owned("2"))
    orders(world).drain("1")
    orders(world).pin(group, "3")
    assert orders(world).requests.drained == {"1"}
    world.cluster.census = census  # type: ignore[method-assign]
    world.settle()
    assert orders(world).requests.drained == {world.member("1")} != {"1"}
    assert world.holds("1") == (set(), set(), set())
    assert group in world.owned("3")
    assert orders(world).undrain("1") == ()
    world.check_state()


def test_a_request_for_an_executor_applies_to_its_later_member() -> None:
    """A request for an executor that has become a member applies to the member."""
    register = RequestRegister(8, "key_group", InlineBackground().lock())
    register.set_members((MemberState("1", "1", "a", 1), MemberState("2", "2", "b", 1)))
    register.drain("1")
    register.replace_executor_names({"1": "m1", "2": "m2"})
    assert register.requests.drained == {"m1"}
    with pytest.raises(ConfigError, match="RIFFLE-0751"):
        register.drain("2")
    register.undrain("1")
    register.pin(3, "1")
    assert register.unpin(4) == {"3": "m1"}


def refused(world: Elastic, name: str, *arguments: object) -> str:
    """Make a request that is refused, and return the error."""
    before = orders(world).requests
    with pytest.raises(ConfigError) as refusal:
        getattr(orders(world), name)(*arguments)
    assert orders(world).requests == before, "a refused request changes nothing"
    assert refusal.value.remedy
    return str(refusal.value)


def test_impossible_requests_are_refused_with_a_reason(tmp_path: Path) -> None:
    """Each refusal names the reason and changes nothing."""
    world = running(tmp_path)
    operations = orders(world)
    assert "RIFFLE-0756" in refused(world, "drain", "x")
    assert "RIFFLE-0757" in refused(world, "pin", 6, "1")
    assert "RIFFLE-0756" in refused(world, "pin", 0, "x")
    operations.pin(0, "1")
    assert "RIFFLE-0752" in refused(world, "drain", "1")
    assert "RIFFLE-0757" in refused(world, "unpin", 6)
    operations.unpin(0)
    operations.drain("1")
    assert "RIFFLE-0753" in refused(world, "undrain", "m1")
    assert "Drained members: m000000000001." in refused(world, "undrain", "m1")
    assert "RIFFLE-0750" in refused(world, "pin", 0, "1")
    operations.drain("2")
    assert "RIFFLE-0751" in refused(world, "drain", "3")
    assert "RIFFLE-0754" in refused(world, "add_worker")
    assert "RIFFLE-0754" in refused(world, "remove_worker")


def test_requests_before_the_first_batch_are_refused(tmp_path: Path) -> None:
    """Before the first batch, requests are refused, because the members are unknown."""
    world = Elastic(tmp_path, executors=THREE)
    for name, arguments in (("drain", ("1",)), ("pin", (0, "1")), ("request_rebalance", ()), ("add_worker", ())):
        assert "RIFFLE-0758" in refused(world, name, *arguments)


def test_hashed_dispatch_refuses_pins(tmp_path: Path) -> None:
    """With hashed dispatch pins are refused, because the owner depends on the members only."""
    operations = RequestRegister(8, "hashed", InlineBackground().lock())
    with pytest.raises(ConfigError, match="RIFFLE-0237"):
        operations.pin(0, "1")


def test_a_requested_rebalance_runs_before_the_next_batch(tmp_path: Path) -> None:
    """A requested rebalance computes a new layout, and moves nothing in a balanced query (I8)."""
    world = running(tmp_path)
    layout = world.ownership.placement.layout
    world.feed()
    assert world.ownership.placement.layout is layout
    orders(world).request_rebalance()
    report = world.feed()
    assert world.ownership.placement.layout is not layout
    assert report.moves == ()
    layout = world.ownership.placement.layout
    world.feed()
    assert world.ownership.placement.layout is layout


def test_the_number_of_workers_sets_the_slots_per_executor(tmp_path: Path) -> None:
    """The number of workers is the slots per executor, between one and its cores. Owners do not change."""
    world = Elastic(tmp_path, executors=())
    for name in ("1", "2"):
        world.cluster.add(name, cores=2)
    assert world.feed().slots == 4
    assert orders(world).remove_worker() == 1
    report = world.feed()
    assert (report.slots, report.moves) == (2, ())
    assert orders(world).add_worker() == 2
    assert world.feed().slots == 4
    world.check_state()


def test_the_number_of_standbys_changes_live(tmp_path: Path) -> None:
    """More standbys are warmed up. With fewer, their copies are removed after the clean-up delay."""
    world = running(tmp_path, state_cleanup_delay=60)
    orders(world).reconfigure(world.driver.settings, {"num_standbys": 2})
    world.settle()
    world.feed(2)
    assert {len(members) for members in world.ownership.placement.present.standbys.values()} == {2}
    assert all(len(world.copies_of(executor)) == 6 for executor in THREE)
    orders(world).reconfigure(world.driver.settings, {"num_standbys": 0})
    world.feed(2)
    assert all(len(world.copies_of(executor)) == 6 for executor in THREE)
    world.clock.advance(61)
    world.feed()
    assert all(world.copies_of(executor) == world.owned(executor) for executor in THREE)
    world.check_state()


def test_the_acceptable_lag_changes_live(tmp_path: Path) -> None:
    """With an acceptable lag above the whole state, a new member owns tasks at once."""
    world = running(tmp_path)
    orders(world).reconfigure(world.driver.settings, {"acceptable_recovery_lag": 1_000_000})
    world.cluster.add("4")
    report = world.feed()
    assert world.owned("4")
    assert report.restores == len(world.owned("4"))
    world.check_state()


def test_a_very_short_probing_interval_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A very short probing interval is a warning when it is set, also live."""
    job = JobOperations()
    job._driver = running(tmp_path).driver  # private: no session to begin in
    for interval, warned in (("1 s", 1), ("1 min", 1), (0.5, 2)):
        job.reconfigure(probing_rebalance_interval=interval)
        job.reconfigure(num_standbys=1)
        assert caplog.text.count("is only suitable for tests") == warned


def test_settings_that_need_a_restart_are_refused(tmp_path: Path) -> None:
    """Settings that cannot change live and values out of range are refused, and the settings stay as they were."""
    world = running(tmp_path)
    before = world.driver.settings
    assert "RIFFLE-0755" in refused(world, "reconfigure", before, {"standby_mode": "replay"})
    assert "num_standbys" in refused(world, "reconfigure", before, {"num_standbys": -1})
    assert "Did you mean 'num_standbys'" in refused(world, "reconfigure", before, {"num_standby": 1})
    assert "Set `local_disk_limit`" in refused(world, "reconfigure", before, {"local_disk_high": 0.7})
    world.feed()
    assert world.driver.settings == before


def test_a_drained_member_owns_all_tasks_if_all_others_are_lost(tmp_path: Path) -> None:
    """If all other members are lost and awaited, a drained member owns all tasks until one returns."""
    world = Elastic(tmp_path)
    world.feed(3)
    orders(world).drain("1")
    world.settle()
    world.cluster.lose("2")
    world.feed(2)
    assert world.owned("1") == set(range(6))
    world.cluster.add("2b")
    world.settle()
    assert world.owned("1") == set()
    world.check_state()


class OvertakenLock:
    """A lock that another thread always takes first, to make a request."""

    def __init__(self) -> None:
        self.first: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        """Let the other thread make its request."""
        while self.first:
            self.first.pop()()

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def test_requests_of_two_threads_do_not_undo_each_other() -> None:
    """The request of the second thread is checked against that of the first one, and does not undo it."""
    lock = OvertakenLock()
    register = RequestRegister(8, "key_group", lock)
    register.set_members((MemberState("m1", "1", "a", 1), MemberState("m2", "2", "b", 1)))
    lock.first.append(lambda: register.drain("m2"))
    with pytest.raises(ConfigError, match="RIFFLE-0751"):
        register.drain("m1")
    lock.first.append(lambda: register.pin(3, "m1"))
    register.undrain("m2")
    with pytest.raises(ConfigError, match="RIFFLE-0752"):
        register.drain("1")
    lock.first.append(lambda: register.drain("m2"))
    with pytest.raises(ConfigError, match="RIFFLE-0750"):
        register.pin(4, "2")
    settings = Settings()
    lock.first.append(lambda: register.reconfigure(settings, {"num_standbys": 1}))
    changed = register.reconfigure(settings, {"max_warmup_replicas": 3})
    assert (changed.num_standbys, changed.max_warmup_replicas) == (1, 3)
