"""Placement with standbys by tags, with snapshot pointers, with state that is not durable, and after two losses at
once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.demo.servers import StandaloneCluster
from riffle_spark import Stateful, aggregate, count
from riffle_spark.settings import Settings
from tests.kit.streams import live_query as live
from tests.kit.streams.live_query import LiveQuery, await_executors, master_of, run_workers
from tests.kit.streams.streaming import CollectingSink, rest, running

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONF = live.CONF
HOSTS = [f"127.0.0.{number}" for number in range(2, 6)]
TAGS = [{"zone": "a", "row": "1"}, {"zone": "a", "row": "2"}, {"zone": "b", "row": "1"}, {"zone": "b", "row": "2"}]
ENVIRONMENTS = [{f"RIFFLE_TAG_{name.upper()}": value for name, value in tags.items()} for tags in TAGS]


@pytest.fixture(scope="module")
def master(cluster: StandaloneCluster) -> str:
    """Return the cluster's master URL."""
    return master_of(cluster)


def query_on(spark: SparkSession, cluster: StandaloneCluster, folder: Path, **settings: object) -> LiveQuery:
    """Return a query on four members with one warm standby per key-group. Lost members are not waited for."""
    run_workers(spark, cluster, len(HOSTS))
    usual = {"num_standbys": 1, "expected_executors": len(HOSTS), "scheduled_rebalance_max_delay": 0}
    query = LiveQuery(spark, folder, member_racks=(("*", "one"),), **{**usual, **settings})
    query.feed_until(lambda: len(query.holds()) == len(HOSTS) and query.settled(), "four members are warm")
    return query


def test_standbys_differ_from_their_owner_in_each_configured_tag(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Members report their tags, and a standby is in another zone and another row than its owner (KIP-708)."""
    query = query_on(spark, cluster, tmp_path, rack_aware_assignment_tags=("zone", "row"))
    members = query.job.members()
    assert {member.host: dict(member.tags) for member in members} == dict(zip(HOSTS, TAGS, strict=True))
    tags, present = {member.id: member.tags for member in members}, query.ownership.placement.present
    assert len(present.standbys) == query.settings.key_groups
    for t, (standby,) in present.standbys.items():
        owner = present.owners[t]
        assert [name for name in ("zone", "row") if tags[owner][name] == tags[standby][name]] == []


def test_a_standby_with_a_snapshot_pointer_fetches_it_when_it_takes_over(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A standby that holds only a snapshot pointer has no copy, and fetches the snapshot when it takes over.

    It takes over all tasks that it points to, although balance alone would distribute them.
    """
    query = query_on(
        spark, cluster, tmp_path, standby_mode="snapshot_pointer", snapshot_chain_links=2, retained_versions=4
    )
    query.job.reconfigure(rebalance_enable="none", acceptable_recovery_lag=0, state_cleanup_delay=0)
    lost_member, pointing_member, *_ = query.job.members()
    present = query.ownership.placement.present
    lost_tasks = {t for t, owner in present.owners.items() if owner == lost_member.id}
    assert len(lost_tasks) == 2
    standbys = {**present.standbys, **dict.fromkeys(lost_tasks, (pointing_member.id,))}
    query.ownership.placement.present = replace(present, standbys=standbys)
    query.feed_until(lambda: has_only_owners_copies(query), "only owners have copies")
    query.feed_until(lambda: all(copy.pointers for copy in query.job.readiness()), "every standby points to a snapshot")
    assert {t: query.ownership.placement.present.standbys[t] for t in lost_tasks} == dict.fromkeys(
        lost_tasks, (pointing_member.id,)
    )
    cluster.stop_worker(HOSTS.index(lost_member.host))
    await_executors(spark, len(HOSTS) - 1)
    report, after = query.feed(), query.ownership.placement.present
    assert {t: after.owners[t] for t in lost_tasks} == dict.fromkeys(lost_tasks, pointing_member.id)
    assert report.restores == len(lost_tasks)
    assert report.fetched_snapshot_bytes > 0


def has_only_owners_copies(query: LiveQuery) -> bool:
    """Return whether each member has copies only of the key-groups that it owns."""
    live, owners = query.ownership.membership.live, query.ownership.placement.present.owners
    copies = {(kg, member) for member in live for _, kg in query.ownership.copies.reported.of_member(member)}
    return copies == {(task.key_group, owner) for task, owner in owners.items()}


def test_two_lost_members_restore_only_the_key_groups_that_both_had(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """If two members are lost at once, only the key-groups whose owner and standby were both lost are restored."""
    query = query_on(spark, cluster, tmp_path, key_groups=16)
    query.feed()  # owners get copies, too
    query.catch_up()
    present = query.ownership.placement.present
    task, owner = next(iter(present.owners.items()))
    lost_ids = {owner, *present.standbys[task]}  # the two lost members have key-groups in common
    lost_members = [member for member in query.job.members() if member.id in lost_ids]
    restored_tasks = {t for t, o in present.owners.items() if {o, *present.standbys[t]} <= lost_ids}
    for member in lost_members:
        cluster.kill_worker(HOSTS.index(member.host))
    await_executors(spark, len(HOSTS) - len(lost_members))
    assert query.feed().restores == len(restored_tasks)
    query.feed_until(
        lambda: len(query.holds()) == len(HOSTS) - len(lost_members) and query.settled(), "standbys are back"
    )


def test_a_cache_starts_empty_only_for_the_keys_of_a_lost_member(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A cache starts empty for the keys of a lost member and continues for all others. The query does not fail."""
    run_workers(spark, cluster, len(HOSTS))
    settings = Settings(root=f"file://{tmp_path}/state", key_groups=8, expected_executors=len(HOSTS))
    sink, keys = CollectingSink(), spark.range(200).selectExpr("id k")
    operator = Stateful("seen", "k", aggregate(rows=count()), durable=False, settings=settings)
    job = operator.into(sink)
    for version in range(3):
        job(keys, version)
        rest(job)
    lost_member = next(member for member in job.members() if member.owned)
    owners = {key: job.where(key).owner for key in range(200)}
    cluster.kill_worker(HOSTS.index(lost_member.host))
    await_executors(spark, len(HOSTS) - 1)
    job(keys, 3)
    rows_by_key = sink.latest("k")
    assert {key: row["rows"] for key, row in rows_by_key.items()} == {
        key: 1 if owner == lost_member.id else 4 for key, owner in owners.items()
    }
    assert running(job).driver.ownership.membership.live.keys() >= set(owners.values()) - {lost_member.id}
