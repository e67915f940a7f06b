"""Queries whose rows have partitions, and their expected state."""

from __future__ import annotations

import random

import pyarrow as pa

from tests.kit.simulated.switched_state import expected, partition_of
from tests.kit.simulated.world import Oracle, World, drawn_batch

BY_PARTITION = ("partition", "hashed")


def parted(rows: pa.Table) -> pa.Table:
    """Return rows with the topic and partition of their keys."""
    offsets = partition_of(rows.select(["k"]))
    return rows.append_column("topic", offsets["topic"]).append_column("partition", offsets["partition"])


def of_partition(rows: pa.Table, *partitions: int, topic: str = "events") -> pa.Table:
    """Return rows to which these partitions are assigned in turn."""
    numbers = [partitions[n % len(partitions)] for n in range(rows.num_rows)]
    return rows.append_column("topic", pa.array([topic] * len(numbers))).append_column("partition", pa.array(numbers))


def offsets(*counts: int) -> str:
    """Return Spark's offset-log entry for a topic with one partition per count."""
    return 'v1\n{"batchWatermarkMs":0}\n{"events":{' + ",".join(f'"{n}":{c}' for n, c in enumerate(counts)) + "}}"


class Played:
    """A query that runs random batches, with its expected state."""

    def __init__(self, world: World, seed: int = 5) -> None:
        self.world = world
        self.oracle = Oracle()
        self.chance = random.Random(seed)
        self.version = 0

    def batches(self, count: int) -> None:
        """Run the next batches."""
        for _ in range(count):
            rows = drawn_batch(self.chance, self.version)
            self.oracle.feed(rows)
            self.world.batch(self.version, parted(rows))
            self.version += 1

    def pass_over(self, count: int) -> None:
        """Add the next batches to the expected state only, because the query's state already has them."""
        for _ in range(count):
            self.oracle.feed(drawn_batch(self.chance, self.version))
            self.version += 1

    def check(self) -> None:
        """Compare the state in the objects with the expected state."""
        states = {store: self.world.state(store) for store in ("totals", "tails")}
        assert states == expected(self.oracle)

    def restart(self, **settings: object) -> None:
        """Start a driver with other settings."""
        self.world.settings = self.world.settings.but(**settings)
        self.world.start()


def owners(world: World) -> dict[str, str]:
    """Return the owners that the newest record lists."""
    tail = world.log().tail
    assert tail is not None
    return dict(tail.owners)
