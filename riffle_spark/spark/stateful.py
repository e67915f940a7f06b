"""Define stateful operators and the ``foreachBatch`` function that runs them."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver
from riffle_spark.protocol.ownership.readiness import KeyPlace, MemberState, Readiness
from riffle_spark.protocol.ownership.rebalance import RebalanceListener, check_listener
from riffle_spark.settings import Settings, short_interval_warnings
from riffle_spark.spark.arguments import check_compute, check_settings, column_names, key_names
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.background import Gate, Stopped
from riffle_spark.spark.engine.connect_root import remember_session
from riffle_spark.spark.engine.jvm_errors import Py4JJavaError, is_interruption
from riffle_spark.spark.engine.spark_batch import Sink, arity
from riffle_spark.spark.engine.worker_python import worker_python_error
from riffle_spark.spark.heartbeat import interval_ms
from riffle_spark.spark.job import RunningJob
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.state.log.paths import check_store_name

_logger = logging.getLogger("riffle_spark")
_REPORTS_KEPT = 1000
_BATCH_END_SECONDS = 300.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_IDLE_MESSAGE = "Waiting"
"""The start of Spark's status while it waits for rows or for the next trigger."""
_NO_BATCH_YET = "Retry after its first batch. With Spark Connect, use the command riffle, because the server runs jobs."
_TOGETHER = "Pass operators with their sinks: together(first.into(sink), second.into(sink))."


class Stateful:
    """A keyed stateful operator: what to compute per key, and where its state is stored.

    Rows of a key are sorted by ``order_by`` in ascending order. NULL is sorted last, also in a field of a struct.
    Spark's own ascending order puts NULL first.

    Args:
        store: Name of the state, unique within a query. Letters, digits, ``_``, ``-`` and ``.``.
        key: Name of the key column, or names of several.
        compute: ``aggregate(...)`` or ``arrow_function(...)``.
        settings: Settings of the query. Unset ones are read from ``spark.riffle.*`` and ``conf/riffle.toml``.
        order_by: Columns that order the rows of a key. For Kafka use ``["partition", "offset"]``.
        durable: If false, the store is a cache: it is kept only on its owner's disk and costs no object. It is empty
            after a move and after each start of the query.
        watermark: A timestamp column and a delay, such as ``("at", "10 minutes")``. A row whose time is more than the
            delay before the newest time seen is late. Late rows are dropped and counted.
        initial_state: A frame with the key columns. A processor gets its rows with the first batch of the store.
        initial_state_name: Name of the initial state. With a name, a query that already has state also loads it: once,
            with its next batch.

    Raises:
        ConfigError: If an argument is invalid. Columns are checked when the first batch runs.

    >>> from riffle_spark import Settings, Stateful, aggregate, count
    >>> settings = Settings(root=root, key_groups=8)
    >>> totals = Stateful("totals", key="user", compute=aggregate(orders=count()), settings=settings)
    >>> job = totals.into(lambda frame, batch_id: frame.show())
    >>> query = events.writeStream.foreachBatch(job).trigger(availableNow=True).start()
    >>> query.awaitTermination()
    +----+------+
    |user|orders|
    +----+------+
    | ann|     2|
    +----+------+
    <BLANKLINE>
    """

    def __init__(  # noqa: PLR0913 - one argument per property of an operator
        self,
        store: str,
        key: str | Sequence[str],
        compute: Computation,
        *,
        settings: Settings | None = None,
        order_by: str | Sequence[str] = (),
        durable: bool = True,
        watermark: tuple[str, str] | None = None,
        initial_state: DataFrame | None = None,
        initial_state_name: str = USUAL_INITIAL,
    ) -> None:
        """Declare an operator. The class describes the arguments. Raises ``ConfigError`` if they do not fit."""
        self.store = check_store_name(store)
        check_compute(compute, store)
        check_settings(settings, store)
        self.key = key_names(key, store)
        self.compute = compute
        self.settings = settings
        self.durable = durable
        self.order_by = column_names("order_by", order_by, store)
        self.initial_state = initial_state
        self.initial_state_name = initial_state_name
        if watermark is not None and (isinstance(watermark, str) or len(watermark) != 2):
            raise ConfigError(
                f"watermark = {watermark!r} is not a column and a delay.",
                remedy='Write watermark=("at", "10 minutes").',
                where=store,
                id="RIFFLE-0367",
            )
        self.watermark = Watermark(watermark[0], interval_ms(watermark[1], store)) if watermark else None

    def __call__(self, _batch: DataFrame, _batch_id: int) -> None:
        """Raise ``ConfigError``: an operator without a sink cannot run as the function of ``foreachBatch``."""
        raise ConfigError(
            f"Operator {self.store!r} has no sink.",
            remedy="Pass operator.into(sink) to foreachBatch.",
            where=self.store,
            id="RIFFLE-0368",
        )

    def into(self, sink: Sink) -> "StatefulJob":
        """Return the function for ``foreachBatch`` that passes each batch's output rows to a sink.

        After a crash between sink and commit the sink gets the batch again, with the same ids. With an idempotent sink
        the output is exactly-once.

        Args:
            sink: ``sink(frame, batch_id)`` or ``sink(frame, batch_id, delivery_id)``. It may run several actions on
                the frame.

        Returns:
            The job. It has the reports of the query and the methods to operate it.

        Raises:
            ConfigError: If the sink cannot be called with two or three arguments.
        """
        arity(sink)
        return StatefulJob([(self, sink)], self.settings)


def together(*jobs: "StatefulJob", settings: Settings | None = None) -> "StatefulJob":
    """Return one ``foreachBatch`` function that runs several operators on one input and commits them together.

    Args:
        jobs: Operators with their sinks, as ``Stateful.into`` returns them.
        settings: Settings of the query. Required if the operators have different ones.

    Returns:
        The job of all operators.

    Raises:
        ConfigError: If there is no operator, if two have the same store name, or if their settings differ.

    >>> from riffle_spark import Stateful, aggregate, count, together
    >>> by_user = Stateful("by_user", key="user", compute=aggregate(orders=count()))
    >>> by_shop = Stateful("by_shop", key="shop", compute=aggregate(orders=count()))
    >>> job = together(by_user.into(write), by_shop.into(write))
    """
    check_settings(settings, "together")
    if not jobs:
        raise ConfigError("together() got no operators.", remedy=_TOGETHER, where="together", id="RIFFLE-0369")
    for job in jobs:
        if not isinstance(job, StatefulJob):
            raise ConfigError(f"Expected a job, got {job!r}.", remedy=_TOGETHER, where="together", id="RIFFLE-0370")
    job_settings = [job.settings for job in jobs if job.settings is not None]
    if settings is None and any(each.given() != job_settings[0].given() for each in job_settings):
        raise ConfigError(
            "The operators have different settings.",
            remedy="Pass the settings of all operators to together(..., settings=Settings(...)).",
            where="together",
            id="RIFFLE-0371",
        )
    return StatefulJob([part for job in jobs for part in job.parts], settings or next(iter(job_settings), None))


class JobOperations:
    """The methods to operate a running query.

    Every method may be called from any thread, and repeatedly. Members are named by their id or their executor's id.
    Methods that change something raise ``ConfigError`` with the reason if that is impossible, for example before the
    first batch of the query.
    """

    def __init__(self) -> None:
        self._gate = Gate()
        self._is_held = False
        """Whether a request from outside has paused the query. Such a pause ends with the run."""
        self._driver: Driver | None = None
        self._listener: RebalanceListener | None = None

    @property
    def listener(self) -> RebalanceListener | None:
        """The ``RebalanceListener`` that is notified when key-groups change their owner, or ``None``."""
        return self._listener

    @listener.setter
    def listener(self, listener: RebalanceListener | None) -> None:
        check_listener(listener)
        self._listener = listener
        if self._driver is not None:
            self._driver.ownership.placement.listener = listener

    def pause(self) -> None:
        """Pause the query after its current batch. It stays alive and keeps its assignment."""
        self._is_held = False
        self._gate.close()

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._is_held = False
        self._gate.open()

    @property
    def paused(self) -> bool:
        """Whether the query is paused."""
        return self._gate.closed

    def clean_up(self) -> None:
        """Remove all local copies of all live members, and wait until they are removed.

        Members restore the copies that they need from the root.

        Raises:
            ConfigError: If the query is not paused.
            UnavailableError: If the current batch does not end within 300 seconds.
        """
        driver = self._running_driver()
        if not self.paused:
            # Cause: A running batch may read or write these copies.
            raise ConfigError(
                "Local copies cannot be removed while the query is not paused.",
                remedy="Call pause() first, and resume() afterwards.",
                id="RIFFLE-0372",
            )
        with self._gate.quiet(_BATCH_END_SECONDS):
            driver.clean_up()

    def pin(self, key_group: int | tuple[str, int], member: str, store: str | None = None) -> None:
        """Fix the owner of a key-group. The key-group moves once the member has a warm copy.

        Args:
            key_group: Number of the key-group. With dispatch by partition: a (topic, partition).
            member: Id of the member, or of its executor.
            store: A store of the co-location group. Required if the query has several groups.
        """
        driver = self._running_driver()
        task = driver.ownership.placement.task_of(key_group, store)
        driver.operations.pin(task.key_group, member, task.group)

    def unpin(self, key_group: int | tuple[str, int], store: str | None = None) -> dict[str, str]:
        """Remove the pin of a key-group; arguments as for ``pin``. Return the members of all remaining pins."""
        driver = self._running_driver()
        task = driver.ownership.placement.task_of(key_group, store)
        return driver.operations.unpin(task.key_group, task.group)

    def drain(self, member: str) -> None:
        """Move all tasks away from a member, each once another copy is warm, so that the member can be stopped.

        When it is done, ``members()`` shows the member without tasks.
        """
        self._running_driver().operations.drain(member)

    def undrain(self, member: str) -> tuple[str, ...]:
        """Let a drained member own tasks again. Return the members that are still drained."""
        return self._running_driver().operations.undrain(member)

    def add_worker(self) -> int:
        """Run one more slot per executor, at most one per core. Return the new number of slots per executor."""
        return self._running_driver().operations.add_worker()

    def remove_worker(self) -> int:
        """Run one slot less per executor, at least one. Return the new number of slots per executor."""
        return self._running_driver().operations.remove_worker()

    def request_rebalance(self) -> None:
        """Compute a new assignment of key-groups to members before the next batch."""
        self._running_driver().operations.request_rebalance()

    def reconfigure(self, **changes: object) -> Settings:
        """Change live settings (docs/configuration.md) from the next batch on. Return the settings in effect."""
        driver = self._running_driver()
        changed = driver.operations.reconfigure(driver.settings, changes)
        for warning in short_interval_warnings(Settings(**{name: getattr(changed, name) for name in changes})):
            _logger.warning("%s", warning)
        return changed

    def members(self) -> tuple[MemberState, ...]:
        """Return the members of the last assignment, with load and lag as of the last batch."""
        return self._driver.ownership.member_states() if self._driver else ()

    def readiness(self) -> tuple[Readiness, ...]:
        """Return the lag of every standby and warm-up behind the head of its key-group, as of the last batch."""
        return self._driver.ownership.copies.readiness if self._driver else ()

    def _running_driver(self) -> Driver:
        """Return the driver of the running query.

        Raise ``ConfigError`` if it does not run or has not run a batch yet.
        """
        if self._driver is None:
            raise ConfigError("The query has not run a batch yet.", remedy=_NO_BATCH_YET, id="RIFFLE-0373")
        if not self._is_active():
            raise ConfigError(
                "The query is not running.", remedy="Start it, and retry after its first batch.", id="RIFFLE-0374"
            )
        return self._driver

    def _is_active(self) -> bool:
        """Return whether the query runs."""
        return True


class StatefulJob(JobOperations):
    """The function for ``foreachBatch`` that runs the operators of a query. Made by ``Stateful.into``.

    A job serves one query at a time.

    Attributes:
        reports: The ``BatchReport`` of each of the last 1000 batches, oldest first.
        on_report: A function that is called with each report after the commit. Its errors are logged.
        listener: A ``RebalanceListener``, or ``None``.

    >>> from riffle_spark import Settings, Stateful, aggregate, count, together
    >>> totals = Stateful("totals", key="user", compute=aggregate(orders=count()))
    >>> job = together(totals.into(write), settings=Settings(root=f"{root}/job"))
    >>> events.writeStream.foreachBatch(job).trigger(availableNow=True).start().awaitTermination()
    >>> job.reports[-1].rows
    2
    """

    def __init__(self, parts: Sequence[tuple[Stateful, Sink]], settings: Settings | None = None) -> None:
        super().__init__()
        self.parts = list(parts)
        self.settings = settings
        self.reports: deque[BatchReport] = deque(maxlen=_REPORTS_KEPT)
        self.on_report: Callable[[BatchReport], object] | None = None
        self._reached: Callable[[str], None] = lambda step: None  # noqa: ARG005 - called with the step name
        self._running: RunningJob | None = None
        names = [operator.store for operator, _ in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"Two operators use the store {name!r}.",
                    remedy="Give each operator its own store name.",
                    where=name,
                    id="RIFFLE-0375",
                )

    def __getstate__(self) -> dict[str, object]:
        """Leave out the running driver, because it cannot move to another process."""
        attributes = {name: value for name, value in self.__dict__.items() if name not in ("_gate", "_driver")}
        return {**attributes, "_running": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the job as neither running nor paused."""
        remember_session()
        super().__init__()
        self.__dict__.update(state)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch. Spark calls this method."""
        if self._is_held and (self._running is None or not self._running.is_active()):
            self.resume()  # the run that was paused by a request has ended
        try:
            with self._gate.batch(lambda: inventory.is_stopping(batch)):
                report = self._start_or_continue(batch.sparkSession).process(batch, batch_id)
        except Exception as error:
            if isinstance(error, Stopped) or (is_interruption(error) and inventory.is_stopping(batch)):
                _logger.info("batch %s was interrupted because the query stops", batch_id, exc_info=error)
                self._stop_running_job()
                raise Py4JJavaError from None
            worker_error = worker_python_error(error)
            if worker_error is not None:
                raise worker_error from error
            raise
        self.reports.append(report)
        self._call_on_report(report)

    def where(self, key: object, store: str | None = None) -> KeyPlace:
        """Return where a key is processed from the next batch on.

        Args:
            key: The value of the key column, or a tuple of the values of several. With dispatch by partition: a
                (topic, partition).
            store: A store of the query. Required if the stores have different keys or several co-location groups.

        Returns:
            The key-group, its owner with executor and host, and its standbys.

        Raises:
            ConfigError: If the query has not run a batch yet, or if the key does not fit the store.
        """
        if self._running is None:
            raise ConfigError("The query has not run a batch yet.", remedy=_NO_BATCH_YET, id="RIFFLE-0376")
        return self._running.lookup.where(key, store)

    def stop(self, query: StreamingQuery) -> None:
        """Stop the job's query after its current batch. A batch that takes longer than 10 seconds is interrupted.

        ``query.stop()`` interrupts the batch at once. Spark then warns of each task that it cancels.
        """
        was_paused = self.paused
        self._gate.close()
        deadline = time.monotonic() + _STOP_SECONDS
        while query.isActive and not self._gate.has_waiting_batch and time.monotonic() < deadline:
            if str(query.status["message"]).startswith(_IDLE_MESSAGE):
                break
            time.sleep(_LOOK_SECONDS)
        query.stop()
        if not was_paused:
            self.resume()

    def _start_or_continue(self, spark: SparkSession) -> RunningJob:
        """Return the batch loop of this session's application, a new one if there is none."""
        if self._running is None or not self._running.is_of(spark):
            self._running = self._create_running_job(spark)
            self._driver = self._running.driver
            self._driver.ownership.placement.listener = self.listener
            self._driver.mailbox.hold = self._hold
            self._driver.show_pauses(lambda: self._gate.closed_since_ms)
        return self._running

    def _hold(self, is_paused: bool) -> None:
        """Pause or resume the query by a request from outside.

        Raise ``ConfigError`` if the query could not read the request that resumes it.
        """
        if not is_paused:
            self.resume()
        elif self._running is None or not self._running.may_rest:
            # Cause: With the trigger availableNow, and with Spark Connect, no request is read between batches.
            raise ConfigError(
                "A query with the trigger availableNow, or on Spark Connect, cannot be paused by a request.",
                remedy="Stop the query instead.",
                id="RIFFLE-1359",
            )
        elif not self.paused:
            self._gate.close()
            self._is_held = True

    def _create_running_job(self, spark: SparkSession) -> RunningJob:
        """Return a new batch loop for the job's operators."""
        declared = [_job_operator(operator, sink) for operator, sink in self.parts]
        return RunningJob(declared, self.settings, spark, self._reached)

    def _is_active(self) -> bool:
        """Return whether the query of the last batch still runs."""
        return self._running is not None and self._running.is_active()

    def _stop_running_job(self) -> None:
        """Stop the batch loop, if there is one."""
        if self._running is not None:
            self._running.stop()
        self._running = None

    def _call_on_report(self, report: BatchReport) -> None:
        """Call the user's ``on_report``. Its errors are logged."""
        try:
            if self.on_report:
                self.on_report(report)
        except Exception as error:
            if is_interruption(error):
                raise Py4JJavaError from None
            _logger.exception("on_report failed; the batch is committed, and the query continues")


def _job_operator(operator: Stateful, sink: Sink) -> JobOperator:
    return JobOperator(
        store=operator.store,
        key=operator.key,
        compute=operator.compute,
        order_by=operator.order_by,
        durable=operator.durable,
        sink=sink,
        watermark=operator.watermark,
        initial=operator.initial_state,
        initial_name=operator.initial_state_name,
    )
