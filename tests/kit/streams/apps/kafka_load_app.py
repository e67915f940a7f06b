"""A topic that for some batches receives ten times the rows that a batch reads.

Usage: ``kafka_load_app.py FOLDER BOOTSTRAP TOPIC JARS``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark import Stateful, aggregate, count, max_
from tests.kit.streams.streaming import settings_in, start

TAKEN, SENT, TIMES, KEYS, ROW_BYTES = 10_000, 100_000, 3, 1_000, 1_000
"""The most rows per batch, the rows sent during each of the first batches, and the number of these batches.

The others are the number of keys and the bytes per row.
"""
READ_SECONDS = 400


def main(folder: Path, bootstrap: str, topic: str, jars: str) -> None:
    """Read the whole topic, and print a line of JSON from the reports of batches and from Spark's progress."""
    builder = SparkSession.builder.master("local-cluster[2,1,800]").config("spark.executor.memory", "800m")
    builder = builder.config("spark.ui.enabled", "false").config("spark.jars", jars).config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder.config("spark.sql.shuffle.partitions", "2")).getOrCreate()
    to_kafka = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    rows_of_key: dict[str, int] = {}

    def send(rows: int) -> None:
        values = f"repeat('x', {ROW_BYTES})"
        messages = spark.range(rows).selectExpr(f"cast(id % {KEYS} as string) key", f"{values} value")
        messages.write.format("kafka").options(**to_kafka).save()

    def sink(rows: DataFrame, batch_id: int) -> None:
        rows_of_key.update({row["key"]: row["rows"] for row in rows.collect()})
        if batch_id < TIMES:
            send(SENT)

    send(TAKEN)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", TAKEN)
    events = source.load().selectExpr("cast(key as string) key", "cast(value as string) value")
    longest = aggregate(rows=count(), longest=max_("value"))
    job = Stateful("load", "key", longest, settings=settings_in(folder)).into(sink)
    query = start(events, job, folder / "checkpoint", processingTime="0 seconds")
    expected_rows = TAKEN + TIMES * SENT
    until = time.monotonic() + READ_SECONDS
    while sum(rows_of_key.values()) < expected_rows and query.exception() is None and time.monotonic() < until:
        time.sleep(1)
    query.processAllAvailable()
    progress: list[dict[str, Any]] = [json.loads(event.json) for event in query.recentProgress]
    query.stop()
    batches = [{"rows": report.rows, "runs": report.runs, "peak_mb": report.peak_memory_mb} for report in job.reports]
    lags = [
        int(event["sources"][0]["metrics"]["maxOffsetsBehindLatest"]) for event in progress if event["numInputRows"]
    ]
    print(json.dumps({"batches": batches, "lags": lags, "rows_of_key": rows_of_key}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
