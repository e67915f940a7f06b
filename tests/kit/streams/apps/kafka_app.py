"""Streaming jobs that read Kafka, bounded and not: ``kafka_app.py FOLDER BOOTSTRAP TOPIC JARS``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Stateful, aggregate, count, last
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Kept, settings_in, start

BOUND = {"maxOffsetsPerTrigger": "40"}
JOBS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("bounded", BOUND, {"availableNow": True}),
    ("bounded", BOUND, {"processingTime": "0 seconds"}),
    ("unbounded", {}, {"availableNow": True}),
    ("unbounded", {}, {"processingTime": "0 seconds"}),
]


class Warnings(logging.Handler):
    """Keeps what riffle warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(record.getMessage())


def main(folder: Path, bootstrap: str, topic: str, jars: str) -> None:
    """Run each job until it has read the topic; print a line of JSON a job."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder).getOrCreate()
    warnings = Warnings()
    logging.getLogger("riffle_spark").addHandler(warnings)
    for number, (name, options, trigger) in enumerate(JOBS):
        own = folder / str(number)
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", topic).option("startingOffsets", "earliest").options(**options)
        events = source.load().selectExpr("cast(key as string) k", "cast(value as string) v", "partition", "offset")
        kept = Kept()
        compute = aggregate(rows=count(), last=last("v"))
        order = ["partition", "offset"]
        job = Stateful("events", "k", compute, settings=settings_in(own), order_by=order).into(kept)
        warnings.messages.clear()
        query = start(events, job, own / "checkpoint", **trigger)
        if "availableNow" in trigger:
            query.awaitTermination(QUERY_TIMEOUT_SECONDS)
        else:
            query.processAllAvailable()
            query.stop()
        told = [message for message in warnings.messages if "maxOffsetsPerTrigger" in message]
        batches = [report.rows for report in job.reports if report.rows]
        print(json.dumps({"name": name, "warned": len(told), "batches": batches, "latest": kept.latest("k")}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
