"""Run the micro-batches of a job, and its housekeeping between batches."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import RiffleError
from riffle_spark.observe.export import Exporters
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.idle_loop import IDLE_SECONDS
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ports import IncomingBatch, WatermarkPolicy, WatermarkSource
from riffle_spark.protocol.source_lag import offsets_of_entry
from riffle_spark.settings import Settings
from riffle_spark.spark.checkpoint_files import checkpoint_warning
from riffle_spark.spark.engine import inventory, routing
from riffle_spark.spark.engine.background import Pulse
from riffle_spark.spark.engine.jvm_errors import is_interruption
from riffle_spark.spark.engine.kafka import kafka_of, partition_racks, unbounded_batches
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.spark_batch import Sinks, SparkWork
from riffle_spark.spark.engine.spark_progress import SparkProgress
from riffle_spark.spark.engine.stage_frames import SideOutput
from riffle_spark.spark.engine.tick import Tick
from riffle_spark.spark.engine.worker_python import check_driver_packages
from riffle_spark.spark.job_calls import JobCalls
from riffle_spark.spark.job_exporters import exporters_of
from riffle_spark.spark.job_operators import JobOperator, JobOperators
from riffle_spark.spark.job_wiring import wire_job
from riffle_spark.spark.key_lookup import KeyLookup
from riffle_spark.spark.state_operators import observed_figures, state_operators

_logger = logging.getLogger("riffle_spark")
_STOP_SECONDS = 5.0
_LOOK = "look"
_LONGEST_LOOK_SECONDS = 60.0


class RunningJob:
    """The batch loop of a job in this process.

    ``watermark_source`` is ``spark`` if the query uses Spark's own ``withWatermark`` (``IncomingBatch``). In that case
    ``tick`` starts batches without rows, and ``side_output`` receives late rows. ``time_shift_ms`` is added to
    the time of each batch.
    """

    def __init__(
        self,
        operators: Sequence[JobOperator],
        settings: Settings | None,
        spark: SparkSession,
        reached: Callable[[str], None],
        watermark_source: WatermarkSource = "rows",
        tick: Tick | None = None,
        side_output: SideOutput | None = None,
    ) -> None:
        """Create the batch loop of these operators. ``reached`` is called with the name of each step of a batch."""
        check_driver_packages()
        self._spark = spark
        self._query_id = inventory.DIRECT
        stores = [operator.store for operator in operators]
        parts = wire_job(spark, settings, stores, lambda: inventory.is_active(spark, self._query_id), reached)
        self._settings = parts.settings
        self._home = parts.home
        self._clock = parts.clock
        self._cluster = parts.cluster
        self._background = parts.background
        self.driver = parts.driver
        placement = self.driver.ownership.placement
        self._operators = JobOperators(operators, self._settings, watermark_source, placement.weights)
        self.lookup = KeyLookup(placement, self._operators)
        self._frames = PlacedFrames(capacity=len(Groups.of_query(stores, self._settings.store_groups).names))
        self._run_id: str | None = None
        self._calls = JobCalls(self._home.root)
        self._policy: WatermarkPolicy = "min"
        self._source = watermark_source
        self._tick = tick
        self._side_output = side_output
        self.time_shift_ms = 0
        self._pulse = Pulse(self._between_batches, IDLE_SECONDS)
        self._progress = SparkProgress()
        self._failures: Delays[str] = Delays(IDLE_SECONDS, _LONGEST_LOOK_SECONDS)
        self._exporters = Exporters((), self._clock.seconds)
        self._offset_sources: list[Any] = []
        self._query: Any = None
        self._batch_began: float | None = None
        self.may_rest = False
        """Whether there is housekeeping, which also reads requests, between batches of the present run."""

    def is_of(self, spark: SparkSession) -> bool:
        """Return whether the job belongs to the session's application. Later ones may follow in this process."""
        return self._home.application == inventory.application_id(spark)

    def is_active(self) -> bool:
        """Return whether the run of the last batch continues."""
        try:
            return inventory.is_active(self._spark, self._query_id, self._run_id)
        except Exception as error:  # noqa: BLE001 - a JVM that shuts down may raise any error
            _logger.debug("Cannot check whether the query runs: %s", error)
            return False

    def stop(self) -> None:
        """Cancel all upkeep and wait up to 5 seconds for its end. Idempotent.

        Pending deletes are dropped. The next driver's scan finds the objects.
        """
        self._pulse.stop(_STOP_SECONDS)
        if self._tick is not None:
            self._tick.stop()
        self._background.stop()
        self._cluster.stop()
        self._exporters.close(_STOP_SECONDS)
        if not self._background.ended(_STOP_SECONDS):
            # Cause: A piece of upkeep hangs, for example on a disk or a store that does not answer.
            _logger.warning(
                "[RIFFLE-0308] Upkeep has not ended %g s after the stop. It can no longer change state.\n"
                "  What to do: Check the disks of the executors and the store. Then end the application.",
                _STOP_SECONDS,
            )

    def process(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Run one micro-batch and return its report."""
        self._batch_began = self._clock.seconds()
        try:
            return self._process(batch, batch_id)
        except Exception as error:
            self._batch_began = None
            if not is_interruption(error) and not inventory.is_stopping(batch):
                self._export_failure(type(error).__name__, error.id if isinstance(error, RiffleError) else "")
            raise
        finally:
            self._batch_began = None

    def _export_failure(self, error: str, error_id: str) -> None:
        """Export that an error of class ``error`` ended the query.

        Do nothing if this run has not claimed the log, because then the status belongs to another run.
        """
        if self._run_id is not None and self.driver.run_id == self._run_id:
            self.driver.record_failure(error, error_id)
            self._exporters.publish(None, self.driver.facts())

    def _process(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Run one micro-batch, export its figures and return its report."""
        incoming = inventory.batch_facts(batch, batch_id, self._clock.wall_ms())
        incoming = replace(incoming, time_ms=incoming.time_ms + self.time_shift_ms)
        self._query_id = incoming.query_id
        self._calls.check(batch, incoming)
        if self._run_id != incoming.run_id:
            self._start_run(batch)
            self._run_id = incoming.run_id
            incoming = replace(
                incoming,
                offsets_before=inventory.offsets_before(batch, batch_id),
                query_name=inventory.query_name(batch),
            )
        arrived = self._clock.seconds()
        rows = batch if self._side_output is None else self._side_output.mapped(batch, incoming.time_ms)
        operators = self._operators.of_batch(rows)
        incoming = replace(incoming, watermark_policy=self._policy, watermark_source=self._source)
        self.may_rest = inventory.may_rest(batch.sparkSession, incoming)
        report = self.driver.process(incoming, operators, self._work(batch, rows, operators))
        self._calls.done(batch, incoming)
        if self._tick is not None:
            self._schedule_tick(self._tick, batch, incoming, operators)
        self._log_report(report)
        self._show_in_spark(batch, report)
        self._record_source(incoming, arrived)
        self._exporters.publish(report, self.driver.facts())
        if inventory.has_observable_end(batch.sparkSession, incoming):
            self._pulse.begin()
        return report

    def _start_run(self, batch: DataFrame) -> None:
        """Read the watermark policy and the racks of the input from a run's first batch, and await executors.

        Exporters start again, because the end of the run before has closed them.
        """
        self._exporters.close(0.0)
        self._exporters = Exporters(
            exporters_of(self._settings, self._spark, self._home, self.driver), self._clock.seconds
        )
        self._progress = SparkProgress()
        self._query = inventory.running_query(batch)
        self._policy = routing.policy_in(batch.sparkSession)
        self._offset_sources = _known_offset_sources(batch)
        for warning in (unbounded_batches(batch), checkpoint_warning(batch)):
            if warning is not None:
                _logger.warning("%s", warning)
        expected = inventory.expected_executors(batch.sparkSession, self._settings)
        inventory.await_executors(batch.sparkSession, self._settings, expected)
        if self._settings.rack_aware_assignment_strategy != "none":
            kafka = kafka_of(batch)
            self.driver.ownership.placement.weights.set_partition_racks(
                partition_racks(batch.sparkSession, kafka) if kafka else {}
            )
            self._operators.forget()

    def _work(self, batch: DataFrame, rows: DataFrame, operators: Sequence[Operator]) -> SparkWork:
        """Return the Spark work of a batch. ``rows`` is the batch with the columns for late rows."""
        declared = self._operators.declared
        sinks = Sinks(
            {operator.store: operator.sink for operator in declared if operator.sink is not None},
            late=None if self._side_output is None else partial(self._side_output.deliver, batch),
            letters={
                operator.store: operator.dead_letters for operator in declared if operator.dead_letters is not None
            },
        )
        reads = {operator.store: operator.reads for operator in declared if operator.reads is not None}
        prepared = routing.prepared(rows, [operator for operator in operators if operator.store not in reads])
        initial = self._operators.initial_states(operators)
        return SparkWork(prepared, operators, sinks, self._frames, self._home, self._settings, initial, reads)

    def _schedule_tick(
        self, tick: Tick, batch: DataFrame, incoming: IncomingBatch, operators: Sequence[Operator]
    ) -> None:
        """Schedule a batch without rows after this batch, if the watermark or a due time needs one."""
        closing = {operator.store for operator in self._operators.declared if operator.closes}
        by_watermark = any(operator.store in closing and operator.runs_on_watermark for operator in operators)
        tick.schedule_next(batch, incoming, self.driver.first_due_ms(operators), by_watermark=by_watermark)

    def _between_batches(self) -> bool:
        """Run the driver's work between batches, and export its facts. Return whether the run of the query continues.

        A failure is logged as a warning, and the next call is delayed.
        """
        seconds = self._clock.seconds()
        is_idle = bool(self.driver.idle_operators) and not self._failures.is_delayed(_LOOK, seconds)
        try:
            is_active = inventory.is_active(self._spark, self._query_id, self._run_id)
            executors = inventory.executors(self._spark) if is_active and is_idle and self.may_rest else ()
        except Exception as error:  # noqa: BLE001 - a JVM that shuts down may raise any error
            _logger.debug("Work between batches ends: %s", error)
            return False
        if not is_active:
            self._export_end()
            if self._tick is not None:  # a wrapped query, which creates a job for each start
                self.stop()
            return False
        if not is_idle:
            began = self._batch_began
            self._exporters.publish_again(self._clock.wall_ms(), seconds - began if began is not None else 0.0)
            return True
        try:
            self.driver.between_batches(executors)
        except Exception as error:  # noqa: BLE001 - a failure between batches must not fail the query
            self._failures.record_failure(_LOOK, seconds)
            # Cause: The housekeeping of an idle query failed, for example because the store did not answer.
            # Remedy: Follow the remedy of the error. If it has none, do nothing, because the work is retried.
            _logger.warning("[RIFFLE-0309] Work between batches failed and is retried later: %s", error)
        else:
            self._failures.forget(_LOOK)
        self._exporters.publish(None, self.driver.facts())
        return True

    def _export_end(self) -> None:
        """Export the error that ended the query, if Spark has one, and close the exporters."""
        try:
            failure = inventory.failure_of(self._query)
        except Exception as error:  # noqa: BLE001 - a JVM that shuts down may raise any error
            _logger.debug("Cannot read how the query ended: %s", error)
        else:
            if failure is not None:
                self._export_failure(*failure)
        self._exporters.close(_STOP_SECONDS)

    def _record_source(self, incoming: IncomingBatch, arrived: float) -> None:
        """Record how far a committed batch is behind its sources. ``arrived`` is the clock's time of its arrival."""
        if not self._offset_sources or incoming.offsets is None:
            return
        try:
            newest = inventory.newest_offsets(self._offset_sources)
        except Exception as error:
            if is_interruption(error):
                raise
            _logger.debug(
                "The source lag is unknown: %s", error
            )  # the source lag is for observers only, and the batch is committed
            self._offset_sources = []
            return
        self.driver.record_source(offsets_of_entry(incoming.offsets), newest, arrived)

    def _show_in_spark(self, batch: DataFrame, report: BatchReport) -> None:
        """Add a batch that ran to the progress that Spark reports to listeners, UI and event log."""
        if report.decision == "run":
            operators = state_operators(self._operators.declared, report, self.driver.stored_rows())
            self._progress.add(batch, operators, observed_figures(report))

    def _log_report(self, report: BatchReport) -> None:
        """Log a report and its warnings."""
        if _logger.isEnabledFor(logging.INFO):
            _logger.info("batch %s", report.to_json())
        for warning in report.warnings:
            _logger.warning("%s", warning)


def _known_offset_sources(batch: DataFrame) -> list[Any]:
    """Return the sources of a batch whose newest offsets Spark knows. Without them the source lag is unknown."""
    try:
        return inventory.offset_sources(batch)
    except Exception as error:  # noqa: BLE001 - source lag is for observers only, so no error may fail the batch
        _logger.debug("The source lag is unknown: %s", error)
        return []
