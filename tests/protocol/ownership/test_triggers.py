"""Triggers of an assignment in a running query: weights, standbys that fall behind, racks and new members."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.membership import LiveMember, Membership
from riffle_spark.protocol.ownership.readiness import Readiness
from riffle_spark.protocol.ownership.rebalance_triggers import RebalanceTriggers
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ownership.triggers import MeasuredTriggers, Patience
from riffle_spark.protocol.ownership.view import Situation
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import Executor
from riffle_spark.settings import Settings
from riffle_spark.state.log import log as log_module
from riffle_spark.state.log.manifest import Manifest
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.placement_invariants import view_now

pytestmark = pytest.mark.usefixtures("names_in_order")


def skewed(world: Elastic, batches: int) -> list[BatchReport]:
    """Run batches with rows of only the key-groups that executor 1 owned first."""
    return [world.feed(keys=[key for group in (0, 1, 2) for key in world.keys[group]]) for _ in range(batches)]


def test_weights_outside_the_band_move_tasks_after_five_batches(tmp_path: Path) -> None:
    """After five batches outside the balance band, tasks move to the member with less work."""
    world = Elastic(tmp_path, num_standbys=1, balance_band=0.2)
    world.feed()
    assert world.owned("1") == {0, 1, 2}
    assert [report.moves for report in skewed(world, 4)] == [()] * 4
    reports = skewed(world, 4)
    assert any(report.moves for report in reports)
    world.settle()
    loads = [len(world.owned(name) & {0, 1, 2}) for name in ("1", "2")]
    assert sorted(loads) == [1, 2]
    assert sum(report.restores for report in reports) == 0
    world.check_state()


def test_a_lagging_standby_causes_an_assignment_after_ten_batches(tmp_path: Path) -> None:
    """After a standby's lag has grown for ten batches, an assignment is computed."""
    world = Elastic(tmp_path, executors=("1", "2", "3"), num_standbys=1, retained_versions=100, balance_band=0.9)
    world.feed(4)
    layout = world.ownership.placement.layout
    world.cluster.stalled = {"1"}
    batches = 0
    while world.ownership.placement.layout is layout:
        world.feed()
        batches += 1
        assert batches < 20
    assert batches >= 10
    world.check_state()


def test_no_batch_waits_for_the_census_of_a_new_executor(tmp_path: Path) -> None:
    """No batch waits for the census of a new executor, which gets no tasks before it."""
    world = Elastic(tmp_path)
    world.feed(2)
    world.cluster.silent = {"3"}
    world.cluster.add("3")
    for _ in range(3):
        world.feed()
        assert "3" not in {living.executor.id for living in world.ownership.membership.live.values()}
    world.cluster.silent = set()
    world.settle()
    assert len(world.owned("3")) == 2
    world.check_state()


class FailingAssignor:
    """An assignor that fails with three members."""

    made = 0

    def __init__(self) -> None:
        FailingAssignor.made += 1

    def __call__(self, before: View, settings: AssignSettings) -> Assignment:
        """Return the default assignment, or fail with three members."""
        if len(before.members) == 3:
            raise ZeroDivisionError("three is a crowd")
        return assign(before, replace(settings, assignor="high_availability"))


def test_a_failing_assignor_does_not_end_the_query(tmp_path: Path) -> None:
    """Owners and standbys stay, and the report has the error and its line."""
    FailingAssignor.made = 0
    world = Elastic(tmp_path, num_standbys=1, assignor=f"{FailingAssignor.__module__}.{FailingAssignor.__qualname__}")
    world.feed(3)
    before = dict(world.ownership.placement.present.owners), dict(world.ownership.placement.present.standbys)
    world.cluster.add("3")
    warnings = [warning for _ in range(3) for warning in world.feed().warnings]
    assert (dict(world.ownership.placement.present.owners), dict(world.ownership.placement.present.standbys)) == before
    assert any("ZeroDivisionError: three is a crowd" in warning and "__call__" in warning for warning in warnings)
    world.cluster.add("4")
    world.settle()
    assert world.owned("4")
    assert FailingAssignor.made == 1
    world.check_state()


def test_racks_of_members_are_read_from_ports_racks_of(tmp_path: Path) -> None:
    """``ports.racks_of`` returns each member's rack. The assignor places standbys in other racks."""
    world = Elastic(tmp_path, executors=("1", "2", "3", "4"), num_standbys=1)
    around = DriverPorts(
        world.store, world.cluster, world.clock, world.background, lambda: world.chance.randbytes(16).hex(),
        racks_of=lambda hosts: {m: ("near" if host in ("host-1", "host-2") else "far") for m, host, _ in hosts},
    )  # fmt: skip
    world.driver = Driver(replace(world.settings), world.home, around)
    world.feed(2)
    view, _ = view_now(world)
    racks = {member.id: member.rack for member in view.members}
    assert sorted(str(rack) for rack in racks.values()) == ["far", "far", "near", "near"]
    assert racks[world.member("1")] == "near"
    present = world.ownership.placement.present
    assert all(racks[present.owners[t]] != racks[kept[0]] for t, kept in present.standbys.items())
    world.check_state()


def test_a_new_driver_uses_the_recorded_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the weights of the last assignment, so that a restart with the same load moves nothing."""
    monkeypatch.setattr(log_module, "FULL_EVERY", 16)
    world = Elastic(tmp_path, num_standbys=1, balance_band=0.2)
    world.feed()
    skewed(world, 8)
    world.settle()
    skewed(world, 2)
    before = world.owners()
    log = world.log()
    assert log.tail is not None
    assert log.tail.full < log.tail.sequence
    assert set(log.tail.weights) == {"assigned"}
    world.start()
    assert [report.moves for report in skewed(world, 4)] == [()] * 4, "the fifth batch may start an assignment"
    assert world.owners() == before
    skewed(world, 16)
    log = world.log()
    assert log.tail is not None
    assert set(log.read(log.tail.full).weights) == {"assigned", "measured"}


def test_a_member_that_cannot_get_tasks_causes_one_assignment() -> None:
    """If a member cannot get tasks, one assignment is computed, and no further ones while nothing changes."""
    weights, patience = Weights(), Patience()
    weights.measured = {task(n): 1.0 for n in range(60)}
    owners, slots = {task(n): "abcde"[n % 5] for n in range(60)}, dict.fromkeys("abcdef", 1)
    measured, fired = MeasuredTriggers(weights, patience), 0
    for _ in range(30):
        if measured.is_unlevel(owners, slots, 0.25, settled=True):
            fired += 1
            measured.record_assignment(owners, slots, {}, 0.25)
            patience.reset()
    assert fired == 1
    assert measured.take_warnings() == []


def test_probing_rebalances_use_the_traffic_of_the_first_one() -> None:
    """A series of probing rebalances uses the traffic that its first one measured. The next series measures again."""
    weights = Weights()
    triggers = RebalanceTriggers(weights)
    partitions = (("events", 0), ("events", 1))
    situation = Situation(
        Membership(), ReportedCopies(), Manifest(), (), range(2), 0.0, Assignment({}), partitions=partitions
    )

    def local_racks(*, needs_probe: bool) -> list[list[str]]:
        present = Assignment({}, needs_probe=needs_probe)
        triggers.start_assignment(replace(situation, present=present), is_requested=False)
        traffic = triggers.with_measurements(situation, Settings()).traffic
        return [sorted(traffic[task(number)].local) for number in range(2)]

    weights.set_partition_racks({("events", 0): ("a",), ("events", 1): ("b",)})
    assert local_racks(needs_probe=False) == [["a"], ["b"]]
    weights.set_partition_racks({("events", 0): ("b",), ("events", 1): ("a",)})
    assert local_racks(needs_probe=True) == [["a"], ["b"]]
    assert local_racks(needs_probe=False) == [["b"], ["a"]]


def test_a_standby_without_a_copy_does_not_fall_behind() -> None:
    """A standby without a copy is still being restored. One with a copy is quarantined if its lag grows for ten
    batches.
    """
    members = Membership()
    members.live["b"] = LiveMember("b", Executor("1", "host", 1))
    present = Assignment({}, standbys={task(0): ("b",)})
    situation = Situation(members, ReportedCopies(), Manifest(), ("s",), range(1), 0.0, present)
    triggers = RebalanceTriggers(Weights())

    def warnings_of_batches() -> list[str]:
        for lag in range(12):
            triggers.is_due_after_batch(situation, [Readiness(0, "b", "standby", lag, 0, warm=False)], Settings())
        return triggers.take_warnings()

    assert warnings_of_batches() == []
    situation.copies.record_copies("b", [("s", 0, 1, "1-a")])
    assert "RIFFLE-0762" in warnings_of_batches()[0]
