"""A streaming job that waits for a line, and then kills itself and Spark: ``crashing_app.py FOLDER STEP BATCH``."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from apps.demo.servers.guard import descendants
from riffle_spark import Stateful, aggregate, count, sum_
from tests.kit.streams.streaming import Feed, run_to_end, settings_in

RETURNED = "returned"
"""The step after the last one: the function of ``foreachBatch`` returned, and Spark has not logged the commit."""


def running_totals(folder: Path) -> riffle_spark.StatefulJob:
    """Return the job under test. It writes every delivery into a new folder with a random name."""

    def sink(rows: DataFrame, batch: int, delivery: str) -> None:
        rows.withColumn("delivery", F.lit(delivery)).write.json(f"{folder}/out/{uuid.uuid4().hex}")

    compute = aggregate(rows=count(), total=sum_("v"))
    return Stateful("totals", "k", compute, settings=settings_in(folder)).into(sink)


def die() -> None:
    """Kill Spark and this process without any clean-up, as when the machine fails."""
    for pid in [*descendants(os.getpid())[1:], os.getpid()]:
        os.kill(pid, signal.SIGKILL)


def main(folder: Path, step: str, batch: int) -> None:
    """Run the job until it reaches the step in the batch."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder, kafka=False).getOrCreate()
    sys.stdin.readline()
    job = running_totals(folder)
    now = [-1]

    def reached(at: str) -> None:
        if (at, now[0]) == (step, batch):
            die()

    def run(frame: DataFrame, number: int) -> None:
        now[0] = number
        job(frame, number)
        reached(RETURNED)

    job._reached = reached  # private: tests may set it
    feed = Feed(folder / "in", "k long, v long")
    run_to_end(feed.stream(spark), run, folder / "checkpoint")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
