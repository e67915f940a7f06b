"""Queries over several kinds of sources, which tell what Kafka they read: ``kafka_sources_app.py FOLDER BOOTSTRAP
JARS``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark.spark.engine.kafka import kafka_of
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS

UNUSED = "kafka.ssl.key.password"
"""An option that a plaintext source does not use."""
TOPICS = {
    "subscribe": {"subscribe": "clicks, views"},
    "assign": {"assign": '{"clicks": [0]}'},
    "pattern": {"subscribePattern": "cl.*|views"},
}


def main(folder: Path, bootstrap: str, jars: str) -> None:
    """Run each query for one trigger; print a line of JSON with what each told."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder).getOrCreate()

    def kafka(options: Mapping[str, str]) -> DataFrame:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        return (
            source.option("startingOffsets", "earliest")
            .option(UNUSED, "set")
            .options(**options)
            .load()
            .selectExpr("value")
        )

    queries = {name: kafka(options) for name, options in TOPICS.items()}
    queries["two"] = kafka(TOPICS["assign"]).union(kafka({"subscribe": "views"}))
    queries["none"] = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    told: dict[str, object] = {"direct": kafka_of(spark.range(1))}

    def keep(name: str, batch: DataFrame, _: int) -> None:
        source = kafka_of(batch)
        told.setdefault(name, source and [source.servers, source.topics, source.options.get(UNUSED)])

    for name, rows in queries.items():
        query = (
            rows.writeStream.foreachBatch(partial(keep, name)).option("checkpointLocation", str(folder / name)).start()
        )
        query.processAllAvailable()
        query.stop()
        query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
