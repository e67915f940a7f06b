"""A wrapped query is forked from a savepoint and continued by Spark: ``kafka_fork_app.py FOLDER BOOTSTRAP JARS``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from kafka import KafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark.offline.fork import fork
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.state.log.query_roots import root_of
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, committed, settings_in

TOPIC = "forked"
NAME = "totals"
KEYS = 7
ROWS = 60
EVERY_ROWS = 10
SAVEPOINT_BATCH = 2


def produce(bootstrap: str, numbers: range) -> None:
    """Send a row for each number, to a partition by number."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in numbers:
        producer.send(TOPIC, key=f"k{number % KEYS}".encode(), value=str(number).encode(), partition=number % 2)
    producer.close()


def run(spark: SparkSession, folder: Path, bootstrap: str, root: str, checkpoint: Path, offsets: str) -> str:
    """Run the query until it has read the topic. Return its error, or nothing."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
    source = source.option("startingOffsets", offsets).option("maxOffsetsPerTrigger", EVERY_ROWS)
    events = source.load().selectExpr("cast(key as string) k", "cast(cast(value as string) as long) v")
    totals = riffle_spark.on(events, settings=settings_in(folder, root=root, retained_versions=2, retained_for=0))
    counted = totals.groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))

    def drop(rows: DataFrame, _: int) -> None:
        rows.collect()

    writer = counted.writeStream.outputMode("update").queryName(NAME).foreachBatch(drop)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_SECONDS), query.status
    except StreamingQueryException as error:
        return str(error)
    return ""


def state(root: str) -> dict[str, list[int]]:
    """Return the state below a root."""
    return {row["k"]: list(row.values())[1:3] for row in riffle_spark.read_state(root).read_all().to_pylist()}


def main(folder: Path, bootstrap: str, jars: str) -> None:
    """Run, fork and continue; print what each root has as a line of JSON."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder).getOrCreate()
    root = f"file://{folder}/state"
    new_root = f"file://{folder}/trial"
    own = root_of(root, NAME)
    forked = root_of(new_root, NAME)
    produce(bootstrap, range(EVERY_ROWS * (SAVEPOINT_BATCH + 1)))
    errors = [run(spark, folder, bootstrap, root, folder / "checkpoint", "earliest")]
    Savepoints(own).create("before", SAVEPOINT_BATCH)
    at_savepoint = state(own)
    produce(bootstrap, range(EVERY_ROWS * (SAVEPOINT_BATCH + 1), ROWS))
    errors.append(run(spark, folder, bootstrap, root, folder / "checkpoint", "earliest"))

    plan = fork(own, forked, "savepoint:before", execute=True)
    copied = state(forked)
    (offsets,) = [line for line in (plan.offsets or "").split("\n")[2:] if line not in ("", "-")]
    checkpoint = folder / "trial-checkpoint"
    errors.append(run(spark, folder, bootstrap, new_root, checkpoint, "earliest"))
    shutil.rmtree(checkpoint)
    errors.append(run(spark, folder, bootstrap, new_root, checkpoint, offsets))
    riffle_spark.adopt(forked, str(checkpoint), execute=True)
    errors.append(run(spark, folder, bootstrap, new_root, checkpoint, offsets))
    shown: dict[str, object] = {"errors": errors, "offsets": offsets, "at_savepoint": at_savepoint, "copied": copied}
    shown |= {"own": state(own), "forked": state(forked), "batches": [committed(own), committed(forked)]}
    print(json.dumps(shown), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
