"""A cluster whose slots, censuses and upkeep run as actors of executors, and a driver's background as an actor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import Misplaced, RiffleError, UnavailableError
from riffle_spark.messages.slot_orders import RECEIPT, Home, Receipt
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt, overdue_receipt
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Delivery, Executor, Lock, StaleRows
from riffle_spark.protocol.shards import Partition
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.testing import Attempt, ManualClock, SimCluster, SimSink, SimWork
from riffle_spark.worker.census import take_census
from riffle_spark.worker.slot import StoreInput, run_slots
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.dst.scheduler import Actor, Process, Scheduler, TurnLock

__all__ = ["SkewedClock", "SteppedBackground", "SteppedCluster", "SteppedSink", "SteppedWork"]

MERGES_LATE_SECONDS = (0.0, 0.0, 0.0, 2.0, 60.0)
"""Possible delays in seconds of the merging thread, which may wait for a core."""
SLOW_BESIDE = (0.0, 0.0, 0.0, 0.0, 0.02, 0.2)
"""Possible delays in seconds of background work at each step, by which plans have to wait for it."""
SPECULATION_SECONDS = 30.0
"""The seconds after which Spark runs a task again on another executor."""


class SkewedClock:
    """A driver's clock. Its wall clock is skewed, and its monotonic clock stops while the machine sleeps.

    Implements ``protocol.ports.Clock``.
    """

    def __init__(self, clock: ManualClock, process: Process, skew_ms: int) -> None:
        self._clock = clock
        self._process = process
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        """Return the wall time of this machine in milliseconds since the epoch."""
        return self._clock.wall_ms() + self.skew_ms

    def seconds(self) -> float:
        """Return the monotonic time in seconds."""
        return self._clock.seconds() - self._process.slept


class SteppedBackground:
    """An actor of a driver that runs submitted work. Implements ``protocol.ports.Background``."""

    def __init__(self, scheduler: Scheduler, process: Process, failed: Callable[[RiffleError], None]) -> None:
        self._scheduler = scheduler
        self._failed = failed
        self._waiting: deque[Callable[[], object]] = deque()
        self._results: list[object] = []
        self._at_work = False
        actor = scheduler.spawn(f"{process.name} upkeep", "background", process, self._run)
        actor.slow = scheduler.chance.choice(SLOW_BESIDE)

    def _run(self) -> None:
        while True:
            self._scheduler.wait(lambda: bool(self._waiting))
            self._at_work = True
            work = self._waiting.popleft()
            self._scheduler.step("begins")
            try:
                result = work()
            except RiffleError as error:
                self._failed(error)
                result = error
            self._results.append(result)  # not earlier, because `collect` during the work replaces the list
            self._at_work = False
            self._scheduler.step("work done")

    def submit(self, work: Callable[[], object]) -> None:
        """Submit a piece of work."""
        self._waiting.append(work)

    def collect(self) -> Sequence[object]:
        """Return the results since the last call. A failure is its exception."""
        results = self._results
        self._results = []
        return results

    def is_busy(self) -> bool:
        """Return whether submitted work is unfinished."""
        return self._at_work or bool(self._waiting)

    def rest(self, seconds: float) -> None:
        """Wait, and let other actors continue."""
        self._scheduler.sleep(seconds)

    def lock(self) -> Lock:
        """Return a new lock."""
        return TurnLock(self._scheduler)


class SteppedCluster(SimCluster):
    """Executors that are simulated processes. A ``lost`` executor may continue to work unseen."""

    def __init__(self, home: Home, store: ObjectStore, scheduler: Scheduler) -> None:
        super().__init__(home, store, scheduler.chance.randbytes)
        self.scheduler = scheduler
        self.processes: dict[str, Process] = {}
        self.astray = scheduler.chance.choice([0.0, 0.0, 0.02, 0.08, 0.3, 0.3])
        """The share of slots that Spark runs on another executor in the first place."""
        self.shares_tasks = False
        """Whether stores with the same key run in one task per slot."""
        self.worked: Callable[[str], object] = lambda _: None
        """Called with each executor that has finished a piece of upkeep."""

    def add(self, name: str, cores: int = 1) -> None:
        """Start an executor."""
        super().add(name, cores)
        self.processes[name] = Process(f"executor {name}", name)
        self.disks[name] = lambda: (0.1, 1 << 40)

    def spawn(self, kind: str, executor: str, work: Callable[[], object]) -> Actor:
        """Start a task on an executor."""

        def begin() -> object:
            self.scheduler.step("begins")
            return work()

        return self.scheduler.spawn(f"{kind} on {executor}", kind, self.processes[executor], begin)

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return the censuses of the live ones among these executors."""
        live = {executor.id for executor in self.executors()}
        chosen = [executor.id for executor in executors if executor.id in live]
        text = order.to_json()

        def take(executor: str) -> Callable[[], Census]:
            return lambda: take_census(CensusOrder.from_json(text), executor)

        tasks = {executor: self.spawn("census", executor, take(executor)) for executor in chosen}
        self.scheduler.step("censuses ordered")
        self.scheduler.wait(lambda: all(task.done for task in tasks.values()), order.timeout_seconds)
        partitions = []
        for executor, task in tasks.items():
            if isinstance(task.result, Census):
                partitions.append(self.with_usage(Census.from_json(task.result.to_json())))
            elif not task.done:
                partitions.append(Census(executor, error="did not answer in time"))
        return partitions

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run the piece of upkeep of each live executor. Return the receipts."""
        live = sorted(orders.keys() & {executor.id for executor in self.executors()})

        def run(executor: str) -> Callable[[], UpkeepReceipt]:
            text = orders[executor].to_json()

            def piece() -> UpkeepReceipt:
                receipt = run_upkeep(UpkeepOrder.from_json(text), executor, self.random_bytes, self.clock.seconds)
                self.worked(executor)
                return receipt

            return piece

        tasks = {executor: self.spawn("piece", executor, run(executor)) for executor in live}
        self.scheduler.step("pieces ordered")
        seconds = max((orders[order_id].seconds + orders[order_id].timeout_seconds for order_id in live), default=0.0)
        self.scheduler.wait(lambda: all(task.done for task in tasks.values()), seconds)
        receipts = []
        for executor, task in tasks.items():
            if isinstance(task.result, UpkeepReceipt):
                receipts.append(self.with_usage(UpkeepReceipt.from_json(task.result.to_json())))
            elif not task.done:
                receipts.append(overdue_receipt(executor, seconds))
            elif self.scheduler.chance.random() < 0.5:
                raise UnavailableError(f"executor {executor} went while it did upkeep")
        return receipts


class SteppedSink(SimSink):
    """An idempotent sink. ``check`` is called with each delivery before it is stored."""

    def __init__(self, scheduler: Scheduler, check: Callable[[pa.Table, Delivery], None]) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._check = check

    def __call__(self, rows: pa.Table, delivery: Delivery) -> None:
        """Store a delivery."""
        self._scheduler.step("sink takes")
        self._check(rows, delivery)
        super().__call__(rows, delivery)
        self._scheduler.step("sink took")


class SteppedWork(SimWork):
    """A micro-batch whose slots run concurrently.

    A task that dies or is slow runs again. The first result counts, and the other runs continue unobserved.
    """

    def __init__(
        self,
        cluster: SteppedCluster,
        rows: pa.Table,
        operators: Sequence[Operator],
        sinks: Mapping[str, SimSink],
        initial: Mapping[str, pa.Table],
    ) -> None:
        super().__init__(cluster, rows, operators, sinks, initial=initial)
        self._stepped = cluster
        self._scheduler = cluster.scheduler
        self.lost_rows: set[str] = set()
        """Stores with missing rows."""
        self.lost_receipts: set[tuple[str, int]] = set()
        """Slots with missing receipts, as (store, slot)."""
        self.lost_results = 0
        self._runs = 0
        self.gave_up: dict[int, set[str]] = {}
        """The problems for which each run of the batch may be given up, by the number of the run."""

    def partitions(self, limit: int) -> Sequence[Partition]:
        """Return the partitions of the rows."""
        self._scheduler.step("partitions asked")
        return super().partitions(limit)

    def answers(self, attempts: Sequence[Attempt]) -> list[pa.Table]:
        """Run all attempts.

        Return their answers. Attempts of one task have the same slot, and stores with the same key.
        """
        self._runs += 1
        groups = self._by_task(attempts)
        tasks = [[self._begun(group, self._first_of(group[0]))] for group in groups]
        while not all(any(_answered(task) for task in of_slot) for of_slot in tasks):
            self._scheduler.step("slots awaited")
            ended = _ended(tasks)
            self._scheduler.wait(lambda: _ended(tasks) != ended, SPECULATION_SECONDS)  # noqa: B023 - waits here
            self._check_executors(attempts)
            for group, of_slot in zip(groups, tasks, strict=True):
                if not any(_answered(task) for task in of_slot) and self._is_given_up(of_slot[-1]):
                    of_slot.append(self._begun(group, self._elsewhere()))
        answers: dict[int, pa.Table] = {}
        for group, of_slot in zip(groups, tasks, strict=True):
            results = next(task.result for task in of_slot if _answered(task))
            assert isinstance(results, list)
            answers.update(zip(map(id, group), results, strict=True))
        return [self._told(attempt, answers[id(attempt)]) for attempt in attempts]

    def _by_task(self, attempts: Sequence[Attempt]) -> list[list[Attempt]]:
        """Return the attempts of each task, grouped as by ``SparkWork`` if the cluster shares tasks."""
        groups: dict[object, list[Attempt]] = {}
        for number, attempt in enumerate(attempts):
            order = attempt.order
            shared = (attempt.slot, tuple(order.slots.items()), order.key, order.routing, order.total)
            is_alone = not self._stepped.shares_tasks or order.initial is not None
            groups.setdefault(number if is_alone else shared, []).append(attempt)
        return [*groups.values()]

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Deliver the results, unless a fault has lost some of them."""
        if self._scheduler.step("results read") == "block lost":
            self.lost_results += 1
            raise StaleRows(self._gives_up("some of the results are nowhere any more"))
        super().deliver(receipts, delivery, lambda: self._checked(check))

    def _checked(self, check: Callable[[], None]) -> None:
        """I4: before a driver calls its sink, it checks that no other driver has taken over."""
        actor = self._scheduler.mine()
        began = self._scheduler.count
        check()
        if actor is not None and actor.saw_free <= began:
            self._scheduler.broke(AssertionError(f"I4: {actor.name} calls the sink without checking the log"))

    def _is_given_up(self, task: Actor) -> bool:
        return task.done or self._scheduler.now > task.began + SPECULATION_SECONDS

    def _begun(self, attempts: Sequence[Attempt], executor: str) -> Actor:
        def later(work: Callable[[], None]) -> None:
            late = self._scheduler.chance.choice(MERGES_LATE_SECONDS)

            def merge() -> None:
                self._scheduler.sleep(late)
                work()

            self._stepped.spawn("merge", executor, merge)

        def run() -> list[pa.Table]:
            lost = self._scheduler.step("rows read") == "row lost"
            if lost:
                self.lost_rows.update(attempt.order.store for attempt in attempts)
            stores = [
                StoreInput(attempt.order, attempt.computation, attempt.rows.slice(1) if lost else attempt.rows)
                for attempt in attempts
            ]
            answers = run_slots(stores, attempts[0].slot, executor, attempts[0].random_bytes, later)
            self._scheduler.step("answers")
            return answers

        if executor not in self._stepped.processes or not self._stepped.processes[executor].alive:
            raise Misplaced(self._gives_up(f"{executor} went before slots ran"), where="executors")
        actor = self._stepped.spawn("slot", executor, run)
        actor.began = self._scheduler.now
        return actor

    def _first_of(self, attempt: Attempt) -> str:
        """Return the first executor of a slot. Sometimes Spark does not wait for the preferred one."""
        if self._scheduler.chance.random() >= self._stepped.astray:
            return attempt.executor
        return self._elsewhere()

    def _elsewhere(self) -> str:
        live = [executor.id for executor in self._stepped.executors()]
        if not live:
            raise UnavailableError("no executor is left")
        return self._scheduler.chance.choice(live)

    def _check_executors(self, attempts: Sequence[Attempt]) -> None:
        """Sometimes give the batch up if an executor was lost, as with Spark."""
        lost = {attempt.executor for attempt in attempts} - {executor.id for executor in self._stepped.executors()}
        if lost and self._scheduler.chance.random() < 0.5:
            problem = f"{', '.join(sorted(lost))} went while slots ran"
            raise Misplaced(self._gives_up(problem), where="executors")

    def _gives_up(self, problem: str) -> str:
        self.gave_up.setdefault(self._runs, set()).add(problem)
        return problem

    def _told(self, attempt: Attempt, answer: object) -> pa.Table:
        assert isinstance(answer, pa.Table)
        befalls = self._scheduler.step("answer read")
        if befalls == "receipt lost":
            self.lost_receipts.add((attempt.order.store, attempt.slot))
            return answer.filter(pc.is_null(answer.column(RECEIPT)))
        receipt = Receipt.from_json(answer.column(RECEIPT).drop_null()[-1].as_py())
        if receipt.error is not None:
            self._gives_up(receipt.error[1])
        return answer


def _answered(task: Actor) -> bool:
    return task.done and task.result is not None


def _ended(tasks: Sequence[Sequence[Actor]]) -> int:
    return sum(task.done for of_slot in tasks for task in of_slot)
