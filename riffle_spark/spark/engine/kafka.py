"""Find the Kafka topics that the running query reads, and the racks of their partitions."""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.inventory import latest_offsets, source_options
from riffle_spark.spark.engine.jvm_errors import first_line

_logger = logging.getLogger("riffle_spark")
_KAFKA = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"
_LIMITS = ("kafka.request.timeout.ms", "kafka.default.api.timeout.ms")
_ADMIN_CLASSES = tuple(f"{prefix}org.apache.kafka.clients.admin.AdminClient" for prefix in ("", "kafkashaded."))
"""Databricks has Kafka's classes in a package of its own."""
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
    spark: SparkSession, source: KafkaSource, seconds: float = _TIMEOUT_SECONDS
) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the racks of all replicas by (topic, partition), without duplicates and sorted.

    Kafka's Java client has the options of the source, so it logs in and encrypts as the source does. It waits at most
    ``seconds`` for each answer. Partitions are left out, with a warning, if Kafka cannot be reached, refuses the
    credentials or lacks the topic.
    """
    try:
        jvm = handles.context(spark)._jvm
        admin = _open_admin(jvm, source, seconds)
        try:
            return dict(_described_racks(jvm, admin, source.topics, seconds))
        finally:
            admin.close(handles.looked_up(jvm, "java.time.Duration", "ofMillis")(0))
    except Exception as error:  # noqa: BLE001 - racks are an optimisation, so no error may fail the batch
        # Cause: Kafka did not answer or refused the login, or the driver's class path lacks Kafka's client.
        _logger.warning(
            "[RIFFLE-0279] Cannot read the racks of %s at %s, so placement ignores the racks of the input: %s\n"
            "  What to do: Let the driver reach Kafka with the options of the source, and restart the query.",
            ", ".join(source.topics),
            source.servers,
            first_line(error),
        )
        return {}


def _open_admin(jvm: Any, source: KafkaSource, seconds: float) -> Any:
    """Return Kafka's administration client with the options of a source. Raise ``LookupError`` without that class."""
    properties = handles.looked_up(jvm, "java.util.HashMap")()
    limits = dict.fromkeys(_LIMITS, str(int(seconds * 1000)))
    for name, value in {**source.options, **limits}.items():
        if name.startswith(_KAFKA):
            properties.put(name.removeprefix(_KAFKA), value)
    for admin_class in _ADMIN_CLASSES:
        with suppress(TypeError):  # Py4J treats the name of a missing class as a package
            return handles.looked_up(jvm, admin_class, "create")(properties)
    raise LookupError("Kafka's client is not on the driver's class path.")


def _described_racks(
    jvm: Any, admin: Any, topics: Sequence[str], seconds: float
) -> Iterator[tuple[tuple[str, int], tuple[str, ...]]]:
    """Yield ((topic, partition), racks of its replicas). Warns of topics that Kafka does not describe."""
    wait = int(seconds * 1000), handles.looked_up(jvm, "java.util.concurrent.TimeUnit", "MILLISECONDS")
    as_list = handles.looked_up(jvm, "java.util.ArrayList")
    racks = {node.id(): node.rack() for node in as_list(admin.describeCluster().nodes().get(*wait))}
    names = as_list()
    for topic in topics:
        names.add(topic)
    described = admin.describeTopics(names).topicNameValues()
    for topic in topics:
        try:
            partitions = described.get(topic).get(*wait).partitions()
        except Exception as error:  # noqa: BLE001 - Py4J raises what the JVM raises
            # Cause: Kafka has no such topic, or the user may not describe it. Placement ignores the racks of this
            # topic.
            _logger.warning(
                "[RIFFLE-0280] Cannot read the racks of topic %s: %s\n"
                "  What to do: Check that the topic exists and that the query's user may describe it.",
                topic,
                first_line(error),
            )
            continue
        for partition in partitions:
            replica_racks = {racks.get(node.id()) for node in partition.replicas()}
            yield (topic, int(partition.partition())), tuple(sorted(filter(None, replica_racks)))
