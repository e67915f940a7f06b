"""Number the partitions of the input: with ``partition`` and ``hashed`` dispatch a key-group is a shard.

A shard's number is the place of its (topic, partition) in a registry. The registry only grows, so no number changes its
meaning when a topic gets more partitions. The records of the log store it.
"""

import json
import operator
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from riffle_spark.errors import ConfigError

Partition: TypeAlias = tuple[str, int]
"""(topic, partition)."""

HEARTBEAT: Final = "riffle_heartbeat_ms"
"""The name in the offsets of our own source without rows."""
PARTITION_MAX: Final = 99_999
"""The maximum of partition numbers. Rows find their shard in an array that has an item for each number."""
_SOURCES_FROM_LINE = 2


@dataclass(frozen=True, slots=True)
class Shards:
    """The registered partitions, each at the place of its shard's number."""

    partitions: tuple[Partition, ...] = ()

    def __post_init__(self) -> None:
        assert len(set(self.partitions)) == len(self.partitions), "a partition is registered once"

    def __len__(self) -> int:
        return len(self.partitions)

    def number_of(self, partition: object) -> int:
        """Return the shard of a (topic, partition). Raises ``ConfigError`` if it is not registered."""
        if partition not in self.partitions:
            # Cause: The call names a partition of which no batch had rows.
            raise ConfigError(
                f"The query has not read the partition {partition!r}.",
                remedy="Pass a (topic, partition) that it has read.",
                where="dispatch",
                id="RIFFLE-0239",
            )
        return self.partitions.index(partition)

    def extended(self, partitions: Iterable[Partition], total: int) -> "Shards":
        """Return the registry with new partitions appended, in order of topic and number.

        Raises ``ConfigError`` for more than ``total`` partitions, and for an invalid partition number.
        """
        new = sorted(set(partitions) - set(self.partitions))
        for topic, partition in new:
            if not 0 <= partition <= PARTITION_MAX:
                # Cause: The column `partition` has a value outside this range.
                raise ConfigError(
                    f"Topic {topic!r} cannot have a partition {partition}.",
                    remedy=f"Number the partitions of a topic from 0 to {PARTITION_MAX}, as Kafka does.",
                    where="dispatch",
                    id="RIFFLE-0240",
                )
        count = len(self) + len(new)
        if count > total:
            # Cause: The topics have more partitions than the state was planned for.
            raise ConfigError(
                f"{count} partitions are more than key_groups = {total}.",
                remedy="Stop the query, raise the number in its state (riffle dispatch ROOT --to MODE "
                "--key-groups N --execute), and restart it with key_groups = N.",
                where="key_groups",
                id="RIFFLE-0241",
            )
        return Shards((*self.partitions, *new)) if new else self

    def of(self, topics: pa.ChunkedArray, partitions: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """Return the shard of each row by its topic (text) and partition (integer), -1 if that is not registered."""
        numbers = partitions.to_numpy()
        row_shards = np.full(len(numbers), -1, dtype=np.int32)
        for topic, shards in self.by_topic().items():
            rows = np.flatnonzero(pc.equal(topics, topic).to_numpy() & (numbers >= 0) & (numbers < len(shards)))
            by_number = np.array([-1 if shard is None else shard for shard in shards], dtype=np.int32)
            row_shards[rows] = by_number[numbers[rows]]
        return row_shards

    def by_topic(self) -> dict[str, list[int | None]]:
        """Return each topic's shards as a list by partition number, with ``None`` for unregistered numbers."""
        arrays: dict[str, list[int | None]] = {}
        for shard, (topic, partition) in enumerate(self.partitions):
            array = arrays.setdefault(topic, [])
            array.extend([None] * (partition + 1 - len(array)))
            array[partition] = shard
        return arrays

    def shards_by_slot(self, slots: int) -> list[tuple[int, ...]]:
        """Return the shards of each slot, for this number of ``slots``. The hash of a partition chooses its slot."""
        by_slot: list[list[int]] = [[] for _ in range(slots)]
        for shard, partition in enumerate(self.partitions):
            by_slot[partition_hash(partition) % slots].append(shard)
        return [tuple(shards) for shards in by_slot]


def key_group_number(key_group: object, shards: Shards | None) -> int:
    """Return the number of the key-group that a user names.

    It is named by its number or, with dispatch by partition, as (topic, partition). ``shards`` is ``None`` with
    dispatch by key-group. Raises ``ConfigError`` for anything else.
    """
    if not isinstance(key_group, (bool, tuple)):
        with suppress(TypeError):
            number = operator.index(key_group)  # type: ignore[arg-type] # others raise TypeError
            if shards is None or 0 <= number < len(shards):
                return number
    if shards is None:
        raise ConfigError(
            f"{key_group!r} is not a key-group.",
            remedy="Pass the number of a key-group.",
            where="dispatch",
            id="RIFFLE-0242",
        )
    return shards.number_of(key_group)


def partition_hash(partition: Partition) -> int:
    """Return XXH64 with seed 0 of ``<topic>/<partition>`` in UTF-8, unsigned."""
    topic, number = partition
    return xxhash.xxh64_intdigest(f"{topic}/{number}".encode())


def partitions_in(offsets: str | None) -> frozenset[Partition] | None:
    """Return the partitions in an entry of Spark's offset log, or ``None`` unless each source of rows lists its own.

    The entry has a version, a line of metadata, and a line per source. Kafka's is ``{"topic":{"0":123,"1":45}}``.
    """
    partitions: set[Partition] = set()
    for source_offsets in (offsets or "").split("\n")[_SOURCES_FROM_LINE:]:
        if source_offsets not in ("", "-"):
            of_source = _partitions_of(source_offsets)
            if of_source is None:
                return None
            partitions |= of_source
    return frozenset(partitions) or None


def _partitions_of(source_offsets: str) -> set[Partition] | None:
    """Return the partitions in one source's offsets, or ``None`` if they do not name partitions."""
    try:
        topics = json.loads(source_offsets)
        if list(topics) == [HEARTBEAT] and isinstance(topics[HEARTBEAT], int):
            return set()
        return {
            (str(topic), int(partition))
            for topic, numbers in topics.items()
            for partition, offset in numbers.items()
            if int(offset) == offset
        }
    except (ValueError, AttributeError, TypeError):
        return None
