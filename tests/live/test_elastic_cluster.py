"""Executors join, leave, die, hang and return on a standalone cluster, and every batch counts each row once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.demo.servers import StandaloneCluster
from tests.kit.streams import live_query as live
from tests.kit.streams.live_query import LiveQuery, await_executors, executor_ids, executors_of, master_of, wait_for

pytestmark = pytest.mark.cluster

CONF = {
    **live.CONF,
    # A new executor needs longer to start. So the slots of a dead executor run on its standby.
    "spark.locality.wait": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "20000",
}
NEVER = 1000


@pytest.fixture(scope="module")
def master(cluster: StandaloneCluster) -> str:
    """Return the cluster's master URL."""
    return master_of(cluster)


@pytest.fixture
def query(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> LiveQuery:
    """A query on two members with one standby, after its first batches. All copies have caught up.

    No snapshot is taken, because a returning member could restore from it instead of fetching the missed deltas.
    """
    await_executors(spark, 2)
    live_query = LiveQuery(spark, tmp_path, num_standbys=1, snapshot_chain_links=NEVER)
    live_query.feed()
    live_query.feed_until(lambda: live_query.settled() and len(live_query.owned()) == 2, "every standby is warm")
    live_query.catch_up()
    return live_query


def kill_in_a_batch(query: LiveQuery, pid: int) -> None:
    """Kill a process with SIGKILL as soon as the batch's slots run."""
    wait_for(query.is_running_slots, "slots run", poll_seconds=0.005)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.promise("standbys exist and take over")
def test_a_standby_takes_over_inside_a_batch_until_the_owner_returns(
    spark: SparkSession, cluster: StandaloneCluster, query: LiveQuery
) -> None:
    """A standby takes over inside the batch in which the owner's executor is killed, and nothing is restored.

    The executor that restarts on the same folder fetches only the missed deltas and gets its key-groups back.
    """
    before, owned = {m.id for m in query.job.members()}, query.owned()
    victim = next(m.executor for m in query.job.members() if m.host == cluster.hosts[0])
    killer = threading.Thread(target=kill_in_a_batch, args=(query, executors_of(cluster, 0)[0]))
    killer.start()
    report = query.feed()
    killer.join()
    assert (report.restores, report.fetched_snapshot_bytes, report.fetched_bytes) == (0, 0, 0)
    wait_for(lambda: victim not in executor_ids(spark), "Spark has removed the executor")
    await_executors(spark, 2)
    reports = query.feed_until(lambda: query.settled() and len(query.owned()) == 2, "the member is back and warm")
    assert {m.id for m in query.job.members()} == before, "the new executor is the old member"
    assert sorted(query.owned().values()) == sorted(owned.values())
    assert sum(r.upkeep_restores + r.restores for r in [report, *reports]) == 0, "only missed deltas were applied"
    assert {m["goal"] for r in reports for m in r.moves if m["role"] == "owner"} <= {"return", "balance", "valid"}


@pytest.mark.promise("state is exactly-once")
def test_an_executor_killed_in_a_batch_loses_and_duplicates_no_row(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """If an executor without standbys is killed inside a batch, its key-groups are restored on another executor. Each
    row is counted and delivered once.
    """
    await_executors(spark, 2)
    query = LiveQuery(spark, tmp_path, key_groups=4)
    query.feed_until(lambda: len(query.owned()) == 2, "both executors own some")
    victim = next(m.executor for m in query.job.members() if m.host == cluster.hosts[1])
    killer = threading.Thread(target=kill_in_a_batch, args=(query, executors_of(cluster, 1)[0]))
    killer.start()
    report = query.feed()
    killer.join()
    assert report.restores > 0
    wait_for(lambda: victim not in executor_ids(spark), "Spark has removed the executor")
    assert victim not in query.feed().owners


@pytest.mark.promise("executors join and leave between batches")
@pytest.mark.promise("key-groups move only to executors that have caught up")
def test_scaling_out_and_in_under_load_restores_no_state(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """When a third member joins and leaves again after a drain, key-groups move warm, and no batch restores state."""
    await_executors(spark, 2)
    query = LiveQuery(spark, tmp_path, key_groups=12, acceptable_recovery_lag=100, max_warmup_replicas=4)
    query.feed(5)  # Now every key-group has more rows than the acceptable lag, so none moves without a copy.
    added = cluster.start_worker()
    cluster.wait_until_ready()
    await_executors(spark, 3)
    reports = query.feed_until(lambda: len(query.owned()) == 3, "three members own key-groups")
    reports += query.feed_until(query.settled, "three members are balanced", resting=False)
    assert sorted(query.owned().values()) == [4, 4, 4]
    assert [r for r in reports if r.restores] == []
    assert {m["role"] for r in reports for m in r.moves} == {"owner", "warmup"}
    leaving = next(m for m in query.job.members() if m.host == cluster.hosts[added])
    query.job.drain(leaving.id)
    reports = query.feed_until(
        lambda: query.owned()[leaving.executor] == 0 and query.settled(), "the drained member is empty"
    )
    assert [r for r in reports if r.restores] == []
    cluster.kill_worker(added)
    wait_for(lambda: leaving.executor not in executor_ids(spark), "Spark has removed the executor")
    report = query.feed()
    assert (report.restores, report.runs) == (0, 1)
    assert sorted(query.owned().values()) == [6, 6]


@pytest.mark.long
def test_a_hanging_executor_that_resumes_causes_no_error(
    spark: SparkSession, cluster: StandaloneCluster, query: LiveQuery
) -> None:
    """When Spark gives up an executor that hangs, standbys take over. The executor causes no error when it resumes."""
    asleep = executors_of(cluster, 1)[0]
    executors_before = executor_ids(spark)
    os.kill(asleep, signal.SIGSTOP)
    try:
        wait_for(lambda: not executors_before <= executor_ids(spark), "Spark replaces the stopped executor")
        reports = [query.feed() for _ in range(2)]
        assert [(report.restores, report.fetched_snapshot_bytes) for report in reports] == [(0, 0)] * 2
    finally:
        os.kill(asleep, signal.SIGCONT)
    query.feed(2)
    await_executors(spark, 2)
    query.feed_until(lambda: query.settled() and len(query.owned()) == 2, "two members have caught up")


@pytest.mark.long
def test_a_worker_that_returns_after_the_delay_gets_its_share_again(
    spark: SparkSession, cluster: StandaloneCluster, query: LiveQuery
) -> None:
    """When a worker is lost for longer than the rebalance delay, the other members share its tasks. When it returns
    with its disk, it is the same member and gets its share again.
    """
    query.job.reconfigure(scheduled_rebalance_max_delay=0, num_standbys=0)
    query.feed()
    member = next(m for m in query.job.members() if m.host == cluster.hosts[1])
    cluster.kill_worker(1)
    await_executors(spark, 1)
    query.feed(2)
    assert set(query.owned().values()) == {8}
    cluster.return_worker(1)
    await_executors(spark, 2)
    query.feed_until(
        lambda: query.settled() and sorted(query.owned().values()) == [4, 4], "the member has its share again"
    )
    assert member.id in {m.id for m in query.job.members()}


def test_a_restarted_driver_keeps_owners_and_copies(
    spark: SparkSession, cluster: StandaloneCluster, query: LiveQuery
) -> None:
    """After a restart of the driver no owner moves and nothing is fetched."""
    owners = {kg: query.owner_of(kg) for kg in range(8)}
    query.restart()
    report = query.feed()
    assert {kg: query.owner_of(kg) for kg in range(8)} == owners
    assert (report.restores, report.fetched_snapshot_bytes, report.fetched_bytes) == (0, 0, 0)
    assert not [move for move in report.moves if move["role"] == "owner"]
