"""The three examples of KIP-441 with real copies: owners, standbys and warm-ups after each rebalance.

Tasks T1, T2, ... are key-groups 0, 1, ... A standby of the proposal that catches up is a warm-up here, if it is one
more than ``num_standbys``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.simulated.elastic_world import Elastic, member_roles

T1, T2, T3, T4 = range(4)
GROUPS_OF_THREE, GROUPS_OF_FOUR = 3, 4

pytestmark = pytest.mark.usefixtures("names_in_order")


def everybody(world: Elastic) -> dict[str, tuple[set[int], set[int], set[int]]]:
    """Return the owned, standby and warm-up key-groups of each live executor."""
    return {executor.id: world.holds(executor.id) for executor in world.cluster.executors()}


def test_scaling_out(tmp_path: Path) -> None:
    """I3 joins members with two tasks and one. It warms up both tasks of I1, then owns one and is the standby of the
    other.
    """
    world = Elastic(tmp_path, executors=("I1", "I2"), key_groups=GROUPS_OF_THREE, num_standbys=1)
    world.feed()
    world.arrange({"I1": ({T1, T3}, {T2}), "I2": ({T2}, {T1, T3})})
    world.cluster.add("I3")
    world.feed()
    assert everybody(world) == {
        "I1": member_roles({T1, T3}, {T2}),
        "I2": member_roles({T2}, {T1, T3}),
        "I3": member_roles(warm={T1, T3}),
    }
    report = world.feed()
    assert (report.probes_run, report.restores, report.fetched_snapshot_bytes) == (1, 0, 0)
    after = everybody(world)
    assert all(len(owned) == 1 and len(kept) == 1 and not warm for owned, kept, warm in after.values()), after
    assert after["I2"][0] == {T2}
    assert after["I1"][0] | after["I3"][0] == {T1, T3}
    world.feed(3)
    assert everybody(world) == after, "the second rebalance is the stable state (I8)"
    world.check_state()


def scale_in(tmp_path: Path) -> Elastic:
    """Return the proposal's three members with four tasks and one standby each."""
    world = Elastic(tmp_path, executors=("I1", "I2", "I3"), key_groups=GROUPS_OF_FOUR, num_standbys=1)
    world.feed()
    world.arrange({"I1": ({T1, T4}, {T3}), "I2": ({T2}, {T1, T4}), "I3": ({T3}, {T2})})
    return world


def test_scaling_in_with_standbys_in_sync(tmp_path: Path) -> None:
    """I1 is removed: in one rebalance its standbys take over and one more task moves. Nothing is fetched."""
    world = scale_in(tmp_path)
    world.cluster.lose("I1", planned=True)
    reports = [world.feed()]
    assert {executor: len(owned) for executor, (owned, _, _) in everybody(world).items()} == {"I2": 2, "I3": 2}
    reports.append(world.feed())
    assert everybody(world) == {"I2": member_roles({T1, T4}, {T2, T3}), "I3": member_roles({T2, T3}, {T1, T4})}
    world.feed(3)
    assert everybody(world) == {"I2": member_roles({T1, T4}, {T2, T3}), "I3": member_roles({T2, T3}, {T1, T4})}
    assert [(report.restores, report.fetched_bytes) for report in reports] == [(0, 0), (0, 0)]
    world.check_state()


def test_scaling_in_with_standbys_that_lag(tmp_path: Path) -> None:
    """I2 owns three tasks until the copies of I3 catch up. Then I3 takes one over, and nothing else moves."""
    world = scale_in(tmp_path)
    world.cluster.stalled = {"I1", "I2", "I3"}
    world.feed(2)
    world.cluster.lose("I1", planned=True)
    for _ in range(3):
        report = world.feed()
        assert everybody(world) == {"I2": member_roles({T1, T2, T4}, {T3}), "I3": member_roles({T3}, {T1, T2, T4})}
        assert report.probes_run == 0, "no copy has caught up, so no probe runs"
    world.driver.operations.request_rebalance()
    world.feed()
    assert everybody(world) == {"I2": member_roles({T1, T2, T4}, {T3}), "I3": member_roles({T3}, {T1, T2, T4})}, (
        "I3 still lags"
    )
    world.cluster.stalled = set()
    world.feed()
    report = world.feed()
    assert (report.probes_run, report.restores, report.fetched_snapshot_bytes) == (1, 0, 0)
    after = everybody(world)
    assert {executor: (len(owned), len(kept)) for executor, (owned, kept, _) in after.items()} == {
        "I2": (2, 2), "I3": (2, 2)
    }  # fmt: skip
    assert after["I3"][0] >= {T3}
    world.feed(3)
    assert everybody(world) == after, "the second rebalance is the stable state (I8)"
    world.check_state()
