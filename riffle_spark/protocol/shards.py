"""Which (topic, partition) a shard's number stands for. Pure; knows the registry, Spark's offsets as text and one hash.
Does not know rows, records or who owns a shard.

With ``partition`` and ``hashed`` dispatch a shard stands wherever a key-group does elsewhere: in addresses, copies,
assignments and slots. Its number is the place of its (topic, partition) in a registry that only ever grows, so that
no number changes its meaning when a topic gets more partitions. The registry is kept in the log's record.
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

__all__ = ["HEARTBEAT", "PARTITION_MAX", "Partition", "Shards", "number_asked", "partition_hash", "partitions_in"]

Partition: TypeAlias = tuple[str, int]
"""(topic, partition)."""

HEARTBEAT: Final = "riffle_heartbeat_ms"
"""What the offsets of our own source without rows are called."""
PARTITION_MAX: Final = 99_999
"""The greatest partition number: rows find their shard by an array that is as long as a topic's numbers reach."""
_SOURCES_FROM_LINE = 2


@dataclass(frozen=True, slots=True)
class Shards:
    """The registered partitions; the place of each is its shard's number."""

    partitions: tuple[Partition, ...] = ()

    def __post_init__(self) -> None:
        assert len(set(self.partitions)) == len(self.partitions), "a partition is registered once"

    def __len__(self) -> int:
        return len(self.partitions)

    def number_of(self, partition: object) -> int:
        """Return the shard of a (topic, partition). Raises ``ConfigError`` if that is none that was registered."""
        if partition not in self.partitions:
            raise ConfigError(
                f"{partition!r} is no partition that the query has read",
                remedy="give (topic, partition), where dispatch is by partition; else a key-group's number, or a key",
                where="dispatch",
                id="RIFFLE-0239",
            )
        return self.partitions.index(partition)

    def extended(self, found: Iterable[Partition], total: int) -> "Shards":
        """Return the registry with the partitions that are new appended, in their order by topic and number.

        Raises ``ConfigError`` if there are then more than ``total``, or for a number that no partition has.
        """
        new = sorted(set(found) - set(self.partitions))
        for topic, partition in new:
            if not 0 <= partition <= PARTITION_MAX:
                raise ConfigError(
                    f"{topic!r} cannot have a partition {partition}",
                    remedy=f"number a topic's partitions from 0 on, up to {PARTITION_MAX}, as Kafka does",
                    where="dispatch",
                    id="RIFFLE-0240",
                )
        if len(self) + len(new) > total:
            raise ConfigError(
                f"there are {len(self) + len(new)} partitions, and key_groups = {total} is the most there may be",
                remedy="stop the query, raise the number in its state (riffle dispatch --root ROOT --to MODE "
                "--key-groups N --execute), set key_groups = N and start it again",
                where="key_groups",
                id="RIFFLE-0241",
            )
        return Shards((*self.partitions, *new)) if new else self

    def of(self, topics: pa.ChunkedArray, partitions: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """Return the shard of every row's topic (text) and partition (a whole number); -1 where there is none."""
        wanted = partitions.to_numpy()
        found = np.full(len(wanted), -1, dtype=np.int32)
        for topic, shards in self.by_topic().items():
            rows = np.flatnonzero(pc.equal(topics, topic).to_numpy() & (wanted >= 0) & (wanted < len(shards)))
            known = np.array([-1 if shard is None else shard for shard in shards], dtype=np.int32)
            found[rows] = known[wanted[rows]]
        return found

    def by_topic(self) -> dict[str, list[int | None]]:
        """Return each topic's shards by partition number, ``None`` where a number is not registered."""
        arrays: dict[str, list[int | None]] = {}
        for shard, (topic, partition) in enumerate(self.partitions):
            array = arrays.setdefault(topic, [])
            array.extend([None] * (partition + 1 - len(array)))
            array[partition] = shard
        return arrays

    def hashed(self, slots: int) -> list[tuple[int, ...]]:
        """Return the shards of each of ``slots`` slots by their partitions' hashes: the same for the same slots."""
        dealt: list[list[int]] = [[] for _ in range(slots)]
        for shard, partition in enumerate(self.partitions):
            dealt[partition_hash(partition) % slots].append(shard)
        return [tuple(shards) for shards in dealt]


def number_asked(asked: object, shards: Shards | None) -> int:
    """Return the key-group that is asked for by its number or, where dispatch is by partition, by a (topic, partition).

    Raises ``ConfigError`` for what is neither.
    """
    if not isinstance(asked, (bool, tuple)):
        with suppress(TypeError):
            number = operator.index(asked)  # type: ignore[arg-type] # else it raises
            if shards is None or 0 <= number < len(shards):
                return number
    if shards is None:
        raise ConfigError(
            f"{asked!r} is no key-group",
            remedy="give a key-group's number, from 0 on",
            where="dispatch",
            id="RIFFLE-0242",
        )
    return shards.number_of(asked)


def partition_hash(partition: Partition) -> int:
    """Return XXH64 with seed 0 of ``<topic>/<partition>`` in UTF-8, as an unsigned number."""
    topic, number = partition
    return xxhash.xxh64_intdigest(f"{topic}/{number}".encode())


def partitions_in(offsets: str | None) -> frozenset[Partition] | None:
    """Return the partitions that Spark's offset-log entry names, ``None`` unless each source of rows tells its own.

    The entry is a version, a line of metadata, and a line a source: Kafka's is ``{"topic":{"0":123,"1":45}}``.
    """
    found: set[Partition] = set()
    for line in (offsets or "").split("\n")[_SOURCES_FROM_LINE:]:
        if line not in ("", "-"):
            told = _partitions_of(line)
            if told is None:
                return None
            found |= told
    return frozenset(found) or None


def _partitions_of(line: str) -> set[Partition] | None:
    try:
        topics = json.loads(line)
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
