"""Jobs with different dispatch over a topic that grows: ``kafka_dispatch_app.py FOLDER BOOTSTRAP TOPIC JARS``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewPartitions
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Stateful, aggregate, count, last, switch_dispatch
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, CollectingSink, records, settings_in, start

OLD, NEW, ROWS = range(6), (12, 13, 22, 23), 5
PHASES = (("partition", OLD), ("partition", (*OLD, *NEW)), ("key_group", (*OLD, *NEW)), ("hashed", (*OLD, *NEW)))


def partition_of(keys: pa.Table) -> pa.Table:
    """Return the topic and partition to which each key was produced."""
    numbers = [_partition(int(key[1:])) for key in keys["k"].to_pylist()]
    return pa.table({"topic": [TOPIC] * len(numbers), "partition": numbers})


def _partition(number: int) -> int:
    return number % 10 if number in NEW else number % 2


def produce(bootstrap: str, numbers: tuple[int, ...], phase: int) -> None:
    """Send rows of each key to the partition of the key."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for index in range(ROWS):
        for number in numbers:
            value = f"{phase}-{index}".encode()
            producer.send(TOPIC, key=f"k{number}".encode(), value=value, partition=_partition(number))
    producer.close()


def main(folder: Path, bootstrap: str, jars: str) -> None:
    """Run the phases, each until it has read the whole topic, and print a line of JSON per phase."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder).getOrCreate()
    sink, before = CollectingSink(), "partition"
    for phase, (dispatch, numbers) in enumerate(PHASES):
        if phase == 1:
            KafkaAdminClient(bootstrap_servers=bootstrap).create_partitions({TOPIC: NewPartitions(4)})
        if dispatch != before:
            switch_dispatch(f"file://{folder}/state", dispatch, partition_of=partition_of, execute=True)
        before = dispatch
        produce(bootstrap, tuple(numbers), phase)
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", TOPIC).option("startingOffsets", "earliest")
        events = (
            source.option("maxOffsetsPerTrigger", "30")
            .load()
            .selectExpr("cast(key as string) k", "cast(value as string) v", "topic", "partition", "offset")
        )
        operator = Stateful("events", "k", aggregate(rows=count(), newest=last("v")), order_by="offset",
                            settings=settings_in(folder, dispatch=dispatch))  # fmt: skip
        job = operator.into(sink)
        query = start(events, job, folder / "checkpoint", availableNow=True)
        assert query.awaitTermination(2 * QUERY_TIMEOUT_SECONDS), query.status
        newest = records(f"file://{folder}/state")[-1]
        summary = {"dispatch": newest.dispatch, "shards": newest.shards, "batches": len(job.reports)}
        print(json.dumps({**summary, "latest": sink.latest("k")}), flush=True)
    spark.stop()


if __name__ == "__main__":
    TOPIC = sys.argv[3]
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[4])
