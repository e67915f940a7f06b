"""The options of Kafka's source, as a query's plan has them. No broker is needed: files stand in for the topics."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count
from riffle_spark.spark.engine.kafka import KafkaSource, kafka_of, unbounded_batches
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in

pytestmark = pytest.mark.spark

SERVERS = "127.0.0.1:9"
"""A port at which nothing listens."""


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with one batch."""
    feed = Feed(tmp_path / "in", "k long")
    feed.add([{"k": 1}, {"k": 2}])
    return feed


def stream(spark: SparkSession, feed: Feed, **options: str) -> DataFrame:
    """Return the feed's stream with options of Kafka's source, which the source of files ignores."""
    servers = options.pop("servers", SERVERS)
    reader = spark.readStream.schema(feed.schema).options(**options)
    return reader.option("kafka.bootstrap.servers", servers).json(str(feed.folder))


def test_the_topics_of_the_first_cluster_are_found(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """The topics of all sources that read the first cluster are found, by subscribe and by assign."""
    sources = [
        stream(spark, feed, subscribe="views, clicks"),
        stream(spark, feed, assign='{"other": [0, 1]}', maxOffsetsPerTrigger="10"),
        stream(spark, feed, servers="127.0.0.1:8", subscribe="far"),
        stream(spark, feed, subscribePattern="no.*"),
    ]
    seen: list[tuple[KafkaSource | None, str | None]] = []
    rows = sources[0]
    for source in sources[1:]:
        rows = rows.union(source)
    run_to_end(rows, lambda batch, _: seen.append((kafka_of(batch), unbounded_batches(batch))), tmp_path / "c")
    (kafka, warning), *_ = seen
    assert kafka is not None
    assert (kafka.servers, kafka.topics) == (SERVERS, ("clicks", "other", "views"))
    assert warning is not None
    assert "RIFFLE-0652" in warning


def test_a_limit_per_batch_and_other_sources_cause_no_warning(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A query with a limit per batch and a query without Kafka cause no warning. The latter has no Kafka source."""
    seen: list[tuple[bool, str | None]] = []
    for number, rows in enumerate((feed.stream(spark), stream(spark, feed, subscribe="a", maxOffsetsPerTrigger="5"))):
        joined = rows.join(spark.createDataFrame([(1,)], "k long"), "k")
        run_to_end(
            joined,
            lambda batch, _: seen.append((kafka_of(batch) is None, unbounded_batches(batch))),
            tmp_path / f"c{number}",
        )
    assert seen == [(True, None), (False, None)]


def test_a_job_runs_without_the_racks_of_a_kafka_that_does_not_answer(
    spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If Kafka cannot tell its racks, a warning names its topics and servers, and the batch is committed."""
    settings = settings_in(tmp_path, rack_aware_assignment_strategy="min_traffic", member_racks=(("*", "a"),))
    kept = CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(kept)
    with caplog.at_level(logging.WARNING, logger="riffle_spark"):
        run_to_end(stream(spark, feed, subscribe="clicks"), job, tmp_path / "c")
    assert kept.latest("k") == {1: {"rows": 1}, 2: {"rows": 1}}
    (warned,) = [message for message in caplog.messages if "RIFFLE-0279" in message]
    assert "clicks" in warned
    assert SERVERS in warned
