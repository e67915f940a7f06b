"""Which Kafka the running query reads. Knows its plan and its offset log, through the JVM. Does not ask Kafka."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from riffle_spark.spark.inventory import running_query

__all__ = ["kafka_of"]

_logger = logging.getLogger("riffle_spark")
_BOOTSTRAP = "kafka.bootstrap.servers"


def kafka_of(batch: DataFrame) -> tuple[str, tuple[str, ...]] | None:
    """Return the bootstrap servers and the topics that the running query reads, from inside ``foreachBatch``.

    ``None`` if it reads no Kafka, or where that cannot be known, as with Spark Connect. Of several clusters it is the
    first, with its topics.
    """
    try:
        execution = running_query(batch)
        kafka = [options for options in _source_options(execution) if _BOOTSTRAP in options]
        if not kafka:
            return None
        servers = kafka[0][_BOOTSTRAP]
        topics = {topic for options in kafka if options[_BOOTSTRAP] == servers for topic in _topics(options, execution)}
    except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: racks are never a condition
        _logger.warning("which Kafka the query reads cannot be found out: %s", str(error).split("\n")[0])
        return None
    return servers, tuple(sorted(topics))


def _source_options(execution: Any) -> list[dict[str, str]]:
    """Return the options of each source of the plan that has some, their names in lower case."""
    if execution is None:
        return []
    leaves = execution.analyzedPlan().collectLeaves()
    found = [leaves.apply(at) for at in range(leaves.size())]
    streams = [leaf for leaf in found if leaf.getClass().getSimpleName() == "StreamingRelationV2"]
    return [{str(name).lower(): str(value) for name, value in leaf.extraOptions().items()} for leaf in streams]


def _topics(options: Mapping[str, str], execution: Any) -> Iterable[str]:
    if "subscribe" in options:
        return [topic.strip() for topic in options["subscribe"].split(",")]
    if "assign" in options:
        return list(json.loads(options["assign"]))
    pattern = re.compile(options["subscribepattern"])
    return [topic for topic in _topics_read(execution) if pattern.fullmatch(topic)]


def _topics_read(execution: Any) -> list[str]:
    """Return the topics that the latest offsets are of: after version and metadata a line a source, Kafka's a map from
    topic to partitions.
    """
    latest = execution.offsetLog().getLatest()
    lines = [str(offset.get()) for offset in _items(latest.get()._2().offsets())] if latest.isDefined() else []
    read = [json.loads(line) for line in lines if line.startswith("{")]
    return [topic for offsets in read for topic, partitions in offsets.items() if isinstance(partitions, dict)]


def _items(seq: Any) -> list[Any]:
    return [item for item in (seq.apply(at) for at in range(seq.size())) if item.isDefined()]
