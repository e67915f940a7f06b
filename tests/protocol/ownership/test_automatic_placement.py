"""A running query reacts to racks, uneven work, standbys that fall behind and full disks without a request."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark import keygroups
from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.operator import operator_of
from riffle_spark.testing import Attempt
from tests.kit.simulated.elastic_world import Elastic, warnings
from tests.kit.simulated.partitioned_query import of_partition, offsets
from tests.kit.simulated.world import ROWS, World, one_row

pytestmark = pytest.mark.usefixtures("names_in_order")

ROWS_WITH_PARTITION = ROWS.append(pa.field("partition", pa.int64()))
RACKS = {0: ("a",), 1: ("b",), 2: ("a",), 3: ("b",)}
"""Four partitions with one replica each."""


class CountingAssignor:
    """The default assignor with a count of its calls."""

    calls = 0

    def __call__(self, before: View, settings: AssignSettings) -> Assignment:
        """Return the default assignment and count the call."""
        CountingAssignor.calls += 1
        return assign(before, replace(settings, assignor="high_availability"))


class RackedWorld(Elastic):
    """Four executors in two racks. ``partition_of`` returns the partition of the next row of a key-group."""

    partition_of: Callable[[int], int]

    def __init__(self, local_dir: Path, partition_of: Callable[[int], int], **settings: Any) -> None:
        self.partition_of = partition_of
        settings = {
            "rack_aware_assignment_strategy": "min_cost",
            "assignor": f"{__name__}.CountingAssignor",
            **settings,
        }
        by_partition = operator_of("totals", ["k"], aggregate(count=count(), total=sum_("v")), (), ROWS_WITH_PARTITION)
        super().__init__(
            local_dir, executors=("1", "2", "3", "4"), operators=[replace(by_partition, read_by="partition")],
            **{"key_groups": 16, **settings},
        )  # fmt: skip
        around = DriverPorts(
            self.store, self.cluster, self.clock, self.background, lambda: self.chance.randbytes(16).hex(),
            racks_of=lambda hosts: {member: "a" if host in ("host-1", "host-2") else "b" for member, host, _ in hosts},
        )  # fmt: skip
        self.driver = Driver(self.settings, self.home, around)
        self.ownership.placement.weights.set_partition_racks(
            {("events", partition): held for partition, held in RACKS.items()}
        )
        CountingAssignor.calls = 0

    def batch(
        self,
        version: int,
        rows: pa.Table,
        perform: Callable[[Attempt], pa.Table] = Attempt.run,
        *args: Any,
        **options: Any,
    ) -> BatchReport:
        """Run a batch with the partition of each row."""
        groups = keygroups.key_groups([rows.column("k")], self.settings.key_groups).tolist()
        column = pa.array([self.partition_of(group) for group in groups], pa.int64())
        return super().batch(version, rows.append_column("partition", column), perform, *args, **options)

    def rack(self, member: str) -> str:
        """Return the rack of a member."""
        return str(self.ownership.membership.live[member].rack)

    def across(self) -> set[int]:
        """Return the key-groups whose rows all come from another rack than that of their owner."""
        owners = self.owners().items()
        return {group for group, owner in owners if self.rack(owner) not in RACKS[self.partition_of(group)]}


def test_owners_move_to_the_racks_of_their_rows(tmp_path: Path) -> None:
    """Within a few batches each owner is in the rack that its rows come from, and each standby in the other rack. Then
    no assignment is computed any more.
    """
    world = RackedWorld(tmp_path, lambda group: group // 2 % 4, num_standbys=1)
    world.feed()
    assert len(world.across()) >= 4
    reports = [world.feed() for _ in range(12)]
    assert world.across() == set()
    assert sum(report.restores for report in reports[1:]) == 0, "a new owner has a copy"
    assert any(move["goal"] == "rack" for report in reports for move in report.moves)
    present = world.ownership.placement.present
    assert all(world.rack(present.owners[t]) != world.rack(kept[0]) for t, kept in present.standbys.items())
    calls = CountingAssignor.calls
    assert [world.feed().moves for _ in range(12)] == [()] * 12
    assert CountingAssignor.calls == calls
    world.check_state()


@pytest.mark.parametrize("rows", ["all partitions", "one rack"])
@pytest.mark.sample(step=2)
def test_no_further_assignment_runs_if_racks_gain_nothing(tmp_path: Path, rows: str) -> None:
    """If rows of a key-group come from all racks, nothing moves. If all rows come from one rack but balance needs
    owners in both, one assignment finds that.
    """
    chance = random.Random(1)
    world = RackedWorld(tmp_path, (lambda _: chance.randrange(4)) if rows == "all partitions" else lambda _: 0)
    world.feed()
    began = CountingAssignor.calls
    reports = [world.feed() for _ in range(12)]
    assert [report.moves for report in reports] == [()] * 12
    assert CountingAssignor.calls - began == (0 if rows == "all partitions" else 1)


def test_partition_dispatch_uses_racks_from_the_first_batch(tmp_path: Path) -> None:
    """With `partition` dispatch the racks of the rows are known before the first batch, so no owner moves later."""
    world = RackedWorld(tmp_path, lambda group: group % 8, dispatch="partition", num_standbys=0)
    racks = {number: "ab"[number % 4 // 2] for number in range(8)}
    world.ownership.placement.weights.set_partition_racks(
        {("events", number): (rack,) for number, rack in racks.items()}
    )
    rows = pa.concat_tables([one_row(number, f"key-{number}") for number in range(64)])
    reports = [
        World.batch(world, version, of_partition(rows, *range(8)), offsets=offsets(*range(8))) for version in range(8)
    ]
    assert world.ownership.placement.shards is not None
    partitions = dict(enumerate(world.ownership.placement.shards.partitions))
    owned = {partitions[group][1]: world.rack(owner) for group, owner in world.owners().items()}
    assert owned == racks
    assert [report.moves for report in reports[1:]] == [()] * 7


@pytest.mark.long
def test_a_hot_key_causes_one_warning_and_no_repeated_assignments(tmp_path: Path) -> None:
    """Other key-groups leave the member with a hot key, and one warning names its key-group. While the load is the
    same, no more assignments are computed.
    """
    world = RackedWorld(tmp_path, lambda group: group % 4, rack_aware_assignment_strategy="min_cost")
    world.feed()
    hot = [world.keys[3][0]] * 500
    keys = [*hot, *world.of_groups(set(range(16)))]
    reports = [world.feed(keys=keys) for _ in range(25)]
    hot_key_warnings = warnings(reports, "RIFFLE-0761")
    assert len(hot_key_warnings) == 1
    assert "Key-group 3 " in hot_key_warnings[0]
    calls = CountingAssignor.calls
    assert calls < 15
    reports = [world.feed(keys=keys) for _ in range(25)]
    assert CountingAssignor.calls == calls
    assert not warnings(reports, "RIFFLE-0761")
    cool = world.keys[9][:1] * 400 + world.of_groups(set(range(16)))
    for _ in range(10):
        world.feed(keys=cool)
    assert CountingAssignor.calls > calls, "another load starts an assignment"
    world.check_state()


def behind(world: Elastic, most: int = 40) -> list[BatchReport]:
    """Run batches until a standby falls behind, and return the reports."""
    reports = [world.feed()]
    while not warnings(reports, "RIFFLE-0762"):
        assert len(reports) < most
        reports.append(world.feed())
    return reports


def test_standbys_that_fall_behind_move_with_one_warning(tmp_path: Path) -> None:
    """After ten batches a warning has the executor without upkeep, its standbys and their lag. Other members take the
    standbys over.
    """
    world = Elastic(tmp_path, executors=("1", "2", "3", "4"), key_groups=8, num_standbys=1, retained_versions=100)
    world.feed(4)
    standbys = world.holds("1")[1]
    assert standbys
    world.cluster.stalled = {"1"}
    reports = behind(world)
    (warning,) = warnings(reports, "RIFFLE-0762")
    assert world.member("1") in warning
    assert "Other members take over 2 of 2." in warning
    assert f"key-groups {', '.join(map(str, sorted(standbys)))}, by up to " in warning
    reports = [world.feed() for _ in range(12)]
    assert world.holds("1")[1] == set()
    assert all(copy.warm for copy in world.ownership.copies.readiness)
    assert len(world.ownership.copies.readiness) == 8
    assert not warnings(reports, "RIFFLE-0762")
    world.cluster.stalled = set()
    world.driver.operations.request_rebalance()
    world.settle()
    assert world.holds("1")[1], "a requested rebalance tries the standbys again"
    world.check_state()


SIZE = 10**9


def on_a_disk(world: Elastic, executor: str, used_share: float, share_of_copy: float) -> None:
    """Give an executor a disk of which ``used_share`` is used, and ``share_of_copy`` more per copy."""
    world.cluster.disks[executor] = lambda: (
        min(1.0, used_share + share_of_copy * len(world.copies_of(executor))),
        SIZE,
    )


@pytest.mark.long
def test_key_groups_leave_a_full_disk_two_at_a_time(tmp_path: Path) -> None:
    """Two key-groups at a time leave a member whose disk is above the limit, and their copies are deleted. With space
    again the member gets its share back.
    """
    world = Elastic(tmp_path, executors=("1", "2", "3"), key_groups=12, num_standbys=1)
    world.feed(4)
    assert len(world.copies_of("1")) == 8
    on_a_disk(world, "1", 0.71, 0.025)
    copy_counts, reports = [8], []
    for _ in range(25):
        world.clock.advance(11)
        reports.append(world.feed())
        copy_counts.append(len(set.union(*world.holds("1")[:2])))
    assert min(copy_counts) == copy_counts[-1] == 6, "0.71 + 6 * 0.025 is below 0.9, and two leave at a time"
    on_a_disk(world, "1", 0.91, 0.0)
    for _ in range(60):
        world.clock.advance(11)
        reports.append(world.feed())
        copy_counts.append(len(set.union(*world.holds("1")[:2])))
    assert copy_counts[-1] == 0
    assert world.copies_of("1") == set()
    assert all(before - after <= 2 for before, after in itertools.pairwise(copy_counts))
    assert sum(report.restores for report in reports) == 0
    assert len(warnings(reports, "above the limit of 90%")) == 2
    on_a_disk(world, "1", 0.5, 0.0)
    for _ in range(3):
        world.clock.advance(11)
        world.settle()
    assert len(world.owned("1")) == 4
    world.check_state()


def test_all_standbys_leave_a_nearly_full_disk_at_once(tmp_path: Path) -> None:
    """On a nearly full disk, standbys leave with the next batch. Owned tasks leave when other members are caught up."""
    world = Elastic(tmp_path, executors=("1", "2", "3"), key_groups=12, num_standbys=1)
    world.feed(4)
    on_a_disk(world, "1", 0.97, 0.0)
    world.feed(2)
    owned, kept, warming = world.holds("1")
    assert (len(owned) >= 2, kept, warming) == (True, set(), set())
    world.feed()
    assert world.copies_of("1") <= world.owned("1") | {t.key_group for t in world.ownership.placement.present.owners}
    for _ in range(16):
        world.clock.advance(11)
        world.feed()
    assert world.copies_of("1") == set()
    world.check_state()


def test_a_slow_key_group_with_few_rows_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key-group with few but slow rows is found by its time in user code. Other key-groups leave its member, and a
    warning names it. A single slow batch moves nothing. The test sets the clock.
    """
    slow, now = [""], [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def sums(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        now[0] += 0.1 if slow[0] in rows.column("k").to_pylist() else 0.0
        touched_keys = pa.concat_tables([rows.select(["k"]), state.select(["k"])]).group_by("k").aggregate([])
        kept = touched_keys.append_column("n", pa.array([1] * touched_keys.num_rows, pa.int64()))
        return kept, kept

    schema = pa.schema([("n", pa.int64())])
    compute = arrow_function(sums, state=schema, output=pa.schema([ROWS.field("k"), *schema]))
    world = Elastic(tmp_path, operators=[operator_of("totals", ["k"], compute, (), ROWS)], num_standbys=1)
    world.feed(6)
    slow[0] = world.keys[1][0]
    world.feed()
    slow[0] = ""
    assert [world.feed().moves for _ in range(8)] == [()] * 8
    slow[0] = world.keys[1][0]
    reports = [world.feed() for _ in range(30)]
    owner = world.owners()[1]
    assert [group for group, member in world.owners().items() if member == owner] == [1]
    assert len(warnings(reports, "Key-group 1 is")) == 1
    assert sum(report.restores for report in reports) == 0


def test_sticky_returns_its_tasks_to_a_returned_member(tmp_path: Path) -> None:
    """With the sticky assignor a returned member gets its tasks back and restores nothing."""
    world = Elastic(tmp_path, executors=("1", "2", "3"), assignor="sticky")
    world.feed(3)
    owned_before = world.owned("2")
    world.cluster.lose("2")
    world.feed(2)
    world.cluster.add("2")
    reports = [world.feed() for _ in range(3)]
    assert world.owned("2") == owned_before
    assert sum(report.restores for report in reports) == 0
    world.check_state()
