"""With replicas in three of four racks, reading from any of these racks is local."""

from __future__ import annotations

import pytest

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import ONE_GROUP, task
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.state.log.manifest import Manifest

RACKS = "abcd"
AWAY = dict(enumerate(RACKS))
"""The rack without a replica, by partition."""
HELD = {("events", partition): tuple(rack for rack in RACKS if rack != away) for partition, away in AWAY.items()}
ROWS = 10_000


def measured(partitions: int = 4) -> Weights:
    """Return weights after a batch in which each key-group has rows of the partition with its number."""
    weights = Weights()
    weights.set_partition_racks(HELD)
    numbers = range(partitions)
    receipt = Receipt(
        "totals", 0, "", 0, "", "", rows=ROWS * partitions,
        partition_rows=tuple((n, n, ROWS) for n in numbers), received=(tuple(numbers), (ROWS,) * partitions),
    )  # fmt: skip
    weights.record_batch([receipt], Manifest({}), ONE_GROUP)
    return weights


@pytest.mark.parametrize("shards", [None, tuple(HELD)], ids=["key-groups", "partitions"])
def test_rows_count_as_local_in_every_rack_with_a_replica(shards: tuple[tuple[str, int], ...] | None) -> None:
    """Nearly all rows count as local in the racks with a replica, and nearly none in the other rack."""
    traffic = measured().traffic(ONE_GROUP, shards)
    for partition, away in AWAY.items():
        read = traffic[task(partition)]
        shares = {rack: 1 - read.parts_read_across(rack) / read.total for rack in RACKS}
        assert all(shares[rack] > 0.99 for rack in RACKS if rack != away), shares
        assert shares[away] < 0.01, shares
