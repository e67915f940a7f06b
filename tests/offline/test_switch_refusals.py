"""Switches of dispatch that are refused with a remedy before a record is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError, ConflictError, CorruptStateError
from riffle_spark.offline import switch
from riffle_spark.offline.switch import switch_dispatch
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Manifest
from tests.kit.simulated.switched_state import filled, partition_of, shards_of, tail_of
from tests.kit.simulated.world import World, one_row


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query with state to switch."""
    return filled(tmp_path)[0]


def answers(**columns: object) -> Callable[[pa.Table], object]:
    """Return a function that answers with one row of these values per key."""
    return lambda keys: pa.table({name: pa.array([value] * keys.num_rows) for name, value in columns.items()})


ONCE_EACH = itertools.count()


def changing(keys: pa.Table) -> object:
    """Return another partition at each call."""
    return answers(topic="events", partition=next(ONCE_EACH))(keys)


REFUSED: Mapping[str, Callable[[pa.Table], object]] = {
    "no table": lambda keys: ["events"] * keys.num_rows,
    "no partition": answers(topic="events"),
    "a row less": lambda keys: answers(topic="events", partition=0)(keys.slice(1)),
    "nulls": answers(topic="events", partition=None),
    "no number": answers(topic="events", partition="first"),
    "changing": changing,
    "failing": lambda keys: keys["another"],
    "by place": lambda keys: pa.table({"topic": ["e"] * len(keys), "partition": list(range(len(keys)))[::-1]}),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.sample("no table", "a row less", "nulls", "changing", "failing")
def test_a_partition_function_with_a_changing_answer_is_refused(
    world: World, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition function with an invalid or changing answer is refused before a record is written."""
    monkeypatch.setattr(switch, "_SAMPLE_KEYS", 1)
    before = world.log().tail
    with pytest.raises(ConfigError, match="RIFFLE-0161"):
        switch_dispatch(world.home.root, "partition", partition_of=REFUSED[case], execute=True)
    assert world.log().tail == before


def test_a_switch_to_more_partitions_than_shards_is_refused(world: World) -> None:
    """A switch to more partitions than shards is refused."""
    before = world.log().tail
    with pytest.raises(ConfigError, match="key_groups = 4"):
        switch_dispatch(
            world.home.root,
            "partition",
            partition_of=lambda keys: pa.table({"topic": keys["k"], "partition": [7] * len(keys)}),
            key_groups=4,
            execute=True,
        )
    assert world.log().tail == before


def test_a_partition_that_the_query_does_not_read_is_refused(tmp_path: Path) -> None:
    """A partition that Spark's offsets do not name is refused."""
    world = World(tmp_path)
    world.batch(0, one_row(1), offsets='v1\n{}\n{"events":{"0":5}}')
    with pytest.raises(ConfigError, match="RIFFLE-0161"):
        switch_dispatch(world.home.root, "hashed", partition_of=answers(topic="events", partition=3), execute=True)


def test_a_switch_from_key_groups_without_a_function_is_refused(world: World) -> None:
    """A switch from key-groups to partitions without a function is refused, because state has no partitions."""
    with pytest.raises(ConfigError, match="RIFFLE-0159"):
        switch_dispatch(world.home.root, "partition", execute=True)


def test_a_switch_without_state_needs_no_function(tmp_path: Path) -> None:
    """A query without state switches its dispatch without a function."""
    world = World(tmp_path)
    world.batch(0, one_row(1).slice(0, 0))
    switch_dispatch(world.home.root, "partition", execute=True)
    assert tail_of(world.home.root).dispatch == "partition"


@pytest.mark.parametrize(
    ("to", "key_groups", "id"),
    [("key_group", 16, "RIFFLE-0158"), ("round_robin", None, "RIFFLE-0157"), ("hashed", 0, "RIFFLE-0118")],
)
def test_a_switch_to_the_present_or_an_unknown_dispatch_is_refused(
    world: World, to: str, key_groups: int | None, id: str
) -> None:
    """The present dispatch, an unknown one and an invalid number of key-groups are refused."""
    with pytest.raises(ConfigError, match=id):
        switch_dispatch(world.home.root, to, key_groups=key_groups, execute=True)


def test_a_switch_of_an_empty_root_is_refused(tmp_path: Path) -> None:
    """A root without state is refused, because the setting alone decides."""
    with pytest.raises(ConfigError, match="RIFFLE-0154"):
        switch_dispatch(f"file://{tmp_path}/none", "hashed", execute=True)


def test_a_key_with_state_in_two_partitions_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with state in two partitions is refused with the store, the key and both partitions."""
    switch_dispatch(world.home.root, "partition", partition_of=partition_of, execute=True)
    log = world.log()
    twice = dict(log.manifest.entries)
    (mine, *_), other = sorted(shard for store, shard in twice if store == "totals"), len(log.tail.shards)  # type: ignore[union-attr]
    rows = next(rows for store, shard, rows in shards_of(world.home.root) if (store, shard) == ("totals", mine))
    twice["totals", other] = twice["totals", mine]
    old = paths.snapshot_name("totals", mine, twice["totals", mine].snapshot.id)  # type: ignore[union-attr]
    world.memory.put_if_absent(old.replace(f"={mine:04d}/", f"={other:04d}/"), world.memory.get(old) or b"")
    tail = log.tail
    assert tail is not None

    log.append(replace(tail, kind="dispatch", commit_id="x", shards=(*tail.shards, ("topic-9", 0))), Manifest(twice))
    with pytest.raises(ConflictError, match="RIFFLE-0160") as caught:
        switch_dispatch(world.home.root, "key_group", execute=True)
    topic, number = tail.shards[mine]
    assert f"{topic}/{number}" in caught.value.problem
    assert "topic-9/0" in caught.value.problem
    assert "totals" in caught.value.problem
    assert any(repr(key) in caught.value.problem for key in rows["k"].to_pylist())
    assert world.log().tail.dispatch == "partition"  # type: ignore[union-attr]


def test_a_switch_of_a_state_with_a_missing_object_is_refused(world: World) -> None:
    """A switch of a state with a missing object is refused with the object's name."""
    entry = next(entry for entry in world.log().manifest.entries.values() if entry.chain)
    world.memory.delete([entry.chain[0].object])
    with pytest.raises(CorruptStateError, match="RIFFLE-0462"):
        switch_dispatch(world.home.root, "key_group", key_groups=4, execute=True)
    assert world.log().tail.total == 16  # type: ignore[union-attr]
