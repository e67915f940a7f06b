"""The three worked examples of KIP-441, and racks, on a cluster in which each executor has its own host address.

Tasks T1, T2, ... are key-groups 0, 1, ... Members I1, I2, I3 are the executors of the first, second and third host. A
standby that catches up in the proposal is a warm-up here if it exceeds ``num_standbys``.
``tests/protocol/ownership/test_kip441.py`` simulates the same examples. ``test_elastic_cluster.py`` has a scale-out
that every test run includes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.demo.servers import StandaloneCluster
from riffle_spark.protocol.batch.batch_report import BatchReport
from tests.kit.streams import live_query as live
from tests.kit.streams.live_query import LiveQuery, Roles, await_executors, master_of, run_workers

pytestmark = pytest.mark.cluster

CONF = live.CONF
ENVIRONMENTS = [{"RIFFLE_RACK": "a"}, {"RIFFLE_RACK": "b"}]
"""The racks of the workers. Further workers get them in turn."""
I1, I2, I3, I4 = (f"127.0.0.{number}" for number in range(2, 6))
T1, T2, T3, T4 = range(4)


@pytest.fixture(scope="module")
def master(cluster: StandaloneCluster) -> str:
    """Return the cluster's master URL."""
    return master_of(cluster)


def query_on(
    spark: SparkSession, folder: Path, roles: dict[str, tuple[set[int], set[int]]], **settings: object
) -> LiveQuery:
    """Return a query with the roles of the proposal's tables: one standby, and all members in the same rack."""
    key_groups = sum(len(owned) for owned, _ in roles.values())
    query = LiveQuery(
        spark, folder, key_groups=key_groups, num_standbys=len(roles) - 1, expected_executors=len(roles),
        probing_rebalance_interval=600, member_racks=(("*", "one"),), **settings,
    )  # fmt: skip
    query.feed_until(
        lambda: query.holds().keys() == roles.keys() and query.settled(), "every member has a copy of every task"
    )
    query.arrange(roles, num_standbys=1)
    return query


def counts(roles: dict[str, Roles]) -> dict[str, tuple[int, int, int]]:
    """Return how many key-groups each member owns, holds as standby and warms up."""
    return {host: (len(owned), len(standbys), len(warm)) for host, (owned, standbys, warm) in roles.items()}


def restored(reports: list[BatchReport]) -> list[tuple[int, int]]:
    """Return the restores and the fetched bytes of snapshots of each batch."""
    return [(report.restores, report.fetched_snapshot_bytes) for report in reports]


@pytest.mark.long
def test_scaling_out(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """When I3 joins, it warms up both tasks of I1. It then becomes the owner of one and the standby of the other."""
    run_workers(spark, cluster, 2)
    query = query_on(spark, tmp_path, {I1: ({T1, T3}, {T2}), I2: ({T2}, {T1, T3})})
    run_workers(spark, cluster, 3)
    query.feed_until(lambda: I3 in query.holds(), "I3 is a member")
    warming = {I1: ({T1, T3}, {T2}, set()), I2: ({T2}, {T1, T3}, set()), I3: (set(), set(), {T1, T3})}
    assert query.holds() == warming
    reports = [*query.catch_up(), query.feed()]
    assert sum(report.probes_run for report in reports) == 1
    assert restored(reports) == [(0, 0)] * len(reports)
    after = query.holds()
    assert counts(after) == dict.fromkeys([I1, I2, I3], (1, 1, 0))
    assert after[I2][0] == {T2}
    query.feed()
    assert query.holds() == after, "the second rebalance is the stable state (I8)"


@pytest.mark.long
def test_members_report_their_rack_and_standbys_are_in_other_racks(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Members report ``RIFFLE_RACK`` of their workers as their rack, and no standby is in its owner's rack."""
    run_workers(spark, cluster, 4)
    query = LiveQuery(spark, tmp_path, num_standbys=1, expected_executors=4)
    query.feed()
    query.feed_until(query.settled, "every standby is warm")
    members = query.job.members()
    assert {member.host: member.rack for member in members} == {I1: "a", I2: "b", I3: "a", I4: "b"}
    assert counts(query.holds()) == dict.fromkeys([I1, I2, I3, I4], (2, 2, 0))
    racks, present = {member.id: member.rack for member in members}, query.ownership.placement.present
    assert all({racks[owner], racks[present.standbys[t][0]]} == {"a", "b"} for t, owner in present.owners.items())


def scaling_in(spark: SparkSession, cluster: StandaloneCluster, folder: Path) -> LiveQuery:
    """Return a query with the proposal's three members and four tasks, one standby each. Lost members are not waited
    for.
    """
    run_workers(spark, cluster, 3)
    roles = {I1: ({T1, T4}, {T3}), I2: ({T2}, {T1, T4}), I3: ({T3}, {T2})}
    return query_on(spark, folder, roles, scheduled_rebalance_max_delay=0)


@pytest.mark.long
def test_scaling_in_with_standbys_in_sync(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """When I1 stops and the standbys are in sync, they take over, and one more task moves for balance in the same
    rebalance.
    """
    query = scaling_in(spark, cluster, tmp_path)
    cluster.stop_worker(0)
    await_executors(spark, 2)
    report = query.feed()
    assert (report.restores, report.fetched_bytes) == (0, 0)
    assert {host: len(owned) for host, (owned, _, _) in query.holds().items()} == {I2: 2, I3: 2}
    reports = [*query.catch_up(), query.feed()]
    assert restored(reports) == [(0, 0)] * len(reports)
    after: dict[str, Roles] = {I2: ({T1, T4}, {T2, T3}, set()), I3: ({T2, T3}, {T1, T4}, set())}
    assert query.holds() == after
    query.feed()
    assert query.holds() == after, "the second rebalance is the stable state (I8)"


@pytest.mark.long
def test_scaling_in_with_standbys_that_lag(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """While the copies of I3 lag, I2 owns three tasks. Once they have caught up, I3 takes one over, and nothing else
    moves.
    """
    query = scaling_in(spark, cluster, tmp_path)
    with query.stalled(cluster):
        query.feed(3)
        assert not any(copy.warm for copy in query.job.readiness())
        cluster.kill_worker(0)
        await_executors(spark, 2)
        reports = [query.feed() for _ in range(2)]
        assert query.holds() == {I2: ({T1, T2, T4}, {T3}, set()), I3: ({T3}, {T1, T2, T4}, set())}
        assert sum(report.probes_run for report in reports) == 0, "no probe runs while no warm-up has caught up"
        query.job.request_rebalance()
        query.feed()
        assert query.holds() == {I2: ({T1, T2, T4}, {T3}, set()), I3: ({T3}, {T1, T2, T4}, set())}, (
            "no task moves while no warm-up has caught up"
        )
    reports = [query.feed(), *query.catch_up(), query.feed()]
    assert sum(report.probes_run for report in reports) == 1
    assert restored(reports) == [(0, 0)] * len(reports)
    after = query.holds()
    assert counts(after) == dict.fromkeys([I2, I3], (2, 2, 0))
    assert after[I3][0] >= {T3}
    query.feed()
    assert query.holds() == after, "the second rebalance is the stable state (I8)"
