"""Work on executors apart from any batch: ordinary Spark jobs with one task pinned to each. Knows frames and answers.
Does not know what is due.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import UnavailableError
from riffle_spark.keygroups import slot_numbers
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt, given_up
from riffle_spark.protocol.ports import Executor, SlotLayout, SlotPlace
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.jvm import is_classic, is_interruption
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.tagged_jobs import Deadline, TaggedJobs
from riffle_spark.spark.engine.task import Answering, census_function, upkeep_function, warm_function
from riffle_spark.spark.engine.worker_python import worker_python_error

__all__ = ["UPKEEP_POOL", "SparkCluster"]

UPKEEP_POOL = "riffle-upkeep"
_FRAMES_KEPT = 4
_STOP_SECONDS = 5.0
T = TypeVar("T")


class SparkCluster:
    """Implements ``protocol.ports.Cluster``. Its jobs run in a scheduler pool of their own, on whichever thread; none
    begins once ``is_wanted`` says no.
    """

    def __init__(self, spark: SparkSession, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._spark = spark
        self._is_wanted = is_wanted
        self._jobs = TaggedJobs(spark, UPKEEP_POOL)
        self._frames = PlacedFrames(_FRAMES_KEPT, silent=True)
        self._building = threading.Lock()

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return what each live executor found on its machine: one answer each of those that answered.

        None where executors cannot be told apart, as with Spark Connect.
        """
        if not is_classic(self._spark):
            return []
        deadline = Deadline(self._spark, order.timeout_seconds)
        found = self._ask({e.id for e in executors}, lambda _: census_function(order), Census.from_json, deadline)
        late = [Census(executor, error=_late(deadline)) for executor in deadline.overdue]
        return list({census.executor: census for census in [*late, *found]}.values())

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each live executor's order on it and return what was done."""
        seconds = max((order.seconds + order.timeout_seconds for order in orders.values()), default=0.0)
        deadline = Deadline(self._spark, seconds)
        done = self._ask(
            orders, lambda layout: upkeep_function(_by_slot(orders, layout)), UpkeepReceipt.from_json, deadline
        )
        answered = {receipt.executor for receipt in done}
        return [*done, *(given_up(executor, seconds) for executor in deadline.overdue if executor not in answered)]

    def warm(self, executors: Sequence[Executor], home: Home, timeout_seconds: float) -> None:
        """Start a Python worker for each core of each live executor, with all that a slot needs imported; give it up
        where that takes longer than ``timeout_seconds``.
        """
        if executors and is_classic(self._spark):
            deadline = Deadline(self._spark, timeout_seconds)
            self._ask({e.id for e in executors}, lambda _: warm_function(home), str, deadline, every_core=True)

    def planned(self, executors: Sequence[str]) -> frozenset[str]:
        """Return which of these executors, that are gone, were taken away on purpose."""
        return inventory.planned(self._spark, executors)

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """Begin nothing any more and cancel what runs, waiting at most ``seconds`` for it to end. Idempotent."""
        self._jobs.stop(seconds)

    def _ask(
        self, wanted: Collection[str], function: Callable[[SlotLayout], Answering], answer: Callable[[str], T],
        deadline: Deadline, *, every_core: bool = False,
    ) -> list[T]:  # fmt: skip
        """Run the function on each wanted executor that lives, or on each of its cores, and return the answers: none if
        one was overdue.
        """

        def asked() -> list[T]:
            if not self._is_wanted():
                return []
            live = [executor for executor in inventory.executors(self._spark) if executor.id in wanted]
            if not live:
                return []
            layout = _layout([executor for executor in live for _ in range(executor.cores if every_core else 1)])
            asking = self._frame(layout).mapInArrow(function(layout), "answer string")  # type: ignore[arg-type]
            with deadline.watched():
                rows = asking.collect()
            return [answer(row[0]) for row in rows]

        try:
            return self._jobs.run(asked, [])
        except Exception as error:
            if is_interruption(error):  # a stop of the query: it is the batch's to see
                raise
            if deadline.overdue:
                return []
            explained = worker_python_error(error)
            reason = "no core was free for it" if deadline.passed else str(explained or error).strip().split("\n")[0]
            problem = f"a job on the executors failed: {reason}"
            raise UnavailableError(
                problem, remedy=getattr(explained, "remedy", ""), where=UPKEEP_POOL, id="RIFFLE-0275"
            ) from error

    def _frame(self, layout: SlotLayout) -> DataFrame:
        with self._building:
            return self._frames.frame(self._spark, layout)


def _late(deadline: Deadline) -> str:
    return f"it did not answer within {deadline.seconds:g} s (`upkeep_timeout`)"


def _layout(executors: Sequence[Executor]) -> SlotLayout:
    """Return one slot for each executor that is listed, as often as it is."""
    numbers = slot_numbers(len(executors))
    return SlotLayout(tuple(SlotPlace(n, e.id, e.host, ()) for n, e in zip(numbers, executors, strict=True)))


def _by_slot(orders: Mapping[str, T], layout: SlotLayout) -> dict[int, T]:
    return {slot.number: orders[slot.executor] for slot in layout.slots}
