"""`riffle status` for a query in Spark: after its first batch, while it is idle, paused or failed, and after
its end.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.console.main import main
from tests.kit.streams.streaming import CollectingSink, Feed, records, settings_in, start, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]
KEYS = [f"key-{n}" for n in range(80)]


def _json(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    fields: dict[str, Any] = json.loads(result.output)
    return fields


def test_the_status_follows_a_query_from_its_first_batch_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    """The driver writes the status after batches, as a heartbeat while idle, and when the query stops."""
    feed = Feed(tmp_path / "in", "k string, v long")
    settings = settings_in(tmp_path, status_interval=0.5)
    compute = aggregate(rows=count(), total=sum_("v"))
    job: StatefulJob = Stateful("totals", "k", compute, settings=settings).into(CollectingSink())
    root = f"file://{tmp_path}/state"
    query = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    try:
        feed.add([{"k": key, "v": 1} for key in KEYS])
        wait_for(lambda: job.reports, "the first batch")
        wait_for((tmp_path / "state" / "status.json").exists, "the status")
        wait_for(lambda: _json("status", root)["status"]["batches"], "a batch in the status")
        first = _json("status", root)
        wait_for(lambda: _json("status", root)["facts"]["time_ms"] > first["facts"]["time_ms"] + 1000, "two heartbeats")
        shown = _json("status", root)
        assert shown["health"] == "ok"
        assert shown["facts"]["query_id"] == str(query.id)
        assert shown["status"]["batches"][0]["rows"] == len(KEYS)
        assert sum(member["owned"] for member in shown["facts"]["members"]) == settings.key_groups
        wait_for(lambda: _json("status", root)["facts"]["counters"].get("requests/status/put", 0) >= 2, "two puts")
        counters = _json("status", root)["facts"]["counters"]
        assert counters["requests/status/get"] <= 2
        owners = records(root)[-1].owners
        place = _json("where", root, KEYS[0])
        assert place["owner"]["id"] == owners[str(place["key_group"])]
    finally:
        query.stop()
    wait_for(lambda: _json("status", root)["health"] == "stopped", "the end in the status")
    assert _json("log", root)["records"][-1]["version"] == shown["version"]
    (store,) = _json("stores", root)["stores"]
    assert store["rows"] == len(KEYS)


def test_the_status_shows_a_pause_and_the_error_of_a_failed_query(spark: SparkSession, tmp_path: Path) -> None:
    """The status shows since when a query is paused, and the class of the error that ended it."""
    feed = Feed(tmp_path / "in", "k string, v long")

    def fail_in_batch_1(rows: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            raise ZeroDivisionError
        rows.collect()

    settings = settings_in(tmp_path, status_interval=0.5)
    job: StatefulJob = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(fail_in_batch_1)
    root = f"file://{tmp_path}/state"
    query = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    feed.add([{"k": key, "v": 1} for key in KEYS])
    wait_for((tmp_path / "state" / "status.json").exists, "the status")
    job.pause()
    wait_for(lambda: _json("status", root)["health"] == "paused", "the pause in the status")
    assert _json("status", root)["facts"]["paused_since_ms"] <= _json("status", root)["facts"]["time_ms"]
    job.resume()
    wait_for(lambda: _json("status", root)["health"] == "ok", "the end of the pause in the status")
    feed.add([{"k": "late", "v": 1}])
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    wait_for(lambda: _json("status", root)["health"] == "failed", "the failure in the status")
    assert _json("status", root)["facts"]["failure"]["error"] == "ZeroDivisionError"


def test_an_error_of_spark_outside_of_a_batch_is_in_the_status(spark: SparkSession, tmp_path: Path) -> None:
    """If the query fails outside of a batch, the status names the error that ended it."""
    feed = Feed(tmp_path / "in", "k string, v long")
    settings = settings_in(tmp_path, status_interval=0.5)
    job: StatefulJob = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    root = f"file://{tmp_path}/state"
    query = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    feed.add([{"k": key, "v": 1} for key in KEYS])
    wait_for((tmp_path / "state" / "status.json").exists, "the status")
    shutil.rmtree(tmp_path / "checkpoint" / "offsets")
    (tmp_path / "checkpoint" / "offsets").write_text("not a folder")
    feed.add([{"k": "late", "v": 1}])
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    wait_for(lambda: _json("status", root)["health"] == "failed", "the failure in the status")
    failure = _json("status", root)["facts"]["failure"]
    assert failure["error"].endswith(("Exception", "Error"))
