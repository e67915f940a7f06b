"""Imports that are killed before their end: no query takes their files for state, and the command can run again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.verify import verify
from riffle_spark.spark.imports.import_checkpoint import import_checkpoint
from tests.kit.folders import APPS
from tests.kit.streams.apps.import_app import STEPS, counts, wrapped
from tests.kit.streams.streaming import Feed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.newer_spark,
    pytest.mark.needs_spark4("the source statestore"),
]

TIMEOUT_SECONDS = 150


def run(frame: DataFrame, checkpoint: Path) -> list[tuple[int, int]]:
    """Run a query to the end of its input and return its output."""
    rows = list[tuple[int, int]]()
    writer = frame.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.foreachBatch(lambda batch, _: rows.extend(map(tuple, batch.collect()))).start().awaitTermination()
    return sorted(rows)


def import_until(folder: Path, step: str) -> None:
    """Run an import in a new process, which is killed at the step."""
    command = [sys.executable, str(APPS / "import_app.py"), str(folder), step]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-4000:]


def retried(spark: SparkSession, folder: Path) -> None:
    """Run the import again."""
    query = wrapped(spark, folder).writeStream.outputMode("update")
    import_checkpoint(f"file://{folder}/state", f"{folder}/spark", lambda _: query, spark=spark, execute=True)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_import_can_be_repeated_once_its_files_are_deleted(
    spark: SparkSession, step: str, tmp_path: Path
) -> None:
    """After a killed import no query runs and no import writes in the root. Once its files are deleted, the import
    succeeds.
    """
    feed = Feed(tmp_path / "in", "k long")
    feed.add([{"k": k} for k in range(50)] * 2)
    new_checkpoint, state = tmp_path / "spark-riffle", tmp_path / "state"
    assert len(run(counts(feed.stream(spark)), tmp_path / "spark")) == 50
    feed.add([{"k": k} for k in range(10)])
    import_until(tmp_path, step)
    assert any(state.rglob("snapshot/*"))
    assert (Checkpoint(str(new_checkpoint)).find_query_id() is None) == (step != "copied")
    with pytest.raises(ConfigError) as refused:
        retried(spark, tmp_path)
    assert refused.value.id == "RIFFLE-0411"
    if step == "copied":
        with pytest.raises(StreamingQueryException, match="RIFFLE-0209"):
            run(wrapped(spark, tmp_path), new_checkpoint)
    shutil.rmtree(state)
    if step != "writing":
        with pytest.raises(ConfigError) as refused:
            retried(spark, tmp_path)
        assert refused.value.id == "RIFFLE-1620"
        shutil.rmtree(new_checkpoint)
    retried(spark, tmp_path)
    assert run(wrapped(spark, tmp_path), new_checkpoint) == [(k, 3) for k in range(10)]
    assert verify(f"file://{state}").is_whole
