"""The three worked examples of KIP-441 and racks, live: who owns, keeps and warms what on executors of hosts of their
own.

Tasks T1, T2, ... are key-groups 0, 1, ...; the members I1, I2, I3 are the executors of the first, second and third
host. What the proposal shows as a standby that catches up is a warm-up here where it is one more than
``num_standbys``. The same in simulation is in ``tests/protocol/ownership/test_kip441.py``, and a scale-out in every
run in ``test_elastic_cluster.py``.
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
"""Racks, of more workers in turn."""
I1, I2, I3, I4 = (f"127.0.0.{number}" for number in range(2, 6))
T1, T2, T3, T4 = range(4)


@pytest.fixture(scope="module")
def master(cluster: StandaloneCluster) -> str:
    """Run the module's session on that cluster."""
    return master_of(cluster)


def query_on(
    spark: SparkSession, folder: Path, wanted: dict[str, tuple[set[int], set[int]]], **settings: object
) -> LiveQuery:
    """Return a query with one standby on so many members, arranged as in the proposal's tables; racks do not count."""
    key_groups = sum(len(owned) for owned, _ in wanted.values())
    query = LiveQuery(
        spark, folder, key_groups=key_groups, num_standbys=len(wanted) - 1, expected_executors=len(wanted),
        probing_rebalance_interval=600, member_racks=(("*", "one"),), **settings,
    )  # fmt: skip
    query.feed_until(lambda: query.holds().keys() == wanted.keys() and query.settled(), "everybody holds everything")
    query.arrange(wanted, num_standbys=1)
    return query


def counts(held: dict[str, Roles]) -> dict[str, tuple[int, int, int]]:
    """Return how many key-groups each member owns, keeps and warms up."""
    return {host: (len(owned), len(kept), len(warm)) for host, (owned, kept, warm) in held.items()}


def restored(reports: list[BatchReport]) -> list[tuple[int, int]]:
    """Return what each batch restored, and the bytes of snapshots that it fetched."""
    return [(report.restores, report.fetched_snapshot_bytes) for report in reports]


@pytest.mark.long
def test_scaling_out(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """I3 joins two members with two and one tasks: it warms up both of I1's, then takes one over and keeps the
    other.
    """
    run_workers(spark, cluster, 2)
    query = query_on(spark, tmp_path, {I1: ({T1, T3}, {T2}), I2: ({T2}, {T1, T3})})
    run_workers(spark, cluster, 3)
    query.feed_until(lambda: I3 in query.holds(), "I3 is counted")
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
def test_members_report_the_racks_of_their_environment_and_standbys_are_elsewhere(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Two members in each of two racks, by ``RIFFLE_RACK`` of their workers: a standby is never in its owner's."""
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
    """Return the proposal's three members with four tasks, one standby each; who leaves is not waited for."""
    run_workers(spark, cluster, 3)
    wanted = {I1: ({T1, T4}, {T3}), I2: ({T2}, {T1, T4}), I3: ({T3}, {T2})}
    return query_on(spark, folder, wanted, scheduled_rebalance_max_delay=0)


@pytest.mark.long
def test_scaling_in_with_standbys_in_sync(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """I1 is brought down: in one rebalance standbys take over and one more task is revoked for balance."""
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
    """I2 bears three tasks while I3's copies catch up; once they have, I3 takes one over, and that is all."""
    query = scaling_in(spark, cluster, tmp_path)
    with query.stalled(cluster):
        query.feed(3)
        assert not any(copy.warm for copy in query.job.readiness())
        cluster.kill_worker(0)
        await_executors(spark, 2)
        reports = [query.feed() for _ in range(2)]
        assert query.holds() == {I2: ({T1, T2, T4}, {T3}, set()), I3: ({T3}, {T1, T2, T4}, set())}
        assert sum(report.probes_run for report in reports) == 0, "nothing is warm: there is nothing to look for"
        query.job.request_rebalance()
        query.feed()
        assert query.holds() == {I2: ({T1, T2, T4}, {T3}, set()), I3: ({T3}, {T1, T2, T4}, set())}, "nor to hand over"
    reports = [query.feed(), *query.catch_up(), query.feed()]
    assert sum(report.probes_run for report in reports) == 1
    assert restored(reports) == [(0, 0)] * len(reports)
    after = query.holds()
    assert counts(after) == dict.fromkeys([I2, I3], (2, 2, 0))
    assert after[I3][0] >= {T3}
    query.feed()
    assert query.holds() == after, "the second rebalance is the stable state (I8)"
