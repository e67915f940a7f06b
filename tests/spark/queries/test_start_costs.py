"""The calls to the JVM that the start of a wrapped query makes on the driver."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader

import riffle_spark

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

MOST_CALLS = 320 if pyspark.__version__.startswith("3.") else 302 if hasattr(DataStreamReader, "name") else 300
"""318 were counted on Spark 3.5. From 4.2 on, a start also reads the two settings that name sources."""
_COLLECTED = "m\nd\n"
"""Py4J's message to the JVM that Python has released an object."""


def windowed(events: DataFrame, _: DataFrame) -> DataFrame:
    """Count and sum in windows."""
    windows = events.groupBy(F.window("timestamp", "1 minute"), "k")
    return windows.agg(F.count("*").alias("rows"), F.sum("v").alias("total"))


def joined(events: DataFrame, others: DataFrame) -> DataFrame:
    """Join two streams within a minute."""
    near = "k = k2 and t2 > timestamp and t2 < timestamp + interval 1 minute"
    return events.join(others.toDF("t2", "k2", "v2"), F.expr(near))


def chained(events: DataFrame, others: DataFrame) -> DataFrame:
    """Count distinct rows in windows."""
    return windowed(events.dropDuplicates(["k", "timestamp"]), others)


@pytest.mark.parametrize(
    "query", [pytest.param(windowed, marks=pytest.mark.long), pytest.param(joined, marks=pytest.mark.long), chained]
)
def test_a_start_makes_a_limited_number_of_calls(
    query: Callable[[DataFrame, DataFrame], DataFrame],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start makes a limited number of calls: the plan is read in a few calls, whatever its size."""
    # private parts: Py4J counts no calls itself
    client: Any = type(getattr(spark.sparkContext._jvm, "_gateway_client"))  # noqa: B009 - it may be None to mypy
    send, thread, calls = client.send_command, threading.get_ident(), list[str]()

    def counting(gateway: Any, command: str, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread and not command.startswith(_COLLECTED):
            calls.append(command)
        return send(gateway, command, *args, **options)

    def started(number: int) -> int:
        rates = spark.readStream.format("rate").load().selectExpr("timestamp", "value % 10 as k", "value as v")
        wrapped = [riffle_spark.on(rates, root=f"file://{tmp_path}/{number}") for _ in range(2)]
        events, others = (frame.withWatermark("timestamp", "1 minute") for frame in wrapped)
        writer = query(events, others).writeStream.format("noop").trigger(processingTime="1 hour")
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint-{number}")
        gc.collect()
        calls.clear()
        running = writer.start()
        count = len(calls)
        running.stop()
        return count

    monkeypatch.setattr(client, "send_command", counting)
    first, second = started(0), started(1)
    print(f"{query.__name__}: {first} calls, and {second} once the classes are known")
    assert second <= MOST_CALLS
