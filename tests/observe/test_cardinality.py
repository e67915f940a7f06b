"""The number of series depends on members, stores and partitions. It never depends on key-groups or keys."""

from __future__ import annotations

import pytest

from riffle_spark.observe.readings import readings
from riffle_spark.observe.totals import totals
from riffle_spark.protocol.facts import DriverFacts, GroupFacts, MemberFacts, PartitionLag, StoreFacts


def facts_of(members: int, key_groups: int, stores: int = 4, partitions: int = 8) -> DriverFacts:
    """Return facts of a query of this size, with a value in each field."""
    names = tuple(f"store{number}" for number in range(stores))
    member_facts = tuple(
        MemberFacts(f"m{n}", f"{n}", f"host{n}", warmup_seconds=1.0, disk_used=0.5, memory_used=0.5)
        for n in range(members)
    )
    owners = tuple(number % members for number in range(key_groups))
    return DriverFacts(
        1,
        query_id="q",
        commit_ms=1,
        watermark_ms=1,
        next_probe_seconds=1.0,
        source=tuple(PartitionLag("t", number, 1, 1.0) for number in range(partitions)),
        members=member_facts,
        stores=tuple(StoreFacts(name, 1, 1, 1) for name in names),
        groups=(GroupFacts("default", names, owners, ((),) * key_groups, ((),) * key_groups),),
    )


@pytest.mark.parametrize("members", [1, 100])
def test_series_do_not_depend_on_key_groups(members: int) -> None:
    """A query with 4,096 key-groups has the series of one with 8."""
    few = {reading.sample for reading in readings(None, facts_of(members, 8))}
    many = {reading.sample for reading in readings(None, facts_of(members, 4_096))}
    assert few == many
    assert len(few) < 50 + 10 * members + 5 * 4 + 2 * 8


def test_totals_do_not_depend_on_members_stores_or_partitions() -> None:
    """The names of totals do not depend on members, stores or partitions, so Spark has a fixed set of gauges."""
    small = totals(readings(None, facts_of(1, 8, stores=1, partitions=1)))
    large = totals(readings(None, facts_of(100, 4_096, stores=20, partitions=500)))
    assert small.keys() == large.keys()
