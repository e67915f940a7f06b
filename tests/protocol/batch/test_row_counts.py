"""The log counts the state rows of each store exactly, over deletes and restarts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.process.blocks.block import Declared
from riffle_spark.protocol.operator import operator_of
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import encode
from riffle_spark.state.schemas.variable_kinds import Variable
from tests.kit.simulated.alarms import Alarms
from tests.kit.simulated.world import ROWS, Oracle, World, drawn_batch, one_row, tails, totals, two_stores

BATCHES = 12


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sample(step=2)
def test_a_record_counts_the_keys_of_each_store(tmp_path: Path, seed: int) -> None:
    """Keys that are added, changed, deleted and added again count once, also after a restart of the driver."""
    world = World(tmp_path, operators=two_stores(), seed=seed)
    oracle = Oracle()
    chance = random.Random(seed)
    removed = 0
    for version in range(BATCHES):
        rows = drawn_batch(chance, version)
        report = world.batch(version, rows)
        removed += report.rows_removed
        oracle.feed(rows)
        assert world.driver.stored_rows() == {"totals": len(oracle.totals), "tails": len(oracle.tails)}
        if version == BATCHES // 2:
            world.start()
    assert removed > 0
    tail = world.log().tail
    assert tail is not None
    assert tail.row_counts == {"totals": len(world.state("totals")), "tails": len(world.state("tails"))}


def test_a_repeated_batch_counts_its_keys_once(world: World) -> None:
    """A batch that runs again counts its keys once."""
    world.batch(0, one_row(1), lose_block="totals")
    assert world.driver.stored_rows()["totals"] == 1


def test_the_key_count_of_an_old_store_is_an_upper_bound(tmp_path: Path) -> None:
    """For a store of an earlier version, whose records have no count, the count is an upper bound. New stores are
    counted exactly.
    """
    world = World(tmp_path, operators=[totals()])
    for version in range(3):
        world.batch(version, one_row(version))
    tail = world.log().tail
    assert tail is not None
    assert tail.row_counts == {"totals": 1}
    name = paths.record_name(tail.sequence)
    world.memory.delete([name])
    world.memory.put_if_absent(name, encode(replace(tail, row_counts={})))
    world.operators.append(tails())
    world.sinks["tails"] = world.sinks["totals"]
    world.start()
    world.batch(3, one_row(3))
    assert world.driver.stored_rows() == {"totals": 4, "tails": 1}
    newest = world.log().tail
    assert newest is not None
    assert newest.row_counts == {"tails": 1}


@dataclass(frozen=True)
class WithNotes(Alarms):
    """Alarms with one more variable, which is never written."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the variables of ``Alarms`` and the additional one."""
        declared = super().declare(key, rows)
        return replace(
            declared,
            variables=(*(declared.variables or ()), Variable("notes", "value", pa.schema([("n", pa.int64())]))),
        )


def test_the_key_count_is_unknown_after_a_change_of_variables(tmp_path: Path) -> None:
    """After a change of the variables the count is unknown, because elements of dropped variables are not counted."""
    before = operator_of("alarms", ["k"], Alarms(), (), ROWS)
    after = operator_of("alarms", ["k"], WithNotes(), (), ROWS)
    world = World(tmp_path, operators=[before])
    exact_counts = []
    for version, operator in enumerate([before, before, after, after]):
        if operator is not world.operators[0]:
            world.operators[:] = [operator]
            world.start()
        world.batch(version, one_row(1))
        tail = world.log().tail
        assert tail is not None
        exact_counts.append("alarms" in tail.row_counts)
    assert exact_counts == [True, True, False, False]
    assert world.driver.stored_rows()["alarms"] > 0
