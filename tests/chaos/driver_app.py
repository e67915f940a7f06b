"""The driver of a chaos run: three queries of one topic, and a folder for requests of operators.

    spark-submit driver_app.py SETTINGS_AS_JSON

The driver ends with the error of the first query that ends, or without an error after SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark as riffle
from riffle_spark.errors import RiffleError
from tests.chaos.events import BUCKETS, WINDOW_SECONDS
from tests.chaos.processors import Visits

__all__ = ["QUERIES"]

QUERIES = ("totals", "visits", "windows")
SESSION = "user long, count long, total long"
POLL_SECONDS = 0.2


class Arguments(NamedTuple):
    """The arguments of the driver: addresses, folders, and the size of a batch."""

    bootstrap: str
    topic: str
    folder: str
    bucket: str
    max_offsets: int
    trigger_seconds: float
    settings: dict[str, Any]


class Driver:
    """The three queries of the driver."""

    def __init__(self, spark: SparkSession, arguments: Arguments) -> None:
        self._spark = spark
        self._options = arguments
        self._jobs: dict[str, riffle.StatefulJob] = {}

    def start(self) -> None:
        """Start all queries."""
        totals = riffle.Stateful(
            "totals",
            key="user",
            settings=self._settings("totals"),
            compute=riffle.aggregate(count=riffle.count(), total=riffle.sum_("amount")),
        )
        visits = riffle.transform_with_state(
            Visits(),
            key="user",
            output=SESSION,
            time_mode="ProcessingTime",
            store="visits",
            settings=self._settings("visits"),
        )
        events = self._events().drop("timestamp").where("user >= 0")
        self._start_job("totals", events, totals.into(self._sink("totals")))
        beaten = events.unionByName(riffle.heartbeat(self._spark, events.schema, every="2 seconds"))
        self._start_job("visits", beaten, visits.into(self._sink("visits")))
        self._start_windows()

    def _settings(self, name: str) -> riffle.Settings:
        return riffle.Settings(
            root=f"s3://{self._options.bucket}/{name}",
            report_file=f"{self._options.folder}/reports/{name}.jsonl",
            **self._options.settings,
        )

    def _events(self) -> DataFrame:
        raw = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._options.bootstrap)
            .option("subscribe", self._options.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._options.max_offsets)
            .load()
        )
        body = F.from_json(F.col("value").cast("string"), "user long, amount long")
        return raw.select(body.alias("event"), "timestamp").select("event.*", "timestamp")

    def _start_job(self, name: str, events: DataFrame, job: riffle.StatefulJob) -> None:
        self._jobs[name] = job
        writer = events.writeStream.queryName(name).foreachBatch(self._begun(name, job))
        writer.option("checkpointLocation", f"{self._options.folder}/checkpoint/{name}").trigger(**self._every).start()

    def _start_windows(self) -> None:
        events = riffle.on(self._events(), settings=self._settings("windows"))
        bucket = F.when(F.col("user") < 0, -1).otherwise(F.col("user") % BUCKETS).alias("bucket")
        groups = events.withWatermark("timestamp", "30 seconds").groupBy(
            F.window("timestamp", f"{WINDOW_SECONDS} seconds"), bucket
        )
        totals = groups.agg(F.count("*").alias("count"), F.sum("amount").alias("total")).where("bucket >= 0")
        closed = totals.select(F.unix_seconds("window.start").alias("since"), "bucket", "count", "total")
        sink: Any = self._sink("windows")
        writer = closed.writeStream.queryName("windows").foreachBatch(sink)
        writer = writer.option("checkpointLocation", f"{self._options.folder}/checkpoint/windows")
        query = writer.trigger(**self._every).start()
        self._jobs["windows"] = query.job  # type: ignore[attr-defined]

    @property
    def _every(self) -> dict[str, Any]:
        return {"processingTime": f"{self._options.trigger_seconds} seconds"}

    def _begun(self, name: str, job: Callable[..., None]) -> Callable[[DataFrame, int], None]:
        """Return a function that records each started batch. The log records the committed ones."""

        def run(batch: DataFrame, batch_id: int) -> None:
            with Path(f"{self._options.folder}/begun/{name}").open("a") as file:
                file.write(f"{batch_id}\n")
            job(batch, batch_id)

        return run

    def _sink(self, name: str) -> Callable[[DataFrame, int, str], None]:
        """Return a sink that writes each call to a separate folder, whose name contains the delivery id."""

        def write(rows: DataFrame, batch_id: int, delivery_id: str) -> None:
            call = f"{delivery_id.replace('/', '~')}~{time.time_ns()}{uuid.uuid4().hex[:6]}"
            rows.coalesce(1).write.parquet(f"{self._options.folder}/out/{name}/{call}")

        return write

    def obey(self, path: Path) -> None:
        """Execute the request of each new file in a folder, and write its result next to it."""
        while True:
            for file in sorted(path.glob("*.json")):
                answer = self._answer(json.loads(file.read_text()))
                file.with_suffix(".partial").write_text(json.dumps(answer))
                file.unlink()
                file.with_suffix(".partial").rename(file.with_suffix(".answer"))
            time.sleep(POLL_SECONDS)

    def _answer(self, request: dict[str, Any]) -> Any:
        try:
            job = self._jobs[request["query"]]
            if request["call"] == "members":
                return [(member.id, member.executor, member.state) for member in job.members()]
            getattr(job, request["call"])(*request["arguments"])
        except (RiffleError, KeyError) as error:
            return f"{type(error).__name__}: {error}"
        return "done"


def main(arguments: Arguments) -> None:
    """Run the queries until the first one ends."""
    builder = SparkSession.builder.appName("chaos")
    spark = riffle.configure(builder, kafka=False).getOrCreate()
    end_requests = list[bool]()  # A list, because the signal may arrive while this thread holds the lock of an event.
    signal.signal(signal.SIGTERM, lambda *_: end_requests.append(True))
    riffle.warm_up(spark, riffle.Settings(**arguments.settings))
    driver = Driver(spark, arguments)
    driver.start()
    requests = Path(arguments.folder) / "asked"
    threading.Thread(target=driver.obey, args=(requests,), daemon=True).start()
    while not end_requests:
        time.sleep(POLL_SECONDS)
        if len(spark.streams.active) < len(QUERIES):
            spark.streams.awaitAnyTermination(1)
            sys.exit("a query ended")
    for query in spark.streams.active:
        with suppress(Exception):
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Arguments(**json.loads(sys.argv[1])))
