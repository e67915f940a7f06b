"""Queries continue after switches of dispatch and after rollbacks across them, and other dispatches are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.switch import switch_dispatch
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.partitioned_query import BY_PARTITION, Played, of_partition, offsets, parted
from tests.kit.simulated.switched_state import partition_of
from tests.kit.simulated.world import World, one_row, two_stores

ROUND_TRIPS = [("key_group", "partition"), ("key_group", "hashed"), ("partition", "hashed"), ("partition", "key_group")]


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize(("first", "second"), ROUND_TRIPS)
@pytest.mark.sample(step=2)
def test_a_query_keeps_its_state_over_a_switch_and_a_switch_back(tmp_path: Path, first: str, second: str) -> None:
    """After a switch and a switch back, every key continues with its state, although executors have old copies."""
    played = Played(World(tmp_path, operators=two_stores(), dispatch=first, key_groups=16))
    played.batches(4)
    for dispatch in (second, first):
        switch_dispatch(played.world.home.root, dispatch, partition_of=partition_of, execute=True)
        played.restart(dispatch=dispatch)
        played.batches(3)
        played.check()
    assert played.world.log().tail.dispatch == first  # type: ignore[union-attr]


def test_another_number_of_key_groups_is_refused_until_a_switch(tmp_path: Path) -> None:
    """A query with another number of key-groups is refused until the state is switched."""
    played = Played(World(tmp_path, operators=two_stores(), key_groups=16))
    played.batches(3)
    played.restart(key_groups=5)
    with pytest.raises(ConfigError, match="RIFFLE-0219") as caught:
        played.world.batch(3, parted(one_row(1)))
    assert "--key-groups 5" in caught.value.remedy
    switch_dispatch(played.world.home.root, "key_group", key_groups=5, execute=True)
    played.world.start()
    played.batches(3)
    played.check()


def test_a_query_with_another_dispatch_than_its_state_is_refused(tmp_path: Path) -> None:
    """A query with another dispatch than its state is refused, and the error names the command to switch."""
    world = World(tmp_path)
    world.batch(0, parted(one_row(1)))
    world.settings = world.settings.but(dispatch="hashed")
    world.start()
    with pytest.raises(ConfigError, match="RIFFLE-0218") as caught:
        world.batch(1, parted(one_row(1)))
    assert "--to hashed" in caught.value.remedy
    assert world.log().tail.version == 0  # type: ignore[union-attr]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Return a checkpoint of the query without batches."""
    return str(written_checkpoint(tmp_path / "checkpoint"))


def test_a_rollback_over_a_switch_restores_the_dispatch(tmp_path: Path, checkpoint: str) -> None:
    """A rollback to a batch before a switch of dispatch restores the batch's dispatch and shards."""
    played = Played(World(tmp_path, operators=two_stores(), key_groups=16, retained_versions=100))
    played.batches(4)
    switch_dispatch(played.world.home.root, "partition", partition_of=partition_of, execute=True)
    played.restart(dispatch="partition")
    played.batches(2)
    for version, dispatch in ((3, "partition"), (2, "key_group")):
        rollback(played.world.home.root, version, checkpoint, execute=True)
        tail = played.world.log().tail
        assert tail is not None
        assert tail.target is not None
        assert tail.dispatch == dispatch
        assert tail.shards == played.world.log().read(tail.target).shards
    restarted = Played(played.world)
    restarted.restart(dispatch="key_group")
    restarted.pass_over(3)
    restarted.batches(3)
    restarted.check()


@pytest.mark.parametrize("dispatch", BY_PARTITION)
def test_adopt_empty_fixes_the_dispatch_and_number_of_key_groups(
    tmp_path: Path, checkpoint: str, dispatch: str
) -> None:
    """`riffle adopt --empty` fixes the dispatch and the number of key-groups."""
    world = World(tmp_path, dispatch=dispatch, key_groups=16)
    adopt(world.home.root, checkpoint, empty=True, key_groups=16, dispatch=dispatch, execute=True)
    world.batch(0, of_partition(one_row(1), 0))
    assert world.state("totals") == {"a": (1, 1)}


def test_more_partitions_than_key_groups_need_a_switch(tmp_path: Path) -> None:
    """A batch with more partitions than key-groups is refused before it runs, and the named command solves it."""
    world = World(tmp_path, dispatch="partition", key_groups=2)
    world.batch(0, of_partition(one_row(1), 0), offsets=offsets(1, 1))
    with pytest.raises(ConfigError, match="RIFFLE-0241") as caught:
        world.batch(1, of_partition(one_row(1), 2), offsets=offsets(1, 1, 1))
    assert "riffle dispatch" in caught.value.remedy
    switch_dispatch(world.home.root, "partition", key_groups=3, execute=True)
    world.settings = world.settings.but(key_groups=3)
    world.start()
    world.batch(1, of_partition(one_row(1), 2), offsets=offsets(1, 1, 1))
    assert world.log().tail.total == 3  # type: ignore[union-attr]
