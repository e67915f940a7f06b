"""The registry of partitions: stable numbers, Spark's offsets, and slots by hash."""

from __future__ import annotations

import itertools
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.shards import HEARTBEAT, PARTITION_MAX, Partition, Shards, partition_hash, partitions_in

TOTAL = 200
PARTITIONS = st.tuples(st.sampled_from(["clicks", "orders", "Zürich", "a/1", ""]), st.integers(0, 30))
BATCHES = st.lists(st.lists(PARTITIONS, max_size=12), max_size=6)


def registered(batches: list[list[Partition]]) -> list[Shards]:
    """Return the registry after each batch, starting with the empty one."""
    grown = [Shards()]
    for partitions in batches:
        grown.append(grown[-1].extended(partitions, TOTAL))
    return grown


@given(BATCHES)
def test_registered_partitions_keep_their_numbers(batches: list[list[Partition]]) -> None:
    """Registered partitions keep their numbers, and each partition is registered once."""
    grown = registered(batches)
    for before, after in itertools.pairwise(grown):
        assert after.partitions[: len(before)] == before.partitions
    everything = {partition for batch in batches for partition in batch}
    assert sorted(grown[-1].partitions) == sorted(everything)


@given(BATCHES, st.lists(PARTITIONS, min_size=1, max_size=20))
def test_lookups_return_the_shard_of_a_partition(batches: list[list[Partition]], rows: list[Partition]) -> None:
    """Lookups by row, by topic and by columns return the same number, and none for an unknown partition."""
    shards = registered(batches)[-1]
    expected = [shards.partitions.index(row) if row in shards.partitions else -1 for row in rows]
    topics, numbers = pa.chunked_array([[row[0] for row in rows]]), pa.chunked_array([[row[1] for row in rows]])
    assert shards.of(topics, numbers).tolist() == expected
    arrays = shards.by_topic()
    looked_up = [array[n] if (array := arrays.get(topic, []))[n:] else None for topic, n in rows]
    assert [-1 if shard is None else shard for shard in looked_up] == expected


@given(BATCHES, st.integers(1, 40))
def test_each_shard_has_one_slot_by_its_hash(batches: list[list[Partition]], slots: int) -> None:
    """Each shard has one slot, which depends only on the hash of its partition."""
    shards = registered(batches)[-1]
    dealt = shards.shards_by_slot(slots)
    assert len(dealt) == slots
    assert sorted(shard for slot in dealt for shard in slot) == list(range(len(shards)))
    for slot, shards_of_slot in enumerate(dealt):
        assert all(partition_hash(shards.partitions[shard]) % slots == slot for shard in shards_of_slot)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (("events", 0), 1332387677155173008),
        (("events", 1), 3036399683165091288),
        (("events", 15), 6127883073972053600),
        (("Zürich", 7), 7777116916084038143),
        (("", 0), 11906990698345417061),
    ],
)
def test_the_partition_hash_is_the_documented_xxh64(partition: Partition, expected: int) -> None:
    """The hash is XXH64 of the text ``topic/partition``, as in docs/dispatch.md."""
    assert partition_hash(partition) == expected


def test_more_partitions_than_key_groups_are_refused() -> None:
    """The number of shards is limited by `key_groups`. The remedy raises it."""
    shards = Shards().extended([("events", 0), ("events", 1)], 2)
    assert shards.extended([("events", 1)], 2) is shards
    with pytest.raises(ConfigError, match="RIFFLE-0241") as caught:
        shards.extended([("orders", 0)], 2)
    assert "--key-groups" in caught.value.remedy


@pytest.mark.parametrize("number", [-1, PARTITION_MAX + 1])
def test_an_invalid_partition_number_is_refused(number: int) -> None:
    """A negative or very large partition number is refused, because lookup tables would be very long."""
    with pytest.raises(ConfigError, match="RIFFLE-0240"):
        Shards().extended([("events", number)], TOTAL)


KAFKA = '{"events":{"0":120,"1":7},"orders":{"0":0}}'


def entry(*sources: str) -> str:
    """Return an entry of Spark's offset log."""
    return "\n".join(["v1", '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}', *sources])


def test_partitions_are_read_from_kafkas_offsets() -> None:
    """The partitions of all topics and sources are read. A source without offsets is skipped."""
    assert partitions_in(entry(KAFKA)) == frozenset({("events", 0), ("events", 1), ("orders", 0)})
    assert partitions_in(entry(KAFKA, '{"events":{"2":5}}', "-")) == frozenset(
        {("events", 0), ("events", 1), ("events", 2), ("orders", 0)}
    )


def test_the_heartbeat_source_has_no_partitions() -> None:
    """The offset of the heartbeat source has no partitions. A topic with the same name has."""
    assert partitions_in(entry(KAFKA, f'{{"{HEARTBEAT}":1700000000000}}')) == partitions_in(entry(KAFKA))
    assert partitions_in(entry(f'{{"{HEARTBEAT}":1700000000000}}')) is None
    assert partitions_in(entry(f'{{"{HEARTBEAT}":{{"3":5}}}}')) == frozenset({(HEARTBEAT, 3)})


@pytest.mark.parametrize(
    "offsets",
    [
        None,
        "",
        "offsets-3",
        entry(),
        entry("-"),
        entry("17"),
        entry('{"logOffset":3}'),
        entry('"text"'),
        entry("[1]"),
        entry('{"events":{"zero":1}}'),
        entry('{"events":{"0":"1"}}'),
        entry("{not json"),
        entry(KAFKA, '{"logOffset":3}'),
        entry("{}"),
    ],
)
def test_offsets_of_another_form_return_none(offsets: str | None) -> None:
    """Offsets of another form return `None`, so that partitions are read from rows."""
    assert partitions_in(offsets) is None


@given(st.dictionaries(st.text(max_size=5), st.dictionaries(st.integers(0, 99).map(str), st.integers(-2, 2**60))))
def test_any_offsets_of_topics_and_partitions_are_read(topics: dict[str, dict[str, int]]) -> None:
    """Topics may have any name."""
    expected = {(topic, int(number)) for topic, numbers in topics.items() for number in numbers}
    assert partitions_in(entry(json.dumps(topics))) == (expected or None)
