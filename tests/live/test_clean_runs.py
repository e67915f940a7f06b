"""A user's program with Spark's default logging prints no traceback, and no warning that Spark alone lacks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT
from tests.kit.pages import blocks

pytestmark = [pytest.mark.spark, pytest.mark.long]
FOLDER = "/tmp/riffle-quickstart"
WRAPPED = f"""
import riffle_spark
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.master("local[2]").getOrCreate()
rates = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
events = riffle_spark.on(
    rates, root="file://{FOLDER}/state", settings=riffle_spark.Settings(local_dir="{FOLDER}/local")
)
seconds = events.withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "1 second"))
query = (
    seconds.count().writeStream.format("console").option("checkpointLocation", "{FOLDER}/checkpoint").start()
)
while len(query.reports) < 5:
    query.awaitTermination(1)
query.stop()
"""
JOB_GROUP = "DAGScheduler: Failed to cancel job group"
SPARKS = (
    "NativeCodeLoader: Unable to load native-hadoop library",
    "ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming",
    JOB_GROUP,
    "Utils: Your hostname",
    "Utils: Set SPARK_LOCAL_IP",
)
"""Warnings that Spark alone may log for each streaming query that is stopped."""
JOB_GROUPS_MAX = 2
"""Spark cancels the jobs of a query before and after its end, and logs a warning each time if there are none."""
LEVEL = re.compile(r"\b(?:WARN|ERROR)\b (.*)")


def readme() -> str:
    """Return the README's runnable example."""
    (block,) = [block for block in blocks(CHECKOUT / "README.md") if block.info == "python runnable"]
    return block.code


def lines_of(program: str, folder: Path) -> list[str]:
    """Run a program in an empty folder and return the lines of its stderr."""
    completed = subprocess.run(
        [sys.executable, "-c", program.replace(FOLDER, str(folder))],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return [line for text in completed.stderr.splitlines() for line in text.split("\r")]


def warnings_of(lines: list[str]) -> list[str]:
    """Return the texts of the warnings and errors."""
    return [match[1] for match in map(LEVEL.search, lines) if match is not None]


@pytest.mark.parametrize("program", [readme(), WRAPPED], ids=["readme", "wrapped"])
def test_a_program_that_stops_its_query_logs_no_warning_of_riffle(program: str, tmp_path: Path) -> None:
    """A program that stops its query logs only Spark's own warnings, and no traceback."""
    lines = lines_of(program, tmp_path)
    warned = warnings_of(lines)
    assert [line for line in warned if not line.startswith(SPARKS)] == []
    assert sum(line.startswith(JOB_GROUP) for line in warned) <= JOB_GROUPS_MAX
    assert [line for line in lines if line.startswith(("\tat ", "Traceback", "java.", "py4j."))] == []
    print(f"{len(lines)} lines on stderr, {len(warned)} of them warnings")
