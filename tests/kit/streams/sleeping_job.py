"""A Spark job that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

LONG_SECONDS = 60


def sleeping(
    spark: SparkSession, started: Path, seconds: float = LONG_SECONDS, tasks: int = 1
) -> Callable[[], list[str]]:
    """Return a job whose tasks create the file ``started`` and then sleep."""

    def sleep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started.touch()
        time.sleep(seconds)
        yield from batches

    return lambda: [row[0] for row in spark.range(0, tasks, 1, tasks).mapInArrow(sleep, "id long").collect()]
