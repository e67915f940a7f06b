"""Machines that are copies of one machine have member folders with the same name."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ports import Executor
from riffle_spark.testing import Attempt, SimCluster
from riffle_spark.worker.census import take_census
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.simulated.world import World, rows_of

KEYS = [f"key-{number}" for number in range(20)]


class Machines(SimCluster):
    """Executors with a separate local disk each, which is a folder."""

    def on(self, home: Home, executor: str) -> Home:
        """Return the home with the local disk of an executor."""
        return replace(home, local_dir=f"{home.local_dir}/host-{executor}")

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Take each census on the disk of its executor."""
        orders_by_executor = [
            (replace(order, home=self.on(order.home, executor.id)), executor.id) for executor in executors
        ]
        return [
            take_census(CensusOrder.from_json(census_order.to_json()), name)
            for census_order, name in orders_by_executor
        ]

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each piece of upkeep on the disk of its executor."""
        local_orders = [
            (replace(order, home=self.on(order.home, name)), name) for name, order in sorted(orders.items())
        ]
        return [run_upkeep(order, name, self.random_bytes) for order, name in local_orders]

    def perform(self, attempt: Attempt) -> pa.Table:
        """Run a slot on the disk of its executor."""
        home = self.on(attempt.order.home, attempt.executor)
        return replace(attempt, order=replace(attempt.order, home=home)).run()


def batch_of(version: int) -> pa.Table:
    """Return a row for each key."""
    return rows_of(*[(key, version, 100 * version + index) for index, key in enumerate(KEYS)])


def copied(tmp_path: Path) -> tuple[World, Machines]:
    """Return a query on two machines whose disks are copies of the disk that it ran on before."""
    world = World(tmp_path, executors=[])
    machines = world.cluster = Machines(world.home, world.store, world.chance.randbytes)
    machines.clock = world.clock
    machines.add("1")
    world.start()
    for version in range(3):
        world.batch(version, batch_of(version), machines.perform)
    machines.lose("1")
    world.home = machines.home = replace(world.home, application="the next one")
    for name in ("11", "12"):
        shutil.copytree(tmp_path / "host-1", tmp_path / f"host-{name}")
        machines.add(name)
    world.start()
    return world, machines


def test_a_second_executor_with_the_same_member_id_is_refused(tmp_path: Path) -> None:
    """The second executor with the same member id gets no key-groups, and its census is repeated less and less often.
    State stays correct.
    """
    world, machines = copied(tmp_path)
    censuses: list[str] = []
    census = machines.census
    machines.census = lambda executors, order: censuses.extend(e.id for e in executors) or census(executors, order)  # type: ignore[method-assign,func-returns-value]
    reports = [world.batch(version, batch_of(version), machines.perform) for version in range(3, 9)]
    (member,) = reports[-1].members
    (working,) = reports[-1].members.values()
    (refused,) = {"11", "12"} - {working}
    warnings = [warning for report in reports for warning in report.warnings if "RIFFLE-0767" in warning]
    assert f"Remove {member} below `local_dir` on the machine of executor {refused}" in warnings[0]
    assert len(censuses) <= 5
    assert world.state("totals") == {key: (9, sum(range(9))) for key in KEYS}
    (folder,) = (tmp_path / f"host-{refused}").glob(f"*/{member}")
    shutil.rmtree(folder)
    world.clock.advance(600)
    last = [world.batch(version, batch_of(version), machines.perform) for version in range(9, 16)][-1]
    assert sorted(last.members.values()) == ["11", "12"]
    assert sorted(last.owners.values()) == [4, 4]
    assert world.state("totals") == {key: (16, sum(range(16))) for key in KEYS}


def test_a_refused_executor_takes_over_when_the_other_one_is_lost(tmp_path: Path) -> None:
    """When the other executor is lost, the refused one becomes the member."""
    world, machines = copied(tmp_path)
    reports = [world.batch(version, batch_of(version), machines.perform) for version in range(3, 6)]
    ((member, working),) = reports[-1].members.items()
    (refused,) = {"11", "12"} - {working}
    machines.lose(working)
    world.clock.advance(600)
    last = [world.batch(version, batch_of(version), machines.perform) for version in range(6, 10)][-1]
    assert (last.members, last.warnings) == ({member: refused}, ())
    assert world.state("totals") == {key: (10, sum(range(10))) for key in KEYS}


def test_one_of_three_executors_on_copied_disks_is_the_member(tmp_path: Path) -> None:
    """Of three executors with the same member id, the same one stays the member."""
    world, machines = copied(tmp_path)
    shutil.copytree(tmp_path / "host-11", tmp_path / "host-13")
    machines.add("13")
    reports = [world.batch(version, batch_of(version), machines.perform) for version in range(3, 10)]
    assert len({str(report.members) for report in reports[2:]}) == 1
    assert world.state("totals") == {key: (10, sum(range(10))) for key in KEYS}
