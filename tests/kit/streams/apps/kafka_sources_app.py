"""Print the topics that queries read, and racks of topics.

Usage: ``kafka_sources_app.py FOLDER BOOTSTRAP LOGIN SILENT JARS``. ``LOGIN`` is the address of a listener that requires
a password, ``SILENT`` that of a server that never answers.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark.spark.engine.kafka import KafkaSource, kafka_of, partition_racks
from tests.kit.quiet import KeptWarnings
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS

UNUSED = "kafka.ssl.key.password"
"""An option that has no effect on a plaintext source."""
TOPICS = {
    "subscribe": {"subscribe": "clicks, views"},
    "assign": {"assign": '{"clicks": [0]}'},
    "pattern": {"subscribePattern": "cl.*|views"},
}


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def login(password: str) -> dict[str, str]:
    """Return the options of a source that logs in with a password."""
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{PLAIN} required username="riffle" password="{password}";',
    }


def racks_of(
    spark: SparkSession, silent: str, servers: str, topics: tuple[str, ...], options: Mapping[str, str]
) -> object:
    """Return the racks of topics, the warnings, and the elapsed seconds."""
    warnings = KeptWarnings()
    logging.getLogger("riffle_spark").addHandler(warnings)
    started = time.monotonic()
    source = KafkaSource(servers, topics, {"kafka.bootstrap.servers": servers, **options})
    racks = partition_racks(spark, source, seconds=3 if servers == silent else 60)
    logging.getLogger("riffle_spark").removeHandler(warnings)
    return [[*map(list, racks.items())], warnings.messages, time.monotonic() - started]


def main(folder: Path, bootstrap: str, secured: str, silent: str, jars: str) -> None:
    """Print a line of JSON with the racks of topics.

    Run each query for one trigger, and print the topics that it reads.
    """
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder).getOrCreate()

    cases: dict[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
        "all": (bootstrap, ("clicks", "views"), {}),
        "missing": (bootstrap, ("nowhere", "other"), {}),
        "login": (secured, ("clicks",), login("a secret")),
        "refused": (secured, ("clicks",), login("hunter2")),
        "silent": (silent, ("clicks",), {}),
    }
    print(json.dumps({name: racks_of(spark, silent, *case) for name, case in cases.items()}), flush=True)

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
    read_sources: dict[str, object] = {"direct": kafka_of(spark.range(1))}

    def keep(name: str, batch: DataFrame, _: int) -> None:
        source = kafka_of(batch)
        read_sources.setdefault(name, source and [source.servers, source.topics, source.options.get(UNUSED)])

    for name, rows in queries.items():
        query = (
            rows.writeStream.foreachBatch(partial(keep, name)).option("checkpointLocation", str(folder / name)).start()
        )
        query.processAllAvailable()
        query.stop()
        query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    print(json.dumps(read_sources))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
