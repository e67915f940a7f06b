"""Machines that were copied with their local disks: by their folders their executors are one member."""

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
    """Executors each of which has a disk of its own, below a folder named after it."""

    def on(self, home: Home, executor: str) -> Home:
        """Return where an executor finds its copies."""
        return replace(home, local_dir=f"{home.local_dir}/host-{executor}")

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask each on its own disk."""
        told = [(replace(order, home=self.on(order.home, one.id)), one.id) for one in executors]
        return [take_census(CensusOrder.from_json(asked.to_json()), name) for asked, name in told]

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each piece on its own disk."""
        told = [(replace(order, home=self.on(order.home, name)), name) for name, order in sorted(orders.items())]
        return [run_upkeep(order, name, self.random_bytes) for order, name in told]

    def perform(self, attempt: Attempt) -> pa.Table:
        """Run a slot on its own disk."""
        home = self.on(attempt.order.home, attempt.executor)
        return replace(attempt, order=replace(attempt.order, home=home)).run()


def batch_of(version: int) -> pa.Table:
    """Return a row for each key."""
    return rows_of(*[(key, version, 100 * version + at) for at, key in enumerate(KEYS)])


def copied(tmp_path: Path) -> tuple[World, Machines]:
    """Return a query on two machines that were made of the disk of the one that it ran on before."""
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


def test_executors_with_copies_of_one_disk_become_two_members(tmp_path: Path) -> None:
    """One of the folders gets another name, with a warning, and keeps its copies: nothing is restored, nobody is asked
    again for ever, both work.
    """
    world, machines = copied(tmp_path)
    asked: list[str] = []
    census = machines.census
    machines.census = lambda executors, order: asked.extend(e.id for e in executors) or census(executors, order)  # type: ignore[method-assign,func-returns-value]
    reports = [world.batch(version, batch_of(version), machines.perform) for version in range(3, 9)]
    assert sorted(reports[-1].members.values()) == ["11", "12"]
    assert sorted(reports[-1].owners.values()) == [4, 4]
    assert sum(report.restores for report in reports) == 0, "the copies were good on both disks"
    assert any(
        "the disk of one is a copy of the other's" in warning for report in reports for warning in report.warnings
    )
    assert not any(report.warnings for report in reports[-3:])
    assert len(asked) <= 5
    assert world.state("totals") == {key: (9, sum(range(9))) for key in KEYS}


def test_a_twin_that_dies_leaves_the_other_its_name(tmp_path: Path) -> None:
    """Whose name was taken back is told no more; a new executor on its disk takes the folder as it is."""
    world, machines = copied(tmp_path)
    world.batch(3, batch_of(3), machines.perform)
    (name,) = world.driver.ownership.members.twins
    machines.lose(name)
    last = [world.batch(version, batch_of(version), machines.perform) for version in range(4, 7)][-1]
    assert not world.driver.ownership.members.twins
    assert (sorted(last.members.values()), last.warnings) == (sorted({"11", "12"} - {name}), ())
