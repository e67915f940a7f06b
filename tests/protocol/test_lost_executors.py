"""When executors or disks are lost, standbys take over without a fetch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.ports import Delivery, StaleRows
from riffle_spark.state.copies.folder import Folder
from riffle_spark.testing import Attempt
from tests.kit.simulated.elastic_world import Elastic, warnings
from tests.kit.simulated.world import totals

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")


def fetched(report: BatchReport) -> tuple[int, int, int]:
    """Return the fetched bytes, the fetched bytes of snapshots, and the restores of a batch."""
    return report.fetched_bytes, report.fetched_snapshot_bytes, report.restores


def elsewhere(attempt: Attempt, executor: str) -> pa.Table:
    """Run an attempt on another executor than the driver wanted."""
    return replace(attempt, executor=executor).run()


@pytest.mark.parametrize("disk", [False, True])
def test_a_standby_takes_over_without_fetching_anything(tmp_path: Path, disk: bool) -> None:
    """The batch after a loss fetches and restores nothing, because each task has a standby in sync."""
    world = Elastic(tmp_path, executors=THREE, num_standbys=1)
    world.feed(4)
    lost = world.owned("1")
    world.cluster.lose("1", disk=disk)
    report = world.feed()
    assert fetched(report) == (0, 0, 0)
    assert {move["key_group"] for move in report.moves if move["role"] == "owner"} == lost
    assert all(move["from_executor"] == "1" for move in report.moves if move["role"] == "owner")
    world.settle()
    world.check_state()


def test_two_standbys_survive_two_losses_at_once(tmp_path: Path) -> None:
    """With two standbys, the loss of two executors causes no fetch."""
    world = Elastic(tmp_path, executors=("1", "2", "3", "4"), num_standbys=2)
    world.feed(4)
    for name in ("1", "2"):
        world.cluster.lose(name, disk=True)
    assert fetched(world.feed()) == (0, 0, 0)
    world.settle()
    world.check_state()


def test_without_standbys_several_members_restore_the_lost_tasks(tmp_path: Path) -> None:
    """Without standbys, the lost tasks are restored once, by several members."""
    world = Elastic(tmp_path, executors=THREE, num_standbys=0)
    world.feed(4)
    lost = world.owned("1")
    world.cluster.lose("1", disk=True)
    report = world.feed()
    assert report.restores == len(lost)
    assert len({world.owners()[group] for group in lost}) == 2
    world.check_state()


def test_a_loss_during_a_batch_repeats_the_batch_on_standbys(tmp_path: Path) -> None:
    """If Spark retries a slot of a dead executor on one without its copies, the slot is misplaced. The batch runs again
    on the standbys and fetches nothing.
    """
    world = Elastic(tmp_path, executors=THREE, num_standbys=1)
    world.feed(4)
    lost = world.owned("1")
    keepers = {executor: world.holds(executor)[1] & lost for executor in ("2", "3")}
    bare = next(executor for executor, kept in keepers.items() if not lost <= kept)

    def retried(attempt: Attempt) -> pa.Table:
        if attempt.executor != "1":
            return attempt.run()
        if "1" in {executor.id for executor in world.cluster.executors()}:
            world.cluster.lose("1", disk=True)
        return elsewhere(attempt, bare)

    report = world.feed(perform=retried)
    assert (report.runs, report.misplaced_runs) == (2, 1)
    assert fetched(report) == (0, 0, 0)
    world.settle()
    world.check_state()


def test_the_last_run_of_a_misplaced_batch_restores_copies(tmp_path: Path) -> None:
    """If slots never run on their executors, the batch runs `batch_attempts` times. The last run restores."""
    world = Elastic(tmp_path, executors=THREE, num_standbys=1, batch_attempts=3)
    world.feed(4)
    turn = {"1": "2", "2": "3", "3": "1"}
    report = world.feed(perform=lambda attempt: elsewhere(attempt, turn[attempt.executor]))
    assert (report.runs, report.misplaced_runs) == (3, 2)
    assert report.misses == 3
    assert report.restores > 0
    world.feed(2)
    world.check_state()


@pytest.mark.parametrize("dies", [False, True])
def test_the_remedy_for_lost_rows_names_lost_executors_or_cached_rdds(tmp_path: Path, dies: bool) -> None:
    """If a batch lost its rows in each run, the remedy names executors lost during the batch, or cached RDDs."""
    world = Elastic(tmp_path, executors=THREE, batch_attempts=2)
    world.feed()

    def sink(_: pa.Table, delivery: Delivery) -> None:
        if dies and len(world.cluster.executors()) == len(THREE):
            world.cluster.lose("2")
        raise StaleRows("a part of it is gone")

    world.sinks["totals"] = sink  # type: ignore[assignment]
    with pytest.raises(UnavailableError) as caught:
        world.feed()
    assert "Batch 1 lost rows in each of 2 runs" in caught.value.problem
    assert ("executors are lost (2 during the batch)" in caught.value.remedy) is dies
    assert ("cached RDDs" in caught.value.remedy) is not dies


def test_standbys_take_over_if_a_live_member_loses_its_folder(tmp_path: Path) -> None:
    """If the folder of a live executor is deleted, its slot is misplaced, and standbys take over without a restore."""
    world = Elastic(tmp_path, executors=THREE, num_standbys=1)
    world.feed(4)
    shutil.rmtree(world.folder_of("1"))
    report = world.feed()
    assert report.misplaced_runs >= 1
    assert fetched(report) == (0, 0, 0)
    world.settle()
    world.check_state()
    assert len(world.ownership.membership.live) == 3


@pytest.mark.parametrize("forgets", [False, True])
def test_an_owner_without_its_copy_fetches_it_in_the_next_run(tmp_path: Path, forgets: bool) -> None:
    """With little state the owner stays the owner, and fetches its lost copy in the next run. The report has the reason
    of the second run. After a census there is no second run.
    """
    world = Elastic(tmp_path, executors=THREE, num_standbys=1, acceptable_recovery_lag=10_000)
    world.feed(4)
    lost = min(world.owned("1"))
    Folder(world.folder_of("1"), "").drop("totals", lost)
    if forgets:
        world.start()
    report = world.feed()
    assert (report.runs, report.misplaced_runs, report.restores) == ((1, 0, 1) if forgets else (2, 1, 1))
    lost_row_warnings = warnings([report], "of at most 4 of batch")
    assert len(lost_row_warnings) == report.runs - 1
    assert world.feed().runs == 1
    world.check_state()


def test_two_stores_with_copies_on_different_members_fetch_one_copy(tmp_path: Path) -> None:
    """If the owner lacks the copy of one store and the standby that of another, each is found once, and then one copy
    is fetched.
    """
    world = Elastic(tmp_path, executors=THREE, operators=[totals(), totals("other")], num_standbys=1)
    world.feed(4)
    lost = min(world.owned("1"))
    keeper = next(executor for executor in ("2", "3") if lost in world.holds(executor)[1])
    Folder(world.folder_of("1"), "").drop("totals", lost)
    Folder(world.folder_of(keeper), "").drop("other", lost)
    report = world.feed()
    assert (report.runs, report.restores) == (3, 1)
    assert len(warnings([report], "RIFFLE-0814")) == 2
    world.check_state()


def test_upkeep_restores_the_lost_folder_of_a_standby(tmp_path: Path) -> None:
    """If a member without slots loses its folder, upkeep finds it and fetches the copies again."""
    world = Elastic(tmp_path, executors=("1", "2"), num_standbys=1)
    world.feed(4)
    before = world.member("2")
    shutil.rmtree(world.folder_of("2"))
    world.feed(2, keys=world.of_groups(world.owned("1")))
    assert world.member("2") != before
    assert before not in world.ownership.copies.reported._heads
    world.check_state()
