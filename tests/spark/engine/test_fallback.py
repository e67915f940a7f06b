"""If slots cannot be placed, rows are hashed to them: there is one warning, and the results are the same, also on Spark
Connect.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Stateful, aggregate, count, sum_
from riffle_spark.errors import ConfigError
from riffle_spark.spark import compat
from riffle_spark.spark.engine import cluster, inventory, jvm
from riffle_spark.spark.engine.task import RunReceipts
from tests.kit.folders import APPS
from tests.kit.streams.streaming import CollectingSink, Feed, rest, run_to_end, running, settings_in

pytestmark = pytest.mark.spark

APP = APPS / "connect_app.py"
TIMEOUT_SECONDS = 240
WARNING = "RIFFLE-0653"


def batch(number: int) -> list[dict[str, object]]:
    """Return the 30 rows of a batch, with three keys."""
    return [{"k": n % 3, "v": number} for n in range(30)]


def test_a_spark_without_the_placed_plan_gets_hash_placement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the JVM lacks the class for placement, the query logs one warning and has the same results."""
    monkeypatch.setattr(jvm, "scala_seq", lambda gateway, items: gateway.org.apache.spark.riffle.NoSuchSeq(len(items)))
    feed = Feed(tmp_path / "in", "k long, v long")
    for number in range(3):
        feed.add(batch(number))
    rows = CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings_in(tmp_path)).into(rows)
    with caplog.at_level(logging.WARNING, logger="riffle_spark"):
        run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert [message for message in caplog.messages if WARNING in message] == caplog.messages[:1] != []
    assert rows.latest("k") == {k: {"rows": 30, "total": 30} for k in range(3)}
    assert [(report.rows, report.misses) for report in job.reports] == [(30, 0)] * 3
    assert not any(report.placed for report in job.reports)


@pytest.mark.long
def test_snapshots_are_taken_without_placement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing can be placed, upkeep still takes snapshots, and no batch warns of a failed snapshot."""
    monkeypatch.setattr(jvm, "scala_seq", lambda gateway, items: gateway.org.apache.spark.riffle.NoSuchSeq(len(items)))
    settings = settings_in(tmp_path, snapshot_chain_links=3)
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    for number in range(6):
        job(spark.range(24).selectExpr("id k"), number)
        rest(job)
    assert not any(report.placed for report in job.reports)
    assert sum(report.snapshots for report in job.reports) >= 8
    assert [warning for report in job.reports for warning in report.warnings if "snapshot" in warning] == []


def test_batches_run_on_a_spark_without_metrics_or_release_of_results(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If Spark offers neither metrics nor release of a result, the driver counts rows and reads receipts from the
    result itself, and logs a warning.
    """

    def no_such(*_: object) -> None:
        raise AttributeError("no such method")

    for name in ("observed", "release"):
        monkeypatch.setattr(jvm, name, no_such)
    monkeypatch.setattr(compat, "cogrouped_in_jvm", no_such)
    monkeypatch.setattr(RunReceipts, "addInPlace", lambda *known: known[1])
    rows = CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(rows)
    with caplog.at_level(logging.WARNING, logger="riffle_spark"):
        job(spark.range(24).selectExpr("id k"), 0)
    assert rows.latest("k") == {k: {"rows": 1} for k in range(24)}
    assert job.reports[0].rows == 24
    assert any("RIFFLE-0654" in message for message in caplog.messages)


@pytest.mark.long
@pytest.mark.needs_spark4("local checkpoints on Spark Connect")
def test_spark_connect_keeps_state_and_recognises_repeated_batches(tmp_path: Path) -> None:
    """On Spark Connect, without a JVM handle, state is kept and a repeated batch is recognised by the digest of its
    rows. There is one warning per start.
    """
    feed = Feed(tmp_path / "in", "k long, v long")
    for number in range(4):
        feed.add(batch(number))
    (tmp_path / "later").mkdir()
    (feed.folder / "0003.json").rename(tmp_path / "later" / "0003.json")
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "spark")}
    done = subprocess.run(
        [sys.executable, str(APP), str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=environment,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    reports = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    ran = [(0, "run"), (1, "run"), (2, "run"), (2, "repeat"), (3, "run")]
    assert [(report["version"], report["decision"]) for report in reports] == ran
    assert not any(report["placed"] for report in reports if report["decision"] == "run")
    assert len({report["query_id"] for report in reports}) == 1
    lines = [line for file in (tmp_path / "out" / "0003").glob("*.json") for line in file.read_text().splitlines()]
    totals = {row["k"]: (row["rows"], row["total"]) for row in map(json.loads, lines)}
    assert totals == dict.fromkeys(range(3), (40, 60))
    assert output.count(WARNING) == 2, "one warning for each start of the query"


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the session as one of Spark Connect. Whatever uses the JVM then raises ``NoJvm``."""
    for module in (jvm, cluster):
        monkeypatch.setattr(module, "is_classic", lambda _: False)


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.needs_spark4("local checkpoints on Spark Connect")
def test_a_batch_needs_no_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """Without the JVM, state is kept, and a repeated batch is recognised by the digest of its rows."""
    sink, settings = CollectingSink(), settings_in(tmp_path, key_groups=16)
    job = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings).into(sink)
    for batch_id in (0, 1, 1):
        job(spark.range(30).selectExpr("id % 3 AS k", f"{batch_id}L AS v"), batch_id)
    assert [report.decision for report in job.reports] == ["run", "run", "repeat"]
    assert sink.latest("k") == {k: {"rows": 20, "total": 10} for k in range(3)}
    assert not any(report.placed for report in job.reports if report.decision == "run")
    assert inventory.find_planned_removals(spark, ["7"]) == frozenset()
    running(job).stop()


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.needs_spark4("local checkpoints on Spark Connect")
def test_without_a_jvm_the_query_of_a_batch_must_be_the_only_one(spark: SparkSession, tmp_path: Path) -> None:
    """Without the JVM a batch does not show its query, so a session may run one query only. A wrapped query is
    refused.
    """
    rates = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="RIFFLE-0303"):
        riffle_spark.on(rates, root=f"file://{tmp_path}/state")
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(CollectingSink())
    writer = rates.writeStream.format("noop")
    queries = [writer.option("checkpointLocation", f"{tmp_path}/{number}").start() for number in range(2)]
    try:
        with pytest.raises(ConfigError, match="RIFFLE-0277") as refused:
            job(spark.range(3).selectExpr("id k"), 0)
        assert "separate session" in refused.value.remedy
    finally:
        for query in queries:
            query.stop()
