"""Partitions with replicas in three of four racks: reading from any of the three is local."""

from __future__ import annotations

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import AssignSettings, Member, Task, Traffic, View
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import ONE_GROUP, task
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.simulate.scenario import scenario_of
from riffle_spark.state.log.manifest import Manifest
from tests.kit.assign_views import settled

RACKS = "abcd"
AWAY = dict(enumerate(RACKS))
"""By partition, the rack that has no replica of it."""
HELD = {("events", partition): tuple(rack for rack in RACKS if rack != away) for partition, away in AWAY.items()}
ROWS = 10_000


def measured(partitions: int = 4) -> Weights:
    """Return weights after a batch in which each key-group has rows of the partition of its number."""
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
def test_rows_are_local_to_every_rack_with_a_replica(shards: tuple[tuple[str, int], ...] | None) -> None:
    """All but a few rows, as the whole input's are mixed in; and next to none is local where no replica is."""
    traffic = measured().traffic(ONE_GROUP, shards)
    for partition, away in AWAY.items():
        read = traffic[task(partition)]
        shares = {rack: 1 - read.parts_read_across(rack) / read.total for rack in RACKS}
        assert all(shares[rack] > 0.99 for rack in RACKS if rack != away), shares
        assert shares[away] < 0.01, shares


def test_owners_read_nothing_across_racks_where_one_of_three_replicas_is_in_theirs() -> None:
    """One owner a rack; each partition is owned in one of its three racks, whichever comes first among these."""
    traffic = measured().traffic(ONE_GROUP, tuple(HELD))
    members = tuple(Member(f"m{rack}", rack=rack) for rack in RACKS)
    before = {task(partition): f"m{away}" for partition, away in AWAY.items()}
    tasks = tuple(Task(each, size=100, owner_traffic=traffic[each]) for each in before)
    view = View(members, tasks, before, lags={each: {owner: 0} for each, owner in before.items()})
    done = settled(view, AssignSettings(rack_aware_assignment_strategy="min_cost"))
    assert sorted(done.owners.values()) == [f"m{rack}" for rack in RACKS]
    assert all(done.owners[task(partition)] != f"m{away}" for partition, away in AWAY.items())
    assert assign(view, AssignSettings(rack_aware_assignment_strategy="min_cost")).cost == 0


def test_a_scenarios_partition_is_local_to_the_rack_of_each_replica() -> None:
    """Files name the racks of all replicas."""
    content = {
        "name": "three", "config": {}, "clients": [{"id": "one", "rack": "a"}],
        "tasks": [
            {
                "id": "0_0", "subtopology": 0, "partition": 0, "stateful": False,
                "partitions": [{"role": "source", "replica_racks": ["d", "b", "c"]}],
            }
        ],
    }  # fmt: skip
    (only,) = scenario_of(content).tasks
    assert only.owner_traffic == Traffic(1, {"b": 1, "c": 1, "d": 1})
