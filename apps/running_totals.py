"""Running count and sum per user: Kafka in, Kafka or Parquet out, state placed on executors and committed to S3.

    spark-submit --packages CONNECTORS apps/running_totals.py \
        --bootstrap HOST:PORT --topic events --output-topic totals \
        --checkpoint s3a://bucket/checkpoints/totals --root s3://bucket/state/totals

docs/deploy has this command for each platform. Events are JSON: {"user_id": "u17", "amount": 12}. Settings are in
conf/riffle.toml, if the driver's folder has it, or in spark.riffle.*. With --minutes-path a second query writes the
totals of each minute when the minute is over. It is a Spark query, moved by one line.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import riffle_spark as riffle


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, help="Kafka's bootstrap servers")
    parser.add_argument("--topic", default="events")
    parser.add_argument("--output-topic", help="write each batch's totals to this topic")
    parser.add_argument("--output-path", help="or append them to Parquet files below this path")
    parser.add_argument(
        "--minutes-path", help="write what the first partition has in each minute to Parquet files here"
    )
    parser.add_argument("--minutes-root", help="where the state of that is kept")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--root", help="where the state is kept (or spark.riffle.root)")
    parser.add_argument("--max-offsets", type=int, default=100_000, help="rows a batch")
    parser.add_argument("--trigger-seconds", type=float, default=0.0)
    parser.add_argument("--available-now", action="store_true", help="process what is there, then stop")
    options = parser.parse_args()
    if not options.output_topic and not options.output_path:
        parser.error("pass --output-topic or --output-path")
    return options


def events(spark: SparkSession, options: argparse.Namespace, **topics: str) -> DataFrame:
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .options(**topics or {"subscribe": options.topic})
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.max_offsets)
        .load()
    )
    body = F.from_json(F.col("value").cast("string"), "user_id string, amount long")
    return raw.select(body.alias("event"), "timestamp").select("event.*", "timestamp")


def writer(options: argparse.Namespace) -> Callable[[DataFrame, int], None]:
    def write(totals: DataFrame, batch_id: int) -> None:
        if options.output_topic:
            message = totals.select(F.col("user_id").alias("key"), F.to_json(F.struct("*")).alias("value"))
            kafka = message.write.format("kafka").option("kafka.bootstrap.servers", options.bootstrap)
            kafka.option("topic", options.output_topic).save()
        else:
            totals.write.mode("overwrite").parquet(f"{options.output_path}/batch={batch_id}")

    return write


def minutes(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    stream = events(spark, options, assign=json.dumps({options.topic: [0]}))
    settings = riffle.Settings(root=options.minutes_root, report_file=f"{options.minutes_path}.jsonl")
    stream = riffle.on(stream, settings=settings)  # the one new line
    groups = stream.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"))
    totals = groups.agg(F.count("*").alias("count"), F.sum("amount").alias("total"))
    closed = totals.select(F.unix_seconds("window.start").alias("since"), "count", "total")
    writer = closed.writeStream.format("parquet").option("checkpointLocation", f"{options.checkpoint}/minutes")
    return writer.trigger(processingTime="5 seconds").start(options.minutes_path)


def main() -> None:
    options = arguments()
    spark = riffle.configure(SparkSession.builder.appName("running-totals")).getOrCreate()
    settings = riffle.Settings(root=options.root) if options.root else None
    riffle.warm_up(spark, settings)
    compute = riffle.aggregate(count=riffle.count(), total=riffle.sum_("amount"))
    job = riffle.Stateful("totals", key="user_id", compute=compute, settings=settings).into(writer(options))
    rows = events(spark, options).drop("timestamp")
    stream = rows.writeStream.foreachBatch(job).option("checkpointLocation", options.checkpoint)
    interval = {"processingTime": f"{options.trigger_seconds} seconds"}
    query = stream.trigger(**({"availableNow": True} if options.available_now else interval)).start()
    if options.minutes_path:
        minutes(spark, options)
    signal.signal(signal.SIGTERM, lambda *_: query.stop())
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
