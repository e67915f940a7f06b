"""Racks of partitions, from a real broker that has one, and which topics to ask it about."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker, free_port
from riffle_spark.spark.engine.kafka import partition_racks
from tests.kit.folders import APPS
from tests.kit.streams.streaming import told_by

pytestmark = pytest.mark.cluster

APP = APPS / "kafka_sources_app.py"
TIMEOUT_SECONDS = 240


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker in a rack, with three topics."""
    with KafkaBroker(tmp_path_factory.mktemp("racked"), rack="zone-a") as broker:
        for topic, partitions in (("clicks", 2), ("views", 3), ("other", 1)):
            broker.create_topic(topic, partitions)
        yield broker


def test_every_partition_has_the_racks_of_its_replicas(broker: KafkaBroker) -> None:
    """All partitions of the topics that were asked about, and no others, are in the rack of the one broker."""
    found = partition_racks(broker.bootstrap, ["clicks", "views"])
    expected = [("clicks", 0), ("clicks", 1), ("views", 0), ("views", 1), ("views", 2)]
    assert found == dict.fromkeys(expected, ("zone-a",))


def test_a_topic_that_is_not_there_is_a_warning(broker: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The others' racks are told all the same."""
    with caplog.at_level(logging.WARNING, "riffle_spark"):
        assert list(partition_racks(broker.bootstrap, ["nowhere", "other"])) == [("other", 0)]
    assert ["nowhere" in record.message for record in caplog.records if record.name == "riffle_spark"] == [True]


def test_brokers_without_a_rack_give_none(kafka_broker: KafkaBroker) -> None:
    """Partitions are known, but nobody says where they are."""
    kafka_broker.create_topic("rackless", 2)
    assert partition_racks(kafka_broker.bootstrap, ["rackless"]) == {("rackless", 0): (), ("rackless", 1): ()}


def test_a_broker_that_is_not_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised, nothing is known, nothing is waited for, and no thread is left behind."""
    began, threads = time.monotonic(), set(threading.enumerate())
    with caplog.at_level(logging.WARNING, "riffle_spark"):
        assert partition_racks(f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}", ["clicks"]) == {}
    assert time.monotonic() - began < 10, "as long as a client waits"
    assert len([record for record in caplog.records if record.name == "riffle_spark"]) == 1
    assert set(threading.enumerate()) <= threads


def test_a_server_that_never_answers_is_waited_for_so_long(caplog: pytest.LogCaptureFixture) -> None:
    """The wait for a server that takes connections and says nothing has an end."""
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING, "riffle_spark"):
        assert partition_racks(f"127.0.0.1:{silent.getsockname()[1]}", ["clicks"], seconds=1) == {}
    assert time.monotonic() - began < 60
    assert len([record for record in caplog.records if record.name == "riffle_spark"]) == 1


@pytest.mark.long
def test_a_query_tells_which_topics_it_reads_and_from_where(broker: KafkaBroker, tmp_path: Path) -> None:
    """By subscription, by assignment, by pattern, and from two sources, each with its options. A query without Kafka
    tells nothing.
    """
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for topic in ("clicks", "views"):
        producer.send(topic, value=b"1", partition=0)
    producer.close()
    jars = ",".join(str(jar) for jar in connector_jars())
    told = told_by(APP, str(tmp_path), broker.bootstrap, jars, seconds=TIMEOUT_SECONDS)[-1]
    both = [broker.bootstrap, ["clicks", "views"], "set"]
    assert told == {
        "direct": None,
        "subscribe": both,
        "assign": [broker.bootstrap, ["clicks"], "set"],
        "pattern": both,
        "two": both,
        "none": None,
    }
