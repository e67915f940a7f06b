"""A streaming job on Spark Connect, which cannot share a process with a classic session: ``connect_app.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark import Settings, Stateful, aggregate, count, sum_
from riffle_spark.errors import ConfigError


def main(folder: Path) -> None:
    """Run three batches, delete Spark's last commit, and continue with a new query.

    A wrapped query is refused, and so is a second query in the same session.
    """
    SparkContext._ensure_initialized()
    os.environ["SPARK_TESTING"] = "1"  # selects a free port; the running JVM must not see it
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    settings = Settings(
        root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=8, report_file=f"{folder}/reports.jsonl"
    )
    out = str(folder / "out")

    def sink(rows: DataFrame, batch: int) -> None:
        spark.catalog.clearCache()
        assert rows.union(rows).join(rows.select("k"), "k").count() == 2 * rows.count() > 0
        rows.write.mode("overwrite").json(f"{out}/{batch:04d}")

    def run() -> None:
        job = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings).into(sink)
        source = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
        writer = source.writeStream.foreachBatch(job).option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(120):
            query.stop()
            raise TimeoutError("the query did not end")
        failed = query.exception()
        if failed is not None:
            raise failed

    with pytest.raises(ConfigError, match=r"riffle_spark\.Stateful"):
        riffle_spark.on(spark.readStream.format("rate").load(), root=f"file://{folder}/state")
    other = spark.readStream.format("rate").load().writeStream.format("noop")
    beside = other.option("checkpointLocation", f"{folder}/other").start()
    with pytest.raises(StreamingQueryException, match="RIFFLE-0277"):
        run()
    beside.stop()
    run()
    for commit_file in (folder / "checkpoint" / "commits").glob("*2*"):
        commit_file.unlink()
    (folder / "later" / "0003.json").rename(folder / "in" / "0003.json")
    run()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
