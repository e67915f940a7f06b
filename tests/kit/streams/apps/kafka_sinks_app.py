"""A windowed query from Kafka to Kafka that fails in a batch and restarts: ``kafka_sinks_app.py FOLDER BOOTSTRAP
JARS``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS

EVENTS, RESULTS = "visits", "counts"
FIRST, MORE, PAGES = 300, 200, 12
BROKEN = "page7"
SCHEMA = "at timestamp, page string, user string"


def produce(bootstrap: str, numbers: range) -> None:
    """Send visits that are one second apart to two partitions."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in numbers:
        event_time = f"2026-01-01T12:{number // 60:02d}:{number % 60:02d}Z"
        visit = {"at": event_time, "page": f"page{number % PAGES}", "user": f"u{number % 5}"}
        producer.send(EVENTS, value=json.dumps(visit).encode(), partition=number % 2)
    producer.close()


def visits(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Return the visits of the topic as a stream."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", EVENTS)
    raw = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100).load()
    return raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("visit")).select("visit.*")


def in_windows(events: DataFrame) -> DataFrame:
    """Return the windowed query as users write it."""
    groups = events.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 minute"), "page")
    return groups.agg(F.count("*").alias("n"), F.approx_count_distinct("user").alias("users")).where("n > 1")


def run(spark: SparkSession, folder: Path, bootstrap: str, *, broken: bool) -> str:
    """Run the query over the whole topic into another topic. Return its error, or an empty text."""
    events = riffle_spark.on(visits(spark, bootstrap), root=f"file://{folder}/state")  # the only line for riffle_spark
    value = F.to_json(F.struct("*"))
    if broken:
        value = F.when(F.col("page") == BROKEN, F.raise_error(F.lit("this page is broken"))).otherwise(value)
    writer = in_windows(events).select(value.alias("value")).writeStream.format("kafka").outputMode("update")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", RESULTS).trigger(availableNow=True)
    writer = writer.option("riffle.delivery_id", "delivery").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start()
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_SECONDS), query.status
    except StreamingQueryException as error:
        return str(error)
    return ""


def results(bootstrap: str) -> list[dict[str, object]]:
    """Return all results in the topic, each with its delivery id."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=5_000)
    partition = TopicPartition(RESULTS, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end, messages = consumer.end_offsets([partition])[partition], list[dict[str, object]]()
    while len(messages) < end:
        message = next(consumer)
        messages.append({**json.loads(message.value), "delivery": dict(message.headers)["delivery"].decode()})
    consumer.close()
    return messages


def main(folder: Path, bootstrap: str, jars: str) -> None:
    """Let the first batch fail, restart the query, and run it again after more visits arrive. Print the results."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "OFF")
    spark = riffle_spark.configure(builder.config("spark.sql.session.timeZone", "UTC"), kafka=False).getOrCreate()
    produce(bootstrap, range(FIRST))
    failed = run(spark, folder, bootstrap, broken=True)
    before = len(results(bootstrap))
    ended = [run(spark, folder, bootstrap, broken=False)]
    produce(bootstrap, range(FIRST, FIRST + MORE))
    ended.append(run(spark, folder, bootstrap, broken=False))
    raw = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", EVENTS).load()
    rows = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("visit")).select("visit.*")
    expected = [json.loads(text) for (text,) in in_windows(rows).select(F.to_json(F.struct("*"))).collect()]
    summary = {"failed": "this page is broken" in failed, "before": before, "ended": ended}
    print(json.dumps({**summary, "expected": expected, "found": results(bootstrap)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
