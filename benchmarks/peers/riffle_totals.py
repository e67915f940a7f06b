"""A driver that computes count and sum per key with riffle_spark's public API. Its arguments are JSON.

    python -m benchmarks.peers.riffle_totals JSON

After each batch it prints `rows MILLISECONDS TOTAL`, and `ready` if no copy moves, else `moving`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark as riffle
from apps.demo.jars import connector_jars
from benchmarks.elastic.data import vectors
from benchmarks.elastic.signs import has_standbys, is_calm
from benchmarks.kit.streams import session, source
from riffle_spark.protocol.batch.batch_report import BatchReport

STATE = pa.schema([("count", pa.int64()), ("total", pa.int64()), ("noise", pa.binary())])
OUTPUT = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("total", pa.int64()), ("last", pa.int64())])
KEY_GROUPS = 128


def main(arguments: dict[str, Any]) -> None:
    """Run the query until this process is ended."""
    spark = session(arguments.get("master", "local[2]"), partial(riffle.configure, kafka=False), **_conf(arguments))
    compute = _with_noise(arguments["payload"]) if "payload" in arguments else _sums(arguments)
    job = riffle.Stateful("totals", "key", compute, settings=_settings(arguments)).into(_sink(arguments))
    job.on_report = _ProgressPrinter(arguments)
    writer = _rows(spark, arguments).writeStream.foreachBatch(job)
    writer = writer.option("checkpointLocation", f"{arguments['folder']}/checkpoint")
    writer.trigger(processingTime=f"{arguments.get('trigger_ms', 0)} milliseconds").start().awaitTermination()


def _conf(arguments: dict[str, Any]) -> dict[str, str]:
    jars = {"spark.jars": ",".join(map(str, connector_jars()))} if "topic" in arguments else {}
    return {"spark.ui.showConsoleProgress": "false", **jars, **arguments.get("conf", {})}


def _settings(arguments: dict[str, Any]) -> riffle.Settings:
    return riffle.Settings(
        root=arguments["root"],
        s3_endpoint=arguments["endpoint"],
        s3_region="us-east-1",
        local_dir=f"{arguments['folder']}/copies",
        num_standbys=arguments.get("standbys", 0),
        key_groups=KEY_GROUPS,
        # A quarter of a key-group's keys, so that an empty copy never counts as caught up. Half of the tasks may warm
        # up.
        acceptable_recovery_lag=max(arguments["keys"] // KEY_GROUPS // 4, 1),
        max_warmup_replicas=KEY_GROUPS // 2,
        probing_rebalance_interval=60.0,
        expected_executors=arguments.get("members", 0),
    )


def _rows(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    if "topic" not in arguments:
        return source(spark, arguments["batch_rows"], arguments["keys"])
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", arguments["bootstrap"])
    reader = reader.option("subscribe", arguments["topic"]).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", arguments["batch_rows"]).load()
    return rows.select(
        *(F.col(source_column).cast("string").cast("long").alias(name) for source_column, name in _COLUMNS)
    )


_COLUMNS = (("key", "key"), ("value", "amount"))


def _sums(arguments: dict[str, Any]) -> Any:
    sums = {"count": riffle.count(), "total": riffle.sum_("amount")}
    return riffle.aggregate(**sums, last=riffle.max_("amount")) if "out" in arguments else riffle.aggregate(**sums)


def _with_noise(size: int) -> Any:
    """Return the function that keeps ``size`` bytes of noise per key. Every change of a key makes new noise."""

    def advance(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        amounts = rows["amount"].to_numpy()
        keys, places = np.unique(rows["key"].to_numpy(), return_inverse=True)
        counts = np.bincount(places, minlength=len(keys)).astype(np.int64)
        totals = np.zeros(len(keys), np.int64)
        newest = np.zeros(len(keys), np.int64)
        np.add.at(totals, places, amounts)
        np.maximum.at(newest, places, amounts)
        if state.num_rows:
            positions = np.searchsorted(keys, state["key"].to_numpy())
            counts[positions] += state["count"].to_numpy()
            totals[positions] += state["total"].to_numpy()
        noise = [row.tobytes() for row in vectors(keys, counts, size)]
        new_state = pa.table([keys, counts, totals, pa.array(noise, pa.binary())], names=["key", *STATE.names])
        return pa.table([keys, counts, totals, newest], schema=OUTPUT), new_state

    return riffle.arrow_function(advance, state=STATE, output=OUTPUT)


def _sink(arguments: dict[str, Any]) -> Callable[[DataFrame, int], None]:
    def put(rows: DataFrame, _: int) -> None:
        if "out" not in arguments:
            rows.write.format("noop").mode("append").save()
            return
        value = F.concat_ws(" ", "count", "total", "last")
        results = rows.select(F.col("key").cast("string").alias("key"), value.alias("value"))
        kafka = results.write.format("kafka").option("kafka.bootstrap.servers", arguments["bootstrap"])
        kafka.option("topic", arguments["out"]).save()

    return put


class _ProgressPrinter:
    """Prints the number of processed rows, and whether all copies are in their places."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._standbys = KEY_GROUPS * arguments.get("standbys", 0)
        self._reports: list[BatchReport] = []
        self._rows = 0

    def __call__(self, report: BatchReport) -> None:
        if report.decision == "run":
            self._rows += report.rows
            self._reports.append(report)
            self._print_progress()

    def _print_progress(self) -> None:
        print(f"rows {time.time_ns() // 1_000_000} {self._rows}")
        reports = self._reports
        settled = is_calm(reports) and (not self._standbys or has_standbys(reports, self._standbys))
        owners = sum(count > 0 for count in reports[-1].owners.values()) if reports else 0
        print(f"{'ready' if settled else 'moving'} {owners}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
