"""Find the Kafka topics that the running query reads, and the racks of their partitions."""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from riffle_spark.offline.kafka_client import administrator
from riffle_spark.spark.engine.inventory import latest_offsets, source_options
from riffle_spark.spark.engine.kafka_security import security_of

__all__ = ["KafkaSource", "kafka_of", "partition_racks", "unbounded_batches"]

_logger = logging.getLogger("riffle_spark")
_BOOTSTRAP = "kafka.bootstrap.servers"
_MAX_OFFSETS = "maxOffsetsPerTrigger"
_TIMEOUT_SECONDS = 10.0


class KafkaSource(NamedTuple):
    """The Kafka cluster and topics of a query, and the connection options of its source."""

    servers: str
    topics: tuple[str, ...]
    options: Mapping[str, str]


def kafka_of(batch: DataFrame) -> KafkaSource | None:
    """Return the Kafka cluster and the topics that the running query reads. Call it inside ``foreachBatch``.

    Return ``None`` if the query does not read Kafka, or if that is unknown, as with Spark Connect. If it reads several
    clusters, return the first one with its topics.
    """
    try:
        sources = _kafka_options(batch)
        if not sources:
            return None
        servers = sources[0][_BOOTSTRAP]
        topics = {topic for options in sources if options[_BOOTSTRAP] == servers for topic in _topics(options, batch)}
    except Exception as error:  # noqa: BLE001 - racks are an optimisation, so no error may fail the batch
        # Cause: Spark did not return the options of the source. Placement ignores the racks of the input.
        _logger.warning(
            "[RIFFLE-0278] Cannot read the query's Kafka options: %s\n"
            "  What to do: Do nothing. Batches run, and owners are placed without the racks of the input.",
            str(error).split("\n")[0],
        )
        return None
    return KafkaSource(servers, tuple(sorted(topics)), sources[0])


def _kafka_options(batch: DataFrame) -> list[dict[str, str]]:
    """Return the options of the query's Kafka sources, with names in lower case."""
    return [options for options in source_options(batch) if _BOOTSTRAP in options]


def unbounded_batches(batch: DataFrame) -> str | None:
    """Return a warning if a batch of the running query may hold all rows of Kafka. Call it inside ``foreachBatch``.

    ``minOffsetsPerTrigger`` and ``maxTriggerDelay`` delay a batch but do not bound it.
    """
    try:
        sources = _kafka_options(batch)
    except Exception as error:  # noqa: BLE001 - a missing warning must not fail the batch
        _logger.debug("Cannot read the options of the query's sources: %s", error)
        return None
    if all(_MAX_OFFSETS.lower() in options for options in sources):
        return None
    return (
        f"[RIFFLE-0652] The Kafka source has no {_MAX_OFFSETS}, and a slot holds its rows of a batch in memory.\n"
        "  What to do: Set it to the number of rows that a batch should read."
    )


def _topics(options: Mapping[str, str], batch: DataFrame) -> Iterable[str]:
    """Return the topics that a source with these options reads."""
    if "subscribe" in options:
        return [topic.strip() for topic in options["subscribe"].split(",")]
    if "assign" in options:
        return list(json.loads(options["assign"]))
    pattern = re.compile(options["subscribepattern"])
    return [topic for topic in _topics_read(batch) if pattern.fullmatch(topic)]


def _topics_read(batch: DataFrame) -> list[str]:
    """Return the topics in the query's latest offsets. Kafka's offsets map topics to partitions."""
    sources = [json.loads(text) for text in latest_offsets(batch) if text.startswith("{")]
    return [topic for offsets in sources for topic, partitions in offsets.items() if isinstance(partitions, dict)]


def partition_racks(
    bootstrap: str,
    topics: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({}),
    seconds: float = _TIMEOUT_SECONDS,
) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the racks of all replicas by (topic, partition), without duplicates and sorted.

    ``options`` are the options of the Kafka source: the client logs in and encrypts as the source does. It waits at
    most ``seconds`` to connect, and for each of three answers. Partitions are left out, with a warning, if Kafka cannot
    be reached, refuses the credentials or lacks the topic, or if only Java's client can connect.
    """
    servers = [server.strip() for server in bootstrap.split(",")]
    try:
        brokers, described = _describe(servers, topics, security_of(options), seconds)
        racks = {int(_field(broker, "broker_id", "node_id")): broker["rack"] or None for broker in brokers}
        return dict(_partition_racks(described, racks))
    except Exception as error:  # noqa: BLE001 - racks are an optimisation, so no error may fail the batch
        # Cause: Kafka did not answer or refused the login, or only Java's client supports the source's options.
        _logger.warning(
            "[RIFFLE-0279] Cannot read the racks of %s at %s, so placement ignores the racks of the input: %s\n"
            "  What to do: Let the driver reach Kafka with the options of the source, and restart the query.",
            ", ".join(topics),
            bootstrap,
            error,
        )
        return {}


def _describe(
    servers: Sequence[str], topics: Sequence[str], security: Mapping[str, Any], seconds: float
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return Kafka's descriptions of the brokers and of the topics."""
    with administrator(servers, seconds, security) as admin:
        return admin.describe_cluster()["brokers"], admin.describe_topics(list(topics))


def _partition_racks(
    described: Iterable[Mapping[str, Any]], racks: Mapping[int, str | None]
) -> Iterable[tuple[tuple[str, int], tuple[str, ...]]]:
    """Yield ((topic, partition), racks of its replicas). Warns of topics that Kafka does not describe.

    ``described`` are Kafka's descriptions of topics, ``racks`` has the rack of each broker.
    """
    for topic in described:
        name = str(_field(topic, "name", "topic"))
        error_code = topic["error_code"]
        if error_code:
            # Cause: Kafka has no such topic, or the user may not describe it. Placement ignores the racks of this
            # topic.
            _logger.warning(
                "[RIFFLE-0280] Cannot read the racks of topic %s: Kafka error code %s\n"
                "  What to do: Check that the topic exists and that the query's user may describe it.",
                name,
                error_code,
            )
            continue
        for partition in topic["partitions"]:
            replica_racks = {racks.get(node) for node in _field(partition, "replica_nodes", "replicas")}
            yield (
                (name, int(_field(partition, "partition_index", "partition"))),
                tuple(sorted(filter(None, replica_racks))),
            )


def _field(body: Mapping[str, Any], name: str, former_name: str) -> Any:
    """Return a field by its name, or by its name before kafka-python 3."""
    return body[name] if name in body else body[former_name]
