"""A member whose local disk refuses: its slots say so, others take over in the same batch, and it comes back by itself.
Disks are real and really full, or read-only.
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
from tests.kit.refusing_disks import RefusingDisk, Way, on_a_disk_of_its_own
from tests.kit.simulated.elastic_world import Elastic, warnings
from tests.kit.simulated.world import ROWS, one, tails, totals
from tests.kit.state.faulty_store import Fault

pytestmark = pytest.mark.usefixtures("names_in_order")

BATCH_SECONDS = 15
GROWN = 3_000
"""So many new keys make every copy take more of the disk, when the batch after folds them."""


@pytest.fixture
def disks() -> Iterator[ExitStack]:
    """The file systems of a test, until its end."""
    with ExitStack() as mounted:
        yield mounted


def disk_of(world: Elastic, executor: str, disks: ExitStack, way: Way = "full") -> RefusingDisk:
    """Put an executor's folder on a disk of its own."""
    return disks.enter_context(on_a_disk_of_its_own(world.folder_of(executor), way))


def grow(world: Elastic) -> BatchReport:
    """Commit so many new keys that copies have to grow: a full disk still takes what fits into the files there are."""
    world.clock.advance(BATCH_SECONDS - 1)
    return world.feed(keys=[f"grown-{n}" for n in range(GROWN)])


@pytest.mark.parametrize(("way", "standbys"), [("full", 1), ("read-only", 0)])
@pytest.mark.sample("full-1")
def test_a_member_whose_disk_refuses_is_set_aside_and_comes_back(
    tmp_path: Path, disks: ExitStack, way: Way, standbys: int
) -> None:
    """The batch runs again elsewhere, once; no other batch notices for a quarter of an hour; then it is back."""
    world = Elastic(tmp_path, num_standbys=standbys)
    world.feed_every(BATCH_SECONDS, 4)
    owned = world.owned("1")
    disk = disk_of(world, "1", disks, way)
    world.feed_every(BATCH_SECONDS, 2)
    disk.refuse()
    reports = [*([grow(world)] if way == "full" else []), *world.feed_every(BATCH_SECONDS, 1)]
    assert (sum(report.runs - 1 for report in reports), reports[-1].owners) == (1, {"2": 6})
    told = warnings(reports, "[RIFFLE-0766] Executor 1 gets no tasks for 10 s")
    assert str(disk.folder.parent) in told[0]
    world.check_state()
    reports = world.feed_every(BATCH_SECONDS, 900 // BATCH_SECONDS)
    assert {report.runs for report in reports} == {1}
    assert {tuple(report.owners) for report in reports} == {("2",)}
    assert 3 <= len(warnings(reports, "RIFFLE-0768")) <= 8, "asked later and later"
    disk.recover()
    world.clock.advance(600)
    reports = world.feed_every(BATCH_SECONDS, 12)
    assert {report.runs for report in reports} == {1}
    assert len(world.owned("1")) == len(owned)
    world.check_state()


def test_a_query_goes_on_after_a_restart_beside_a_disk_that_refuses(tmp_path: Path, disks: ExitStack) -> None:
    """The census tries the disk, so the first batch runs once already."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    disk_of(world, "1", disks).refuse()
    world.start()
    reports = world.feed_every(BATCH_SECONDS, 2)
    assert [report.runs for report in reports] == [1, 1]
    assert set(reports[-1].owners) == {"2"}
    assert warnings(reports, "Executor 1")
    world.check_state()


def test_where_nobody_else_is_left_the_error_says_so_and_the_next_try_is_a_fresh_one(
    tmp_path: Path, disks: ExitStack
) -> None:
    """Both disks refuse: one run, an error with the remedy; with space freed the same driver, and a new one, go on."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    first, second = (disk_of(world, executor, disks, "read-only") for executor in ("1", "2"))
    for again in ("the same driver", "a new driver"):
        for disk in (first, second):
            disk.refuse()
        with pytest.raises(LocalDiskError, match="RIFFLE-0514") as refused:
            world.batch(world.version + 1, one(1))
        assert "dd an executor" in refused.value.remedy
        assert isinstance(refused.value, UnavailableError)
        first.recover()
        second.recover()
        if again == "a new driver":
            world.start()
        assert world.feed_every(BATCH_SECONDS, 1)[0].runs == 1
        assert set(world.feed_every(BATCH_SECONDS, 3)[-1].owners) == {"1", "2"}
    world.check_state()


def test_whose_disk_refused_in_an_earlier_batch_is_tried_again_before_the_query_gives_up(
    tmp_path: Path, disks: ExitStack
) -> None:
    """The first one's disk is well again before it is its turn, and the second one's refuses."""
    world = Elastic(tmp_path)
    world.feed_every(BATCH_SECONDS, 3)
    first, second = (disk_of(world, executor, disks, "read-only") for executor in ("1", "2"))
    first.refuse()
    assert set(world.feed().owners) == {"2"}
    first.recover()
    second.refuse()
    report = world.feed()
    assert (report.runs, set(report.owners)) == (2, {"1"})
    second.recover()
    world.check_state()


def test_an_error_of_the_users_function_or_of_the_store_is_not_the_disks(tmp_path: Path) -> None:
    """A function that runs out of space in a file of its own, and a store that is away: nobody is set aside."""

    def explode(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if rows["v"][0].as_py() == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rows.select(["k"]), rows.select(["k"]).append_column("last", pa.array([1] * len(rows)))

    schema = pa.schema([("last", pa.int64())])
    declared = arrow_function(explode, state=schema, output=pa.schema([("k", pa.string())]))
    world = Elastic(tmp_path, operators=[operator_of("totals", ["k"], declared, (), ROWS)])
    world.batch(0, one(0))
    with pytest.raises(UserFunctionError, match="RIFFLE-0198"):
        world.batch(1, one(3))
    world.store.script(Fault("unavailable", "put", "delta/"))
    with pytest.raises(UnavailableError) as away:
        world.batch(1, one(1))
    assert not isinstance(away.value, LocalDiskError)
    report = world.batch(1, one(1))
    assert (report.runs, set(report.owners)) == (1, {"1", "2"})
    assert report.warnings == ()


def test_the_bytes_of_a_delta_that_cannot_be_kept_beside_the_copies_fail_nothing(tmp_path: Path) -> None:
    """They are in the store: the next batch gets them from there."""
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


def test_a_second_store_finds_the_disk_well_elsewhere(tmp_path: Path, disks: ExitStack) -> None:
    """Two operators share their slots: both move together, and both are right."""
    world = Elastic(tmp_path, operators=[totals(), tails()])
    world.feed_every(BATCH_SECONDS, 3)
    disk_of(world, "2", disks, "read-only").refuse()
    report = world.feed_every(BATCH_SECONDS, 1)[0]
    assert (report.runs, report.owners) == (2, {"1": 6})
    world.check_state()


def test_a_member_that_is_set_aside_takes_over_where_the_last_other_one_is_lost(
    tmp_path: Path, disks: ExitStack
) -> None:
    """Its time is not over, but nobody else is there: it is asked at once, and its disk is well by now."""
    world = Elastic(tmp_path)
    for _ in range(4):
        world.feed()
    disk = disk_of(world, "1", disks, "read-only")
    disk.refuse()
    assert warnings([world.feed(), world.feed()], "RIFFLE-0766")
    disk.recover()
    world.cluster.lose("2", disk=True)
    report = world.feed()
    assert (report.runs, report.owners) == (1, {"1": 6})
    world.check_state()


def test_a_census_that_was_asked_before_a_disk_refused_does_not_let_its_executor_in(
    tmp_path: Path, disks: ExitStack
) -> None:
    """Spark had run a newcomer's slot already: it joins when its time is over."""
    world, background = Elastic(tmp_path), InlineBackground(deferred=True)
    world.start(background)

    def strays(attempt: Attempt) -> pa.Table:
        again = len([ran for ran in world.ran if ran.version == world.version]) > 2
        return attempt.run() if again else replace(attempt, executor="3").run()

    def joined(seconds: int) -> bool:
        """Feed after so many seconds, and tell whether the newcomer is a member by now."""
        background.run()
        world.feed_every(seconds, 1)
        return world.ownership.membership.of_executor("3") is not None

    assert world.feed_every(1, 2)
    world.feed(perform=strays)
    disk = disk_of(world, "3", disks, "read-only")
    disk.refuse()
    world.cluster.add("3")
    assert world.feed(perform=strays).runs == 2
    disk.recover()
    assert [joined(seconds) for seconds in (3, 3, BATCH_SECONDS, 1)] == [False, False, False, True]
    world.check_state()
