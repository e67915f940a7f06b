"""Requests from outside pause and resume a query. A query that could not read the second request is not paused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from riffle_spark import Settings, Stateful, StatefulJob, aggregate, count
from riffle_spark.console.main import main
from riffle_spark.protocol.batch.stored_requests import read_requests
from tests.kit.streams.streaming import CollectingSink, Feed, records, settings_in, start, wait_for

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a query that reads requests."""
    return settings_in(tmp_path, control="on")


@pytest.fixture
def job(settings: Settings) -> StatefulJob:
    """A job that counts by key."""
    return Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())


def ask(settings: Settings, command: str, *options: str) -> str:
    """Run a command of an operator, and return its output."""
    result = CliRunner().invoke(main, [command, str(settings.root), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_request_pauses_a_query_until_it_is_resumed_or_started_again(
    spark: SparkSession, tmp_path: Path, settings: Settings, job: StatefulJob
) -> None:
    """A request pauses an idle query, and its next batch waits for the request that resumes it.

    A query that is stopped during the pause runs after its next start.
    """
    feed = Feed(tmp_path / "in", "k long")
    feed.add([{"k": 1}])
    query = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    wait_for(lambda: len(job.reports) == 1, "the first batch")
    assert json.loads(ask(settings, "pause", "--wait", "--json"))["state"] == "applied"
    feed.add([{"k": 1}])
    wait_for(lambda: query.status["isTriggerActive"], "the next batch waits")
    assert (job.paused, len(job.reports)) == (True, 1)
    assert json.loads(ask(settings, "resume", "--wait", "--json"))["state"] == "applied"
    wait_for(lambda: len(job.reports) == 2, "the batch that waited")
    assert json.loads(ask(settings, "pause", "--wait", "--json"))["state"] == "applied"
    job.stop(query)
    assert (query.isActive, job.paused) == (False, True)
    feed.add([{"k": 1}])
    query = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    wait_for(lambda: len(job.reports) == 3, "the restarted query is not paused")
    query.stop()


def test_a_query_that_reads_no_requests_between_batches_is_not_paused(
    spark: SparkSession, settings: Settings, job: StatefulJob
) -> None:
    """A request to pause is refused if the query reads no requests between batches, because it could not be resumed."""
    rows = spark.range(3).selectExpr("id AS k")
    job(rows, 0)
    ask(settings, "pause")
    job(rows, 1)
    (answer,) = read_requests(records(str(settings.root))[-1].orders).answers
    assert (answer.state, job.paused) == ("refused", False)
    assert answer.error_id == "RIFFLE-1359"
