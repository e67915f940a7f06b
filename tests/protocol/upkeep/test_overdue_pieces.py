"""Upkeep that does not end is given up at its deadline and reported. Other executors continue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.testing import SimCluster
from tests.kit.simulated.elastic_world import Elastic, warnings

pytestmark = pytest.mark.usefixtures("names_in_order")

TIMEOUT = 60
BATCH_SECONDS = 20


def longest_chain(world: Elastic, key_groups: set[int]) -> int:
    """Return the number of links in the longest chain of these key-groups."""
    entries = world.log().manifest.entries
    return max(len(entry.chain) for (_, key_group), entry in entries.items() if key_group in key_groups)


def test_an_executor_with_stuck_upkeep_does_not_delay_others(tmp_path: Path) -> None:
    """For 15 minutes batches run, and the copies and chains of the other member stay up to date. The report names the
    late executor and its long chains. Later all is caught up.
    """
    world = Elastic(tmp_path, num_standbys=1, snapshot_chain_links=4, retained_versions=1000)
    world.feed_every(BATCH_SECONDS, 6)
    groups_of_stuck, other_groups = world.owned("1"), world.owned("2")
    world.cluster.frozen.add("2")
    began = world.clock.seconds()
    reports = world.feed_every(BATCH_SECONDS, 45)
    assert [report.runs for report in reports] == [1] * len(reports)
    late = warnings(reports, "had not ended after 6")
    assert "upkeep_timeout" in late[0]
    assert 2 <= len(late) <= 5, "each try takes a deadline, so tries are rare"
    assert longest_chain(world, groups_of_stuck) <= 6
    kept = [copy for copy in world.ownership.copies.readiness if copy.member == world.member("1")]
    assert {copy.key_group for copy in kept} == other_groups
    assert all(copy.warm for copy in kept)
    grown = warnings(reports, "RIFFLE-0815")
    assert grown
    assert all(f"totals {kg}" in grown[-1] for kg in other_groups)
    assert not any(f"totals {kg}" in text for kg in groups_of_stuck for text in grown)
    assert len(grown) <= 3 + (world.clock.seconds() - began) / 600
    world.cluster.frozen.clear()
    world.clock.advance(1000)
    after = world.feed_every(BATCH_SECONDS, 8)
    assert longest_chain(world, other_groups) <= 6
    assert warnings(after[2:], "had not ended") == []
    assert warnings(after[2:], "longer than they should be") == []
    assert all(copy.warm for copy in world.ownership.copies.readiness)
    world.check_state()


def test_lost_answers_of_one_round_do_not_delay_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round is given up, another one runs at once for all other executors."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(3)
    rounds: list[set[str]] = []
    run = SimCluster.upkeep

    def upkeep(cluster: SimCluster, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        rounds.append(set(orders))
        return run(cluster, orders)

    monkeypatch.setattr(SimCluster, "upkeep", upkeep)
    world.cluster.frozen.add("2")
    world.feed()
    assert rounds == [{"1", "2"}, {"1"}]


def test_clean_up_fails_if_an_executor_does_not_answer(tmp_path: Path) -> None:
    """`clean_up` fails after one deadline if an executor does not answer."""
    world = Elastic(tmp_path)
    world.feed(2)
    world.cluster.frozen.add("2")
    began = world.clock.seconds()
    with pytest.raises(UnavailableError, match="RIFFLE-0243"):
        world.driver.clean_up()
    assert world.clock.seconds() - began < 2 * (TIMEOUT + 2)
    world.cluster.frozen.clear()
    world.driver.clean_up()
    assert world.copies_of("1") == world.copies_of("2") == set()


def test_upkeep_timeout_changes_live(tmp_path: Path) -> None:
    """`upkeep_timeout` changes live. A piece of upkeep has that time and its own seconds."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(3)
    world.driver.operations.reconfigure(world.driver.settings, {"upkeep_timeout": "5 min"})
    world.cluster.frozen.add("2")
    assert warnings(world.feed_every(BATCH_SECONDS, 3), "had not ended after 300.25 s")
