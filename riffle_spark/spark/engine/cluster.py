"""Run work on executors outside batches, as Spark jobs with one task pinned to each executor."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import UnavailableError
from riffle_spark.keygroups import slot_numbers
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt, overdue_receipt
from riffle_spark.protocol.ports import Executor, SlotLayout, SlotPlace
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.jvm import is_classic
from riffle_spark.spark.engine.jvm_errors import is_interruption
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.tagged_jobs import Deadline, TaggedJobs
from riffle_spark.spark.engine.task import (
    Answering,
    census_function,
    leaving_time_to_first_attempts,
    upkeep_function,
    warm_function,
)
from riffle_spark.spark.engine.worker_python import worker_python_error

UPKEEP_POOL = "riffle-upkeep"
_FRAMES_KEPT = 4
_STOP_SECONDS = 5.0
T = TypeVar("T")


class SparkCluster:
    """Implements ``protocol.ports.Cluster``. Its jobs run in a separate scheduler pool, on the caller's thread.

    No job starts while ``is_active`` returns false.
    """

    def __init__(self, spark: SparkSession, is_active: Callable[[], bool] = lambda: True) -> None:
        """Create the cluster of a session. ``is_active`` returns whether jobs may start."""
        self._spark = spark
        self._is_active = is_active
        self._jobs = TaggedJobs(spark, UPKEEP_POOL)
        self._frames = PlacedFrames(_FRAMES_KEPT, silent=True)
        self._building = threading.Lock()

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return the censuses of the live executors that answered, one per executor.

        Return none with Spark Connect, where executors cannot be named.
        """
        if not is_classic(self._spark):
            return []
        deadline = Deadline(self._spark, order.timeout_seconds)
        ids = {executor.id for executor in executors}
        censuses = self._run(ids, lambda _: census_function(order), Census.from_json, deadline)
        problem = f"it did not answer within {deadline.seconds:g} s (`upkeep_timeout`)"
        overdue = [Census(executor, error=problem) for executor in deadline.overdue]
        return list({census.executor: census for census in [*overdue, *censuses]}.values())

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run the order of each live executor on it, by executor id. Return the receipts."""
        seconds = max((order.seconds + order.timeout_seconds for order in orders.values()), default=0.0)
        deadline = Deadline(self._spark, seconds)
        receipts = self._run(
            orders,
            lambda layout: upkeep_function({slot.number: orders[slot.executor] for slot in layout.slots}),
            UpkeepReceipt.from_json,
            deadline,
        )
        answered = {receipt.executor for receipt in receipts}
        overdue = [executor for executor in deadline.overdue if executor not in answered]
        return [*receipts, *(overdue_receipt(executor, seconds) for executor in overdue)]

    def warm(self, executors: Sequence[Executor], home: Home, timeout_seconds: float) -> None:
        """Start a Python worker per core of each live executor, and import the modules of a slot.

        A task that takes longer than ``timeout_seconds`` is cancelled.
        """
        if executors and is_classic(self._spark):
            deadline = Deadline(self._spark, timeout_seconds)
            ids = {executor.id for executor in executors}
            self._run(ids, lambda _: warm_function(home), str, deadline, every_core=True)

    def find_planned_removals(self, executors: Sequence[str]) -> frozenset[str]:
        """Return which of these lost executors were removed on purpose."""
        return inventory.find_planned_removals(self._spark, executors)

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """Start no more jobs, cancel the current jobs, and wait up to ``seconds`` for their end.

        May be called again.
        """
        self._jobs.stop(seconds)

    def _run(
        self,
        executor_ids: Collection[str],
        function: Callable[[SlotLayout], Answering],
        parse: Callable[[str], T],
        deadline: Deadline,
        *,
        every_core: bool = False,
    ) -> list[T]:
        """Run a function on each live executor of ``executor_ids``, or on each of its cores. Return the parsed answers.

        ``function`` returns the function for a layout, ``parse`` parses an answer. Return an empty list if a task was
        overdue. Raise ``UnavailableError`` if the job fails.
        """

        def job() -> list[T]:
            if not self._is_active():
                return []
            live = [executor for executor in inventory.executors(self._spark) if executor.id in executor_ids]
            if not live:
                return []
            layout = _layout([executor for executor in live for _ in range(executor.cores if every_core else 1)])
            slots = self._frame(layout)
            work = function(layout)
            if self._frames.has_speculation:
                work = leaving_time_to_first_attempts(work, {slot.number: slot.executor for slot in layout.slots})
            frame = slots.mapInArrow(work, "answer string")  # type: ignore[arg-type]
            with deadline.watched():
                rows = frame.collect()
            return [parse(row[0]) for row in rows]

        try:
            return self._jobs.run(job, [])
        except Exception as error:
            if is_interruption(error):  # a stop of the query, which the batch handles
                raise
            if deadline.overdue:
                return []
            worker_error = worker_python_error(error)
            reason = "no core was free" if deadline.passed else str(worker_error or error).strip().split("\n")[0]
            busy_remedy = "Do nothing once: it is retried. If it repeats, add cores or executors."
            # Cause: A census, upkeep or warm-up failed on an executor, for example because the executor was lost.
            raise UnavailableError(
                f"A job on the executors failed: {reason}",
                remedy=busy_remedy if deadline.passed else getattr(worker_error, "remedy", ""),
                where=UPKEEP_POOL,
                id="RIFFLE-0275",
            ) from error

    def _frame(self, layout: SlotLayout) -> DataFrame:
        """Return the placed frame of a layout. Only one thread builds it at a time."""
        with self._building:
            return self._frames.frame(self._spark, layout)


def _layout(executors: Sequence[Executor]) -> SlotLayout:
    """Return a layout with one slot per listed executor. An executor may be listed several times."""
    numbers = slot_numbers(len(executors))
    return SlotLayout(
        tuple(
            SlotPlace(number, executor.id, executor.host, ())
            for number, executor in zip(numbers, executors, strict=True)
        )
    )
