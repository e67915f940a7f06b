"""The racks of topic partitions, from a real broker with a rack, and the topics of a query."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_sources_app import PLAIN
from tests.kit.streams.streaming import run_app

pytestmark = pytest.mark.cluster

APP = APPS / "kafka_sources_app.py"
TIMEOUT_SECONDS = 240
LOGIN = f"""
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config={PLAIN} required user_riffle="a secret";
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker in a rack, with three topics."""
    folder = tmp_path_factory.mktemp("racked")
    with KafkaBroker(folder, rack="zone-a", secured={"LOGIN": "SASL_PLAINTEXT"}, properties=LOGIN) as broker:
        for topic, partitions in (("clicks", 2), ("views", 3), ("other", 1)):
            broker.create_topic(topic, partitions)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        for topic in ("clicks", "views"):
            producer.send(topic, value=b"1", partition=0)
        producer.close()
        yield broker


@pytest.fixture(scope="module")
def outputs(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The racks that the broker reports, and the topics that queries read."""
    jars = ",".join(str(jar) for jar in connector_jars())
    folder = str(tmp_path_factory.mktemp("queries"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"
        secured = broker.bootstrap_of("LOGIN")
        return run_app(APP, folder, broker.bootstrap, secured, silent, jars, seconds=TIMEOUT_SECONDS)


def test_every_partition_has_the_racks_of_its_replicas(outputs: list[dict[str, Any]]) -> None:
    """The result has all partitions of the requested topics and no others, in the broker's rack."""
    racks, warnings, _ = outputs[0]["all"]
    partitions = [["clicks", 0], ["clicks", 1], ["views", 0], ["views", 1], ["views", 2]]
    assert (sorted(racks), warnings) == ([[partition, ["zone-a"]] for partition in partitions], [])


def test_a_missing_topic_is_a_warning(outputs: list[dict[str, Any]]) -> None:
    """A missing topic causes one warning, and the racks of the other topic are returned."""
    racks, warnings, _ = outputs[0]["missing"]
    assert racks == [[["other", 0], ["zone-a"]]]
    assert ["nowhere" in warning and "RIFFLE-0280" in warning for warning in warnings] == [True]


def test_the_client_logs_in_as_the_source_does(outputs: list[dict[str, Any]]) -> None:
    """The client logs in with the options of the Kafka source. A wrong password causes one warning that does not
    contain it.
    """
    racks, warnings, _ = outputs[0]["login"]
    assert (sorted(racks), warnings) == ([[["clicks", number], ["zone-a"]] for number in range(2)], [])
    racks, warnings, _ = outputs[0]["refused"]
    assert racks == []
    assert ["RIFFLE-0279" in warning and "hunter2" not in warning for warning in warnings] == [True]


def test_the_wait_for_a_server_that_never_answers_times_out(outputs: list[dict[str, Any]]) -> None:
    """The wait for a server that accepts connections and never answers has a timeout."""
    racks, warnings, seconds = outputs[0]["silent"]
    assert (racks, len(warnings)) == ([], 1)
    assert seconds < 30


def test_the_topics_and_options_of_a_query_are_found(broker: KafkaBroker, outputs: list[dict[str, Any]]) -> None:
    """The topics and options of a query are found for subscribe, assign, pattern and two sources. A query without Kafka
    has none.
    """
    both = [broker.bootstrap, ["clicks", "views"], "set"]
    assert outputs[1] == {
        "direct": None,
        "subscribe": both,
        "assign": [broker.bootstrap, ["clicks"], "set"],
        "pattern": both,
        "two": both,
        "none": None,
    }
