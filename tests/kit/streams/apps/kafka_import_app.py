"""A Spark query over Kafka that moves to riffle after some batches: ``kafka_import_app.py FOLDER BOOTSTRAP TOPIC
JARS``.

Its checkpoint is copied before. The copy continues with Spark, and the original moves.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark
from riffle_spark.spark.imports.import_checkpoint import import_checkpoint
from tests.kit.streams.streaming import settings_in

ROWS, KEYS, TAKEN = 4_000, 7, 1_000
"""The rows sent before and again after the move, the keys, and the rows per batch.

Each value is sent twice or four times.
"""


def totals(events: DataFrame) -> DataFrame:
    """Return the query whose checkpoint moves."""
    once = events.dropDuplicates(["value"])
    return once.groupBy("key").agg(F.count("*").alias("rows"), F.sum(F.expr("cast(value as long)")).alias("total"))


def main(folder: Path, bootstrap: str, topic: str, jars: str) -> None:
    """Print the newest totals by key for the batches of both queries, and the offsets of the import plan."""
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    builder = builder.config("spark.ui.enabled", "false").config("spark.jars", jars).config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder.config("spark.sql.shuffle.partitions", "2")).getOrCreate()

    def send(first: int) -> None:
        messages = spark.range(first, first + ROWS).selectExpr(
            f"cast(id div 2 % {KEYS} as string) key", "cast(id div 2 as string) value"
        )
        messages.write.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).save()

    def events() -> DataFrame:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", topic).option("startingOffsets", "earliest")
        frame = source.option("maxOffsetsPerTrigger", TAKEN).load()
        return frame.selectExpr("cast(key as string) key", "cast(value as string) value")

    def run(frame: DataFrame, checkpoint: str) -> dict[int, list[list[object]]]:
        batches = dict[int, list[list[object]]]()

        def take(rows: DataFrame, batch: int) -> None:
            batches[batch] = sorted(list(row) for row in rows.collect())

        writer = totals(frame).writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", f"{folder}/{checkpoint}").start().awaitTermination()
        return batches

    send(0)
    before = run(events(), "spark")
    shutil.copytree(folder / "spark", folder / "copied")
    send(ROWS // 2)
    settings = settings_in(folder)
    assert settings.root is not None

    def query(_: SparkSession) -> DataStreamWriter:
        return totals(riffle_spark.on(events(), settings=settings)).writeStream.outputMode("update")

    plan = import_checkpoint(settings.root, f"{folder}/spark", query, spark=spark, execute=True)
    moved = run(riffle_spark.on(events(), settings=settings), "spark-riffle")
    stayed = run(events(), "copied")
    summary = {"before": before, "moved": moved, "stayed": stayed, "offsets": (plan.offsets or "").split("\n")[2:]}
    print(json.dumps(summary), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
