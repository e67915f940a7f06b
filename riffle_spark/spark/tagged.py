"""Jobs of one kind that can be cancelled together, beside all others. Knows pools, tags and threads. Does not know what
the jobs do.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from pyspark.sql import SparkSession

from riffle_spark.spark.jvm import context, is_classic

__all__ = ["TaggedJobs"]

_POOL = "spark.scheduler.pool"
_CANCEL_AGAIN_SECONDS = 0.05
T = TypeVar("T")


class TaggedJobs:
    """Runs jobs in a scheduler pool and under a tag, on whichever thread: a batch's thread keeps its own pool and job
    group, by which Spark cancels what the batch waits for.
    """

    def __init__(self, spark: SparkSession, pool: str) -> None:
        self._spark = spark
        self._pool = pool
        self._tag = f"{pool}-{uuid.uuid4().hex}"
        self._ended = threading.Condition()
        self._under_way = 0
        self._stopped = False

    def run(self, jobs: Callable[[], T], otherwise: T) -> T:
        """Return what ``jobs`` returns, or ``otherwise`` if they were stopped or not begun because of that."""
        with self._ended:
            if self._stopped:
                return otherwise
            self._under_way += 1
        try:
            with self._marked():
                return jobs()
        except Exception:
            if self._stopped:
                return otherwise
            raise
        finally:
            with self._ended:
                self._under_way -= 1
                self._ended.notify_all()

    def stop(self, seconds: float) -> None:
        """Begin no more jobs and cancel those that run, for at most ``seconds``. Idempotent, from any thread."""
        self._stopped = True
        deadline = time.monotonic() + seconds
        with self._ended:
            while self._under_way and time.monotonic() < deadline:
                # Again and again: a job that was about to begin is not there to be cancelled yet.
                self._cancel()
                self._ended.wait(_CANCEL_AGAIN_SECONDS)

    def _cancel(self) -> None:
        with suppress(Exception):
            if is_classic(self._spark):
                context(self._spark).cancelJobsWithTag(self._tag)
            else:
                self._spark.interruptTag(self._tag)

    @contextmanager
    def _marked(self) -> Iterator[None]:
        if not is_classic(self._spark):
            self._spark.addTag(self._tag)
            try:
                yield
            finally:
                self._spark.removeTag(self._tag)
            return
        spark = context(self._spark)
        before = spark.getLocalProperty(_POOL)
        spark.setLocalProperty(_POOL, self._pool)
        spark.addJobTag(self._tag)
        try:
            yield
        finally:
            with suppress(Exception):
                spark.removeJobTag(self._tag)
                spark.setLocalProperty(_POOL, before)
