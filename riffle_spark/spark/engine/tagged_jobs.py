"""Run jobs that may have to be cancelled: upkeep jobs, overdue jobs, and jobs that wait for a lost executor.

Theory of operation of ``Losses``. Tasks that prefer a dead executor wait for it for ``spark.locality.wait``, in one
stage after the other, although other executors are idle.

1. While a batch's slots run, a thread compares the executors that the batch uses with the connected executors.
2. Once an executor is lost and no task of the batch runs, the thread cancels the jobs.
3. The batch runs again on the other executors.
4. The thread ends after 10 seconds, because then a repeated run would take longer than the wait.
"""

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError, Misplaced, RiffleError, UnavailableError
from riffle_spark.protocol.ports import StaleRows
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.jvm_errors import is_interruption, mentions
from riffle_spark.worker.slot_errors import out_of_memory_error

_logger = logging.getLogger("riffle_spark")
_POOL = "spark.scheduler.pool"
_CANCEL_AGAIN_SECONDS = 0.05
T = TypeVar("T")
_LOOK_SECONDS = 1.0
_MAX_WAITS = 10
"""A job that gets no core is cancelled after this multiple of its time limit."""
_LOSS_LOOK_SECONDS = 0.2
_IDLE_LOOKS = 2
"""The number of checks without a running task after which jobs are cancelled. Between two stages no task runs either.
"""
_WATCH_SECONDS = 10.0
_NO_MEMORY = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+((?:pyarrow\.lib\.Arrow)?MemoryError(?::[^\n]*)?)(?:\n|$)"
)
"""The end of the traceback of a process that ran out of memory."""
_DIED_OF_MEMORY = re.compile(r"exited with (?:exit )?code 52\b|Exit status: 52\b|memory limits|container OOM")
"""Reasons for removing executors without memory. Spark ends them with code 52. The other texts are of YARN and
Kubernetes."""
_LOST = re.compile(r"FetchFailed|ExecutorLostFailure")
"""Texts of Spark's error if executors were lost repeatedly."""
_MEMORY_REMEDY = (
    "Read fewer rows per batch (maxOffsetsPerTrigger, maxFilesPerTrigger), use more slots (executor cores), or raise "
    "spark.executor.memory, which also bounds the direct memory for rows to Python (-XX:MaxDirectMemorySize), and "
    "spark.executor.memoryOverhead."
)
_MIN_REPEATED_REMOVALS = 2
"""If a run was repeated after a removal, and the next run loses another executor, the batch is the cause."""


class TaggedJobs:
    """Runs jobs in a scheduler pool and under a tag, on the caller's thread.

    The thread's own pool is restored and its job group is unchanged, because Spark cancels a batch by its job group.
    """

    def __init__(self, spark: SparkSession, pool: str) -> None:
        """Create it with a new tag, for the scheduler pool ``pool``."""
        self._spark = spark
        self._pool = pool
        self._tag = f"{pool}-{uuid.uuid4().hex}"
        self._ended = threading.Condition()
        self._running = 0
        self._stopped = False
        try:
            handles.add_pool(spark, pool)
        except Exception as error:  # noqa: BLE001 - the JVM may raise any error; Spark then adds the pool itself
            _logger.debug("Cannot add scheduler pool %s: %s", pool, error)

    def run(self, jobs: Callable[[], T], otherwise: T) -> T:
        """Return the result of ``jobs``, or ``otherwise`` if ``stop`` cancelled or prevented them."""
        with self._ended:
            if self._stopped:
                return otherwise
            self._running += 1
        try:
            with self._marked():
                return jobs()
        except Exception:
            if self._stopped:
                return otherwise
            raise
        finally:
            with self._ended:
                self._running -= 1
                self._ended.notify_all()

    def stop(self, seconds: float) -> None:
        """Start no more jobs, and cancel the current jobs for up to ``seconds``. Idempotent, from any thread."""
        self._stopped = True
        deadline = time.monotonic() + seconds
        with self._ended:
            while self._running and time.monotonic() < deadline:
                # Cancel repeatedly, because a job that is just starting cannot be cancelled yet.
                self._cancel()
                self._ended.wait(_CANCEL_AGAIN_SECONDS)

    def _cancel(self) -> None:
        """Cancel all running jobs with the tag. Errors are ignored."""
        with suppress(Exception):
            if handles.is_classic(self._spark):
                handles.context(self._spark).cancelJobsWithTag(self._tag)
            else:
                self._spark.interruptTag(self._tag)

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Run this thread's jobs with the tag and in the pool, and restore the thread's own pool afterwards."""
        if not handles.is_classic(self._spark):
            self._spark.addTag(self._tag)
            try:
                yield
            finally:
                self._spark.removeTag(self._tag)
            return
        spark = handles.context(self._spark)
        previous_pool = spark.getLocalProperty(_POOL)
        spark.setLocalProperty(_POOL, self._pool)
        spark.addJobTag(self._tag)
        try:
            yield
        finally:
            with suppress(Exception):
                spark.removeJobTag(self._tag)
                spark.setLocalProperty(_POOL, previous_pool)


class Deadline:
    """Cancels the jobs of a block once one of their tasks has run for ``seconds``.

    ``passed`` is true once jobs were cancelled. ``overdue`` names the executors of the overdue tasks.
    """

    def __init__(self, spark: SparkSession, seconds: float) -> None:
        """Create a deadline of ``seconds`` for each task."""
        self.seconds = seconds
        self.passed = False
        self.overdue: tuple[str, ...] = ()
        self._spark = spark
        self._tag = f"riffle-deadline-{uuid.uuid4().hex}"
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the jobs that this thread runs in the block."""
        if not handles.is_classic(self._spark):  # Spark Connect does not list running tasks
            yield
            return
        with _watched_jobs(self._spark, self._tag, self._watch, self._ended):
            yield

    def _watch(self) -> None:
        """Cancel the jobs once one of their tasks has run too long, or if they get no core for too long."""
        start = time.monotonic()
        wait = self.seconds
        while not self._ended.wait(wait):
            running: dict[str, float] = {}
            with suppress(Exception):
                running = handles.running_seconds(self._spark, self._tag)
            overdue = sorted(executor for executor, seconds in running.items() if seconds >= self.seconds)
            if overdue or time.monotonic() - start > _MAX_WAITS * self.seconds:
                self.overdue = tuple(overdue)
                self.passed = True
                with suppress(Exception):
                    handles.context(self._spark).cancelJobsWithTag(self._tag)
            wait = min(_LOOK_SECONDS, self.seconds)


@contextmanager
def _watched_jobs(spark: SparkSession, tag: str, watch: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Tag the jobs that this thread runs in the block, and watch them on another thread until ``ended`` is set."""
    context = handles.context(spark)
    context.addJobTag(tag)
    threading.Thread(target=watch, name=tag, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        with suppress(Exception):
            context.removeJobTag(tag)


class Losses:
    """Watches the runs of a batch for lost executors. The last possible run is not cancelled."""

    def __init__(self, spark: SparkSession, runs: int) -> None:
        """Create the watch over a batch that runs at most ``runs`` times."""
        self._spark = spark
        self._runs_left = runs
        self._start = time.time()

    @contextmanager
    def watched(self, executors: Collection[str]) -> Iterator[None]:
        """Watch the executors of a run during the block. Raise ``Misplaced`` if its jobs were cancelled for a loss."""
        self._runs_left -= 1
        if self._runs_left < 1 or not inventory.has_executors(self._spark):
            with self._explained_memory():
                yield
            return
        watch = _Watch(self._spark, frozenset(executors))
        with self._explained_memory(), watch.watched():
            try:
                yield
            except Exception as error:
                if not watch.caused(error):
                    raise
                # Cause: Spark lost these executors, for example with their machine. The batch runs again on the others.
                raise Misplaced(
                    f"Executors {', '.join(sorted(watch.lost))} were lost while slots ran.",
                    remedy="Do nothing. The batch runs again on the other executors.",
                    where="executors",
                    id="RIFFLE-0291",
                ) from error

    @contextmanager
    def _explained_memory(self) -> Iterator[None]:
        """Replace an error of the block by one with a remedy if Python workers or executors ran out of memory.

        Spark's own error only names the lost tasks and blocks.
        """
        try:
            yield
        except Exception as error:
            no_memory = _NO_MEMORY.search(str(error))
            if no_memory is not None:
                raise out_of_memory_error(no_memory[1]) from error
            explained = None if is_interruption(error) else _loss_error(error, self._removals())
            if explained is not None:
                raise explained from error
            raise

    def _removals(self) -> list[str]:
        """Return Spark's reasons for removing executors since the batch started, or none if they are unknown."""
        with suppress(Exception):  # the JVM may raise any error; then Spark's error is raised
            return handles.removals_since(self._spark, self._start)
        return []


def _loss_error(error: Exception, removals: Sequence[str]) -> RiffleError | None:
    """Return an error to raise instead of ``error``, or ``None`` to keep ``error``.

    ``removals`` are the reasons for removing executors. A standalone cluster may report only the lost connection of an
    executor that ran out of memory. Then the cause may also be the network.
    """
    is_ours = isinstance(error, RiffleError | StaleRows)
    without_memory = [reason for reason in removals if _DIED_OF_MEMORY.search(reason)]
    if len(without_memory) >= (_MIN_REPEATED_REMOVALS if is_ours else 1):
        return ConfigError(
            f"{len(without_memory)} executors ran out of memory for the rows of a batch, the last one because: "
            f"{without_memory[-1]}",
            remedy=_MEMORY_REMEDY,
            where="memory",
            id="RIFFLE-0292",
        )
    lost = [reason for reason in removals if not inventory.was_planned(reason)]
    if is_ours or len(lost) < _MIN_REPEATED_REMOVALS or not _LOST.search(str(error)):
        return None
    # Cause: A machine, a container or the network failed. Executors may also have run out of memory without a report.
    return UnavailableError(
        f"{len(lost)} executors were lost during a batch, the last one because: {lost[-1]}",
        remedy=f"Restart the query. If the same batch loses executors again: {_MEMORY_REMEDY}",
        where="executors",
        id="RIFFLE-0293",
    )


class _Watch:
    """The jobs that a thread runs in a block, and the executors that were lost during the block."""

    def __init__(self, spark: SparkSession, executors: frozenset[str]) -> None:
        """Create a watch over jobs that use these executors."""
        self.lost: frozenset[str] = frozenset()
        self._cancelled = False
        self._spark = spark
        self._executors = executors
        self._tag = f"riffle-losses-{uuid.uuid4().hex}"
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the jobs that this thread runs in the block."""
        with _watched_jobs(self._spark, self._tag, self._watch, self._ended):
            yield

    def caused(self, error: Exception) -> bool:
        """Return whether this watch caused an error by cancelling the jobs.

        It did if the error names the tag of the jobs, even if tasks run again: a new executor may start them just
        before Spark cancels the jobs.
        """
        return mentions(error, self._tag) or (self._cancelled and not is_interruption(error))

    def _watch(self) -> None:
        """Cancel the jobs once an executor is lost and none of their tasks runs."""
        end = time.monotonic() + _WATCH_SECONDS
        idle_looks = 0
        while not self._ended.wait(_LOSS_LOOK_SECONDS / (1 + idle_looks)) and time.monotonic() < end:
            with suppress(Exception):  # the JVM may raise any error; the next check retries
                self.lost = self._executors - inventory.connected(self._spark)
                is_idle = bool(self.lost) and not handles.running_seconds(self._spark, self._tag)
                idle_looks = idle_looks + 1 if is_idle else 0
                self._cancelled = idle_looks >= _IDLE_LOOKS  # False again if tasks run: a later error has another cause
                if self._cancelled:
                    handles.context(self._spark).cancelJobsWithTag(self._tag)
