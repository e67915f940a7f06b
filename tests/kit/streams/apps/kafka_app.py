"""Streaming jobs that read Kafka, with and without rate limits: ``kafka_app.py FOLDER BOOTSTRAP TOPIC JARS``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import riffle_spark
from riffle_spark import Stateful, StatefulJob, aggregate, count, last
from riffle_spark.spark.queries.stream_query import StreamQuery
from tests.kit.quiet import KeptWarnings
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, CollectingSink, running, settings_in, start

BOUND = {"maxOffsetsPerTrigger": "40"}
AT_LEAST = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1s"}
VERSION_1 = "spark.sql.streaming.disabledV2MicroBatchReaders"
KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
REPORTS = "reports.jsonl"
NOW: dict[str, Any] = {"availableNow": True}
ALWAYS: dict[str, Any] = {"processingTime": "0 seconds"}
JOBS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("bounded", BOUND, NOW),
    ("bounded", BOUND, ALWAYS),
    ("bounded", {**BOUND, **AT_LEAST}, NOW),
    ("unbounded", {}, NOW),
    ("unbounded", AT_LEAST, ALWAYS),
    ("once", BOUND, {"once": True}),
    ("wrapped bounded", BOUND, NOW),
    ("wrapped bounded", BOUND, ALWAYS),
    ("wrapped unbounded", {}, NOW),
    ("version 1 bounded", BOUND, ALWAYS),
    ("version 1 unbounded", {}, ALWAYS),
]


def main(folder: Path, bootstrap: str, topic: str, jars: str) -> None:
    """Run each job until it has read the topic, and print a line of JSON per job."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder).getOrCreate()
    warnings = KeptWarnings()
    logging.getLogger("riffle_spark").addHandler(warnings)
    for number, (name, options, trigger) in enumerate(JOBS):
        spark.conf.set(VERSION_1, KAFKA if name.startswith("version 1") else "")
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", topic).option("startingOffsets", "earliest").options(**options)
        events = source.load().selectExpr("cast(key as string) k", "cast(value as string) v", "partition", "offset")
        warnings.messages.clear()
        sink = CollectingSink()
        begin = wrapped if name.startswith("wrapped") else by_job
        query, job = begin(events, sink, folder / str(number), trigger)
        if trigger is ALWAYS:
            query.processAllAvailable()
            query.stop()
        else:
            query.awaitTermination(QUERY_TIMEOUT_SECONDS)
        batches = [report.rows for report in job.reports if report.rows]
        if job._running is not None:  # private: a query that was stopped during a batch has no running driver
            running(job).stop()
        line = {"name": name, "warned": warnings.messages, "batches": batches, "latest": sink.latest("k")}
        print(json.dumps({**line, "lags": source_lags(folder / str(number) / REPORTS)}))
    spark.stop()


def source_lags(reports: Path) -> list[int]:
    """Return the source lag in records after each batch with rows, summed over partitions."""
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    return [
        sum(value for sample, value in line["readings"].items() if sample.startswith("riffle_source_lag_records{"))
        for line in lines
        if line["rows"]
    ]


def by_job(
    events: DataFrame, sink: CollectingSink, folder: Path, trigger: dict[str, Any]
) -> tuple[StreamingQuery, StatefulJob]:
    """Start a job in ``foreachBatch``, and return the query and the job."""
    compute = aggregate(rows=count(), last=last("v"))
    order = ["partition", "offset"]
    settings = settings_in(folder, report_file=str(folder / REPORTS))
    job = Stateful("events", "k", compute, settings=settings, order_by=order).into(sink)
    return start(events, job, folder / "checkpoint", **trigger), job


def wrapped(
    events: DataFrame, sink: CollectingSink, folder: Path, trigger: dict[str, Any]
) -> tuple[StreamingQuery, StatefulJob]:
    """Start a wrapped query, and return the query and its job."""

    def keep(rows: DataFrame, batch_id: int) -> None:
        sink(rows, batch_id, f"{batch_id}")

    groups = riffle_spark.on(events, settings=settings_in(folder, report_file=str(folder / REPORTS))).groupBy("k")
    counted = groups.agg(F.count("*").alias("rows"), F.max_by("v", "offset").alias("last"))
    writer = counted.writeStream.outputMode("update").foreachBatch(keep).trigger(**trigger)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert isinstance(query, StreamQuery)
    return query, query.job


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
