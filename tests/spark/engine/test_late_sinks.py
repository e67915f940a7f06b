"""The sink of late rows has the same guarantees as other sinks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark.errors import FencedError
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.spark_batch import Sinks, SparkWork
from riffle_spark.spark.job_wiring import home_of
from tests.kit.streams.streaming import settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


def test_a_fenced_driver_delivers_no_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A fenced driver delivers no late rows: their delivery waits for the check of the log (I4)."""
    deliveries: list[tuple[int, Delivery]] = []
    sinks = Sinks({}, late=lambda late_ms, delivery: deliveries.append((late_ms, delivery)))
    settings = settings_in(tmp_path)
    work = SparkWork(spark.range(1).toDF("k"), [], sinks, PlacedFrames(), home_of(spark, settings), settings)
    delivery = Delivery(0, "d")

    def check_fenced() -> None:
        time.sleep(0.2)
        raise FencedError("another driver has appended")

    with pytest.raises(FencedError):
        work.deliver([], delivery, check_fenced)
    assert deliveries == []
    work.deliver([], delivery, lambda: None)
    assert deliveries == [(0, delivery)]
