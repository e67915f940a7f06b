"""After a restart of the driver or a new deployment on the same folders nothing moves, and only missed deltas are
fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riffle_spark.assign.model import Assignment
from riffle_spark.testing import InlineBackground, home_of
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World, one_row, rows_of

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")


def running(tmp_path: Path, standbys: int, **settings: Any) -> Elastic:
    """Return a query after some batches."""
    world = Elastic(tmp_path, executors=THREE, num_standbys=standbys, **settings)
    world.feed(5)
    return world


def roles(assignment: Assignment) -> tuple[dict[object, object], dict[object, object]]:
    """Return owners and standbys."""
    return dict(assignment.owners), dict(assignment.standbys)


def check_goes_on(world: Elastic, before: tuple[dict[object, object], dict[object, object]]) -> None:
    """Check that the next batches have the same roles, and neither move, restore nor fetch."""
    reports = [world.feed() for _ in range(3)]
    assert roles(world.ownership.placement.present) == before
    assert [move for report in reports for move in report.moves] == []
    assert [(report.restores, report.fetched_bytes) for report in reports] == [(0, 0)] * 3
    assert sum(report.upkeep_restores for report in reports) == 0
    world.check_state()


@pytest.mark.parametrize("standbys", [1])
def test_a_new_driver_keeps_owners_and_standbys(tmp_path: Path, standbys: int) -> None:
    """The log and a census suffice for a new driver to keep all roles. Nothing is restored or fetched."""
    world = running(tmp_path, standbys)
    before = roles(world.ownership.placement.present)
    world.start()
    check_goes_on(world, before)


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_redeploy_on_the_same_hosts_moves_nothing(tmp_path: Path, standbys: int) -> None:
    """The executors of a new application claim the old folders, so they are the same members with the same tasks."""
    world = running(tmp_path, standbys)
    before = roles(world.ownership.placement.present)
    for name in THREE:
        world.cluster.lose(name)
    world.home = home_of(world.home.root, tmp_path, "deployed-again")
    world.cluster.home = world.home
    for name in ("10", "11", "12"):
        world.cluster.add(name)
    world.start()
    check_goes_on(world, before)


def test_standbys_fetch_missed_batches_as_deltas(tmp_path: Path) -> None:
    """Standbys that missed two batches before a restart fetch their deltas and no snapshot."""
    world = running(tmp_path, 1)
    world.cluster.stalled = set(THREE)
    missed = world.feed().sealed_bytes + world.feed().sealed_bytes
    world.cluster.stalled = set()
    world.start()
    first = world.feed()
    second = world.feed()
    assert first.upkeep_fetched_bytes == 0
    assert second.upkeep_fetched_bytes == 2 * (missed + first.sealed_bytes), "two standbys share each block"
    assert second.upkeep_snapshot_bytes == 0
    assert all(copy.lag_records == 0 for copy in world.ownership.copies.readiness)
    world.check_state()


def test_a_restart_in_the_same_process_takes_a_new_census(tmp_path: Path) -> None:
    """A query that starts again in the same process takes a new census, because another driver may have run."""
    world = running(tmp_path, 1)
    before = roles(world.ownership.placement.present)
    world.run_id = "started again"
    report = world.feed()
    assert roles(world.ownership.placement.present) == before
    assert (report.moves, report.restores) == ((), 0)
    world.check_state()


def test_a_late_census_of_the_previous_run_moves_nothing(tmp_path: Path) -> None:
    """A late census of the previous run does not replace the new census of all members, so nothing moves."""
    world = running(tmp_path, 1)
    before = roles(world.ownership.placement.present)
    world.start(InlineBackground(deferred=True))
    world.feed()
    world.cluster.add("4")
    world.feed()
    world.background.run()
    world.run_id = "started again"
    report = world.feed()
    assert roles(world.ownership.placement.present) == before
    assert not [move for move in report.moves if move["role"] == "owner"]


def test_waiting_drops_of_the_previous_run_are_cancelled(tmp_path: Path) -> None:
    """I9: copies that waited to be dropped in the previous run are reported again and stay."""
    world = running(tmp_path, 1, state_cleanup_delay=0)
    world.start(InlineBackground(deferred=True))
    world.feed()
    world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 0})
    world.feed(2)
    world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 1})
    world.run_id = "started again"
    world.feed()
    world.background.run()
    report = world.feed()
    assert report.upkeep_restores == 0
    assert report.upkeep_folds


def test_a_late_snapshot_of_the_previous_run_is_not_listed(tmp_path: Path) -> None:
    """A late snapshot of the previous run is not listed, because a scan of the new run may delete it."""
    world = World(tmp_path, snapshot_chain_links=2)
    world.start(InlineBackground(deferred=True))
    for version in range(4):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(20))))
    put = set(world.memory.list(""))
    world.background.run()
    late = {name for name in set(world.memory.list("")) - put if "/snapshot/" in name}
    assert late
    world.run_id = "again"
    world.batch(4, rows_of(("k0", 1, 0)))
    assert late.isdisjoint(world.log().manifest.object_names())


def test_scan_results_from_before_a_restored_root_are_not_used(tmp_path: Path) -> None:
    """After a root was restored from a backup, results of an earlier scan are not used for the promise, because the
    records differ.
    """
    world = World(tmp_path, orphan_scan_interval=1)
    run_and_restore(world, 60, to=10)
    world.run_id = "run-2"
    for version in (11, 12):
        world.batch(version, one_row(version))
    world.start()
    world.batch(13, one_row(13))
    tail = world.log().tail
    assert tail is not None
    assert (tail.version, tail.promised < tail.sequence) == (13, True)


@pytest.mark.usefixtures("short_cycles")
def test_waiting_deletes_are_dropped_after_a_restored_root(tmp_path: Path) -> None:
    """After a root was restored, waiting deletes are dropped, because the names belong to other records."""
    world = World(tmp_path)
    world.start(InlineBackground(deferred=True))
    run_and_restore(world, 30, to=3)
    world.run_id = "again"
    world.batch(4, one_row(4))
    log = world.memory.list("log/")
    world.background.run()
    assert world.memory.list("log/") == log
    for version in range(5, 12):
        world.batch(version, one_row(version))
        world.background.run()
    assert world.log().tail is not None
    assert world.memory.list("log/")[0] > log[0], "deletes of this run continue"
    assert world.state("totals") == {"a": (12, sum(range(12)))}


def run_and_restore(world: World, batches: int, to: int) -> None:
    """Run batches, and restore the root to its content after batch ``to``."""
    copied: dict[str, bytes | None] = {}
    for version in range(batches):
        world.batch(version, one_row(version))
        if version == to:
            copied = {name: world.memory.get(name) for name in world.memory.list("")}
    world.memory.delete(world.memory.list(""))
    for name, data in copied.items():
        assert data is not None
        world.memory.put_if_absent(name, data)
