"""Jobs beside the batches: cancelled together, given up where they do not end. Knows pools, tags, threads and a
deadline. Does not know what the jobs do.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from pyspark.sql import SparkSession

from riffle_spark.spark.engine import jvm as handles

__all__ = ["Deadline", "TaggedJobs"]

_POOL = "spark.scheduler.pool"
_CANCEL_AGAIN_SECONDS = 0.05
T = TypeVar("T")
_LOOK_SECONDS = 1.0
_WAITS = 10
"""A job that waits for its cores is given up after so many times its time, too: nothing waits for ever."""


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
            if handles.is_classic(self._spark):
                handles.context(self._spark).cancelJobsWithTag(self._tag)
            else:
                self._spark.interruptTag(self._tag)

    @contextmanager
    def _marked(self) -> Iterator[None]:
        if not handles.is_classic(self._spark):
            self._spark.addTag(self._tag)
            try:
                yield
            finally:
                self._spark.removeTag(self._tag)
            return
        spark = handles.context(self._spark)
        before = spark.getLocalProperty(_POOL)
        spark.setLocalProperty(_POOL, self._pool)
        spark.addJobTag(self._tag)
        try:
            yield
        finally:
            with suppress(Exception):
                spark.removeJobTag(self._tag)
                spark.setLocalProperty(_POOL, before)


class Deadline:
    """Cancels a block's jobs once a task of theirs has run for ``seconds``. ``passed`` tells that this happened,
    ``overdue`` on which executors such tasks ran.
    """

    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self.seconds = seconds
        self.passed = False
        self.overdue: tuple[str, ...] = ()
        self._spark = spark
        self._tag = f"riffle-deadline-{uuid.uuid4().hex}"
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the jobs that this thread runs in the block."""
        if not handles.is_classic(self._spark):  # nobody tells what runs there
            yield
            return
        context = handles.context(self._spark)
        context.addJobTag(self._tag)
        threading.Thread(target=self._watch, name="riffle-deadline", daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()
            with suppress(Exception):
                context.removeJobTag(self._tag)

    def _watch(self) -> None:
        began = time.monotonic()
        wait = self.seconds
        while not self._ended.wait(wait):
            running = handles.running_seconds(self._spark, self._tag)
            overdue = sorted(executor for executor, seconds in running.items() if seconds >= self.seconds)
            if overdue or time.monotonic() - began > _WAITS * self.seconds:
                self.overdue, self.passed = tuple(overdue), True
                with suppress(Exception):
                    handles.context(self._spark).cancelJobsWithTag(self._tag)
            wait = min(_LOOK_SECONDS, self.seconds)
