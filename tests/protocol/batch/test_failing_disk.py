"""If the local disk of a member refuses writes, other members take over in the same batch, and the member is set aside
until its disk works.

The disks are real file systems that are full or read-only.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import LocalDiskError, UnavailableError, UserFunctionError
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.operator import operator_of
from riffle_spark.testing import Attempt, InlineBackground
from tests.kit.failing_disks import FailingDisk, Way, own_disk
from tests.kit.simulated.elastic_world import Elastic, warnings
from tests.kit.simulated.world import ROWS, one_row, tails, totals
from tests.kit.state.faulty_store import Fault

pytestmark = pytest.mark.usefixtures("names_in_order")

BATCH_SECONDS = 15
GROWN = 3_000
"""Number of new keys that make every copy take more disk space."""


@pytest.fixture
def disks() -> Iterator[ExitStack]:
    """Return the file systems of a test, and unmount them at its end."""
    with ExitStack() as mounted:
        yield mounted


def disk_of(world: Elastic, executor: str, disks: ExitStack, way: Way = "full") -> FailingDisk:
    """Put the folder of an executor on a separate file system."""
    return disks.enter_context(own_disk(world.folder_of(executor), way))


def grow(world: Elastic) -> BatchReport:
    """Commit new keys, so that copies grow. A full disk still takes data that fits into existing files."""
    world.clock.advance(BATCH_SECONDS - 1)
    return world.feed(keys=[f"grown-{n}" for n in range(GROWN)])


@pytest.mark.parametrize(("way", "standbys"), [("full", 1), ("read-only", 0)])
@pytest.mark.sample("full-1")
def test_a_member_with_a_failing_disk_is_quarantined_and_returns(
    tmp_path: Path, disks: ExitStack, way: Way, standbys: int
) -> None:
    """The batch runs again once on other members. Later batches run once, and the member returns with its disk."""
    world = Elastic(tmp_path, num_standbys=standbys)
    world.feed_every(BATCH_SECONDS, 4)
    owned = world.owned("1")
    disk = disk_of(world, "1", disks, way)
    world.feed_every(BATCH_SECONDS, 2)
    disk.fail()
    reports = [*([grow(world)] if way == "full" else []), *world.feed_every(BATCH_SECONDS, 1)]
    assert (sum(report.runs - 1 for report in reports), reports[-1].owners) == (1, {"2": 6})
    quarantine_warnings = warnings(reports, "[RIFFLE-0766] Executor 1 gets no tasks for 10 s")
    assert str(disk.folder.parent) in quarantine_warnings[0]
    world.check_state()
    reports = world.feed_every(BATCH_SECONDS, 900 // BATCH_SECONDS)
    assert {report.runs for report in reports} == {1}
    assert {tuple(report.owners) for report in reports} == {("2",)}
    assert 3 <= len(warnings(reports, "RIFFLE-0768")) <= 8, "censuses are repeated less and less often"
    disk.recover()
    world.clock.advance(600)
    reports = world.feed_every(BATCH_SECONDS, 12)
    assert {report.runs for report in reports} == {1}
    assert len(world.owned("1")) == len(owned)
    world.check_state()


def test_a_batch_that_may_run_only_once_fails_with_the_disk(tmp_path: Path, disks: ExitStack) -> None:
    """With batch_attempts = 1 a batch is not run again on another member. The next start of it is."""
    world = Elastic(tmp_path, batch_attempts=1)
    world.feed_every(BATCH_SECONDS, 3)
    disk = disk_of(world, "1", disks, "read-only")
    disk.fail()
    with pytest.raises(LocalDiskError) as refused:
        world.batch(world.version + 1, one_row(1))
    assert refused.value.id != "RIFFLE-0514", "the disk of the other executor works"
    assert set(world.feed().owners) == {"2"}
    disk.recover()
    world.check_state()


def test_the_census_after_a_restart_detects_a_failing_disk(tmp_path: Path, disks: ExitStack) -> None:
    """After a restart the census checks the disk, so that the first batch runs once."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    disk_of(world, "1", disks).fail()
    world.start()
    reports = world.feed_every(BATCH_SECONDS, 2)
    assert [report.runs for report in reports] == [1, 1]
    assert set(reports[-1].owners) == {"2"}
    assert warnings(reports, "Executor 1")
    world.check_state()


def test_a_batch_fails_with_a_remedy_if_all_disks_fail(tmp_path: Path, disks: ExitStack) -> None:
    """If all disks refuse, the batch fails with a remedy. When they work again, the query continues."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    first, second = (disk_of(world, executor, disks, "read-only") for executor in ("1", "2"))
    for recovered_by in ("the same driver", "a new driver"):
        for disk in (first, second):
            disk.fail()
        with pytest.raises(LocalDiskError, match="RIFFLE-0514") as refused:
            world.batch(world.version + 1, one_row(1))
        assert "dd an executor" in refused.value.remedy
        assert isinstance(refused.value, UnavailableError)
        first.recover()
        second.recover()
        if recovered_by == "a new driver":
            world.start()
        assert world.feed_every(BATCH_SECONDS, 1)[0].runs == 1
        assert set(world.feed_every(BATCH_SECONDS, 3)[-1].owners) == {"1", "2"}
    world.check_state()


def test_a_quarantined_member_is_retried_before_the_batch_fails(tmp_path: Path, disks: ExitStack) -> None:
    """If the disk of the last member refuses, a member that was set aside earlier is tried again."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    first, second = (disk_of(world, executor, disks, "read-only") for executor in ("1", "2"))
    first.fail()
    assert set(world.feed().owners) == {"2"}
    facts = world.driver.facts()
    assert {member.executor: member.state for member in facts.members} == {"1": "quarantined", "2": "active"}
    first.recover()
    second.fail()
    report = world.feed()
    assert (report.runs, set(report.owners)) == (2, {"1"})
    second.recover()
    world.check_state()


def test_user_and_store_errors_quarantine_no_member(tmp_path: Path) -> None:
    """If a user function has no disk space or the store is unavailable, no member is set aside."""

    def explode(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if rows["v"][0].as_py() == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rows.select(["k"]), rows.select(["k"]).append_column("last", pa.array([1] * len(rows)))

    schema = pa.schema([("last", pa.int64())])
    declared = arrow_function(explode, state=schema, output=pa.schema([("k", pa.string())]))
    world = Elastic(tmp_path, operators=[operator_of("totals", ["k"], declared, (), ROWS)])
    world.batch(0, one_row(0))
    with pytest.raises(UserFunctionError, match="RIFFLE-0198"):
        world.batch(1, one_row(3))
    world.store.script(Fault("unavailable", "put", "delta/"))
    with pytest.raises(UnavailableError) as away:
        world.batch(1, one_row(1))
    assert not isinstance(away.value, LocalDiskError)
    report = world.batch(1, one_row(1))
    assert (report.runs, set(report.owners)) == (1, {"1", "2"})
    assert report.warnings == ()


def test_a_delta_that_cannot_be_kept_locally_is_fetched_later(tmp_path: Path) -> None:
    """If a delta cannot be kept on the local disk, nothing fails, and the next batch fetches it."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    for executor in ("1", "2"):
        sealed = world.folder_of(executor) / "sealed"
        sealed.rename(sealed.with_name("away"))
        sealed.touch()
    reports = world.feed_every(BATCH_SECONDS, 10)
    assert {report.runs for report in reports} == {1}
    assert reports[-1].fetched_bytes > 0
    world.check_state()


def test_both_operators_move_off_a_member_with_a_failing_disk(tmp_path: Path, disks: ExitStack) -> None:
    """If the disk of a member refuses, both operators run on the other member, and their state is correct."""
    world = Elastic(tmp_path, operators=[totals(), tails()])
    world.feed_every(BATCH_SECONDS, 3)
    disk_of(world, "2", disks, "read-only").fail()
    report = world.feed_every(BATCH_SECONDS, 1)[0]
    assert (report.runs, report.owners) == (2, {"1": 6})
    world.check_state()


def test_a_quarantined_member_takes_over_if_all_others_are_lost(tmp_path: Path, disks: ExitStack) -> None:
    """A member that was set aside takes over at once if the last other member is lost."""
    world = Elastic(tmp_path)
    for _ in range(4):
        world.feed()
    disk = disk_of(world, "1", disks, "read-only")
    disk.fail()
    assert warnings([world.feed(), world.feed()], "RIFFLE-0766")
    disk.recover()
    world.cluster.lose("2", disk=True)
    report = world.feed()
    assert (report.runs, report.owners) == (1, {"1": 6})
    world.check_state()


def test_an_earlier_census_does_not_end_the_quarantine_of_an_executor(tmp_path: Path, disks: ExitStack) -> None:
    """An executor whose disk refused joins only after its time is over, also if its census succeeded before."""
    world, background = Elastic(tmp_path), InlineBackground(deferred=True)
    world.start(background)

    def strays(attempt: Attempt) -> pa.Table:
        ran_twice = len([ran for ran in world.ran if ran.version == world.version]) > 2
        return attempt.run() if ran_twice else replace(attempt, executor="3").run()

    def joined(seconds: int) -> bool:
        """Run a batch after the given seconds, and return whether the new executor is a member."""
        background.run()
        world.feed_every(seconds, 1)
        return world.ownership.membership.of_executor("3") is not None

    assert world.feed_every(1, 2)
    world.feed(perform=strays)
    disk = disk_of(world, "3", disks, "read-only")
    disk.fail()
    world.cluster.add("3")
    assert world.feed(perform=strays).runs == 2
    disk.recover()
    assert [joined(seconds) for seconds in (3, 3, BATCH_SECONDS, 1)] == [False, False, False, True]
    world.check_state()
