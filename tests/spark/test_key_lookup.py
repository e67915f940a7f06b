"""The place where a key is processed, in a simulated query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.spark.job_operators import JobOperators
from riffle_spark.spark.key_lookup import KeyLookup
from tests.kit.simulated.partitioned_query import of_partition
from tests.kit.simulated.world import ROWS, World, one_row, rows_of, totals, two_stores


def looked_up(world: World, operators: Sequence[Operator]) -> KeyLookup:
    """Return a lookup for the keys of these operators."""
    of_job = JobOperators((), world.settings, "rows", Weights())
    of_job.current = list(operators)
    return KeyLookup(world.driver.ownership.placement, of_job)


def by_number() -> Operator:
    """Return an operator that counts by a key of another type."""
    return operator_of("by_number", ["v"], aggregate(count=count()), (), ROWS)


def test_stores_with_one_key_need_no_name(tmp_path: Path) -> None:
    """Stores with the same key need no name, because their tasks have the same owner."""
    world = World(tmp_path, operators=two_stores())
    world.batch(0, one_row(1))
    lookup = looked_up(world, two_stores())
    place = lookup.where("a", None)
    assert place == lookup.where("a", "totals") == lookup.where("a", "tails")
    assert place.key_group in range(world.settings.key_groups)


def test_stores_with_several_keys_need_a_name(tmp_path: Path) -> None:
    """Stores with different keys need a name, and the error lists the names. An unknown name is refused."""
    world = World(tmp_path, operators=[totals(), by_number()])
    world.batch(0, one_row(1))
    lookup = looked_up(world, [totals(), by_number()])
    with pytest.raises(ConfigError, match="RIFFLE-0315") as refused:
        lookup.where("a", None)
    assert refused.value.remedy == "Name one of totals, by_number."
    with pytest.raises(ConfigError, match="RIFFLE-0480"):
        lookup.where(1, "by_numbers")
    assert lookup.where(1, "by_number").key_group in range(world.settings.key_groups)


def test_a_lookup_before_the_first_batch_is_refused(tmp_path: Path) -> None:
    """Before the first batch a lookup is refused."""
    world = World(tmp_path)
    with pytest.raises(ConfigError, match="RIFFLE-0314"):
        looked_up(world, []).where("a", None)


def test_with_dispatch_by_partition_a_lookup_takes_a_partition(tmp_path: Path) -> None:
    """With dispatch by partition a lookup takes a (topic, partition). A partition without rows so far is refused."""
    world = World(tmp_path, dispatch="partition")
    world.batch(0, of_partition(rows_of(("a", 1, 1), ("b", 2, 2)), 7, 3))
    lookup = looked_up(world, [totals()])
    places = [lookup.where(("events", number), None) for number in (3, 7)]
    assert [place.key_group for place in places] == [0, 1]
    with pytest.raises(ConfigError, match="RIFFLE-0239"):
        lookup.where(("events", 4), None)
