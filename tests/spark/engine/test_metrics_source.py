"""A query is a source of Spark's MetricsSystem: every sink gets its totals until the query ends."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from riffle_spark import Stateful, StatefulJob, aggregate, count
from riffle_spark.observe.readings import readings
from riffle_spark.observe.totals import totals
from riffle_spark.spark.engine.metrics_source import source_name
from tests.kit.streams.streaming import CollectingSink, Feed, running, settings_in, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

CONF = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.metrics.conf.driver.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    "spark.metrics.conf.driver.sink.prometheusServlet.path": "/metrics/prometheus",
}
LINE = re.compile(r'metrics_.+_driver_plugin_riffle_(.+)_[0-9a-f]{8}_(riffle_\w+)_Value\{type="gauges"\} (\S+)')


def served(spark: SparkSession) -> dict[str, dict[str, float]]:
    """Return the metrics that the servlet in the driver's UI shows, by query and name."""
    port = str(spark.sparkContext.uiWebUrl).rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/prometheus", timeout=30) as answer:
        found = LINE.findall(answer.read().decode())
    values: dict[str, dict[str, float]] = {}
    for query, name, value in found:
        values.setdefault(query, {})[name] = float(value)
    return values


def start(spark: SparkSession, folder: Path, name: str | None) -> tuple[StatefulJob, StreamingQuery]:
    """Start a query, and wait until its two batches of ten rows have run."""
    feed = Feed(folder / "in", "k string")
    for _ in range(2):
        feed.add({"k": f"secret{n}"} for n in range(10))
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(folder)).into(CollectingSink())
    writer = feed.stream(spark).writeStream.foreachBatch(job).option("checkpointLocation", str(folder / "checkpoint"))
    query = (writer.queryName(name) if name else writer).start()
    wait_for(lambda: len(job.reports) == 2 or not query.isActive, "two batches")
    return job, query


@pytest.fixture
def two_queries(spark: SparkSession, tmp_path: Path) -> Iterator[list[tuple[StatefulJob, StreamingQuery]]]:
    """Two queries. One name is a prefix of the other."""
    queries = [start(spark, tmp_path / "a", "clicks"), start(spark, tmp_path / "b", "clicks 2")]
    yield queries
    for _, query in queries:
        query.stop()


def test_each_query_has_its_totals_in_the_servlet_until_it_stops(
    spark: SparkSession, two_queries: list[tuple[StatefulJob, StreamingQuery]]
) -> None:
    """The servlet shows the values of the readings. The metrics of a stopped query disappear, and those of the other
    query stay.
    """
    wait_for(lambda: {"clicks", "clicks_2"} <= served(spark).keys(), "both sources")
    (first, first_query), (_, second_query) = two_queries
    driver = running(first).driver
    expected = {
        name.replace(".", "_"): value
        for name, value in totals(readings(first.reports[-1], driver.facts())).items()
        if not re.search("seconds|requests|upkeep|bytes|ratio", name)
    }
    assert expected["riffle_rows_total"] == 20
    wait_for(lambda: served(spark)["clicks"].items() >= expected.items(), f"the values {expected}")
    assert not re.search("secret", str(served(spark)))
    first_query.stop()
    wait_for(lambda: "clicks" not in served(spark), "the end of the source of the stopped query")
    assert served(spark)["clicks_2"]["riffle_rows_total"] == 20
    second_query.stop()
    wait_for(lambda: not served(spark), "the end of the source of the second query")


@pytest.mark.long
def test_a_restarted_query_has_a_source_with_totals_from_zero(spark: SparkSession, tmp_path: Path) -> None:
    """A restarted query has a source of the same name, even if the old source still exists, and its totals start at
    zero.
    """
    settings = settings_in(tmp_path)
    feed = Feed(tmp_path / "in", "k string")
    for number in range(2):
        feed.add({"k": f"k{n}"} for n in range(10))
        job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
        writer = feed.stream(spark).writeStream.queryName("again").foreachBatch(job)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            expected = {"riffle_batch_version": number, "riffle_rows_total": 10}
            wait_for(lambda: served(spark).get("again", {}).items() >= expected.items(), f"the totals {expected}")  # noqa: B023
        finally:
            query.stop()
    wait_for(lambda: not served(spark), "the end of the source")


def test_no_source_name_is_a_prefix_of_another() -> None:
    """No source name is a prefix of another, because Spark removes metrics by the prefix of their source."""
    names = [source_name("0a1b2c3d-4e5f", name) for name in ("", "a", "a-b", "a.b", "query", "é")]
    assert names[0] == "riffle-query-0a1b2c3d"
    assert not [one for one in set(names) for other in set(names) - {one} if other.startswith(one)]
