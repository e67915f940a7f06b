"""Frequent errors when a wrapped query is started for the first time: riffle's error names the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with a batch."""
    feed = Feed(tmp_path / "in", "page string, n long")
    feed.add([{"page": "a", "n": 1}])
    return feed


def counted(events: DataFrame, checkpoint: Path | str) -> Any:
    """Return a writer of counts by page."""
    writer = events.groupBy("page").count().writeStream.outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


@pytest.mark.long
def test_a_checkpoint_with_sparks_own_state_is_refused(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A checkpoint with Spark's own state of the same query is refused. The query runs with a new checkpoint."""
    counted(feed.stream(spark), tmp_path / "c").format("noop").start().awaitTermination()
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    with pytest.raises(ConfigError, match="new checkpointLocation") as caught:
        counted(events, tmp_path / "c").format("noop").start()
    assert caught.value.id == "RIFFLE-1129"
    counted(events, tmp_path / "c2").format("noop").start().awaitTermination()
    counted(events, tmp_path / "c2").format("noop").start().awaitTermination()


@pytest.mark.long
@pytest.mark.parametrize(
    ("format_name", "remedy"), [("kafka", "riffle_spark.configure"), ("delta", "delta-spark"), ("nope", "--packages")]
)
def test_a_sink_whose_jar_is_missing_is_refused_with_the_jar(
    spark: SparkSession, feed: Feed, tmp_path: Path, format_name: str, remedy: str
) -> None:
    """A sink whose connector is missing is refused, and the error names the package to add."""
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    with pytest.raises(ConfigError, match=remedy) as caught:
        counted(events, tmp_path / "c").format(format_name).start()
    assert caught.value.id == "RIFFLE-1127"


@pytest.mark.parametrize(
    ("scheme", "remedy"),
    [("s3a", "hadoop-aws:3"), pytest.param("s3", "s3a://", marks=pytest.mark.long), ("gs", "connector")],
)
def test_a_checkpoint_whose_file_system_is_missing_is_refused_with_its_jar(
    spark: SparkSession, feed: Feed, tmp_path: Path, scheme: str, remedy: str
) -> None:
    """A checkpoint on a file system without its Hadoop connector is refused, and the error names the jar."""
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    with pytest.raises(ConfigError, match=remedy) as caught:
        counted(events, f"{scheme}://bucket/c").format("noop").start()
    assert caught.value.id == "RIFFLE-1128"


@pytest.mark.parametrize(
    "group",
    [
        lambda events: events.groupBy("user").count(),
        lambda events: events.groupBy("page", "USER").count(),
        lambda events: events.groupBy("current_user").count(),
    ],
)
def test_a_missing_column_named_user_is_not_sparks_user(
    spark: SparkSession, feed: Feed, tmp_path: Path, group: Callable[[DataFrame], DataFrame]
) -> None:
    """A query that groups by a missing column ``user`` is refused. Spark would group by the operating system's user."""
    events = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    with pytest.raises(ConfigError, match=r"current_user\(\)") as caught:
        group(events).writeStream.outputMode("update").format("noop").start()
    assert caught.value.id == "RIFFLE-1126"
