"""Which Kafka the running query reads, and which racks hold its partitions."""

import contextlib
import json
import logging
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from pyspark.sql import DataFrame

from riffle_spark.spark.engine.inventory import latest_offsets, runs_once, source_options
from riffle_spark.spark.engine.kafka_security import security_of

__all__ = ["KafkaSource", "kafka_of", "partition_racks", "unbounded_batches"]

_logger = logging.getLogger("riffle_spark")
_BOOTSTRAP = "kafka.bootstrap.servers"
_MOST = "maxOffsetsPerTrigger"
_TIMEOUT_SECONDS = 10.0
_LIMITS = ("request_timeout_ms", "bootstrap_timeout_ms")


class KafkaSource(NamedTuple):
    """The cluster and topics that a query reads, and the options of its source, which say how to connect."""

    servers: str
    topics: tuple[str, ...]
    options: Mapping[str, str]


def kafka_of(batch: DataFrame) -> KafkaSource | None:
    """Return the Kafka cluster and the topics that the running query reads, from inside ``foreachBatch``.

    ``None`` if it reads no Kafka, or if that cannot be known, as with Spark Connect. Of several clusters it is the
    first, with its topics.
    """
    try:
        kafka = [options for options in source_options(batch) if _BOOTSTRAP in options]
        if not kafka:
            return None
        servers = kafka[0][_BOOTSTRAP]
        topics = {topic for options in kafka if options[_BOOTSTRAP] == servers for topic in _topics(options, batch)}
    except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: racks are never a condition
        _logger.warning("[RIFFLE-0278] which Kafka the query reads cannot be found out: %s", str(error).split("\n")[0])
        return None
    return KafkaSource(servers, tuple(sorted(topics)), kafka[0])


def unbounded_batches(batch: DataFrame) -> str | None:
    """Return a warning if a batch of the running query takes all that Kafka has, from inside ``foreachBatch``.

    ``minOffsetsPerTrigger`` and ``maxTriggerDelay`` delay a batch and do not bound it.
    """
    try:
        kafka = [options for options in source_options(batch) if _BOOTSTRAP in options]
        ignored = bool(kafka) and runs_once(batch)
    except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: a warning must not fail a batch
        _logger.debug("the options of the query's sources are unknown: %s", error)
        return None
    risk = "and a slot holds its rows of a batch in memory"
    if any(_MOST.lower() not in options for options in kafka):
        return f"the Kafka source has no {_MOST}, {risk}. Set it to the number of rows that a batch should take"
    if ignored:
        return f"trigger(once=True) ignores {_MOST}, {risk}. Use trigger(availableNow=True)"
    return None


def _topics(options: Mapping[str, str], batch: DataFrame) -> Iterable[str]:
    if "subscribe" in options:
        return [topic.strip() for topic in options["subscribe"].split(",")]
    if "assign" in options:
        return list(json.loads(options["assign"]))
    pattern = re.compile(options["subscribepattern"])
    return [topic for topic in _topics_read(batch) if pattern.fullmatch(topic)]


def _topics_read(batch: DataFrame) -> list[str]:
    """Return the topics that the latest offsets are of: Kafka's are a map from topic to partitions."""
    read = [json.loads(text) for text in latest_offsets(batch) if text.startswith("{")]
    return [topic for offsets in read for topic, partitions in offsets.items() if isinstance(partitions, dict)]


def partition_racks(
    bootstrap: str,
    topics: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({}),
    seconds: float = _TIMEOUT_SECONDS,
) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the racks of all replicas by (topic, partition), each once and sorted. Brokers without a rack add none.

    ``options`` are those of Kafka's source: this client logs in and encrypts as the source does. Waits at most
    ``seconds`` for a server and for each of three answers. Partitions whose racks stay unknown are left out, with a
    warning: Kafka cannot be reached or refuses the credentials, only Java's client can connect, or a topic is missing.
    """
    servers = [server.strip() for server in bootstrap.split(",")]
    try:
        brokers, described = _described(servers, topics, security_of(options), seconds)
        racks = {int(_of(broker, "broker_id", "node_id")): broker["rack"] or None for broker in brokers}
        return dict(_each_partition(described, racks))
    except Exception as error:  # noqa: BLE001 - racks make traffic cheaper: whatever fails must not fail a batch
        _logger.warning("[RIFFLE-0279] the racks of %s at %s stay unknown: %s", ", ".join(topics), bootstrap, error)
        return {}


def _described(
    servers: Sequence[str], topics: Sequence[str], security: Mapping[str, Any], seconds: float
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    if not any(_answers(server, seconds / len(servers)) for server in servers):
        raise ConnectionError("no server answers")
    limits = {name: int(seconds * 1000) for name in _LIMITS if name in KafkaAdminClient.DEFAULT_CONFIG}
    admin = _Administrator(bootstrap_servers=list(servers), **limits, **security)
    try:
        return admin.describe_cluster()["brokers"], admin.describe_topics(list(topics))
    finally:
        admin.close()


class _Administrator(KafkaAdminClient):  # type: ignore[misc]
    """A client that leaves no thread behind if the server refuses it."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except BaseException:
            self._closed = False  # it is set at the end of the base class's __init__, and close() looks at it
            with contextlib.suppress(Exception):
                self.close()
            raise


def _answers(server: str, seconds: float) -> bool:
    """Tell whether a server can be connected to: a client that cannot would leave its thread behind."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds):
            return True
    except OSError:
        return False


def _each_partition(
    described: Iterable[Mapping[str, Any]], racks: Mapping[int, str | None]
) -> Iterable[tuple[tuple[str, int], tuple[str, ...]]]:
    for topic in described:
        name = str(_of(topic, "name", "topic"))
        if topic["error_code"]:
            _logger.warning(
                "[RIFFLE-0280] the racks of topic %s stay unknown: Kafka's error code %s", name, topic["error_code"]
            )
            continue
        for partition in topic["partitions"]:
            held = {racks.get(node) for node in _of(partition, "replica_nodes", "replicas")}
            yield (name, int(_of(partition, "partition_index", "partition"))), tuple(sorted(filter(None, held)))


def _of(body: Mapping[str, Any], name: str, before: str) -> Any:
    """Return a value by its name, or by the one that it had before kafka-python 3."""
    return body[name] if name in body else body[before]
