"""A running query adapts on real executors without an operator.

Owners move to the racks of their rows. A member with a full disk loses its tasks. A member that returns restores
nothing with ``assignor="sticky"``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import SparkSession

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker, StandaloneCluster
from riffle_spark import Stateful, StatefulJob, aggregate, count, keygroups, sum_
from riffle_spark.protocol.ownership import quarantine
from tests.kit.failing_disks import own_disk
from tests.kit.streams import live_query as live
from tests.kit.streams.live_query import LiveQuery, await_executors, master_of, run_workers
from tests.kit.streams.streaming import PATIENCE_SECONDS, CollectingSink, running, settings_in, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONF = dict(live.CONF)
RACKS = ("a", "b")
ENVIRONMENTS = [{"RIFFLE_RACK": rack} for rack in RACKS]
I1, I2 = "127.0.0.2", "127.0.0.3"
TOPIC, GROUPS = "keyed", 8
PARTITION_OF = {"a": 0, "b": 1}
"""The partition whose broker is in each rack."""


@pytest.fixture(scope="module")
def master(cluster: StandaloneCluster) -> str:
    """Return the cluster's master URL, and add the Kafka connector to the session's configuration."""
    CONF["spark.jars"] = ",".join(map(str, connector_jars()))
    return master_of(cluster)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Start a Kafka cluster of two brokers, one per rack. The topic has one partition on each broker."""
    with KafkaBroker(tmp_path / "one", rack="a") as first, KafkaBroker(tmp_path / "two", "b", first) as second:
        for broker in (first, second):
            broker.wait_until_ready()
        admin = KafkaAdminClient(bootstrap_servers=first.bootstrap)
        wait_for(lambda: len(admin.describe_cluster()["brokers"]) == len(RACKS), "both brokers have joined")
        admin.create_topics({TOPIC: {"assignments": {0: [1], 1: [2]}}}, wait_for_metadata=True)
        admin.close()
        yield first


class KeyedQuery:
    """A query on the topic. Each batch has ten keys per key-group, and ``sent`` is the number of batches."""

    def __init__(self, spark: SparkSession, folder: Path, broker: KafkaBroker) -> None:
        names = [f"key-{number}" for number in range(400)]
        groups = keygroups.key_groups([pa.array(names)], GROUPS).tolist()
        self.keys = {g: [k for k, of in zip(names, groups, strict=True) if of == g][:10] for g in range(GROUPS)}
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        self.sent, self.kept = 0, CollectingSink()
        settings = settings_in(
            folder, rack_aware_assignment_strategy="min_cost", num_standbys=1, expected_executors=2,
            local_dir=None, acceptable_recovery_lag=15, probing_rebalance_interval=0.001,
        )  # fmt: skip
        totals = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings)
        self.job: StatefulJob = totals.into(self.kept)
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        source = source.option("subscribe", TOPIC).option("startingOffsets", "earliest")
        rows = source.option("maxOffsetsPerTrigger", "10000").load()
        rows = rows.selectExpr("cast(key as string) k", "cast(cast(value as string) as long) v", "partition")
        self.query = start(rows, self.job, folder / "checkpoint", processingTime="100 milliseconds")

    def send(self, partition_of: dict[int, int] | None = None) -> None:
        """Send one row per key, to the partition of its key-group or to a random one, and wait for the batch."""
        reports_before, self.sent = len(self.job.reports), self.sent + 1
        for group, keys in self.keys.items():
            for key in keys:
                partition = partition_of[group] if partition_of else random.Random(f"{key} {self.sent}").randrange(2)
                self._producer.send(TOPIC, key=key.encode(), value=b"1", partition=partition)
        self._producer.flush()
        wait_for(lambda: self._is_through(reports_before), "the batch has ended")
        assert self.query.exception() is None
        latest = self.kept.latest("k")
        assert all(latest[k] == {"rows": self.sent, "total": self.sent} for keys in self.keys.values() for k in keys)

    def _is_through(self, reports: int) -> bool:
        rows = sum(len(rows) for rows in self.kept.deliveries.values())
        is_complete = rows >= self.sent * sum(map(len, self.keys.values())) and len(self.job.reports) > reports
        return is_complete or self.query.exception() is not None

    def racks(self) -> dict[int, str]:
        """Return the rack of each key-group's owner."""
        of = {member.id: str(member.rack) for member in self.job.members()}
        owners = running(self.job).driver.ownership.placement.present.owners
        return {task.key_group: of[owner] for task, owner in owners.items()}

    def stop(self) -> None:
        """Stop the query and close the producer."""
        self.query.stop()
        self._producer.close()


def test_owners_follow_the_racks_of_a_keyed_topic(
    spark: SparkSession, cluster: StandaloneCluster, brokers: KafkaBroker, tmp_path: Path
) -> None:
    """Owners move to the rack that the rows of their key-groups come from.

    Rows from random partitions cause no move. If all rows of each key-group come from the other rack, the owners are
    exchanged within 25 batches, and then no owner moves any more.
    """
    run_workers(spark, cluster, 2)
    keyed = KeyedQuery(spark, tmp_path, brokers)
    try:
        keyed.send()
        while len({*keyed.racks().values()}) < len(RACKS):
            keyed.send()
            assert keyed.sent < 50, "both executors own some"
        before = keyed.racks()
        for _ in range(8):
            keyed.send()
        assert keyed.racks() == before
        assert sorted(before.values()) == ["a"] * 4 + ["b"] * 4
        expected = {group: "b" if rack == "a" else "a" for group, rack in before.items()}
        partition_of = {group: PARTITION_OF[rack] for group, rack in expected.items()}
        began = len(keyed.job.reports)
        while keyed.racks() != expected:
            keyed.send(partition_of)
            assert len(keyed.job.reports) - began < 25, (keyed.racks(), expected)
        keyed.send(partition_of)
        moved = [move for report in list(keyed.job.reports)[began:] for move in report.moves if move["role"] == "owner"]
        assert {move["key_group"] for move in moved} == set(expected)
        last_move = len(keyed.job.reports)
        for _ in range(5):
            keyed.send(partition_of)
        assert [
            move for report in list(keyed.job.reports)[last_move:] for move in report.moves if move["role"] == "owner"
        ] == []
        assert keyed.racks() == expected
    finally:
        keyed.stop()


def test_a_member_with_a_full_disk_has_no_tasks_until_the_disk_has_room(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose disk is fuller than the limit hands over all its tasks without a restore, and gets its share back
    when the disk has room again.
    """
    monkeypatch.setattr(quarantine, "_MEASURE_SECONDS", 0.2)  # private: sooner
    run_workers(spark, cluster, 2)
    query = LiveQuery(spark, tmp_path, num_standbys=1)
    query.feed_until(
        lambda: query.holds().keys() == {I1, I2} and query.settled(), "both members have a copy of every key-group"
    )
    assert {host: len(owned) for host, (owned, _, _) in query.holds().items()} == {I1: 4, I2: 4}
    query.feed(2)
    query.catch_up()
    (member,) = (member.id for member in query.job.members() if member.host == I1)
    (folder,) = cluster.local_folder(0).glob(f"*/{member}")
    with own_disk(folder) as disk:
        if "tmpfs" not in disk.how:
            pytest.skip("only who may mount can give a folder a disk of its own")
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(int(0.92 * 24 * 2**20)))
        reports = query.feed_until(
            lambda: query.holds()[I1] == (set(), set(), set()), "the member on the full disk is empty"
        )
        assert [report.restores for report in reports] == [0] * len(reports)
        assert any("RIFFLE-0763" in text and member in text for report in reports for text in report.warnings)
        query.rest()
        assert list(folder.glob("totals/*")) == []
        ballast.unlink()
        reports = query.feed_until(
            lambda: len(query.holds()[I1][0]) == 4 and query.settled(), "the member has its share again"
        )
        assert query.holds()[I2][0] | query.holds()[I1][0] == set(range(8))
        query.feed(2)


def test_a_returning_member_restores_nothing_under_sticky(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A member that returns with its folder gets its key-groups back, and no batch restores one or fetches a
    snapshot.
    """
    run_workers(spark, cluster, 2)
    query = LiveQuery(spark, tmp_path, assignor="sticky")
    query.feed_until(lambda: query.holds().keys() == {I1, I2}, "both are members")
    query.feed(2)
    owned_groups = query.holds()[I1][0]
    assert len(owned_groups) == 4
    cluster.kill_worker(0)
    await_executors(spark, 1)
    query.feed(2)
    assert query.holds()[I2][0] == set(range(8))
    cluster.return_worker(0)
    await_executors(spark, 2)
    deadline = time.monotonic() + PATIENCE_SECONDS
    reports = query.feed_until(
        lambda: query.holds().get(I1, (set(),))[0] == owned_groups, "the member has its key-groups again"
    )
    assert time.monotonic() < deadline
    reports.append(query.feed())
    assert [(report.restores, report.fetched_snapshot_bytes) for report in reports] == [(0, 0)] * len(reports)
