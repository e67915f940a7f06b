"""While a lost member is awaited, others process its tasks and replace its standbys. It gets its tasks back when it
returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riffle_spark.assign.model import Assignment
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.prior_owners import PriorOwners
from tests.kit.simulated.elastic_world import Elastic

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")
DELAY = 300


def three(tmp_path: Path, **settings: Any) -> Elastic:
    """Return a query with three executors and a rebalance delay."""
    world = Elastic(tmp_path, executors=THREE, scheduled_rebalance_max_delay=DELAY, **settings)
    world.feed(4)
    return world


def test_no_warm_up_starts_during_the_rebalance_delay(tmp_path: Path) -> None:
    """During the delay the lost tasks have other owners, but no other task moves and no warm-up starts."""
    world = three(tmp_path)
    before, lost = world.owners(), world.owned("1")
    world.cluster.lose("1")
    report = world.feed()
    assert {move["key_group"] for move in report.moves} == lost
    for _ in range(5):
        world.clock.advance(DELAY / 10)
        report = world.feed()
        assert report.moves == ()
        assert not world.ownership.placement.present.warmups
    assert {group: owner for group, owner in world.owners().items() if group not in lost} == {
        group: owner for group, owner in before.items() if group not in lost
    }
    world.check_state()


def standbys(world: Elastic) -> dict[int, tuple[str, ...]]:
    """Return the standbys of each key-group."""
    return {t.key_group: members for t, members in world.ownership.placement.present.standbys.items()}


def four(tmp_path: Path) -> Elastic:
    """Return a query with four executors, eight key-groups and one standby each."""
    executors = ("1", "2", "3", "4")
    world = Elastic(tmp_path, executors=executors, key_groups=8, num_standbys=1, scheduled_rebalance_max_delay=DELAY)
    world.feed(4)
    world.settle()
    assert {len(members) for members in standbys(world).values()} == {1}
    return world


def test_lost_standbys_are_replaced_without_a_delay(tmp_path: Path) -> None:
    """Lost standbys are replaced without a delay, as KIP-441 requires. So a second loss restores nothing."""
    world = four(tmp_path)
    before, lost = world.owners(), world.owned("1")
    world.cluster.lose("1")
    report = world.feed()
    assert {move["key_group"] for move in report.moves if move["role"] == "owner"} == lost
    assert len(standbys(world)) == 8
    world.feed_every(30, 4)
    assert {group: owner for group, owner in world.owners().items() if group not in lost} == {
        group: owner for group, owner in before.items() if group not in lost
    }
    assert all(copy.warm for copy in world.ownership.copies.readiness if copy.role == "standby")
    world.cluster.lose("2")
    report = world.feed()
    assert (report.restores, report.fetched_bytes) == (0, 0)
    assert len(standbys(world)) == 8
    world.check_state()


@pytest.mark.parametrize("lost", ["1", "4"])
def test_a_member_that_returns_after_a_restart_gets_its_tasks_back(tmp_path: Path, lost: str) -> None:
    """A new driver knows from the recorded prior owners which tasks an awaited member gets back."""
    world = four(tmp_path)
    before = world.owners()
    world.cluster.lose(lost)
    world.feed_every(10, 3)
    world.start()
    world.feed()
    world.cluster.add(f"{lost}b")
    world.settle()
    assert world.owners() == before
    world.check_state()


def test_a_quick_return_cancels_fetches_of_replacement_copies(tmp_path: Path) -> None:
    """If a member returns before its standbys were replaced, its own copies are used, and the fetches do not start."""
    world = four(tmp_path)
    before, kept = world.owners(), world.holds("1")[1]
    world.cluster.lose("1")
    world.cluster.stalled = {"2", "3", "4"}
    world.feed()
    world.cluster.add("1b")
    world.feed()
    world.cluster.stalled = set()
    reports = world.settle()
    assert world.owners() == before
    assert world.holds("1b")[1] == kept
    assert sum(report.upkeep_restores for report in reports) == 0
    world.check_state()


def test_a_member_that_returns_in_time_gets_its_tasks_back(tmp_path: Path) -> None:
    """A returned member fetches only the deltas that it missed and gets each of its tasks back. No other task moves."""
    world = three(tmp_path)
    before, lost, member = world.owners(), world.owned("1"), world.member("1")
    world.cluster.lose("1")
    away = [world.feed() for _ in range(2)]
    sealed = sum(report.sealed_bytes for report in away)
    world.clock.advance(DELAY / 2)
    world.cluster.add("1b")
    reports = [*world.settle(), world.feed()]
    assert world.member("1b") == member
    assert world.owners() == before
    moved = [move["key_group"] for report in reports for move in report.moves if move["role"] == "owner"]
    assert sorted(moved) == sorted(lost), "each lost task moves back once, and no other task moves"
    assert [report.restores for report in reports] == [0] * len(reports)
    assert sum(report.upkeep_restores for report in reports) == 0
    assert sum(report.upkeep_snapshot_bytes for report in reports) == 0
    assert 0 < sum(report.upkeep_fetched_bytes for report in reports) <= sealed + reports[0].sealed_bytes
    world.check_state()


def test_after_the_delay_lost_tasks_stay_with_their_new_owners(tmp_path: Path) -> None:
    """After the delay the lost tasks stay with their new owners. A member that returns later counts as a new one with
    copies.
    """
    world = three(tmp_path)
    world.cluster.lose("1")
    world.feed()
    world.clock.advance(DELAY + 1)
    world.settle()
    assert {len(world.owned(executor)) for executor in ("2", "3")} == {3}
    world.cluster.add("1b")
    reports = world.settle()
    assert sum(report.restores + report.upkeep_restores for report in reports) == 0
    assert {len(world.owned(executor)) for executor in ("1b", "2", "3")} == {2}
    world.check_state()


def test_a_planned_removal_starts_no_delay(tmp_path: Path) -> None:
    """After a planned removal there is no delay, and standbys are replaced at once."""
    world = three(tmp_path, num_standbys=1)
    world.cluster.lose("1", planned=True)
    world.feed()
    assert not world.ownership.membership.awaited_members(world.clock.seconds(), DELAY)
    world.settle()
    assert all(len(members) == 1 for members in world.ownership.placement.present.standbys.values())
    assert len(world.ownership.placement.present.standbys) == world.settings.key_groups
    world.check_state()


def test_a_delay_of_zero_ends_a_wait(tmp_path: Path) -> None:
    """A delay of 0 ends the wait before the next batch."""
    world = three(tmp_path, num_standbys=1)
    member = world.member("1")
    world.cluster.lose("1")
    world.feed(2)
    assert member in world.ownership.placement.present.target.values()
    world.driver.operations.reconfigure(world.driver.settings, {"scheduled_rebalance_max_delay": 0})
    world.settle()
    assert member not in world.ownership.placement.present.target.values()
    assert {len(world.owned(executor)) for executor in ("2", "3")} == {3}


def test_executors_keep_deltas_for_the_copies_of_an_awaited_member(tmp_path: Path) -> None:
    """Executors keep the deltas of an awaited member's tasks and standbys until the wait is over."""
    world = three(tmp_path, num_standbys=1)
    member = world.member("1")
    had = {*world.owned("1"), *(kg for kg, members in standbys(world).items() if member in members)}
    world.cluster.lose("1")
    for _ in range(3):
        world.feed()
        followers = world.ownership.placement.followers("totals")
        assert {key_group for key_group, members in followers.items() if member in members} == had
    world.clock.advance(DELAY + 1)
    world.feed()
    followers = world.ownership.placement.followers("totals")
    assert not any(member in members for members in followers.values())


def test_a_task_returns_to_its_first_owner_while_that_is_awaited() -> None:
    """While the first owner is awaited, a task returns to it. If its replacement is lost too, that one gets only its
    own tasks back.
    """

    def owned(prior_owners: PriorOwners, by: str, *awaited: str) -> dict[int, str]:
        prior_owners.remember([by], awaited, Assignment({task(0): by, task(1): "b"}))
        return {t.key_group: home for t, home in prior_owners.owners.items()}

    prior_owners = PriorOwners()
    assert owned(prior_owners, "a", "a") == {0: "a"}
    assert owned(prior_owners, "b", "a", "b") == {0: "a", 1: "b"}
    assert owned(prior_owners, "b", "b") == {0: "b", 1: "b"}
    assert owned(PriorOwners(), "a") == {}
