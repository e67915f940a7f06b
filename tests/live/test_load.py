"""Clusters process a key with most of the rows, more rows than memory holds, and more rows than the batches
can take.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from riffle_spark import Stateful, arrow_function
from riffle_spark.errors import UnavailableError
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_load_app import KEYS, SENT, TAKEN, TIMES
from tests.kit.streams.streaming import CollectingSink, refused_between, run_app, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[1,1,1000]"
CONF = {
    "spark.executor.memory": "1000m", "spark.executor.pyspark.memory": "3g",
    "spark.executor.extraJavaOptions": "-XX:MaxDirectMemorySize=96m",
    "spark.network.maxRemoteBlockSizeFetchToMem": "32m",  # With a larger limit Spark refuses so little memory.
}  # fmt: skip
TIMEOUT_SECONDS = 500
NUMBER = pa.schema([("n", pa.int64())])
MORE_MB = 60
"""The memory that a worker may use in any batch beyond that of the first one. Five times as much waits at the
source.
"""


@pytest.mark.timeout(900)
def test_a_batch_that_exceeds_an_executors_memory_fails_with_a_remedy(spark: SparkSession, tmp_path: Path) -> None:
    """If executors run out of memory, the error of the batch names the settings to change, and nothing is committed.
    The query continues with fewer rows per batch.
    """
    message = r"RIFFLE-0292.*code 52"
    refused, _ = refused_between(spark, tmp_path, 100_000, message)
    assert "maxOffsetsPerTrigger" in refused.remedy
    assert "spark.executor.memory" in refused.remedy


def kill_the_executor(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Kill the executor's JVM as the kernel does when memory is exhausted. Spark learns no reason."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    raise AssertionError("it takes a moment")


@pytest.mark.timeout(600)
def test_repeatedly_killed_executors_fail_the_batch_with_a_remedy(spark: SparkSession, tmp_path: Path) -> None:
    """When Spark gives up a batch because its executors are killed repeatedly, the error names the memory setting to
    raise.
    """
    kills = arrow_function(kill_the_executor, state=NUMBER, output=NUMBER)
    job = Stateful("killed", "k", kills, settings=settings_in(tmp_path, batch_attempts=1)).into(CollectingSink())
    with pytest.raises(UnavailableError, match="RIFFLE-0293") as refused:
        job(spark.range(10).selectExpr("id k"), 0)
    assert "spark.executor.memory" in refused.value.remedy


@pytest.mark.timeout(900)
def test_a_tenfold_load_grows_the_source_lag_and_not_the_memory(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """When a tenfold load arrives, the reported source lag grows and then shrinks to 0. Workers never hold more than
    one batch's rows.
    """
    kafka_broker.create_topic("load", partitions=2)
    jars = ",".join(str(jar) for jar in connector_jars())
    outcome = run_app(
        APPS / "kafka_load_app.py", str(tmp_path), kafka_broker.bootstrap, "load", jars, seconds=TIMEOUT_SECONDS
    )[0]
    lags, batches = outcome["lags"], outcome["batches"]
    print(lags, batches)
    assert set(outcome["rows_of_key"].values()) == {(TAKEN + TIMES * SENT) // KEYS}
    assert [batch["runs"] for batch in batches] == [1] * len(batches)
    assert max(batch["rows"] for batch in batches) <= TAKEN
    assert max(lags) > (TIMES - 1) * SENT / 2, "the lag of the fuller of two partitions"
    assert lags[-1] == 0
    worked_off = lags[lags.index(max(lags)) :]
    assert worked_off == sorted(worked_off, reverse=True)
    assert max(batch["peak_mb"] for batch in batches) < batches[0]["peak_mb"] + MORE_MB
