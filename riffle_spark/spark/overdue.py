"""Jobs beside the batches that do not end. Knows tags, tasks' times and a deadline. Does not know what the jobs do.

Theory of operation. What counts is how long a task *runs*: while a batch holds every core, a job waits for one, and
that is no fault. Only a job that is not over after its time is looked at, on a thread of its own. Cancelled, it ends
for the driver at once, whatever its tasks do; Spark then kills a Python worker that does not end by itself (seen: two
seconds later, one that was stopped by SIGSTOP too), so that the executor's core is free again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from riffle_spark.spark import jvm as handles

__all__ = ["Deadline"]

_LOOK_SECONDS = 1.0
_WAITS = 10
"""A job that waits for its cores is given up after so many times its time, too: nothing waits for ever."""
_TASKS = 10_000
_RUNNING = "RUNNING"


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
            running = _running(self._spark, self._tag)
            overdue = sorted(executor for executor, seconds in running.items() if seconds >= self.seconds)
            if overdue or time.monotonic() - began > _WAITS * self.seconds:
                self.overdue, self.passed = tuple(overdue), True
                with suppress(Exception):
                    handles.context(self._spark).cancelJobsWithTag(self._tag)
            wait = min(_LOOK_SECONDS, self.seconds)


def _running(spark: SparkSession, tag: str) -> dict[str, float]:
    """Return for how many seconds the tasks of the jobs with this tag have run, by executor; nothing where Spark does
    not tell.
    """
    jvm, found = handles.context(spark)._jsc.sc(), dict[str, float]()
    with suppress(Exception):
        for job in jvm.statusTracker().getJobIdsForTag(tag):
            for stage in jvm.statusTracker().getJobInfo(job).get().stageIds():
                tasks = jvm.statusStore().taskList(stage, 0, _TASKS)
                for task in (tasks.apply(at) for at in range(tasks.size())):
                    if str(task.status()) == _RUNNING:
                        found[str(task.executorId())] = time.time() - task.launchTime().getTime() / 1000
    return found
