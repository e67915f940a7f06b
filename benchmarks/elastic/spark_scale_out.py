"""Measure the same scale-out with Spark's own stateful operator.

A checkpoint fixes the number of state partitions, and Spark 4.0 has no tool to change it. The fastest way that works:

1. Stop the query.
2. Read its state with the ``statestore`` source and write it to files.
3. Start another query with a new checkpoint. Its first batch reads the state as input.

That needs an aggregate that can be computed from its own results, such as count, sum or maximum. Any other operator
needs its input again, or initial state that is passed to ``transformWithState`` key by key.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from benchmarks.elastic.data import Feed, Size
from benchmarks.elastic.stage import Stage, wait_for

__all__ = ["spark_scale_out"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTIAL = "key long, count long, total long, vector binary"
STEADY = 3
SHA_BYTES = 64


def spark_scale_out(size: Size, folder: Path) -> dict[str, object]:
    """Fill a query with two state partitions, and change it to four. Return the times and bytes."""
    with Stage(folder, workers=2) as stage:
        baseline_feed = Feed(folder / "before", size)
        after = folder / "after"
        spark = stage.session(**_conf())
        query = _start(spark, _partials(spark, baseline_feed.folder, size), folder / "checkpoint-2", partitions=2)
        for number in baseline_feed.fill():
            _await_batch(query, number)
        for _ in range(STEADY):
            _await_batch(query, baseline_feed.steady())
        steady = [entry["durationMs"]["triggerExecution"] / 1000 for entry in query.recentProgress[-STEADY:]]
        stage.cluster.add_worker(), stage.cluster.add_worker()
        stage.await_executors(4)
        return {
            **_moved(spark, query, after, folder),
            "spark_steady_batch_s": round(sorted(steady)[STEADY // 2], 2),
            "spark_state_bytes": size.state_bytes,
        }


def _conf() -> dict[str, str]:
    return {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.files.maxPartitionBytes": "32m",
        "spark.sql.adaptive.enabled": "false",
    }


def _moved(spark: SparkSession, query: StreamingQuery, after: Path, folder: Path) -> dict[str, object]:
    """Move the state to a query with four partitions. The measured time is the time without batches."""
    started = time.monotonic()
    query.stop()
    state = spark.read.format("statestore").load(str(folder / "checkpoint-2"))
    # The columns of the state are named by the functions, so two sums have the same name. Only their order differs.
    value = F.col("value").cast("struct<count: long, total: long, vector: binary>").alias("value")
    rows = state.select("key.key", value).select("key", "value.*")
    rows.write.option("compression", "none").parquet(str(after))
    exported = time.monotonic()
    stream = spark.readStream.schema(PARTIAL).parquet(str(after))
    query = _start(spark, stream, folder / "checkpoint-4", partitions=4)
    _await_batch(query, 0)
    ended = time.monotonic()
    progress = query.lastProgress
    assert progress is not None
    keys = progress["stateOperators"][0]["numRowsTotal"]
    query.stop()
    return {
        "spark_rescale_s": round(ended - started, 1),
        "spark_export_s": round(exported - started, 1),
        "spark_rewritten_bytes": _bytes_below(after) + _bytes_below(folder / "checkpoint-4" / "state"),
        "spark_keys": keys,
    }


def _partials(spark: SparkSession, folder: Path, size: Size) -> DataFrame:
    """Return the feed as partial aggregates: a count of one, the amount, and incompressible bytes."""
    rows = spark.readStream.schema("key long, amount long").option("maxFilesPerTrigger", 1).parquet(str(folder))
    digest = "unhex(sha2(concat_ws(':', key, amount, '{}'), 512))"
    vector = F.expr(f"concat({', '.join(digest.format(n) for n in range(size.vector_bytes // SHA_BYTES))})")
    count = F.lit(1).cast("long")
    return rows.select("key", count.alias("count"), F.col("amount").alias("total"), vector.alias("vector"))


def _start(spark: SparkSession, partials: DataFrame, checkpoint: Path, partitions: int) -> StreamingQuery:
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    totals = partials.groupBy("key").agg(F.sum("count"), F.sum("total"), F.max("vector"))
    writer = totals.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def _await_batch(query: StreamingQuery, number: int) -> None:
    def is_done() -> bool:
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        return query.lastProgress is not None and query.lastProgress["batchId"] >= number

    wait_for(f"batch {number}", is_done)


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
