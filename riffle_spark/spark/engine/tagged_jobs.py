"""Jobs that may have to be cancelled: all beside the batches together, one that does not end, and those of a batch that
wait for an executor which is gone. Knows pools, tags, threads and who is there. Does not know what the jobs do.

Theory of operation. What a dead executor was to run Spark keeps for it, `spark.locality.wait` long and in one stage
after the other, though everybody else has nothing to do. So while a batch's slots are under way somebody looks who is
missing; once nothing of them runs any more they are cancelled, and the batch is run again on those that are left. After
more than a few seconds a run is Spark's to go on with: to do all of it again takes longer than to wait.
"""

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
from riffle_spark.worker.slot import beyond_memory

__all__ = ["Deadline", "Losses", "TaggedJobs"]

_POOL = "spark.scheduler.pool"
_CANCEL_AGAIN_SECONDS = 0.05
T = TypeVar("T")
_LOOK_SECONDS = 1.0
_WAITS = 10
"""A job that waits for its cores is given up after so many times its time, too: nothing waits for ever."""
_LOSS_LOOK_SECONDS = 0.2
_IDLE_LOOKS = 2
"""Between two stages nothing runs for a moment."""
_GIVEN_UP_SECONDS = 10.0
_NO_MEMORY = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+((?:pyarrow\.lib\.Arrow)?MemoryError(?::[^\n]*)?)(?:\n|$)"
)
"""As Python ends a traceback where a process may not have more memory; errors that only speak of one are none."""
_DIED_OF_MEMORY = re.compile(r"exited with (?:exit )?code 52\b|Exit status: 52\b|memory limits|container OOM")
"""Why an executor went: 52 is how Spark ends one that had no memory, the others are YARN's words and Kubernetes'."""
_LOST = re.compile(r"FetchFailed|ExecutorLostFailure")
"""What Spark gives a job up for where executors go again and again."""
_ROOM = (
    "have a batch take fewer rows (maxOffsetsPerTrigger, maxFilesPerTrigger), deal them to more slots (which are "
    "executors' cores), or give executors more memory: spark.executor.memory, which is also what they have outside "
    "the heap to hand rows to Python (or -XX:MaxDirectMemorySize), and spark.executor.memoryOverhead"
)
_DEATHS = 2
"""One may be mere chance; where the next run costs another executor, it is the batch."""


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
        with _looked_at(self._spark, self._tag, self._watch, self._ended):
            yield

    def _watch(self) -> None:
        began = time.monotonic()
        wait = self.seconds
        while not self._ended.wait(wait):
            running: dict[str, float] = {}
            with suppress(Exception):
                running = handles.running_seconds(self._spark, self._tag)
            overdue = sorted(executor for executor, seconds in running.items() if seconds >= self.seconds)
            if overdue or time.monotonic() - began > _WAITS * self.seconds:
                self.overdue, self.passed = tuple(overdue), True
                with suppress(Exception):
                    handles.context(self._spark).cancelJobsWithTag(self._tag)
            wait = min(_LOOK_SECONDS, self.seconds)


@contextmanager
def _looked_at(spark: SparkSession, tag: str, look: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Tag the jobs that this thread runs in the block, and look at them on another thread until that is ``ended``."""
    context = handles.context(spark)
    context.addJobTag(tag)
    threading.Thread(target=look, name=tag, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        with suppress(Exception):
            context.removeJobTag(tag)


class Losses:
    """One batch's runs, at most so many: the last one is given up for nobody."""

    def __init__(self, spark: SparkSession, runs: int) -> None:
        self._spark = spark
        self._left = runs
        self._began = time.time()

    @contextmanager
    def watched(self, executors: Collection[str]) -> Iterator[None]:
        """Watch the executors that a run's slots are placed on, as long as the block runs its jobs. Raises
        ``Misplaced`` where these were given up.
        """
        self._left -= 1
        if self._left < 1 or not inventory.has_executors(self._spark):
            with self._memory_named():
                yield
            return
        watch = _Watch(self._spark, frozenset(executors))
        with self._memory_named(), watch.watched():
            try:
                yield
            except Exception as error:
                if not watch.is_of(error):
                    raise
                raise Misplaced(
                    f"{', '.join(sorted(watch.gone))} went while slots ran", where="executors", id="RIFFLE-0291"
                ) from error

    @contextmanager
    def _memory_named(self) -> Iterator[None]:
        """Have what ended for want of memory say so in our words: a task that got none for its rows before it began,
        for Spark's own reader raises it; and executors, of which Spark in the end only says what was lost with them.
        """
        try:
            yield
        except Exception as error:
            found = _NO_MEMORY.search(str(error))
            if found is not None:
                raise beyond_memory(found[1]) from error
            told = None if handles.is_interruption(error) else _told_of_losses(error, self._removals())
            if told is not None:
                raise told from error
            raise

    def _removals(self) -> list[str]:
        """Return why executors went since the batch began."""
        with suppress(Exception):  # whatever a JVM may raise, or none: then it is told in Spark's words
            return handles.removals_since(self._spark, self._began)
        return []


def _told_of_losses(error: Exception, removals: Sequence[str]) -> RiffleError | None:
    """Return what to say of an error in its stead, by why executors went meanwhile: ``None`` where it says it best.

    Where Spark is not told why they went, as on a standalone cluster that hears of the lost connection first, and gives
    the batch up for it, that may be the network; what it was no batch can tell from the next.
    """
    died, is_ours = [why for why in removals if _DIED_OF_MEMORY.search(why)], isinstance(error, RiffleError | StaleRows)
    if len(died) >= (_DEATHS if is_ours else 1):
        problem = "executors had no memory for what a batch's slots were to get"
        return ConfigError(
            f"{problem}: {len(died)} went, at last by: {died[-1]}", remedy=_ROOM, where="memory", id="RIFFLE-0292"
        )
    lost = [why for why in removals if not inventory.was_planned(why)]
    if is_ours or len(lost) < _DEATHS or not _LOST.search(str(error)):
        return None
    return UnavailableError(
        f"executors went while a batch's slots ran, until Spark gave it up: {len(lost)}, at last by: {lost[-1]}",
        remedy=f"start the query again; if they go again with this batch, its rows are too much for them: {_ROOM}",
        where="executors",
        id="RIFFLE-0293",
    )


class _Watch:
    """The jobs that this thread runs in the block, and who has gone meanwhile."""

    def __init__(self, spark: SparkSession, executors: frozenset[str]) -> None:
        self.gone: frozenset[str] = frozenset()
        self.gave_up = False
        self._spark = spark
        self._executors = executors
        self._tag = f"riffle-losses-{uuid.uuid4().hex}"
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the jobs that this thread runs in the block."""
        with _looked_at(self._spark, self._tag, self._look, self._ended):
            yield

    def is_of(self, error: Exception) -> bool:
        """Tell whether an error is of jobs that were given up. What names their tag is, though others ran by then: a
        new executor may take what waits just before Spark cancels it.
        """
        return handles.names_any(error, [self._tag]) or (self.gave_up and not handles.is_interruption(error))

    def _look(self) -> None:
        """Look until the jobs have ended, or have waited long enough for who has gone; then cancel them."""
        until, idle = time.monotonic() + _GIVEN_UP_SECONDS, 0
        while not self._ended.wait(_LOSS_LOOK_SECONDS / (1 + idle)) and time.monotonic() < until:
            with suppress(Exception):  # whatever a JVM may raise: the next look may tell
                self.gone = self._executors - inventory.connected(self._spark)
                waits = bool(self.gone) and not handles.running_seconds(self._spark, self._tag)
                idle = idle + 1 if waits else 0
                self.gave_up = idle >= _IDLE_LOOKS  # Not where the jobs run on: what fails them later is their own.
                if self.gave_up:
                    handles.context(self._spark).cancelJobsWithTag(self._tag)
