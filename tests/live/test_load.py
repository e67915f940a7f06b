"""A key with most of a query's rows, more rows than fit, and more than batches take, on clusters."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from riffle_spark import Stateful, aggregate, arrow_function, count, sum_
from riffle_spark.errors import UnavailableError
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_load_app import KEYS, SENT, TAKEN, TIMES
from tests.kit.streams.streaming import Kept, refused_between, settings_in, told_by

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[1,1,1000]"
CONF = {
    "spark.executor.memory": "1000m", "spark.executor.pyspark.memory": "3g",
    "spark.executor.extraJavaOptions": "-XX:MaxDirectMemorySize=96m",
    "spark.network.maxRemoteBlockSizeFetchToMem": "32m",  # Spark refuses to start with as little memory for more.
}  # fmt: skip
TIMEOUT_SECONDS = 500
NUMBER = pa.schema([("n", pa.int64())])
MORE_MB = 60
"""More than the first batch, a worker takes at most so much in any other; five times as much waits at the source."""


def test_a_key_with_most_rows_is_counted_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    """One slot takes nine rows of ten, batch after batch, and no slot runs twice."""
    rows, kept = 1_000_000, Kept()
    job = Stateful("hot", "k", aggregate(rows=count(), total=sum_("v")), settings=settings_in(tmp_path)).into(kept)
    for batch in range(2):
        job(spark.range(rows).selectExpr("if(id % 10 > 0, 0, id) k", "1L v"), batch)
    latest = kept.latest("k")
    assert latest[0] == {"rows": 2 * (rows // 10 * 9 + 1), "total": 2 * (rows // 10 * 9 + 1)}
    assert len(latest) == rows // 10
    assert {row["rows"] for key, row in latest.items() if key} == {2}
    assert [report.runs for report in job.reports] == [1, 1]


@pytest.mark.timeout(900)
def test_the_most_key_groups_there_can_be_are_served_by_one_slot(spark: SparkSession, tmp_path: Path) -> None:
    """Each of the 32 768 changes with every batch, and the next start finds them all; objects stay a slot's."""
    keys, most, kept, settings = 300_000, 32_768, Kept(), settings_in(tmp_path, key_groups=32_768)
    for batch in range(3):
        if batch in {0, 2}:
            job = Stateful("most", "k", aggregate(rows=count(), total=sum_("v")), settings=settings).into(kept)
        job(spark.range(keys).selectExpr("id k", "1L v"), batch)
        assert (job.reports[-1].runs, sum(job.reports[-1].owners.values())) == (1, most)
    latest = kept.latest("k")
    assert len(latest) == keys
    assert {(row["rows"], row["total"]) for row in latest.values()} == {(3, 3)}
    assert len([path for path in (tmp_path / "state").rglob("*") if path.is_file()]) < 60
    assert len([path for path in (tmp_path / "local").rglob("*") if path.is_file()]) < 2 * most


@pytest.mark.timeout(900)
def test_rows_beyond_an_executors_memory_are_refused_with_what_to_change(spark: SparkSession, tmp_path: Path) -> None:
    """Executors that died of a batch are told of in our words, nothing is committed, and with fewer rows it goes on."""
    told = r"RIFFLE-0292.*code 52"
    refused, _ = refused_between(spark, tmp_path, 100_000, told)
    assert "maxOffsetsPerTrigger" in refused.remedy
    assert "spark.executor.memory" in refused.remedy


def kill_the_executor(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """End the JVM that this worker computes for, as a kernel out of memory does: Spark is told of no reason."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    raise AssertionError("it takes a moment")


@pytest.mark.timeout(600)
def test_executors_that_are_killed_again_and_again_are_told_of(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives the batch up; what it says of it names no setting, and ours does."""
    kills = arrow_function(kill_the_executor, state=NUMBER, output=NUMBER)
    job = Stateful("killed", "k", kills, settings=settings_in(tmp_path, batch_attempts=1)).into(Kept())
    with pytest.raises(UnavailableError, match="RIFFLE-0293") as refused:
        job(spark.range(10).selectExpr("id k"), 0)
    assert "spark.executor.memory" in refused.value.remedy


@pytest.mark.timeout(900)
def test_ten_times_the_rows_that_batches_take_wait_at_the_source(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """The lag that Spark's progress tells grows and is worked off; workers never hold more than a batch's rows."""
    kafka_broker.create_topic("load", partitions=2)
    jars = ",".join(str(jar) for jar in connector_jars())
    told = told_by(
        APPS / "kafka_load_app.py", str(tmp_path), kafka_broker.bootstrap, "load", jars, seconds=TIMEOUT_SECONDS
    )[0]
    lags, batches = told["lags"], told["batches"]
    print(lags, batches)
    assert set(told["rows_of_key"].values()) == {(TAKEN + TIMES * SENT) // KEYS}
    assert [batch["runs"] for batch in batches] == [1] * len(batches)
    assert max(batch["rows"] for batch in batches) <= TAKEN
    assert max(lags) > (TIMES - 1) * SENT / 2, "the fullest partition of two"
    assert lags[-1] == 0
    worked_off = lags[lags.index(max(lags)) :]
    assert worked_off == sorted(worked_off, reverse=True)
    assert max(batch["peak_mb"] for batch in batches) < batches[0]["peak_mb"] + MORE_MB
