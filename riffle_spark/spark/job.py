"""A job's batch loop: run each micro-batch, and look after the query between batches."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.idle import IDLE_SECONDS
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ports import IncomingBatch, WatermarkPolicy, WatermarkSource
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory, routing
from riffle_spark.spark.engine.background import Pulse
from riffle_spark.spark.engine.kafka import kafka_of, partition_racks, unbounded_batches
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.spark_batch import Sinks, SparkWork
from riffle_spark.spark.engine.stage_frames import SideOutput
from riffle_spark.spark.engine.tick import Tick
from riffle_spark.spark.engine.worker_python import check_driver_packages
from riffle_spark.spark.job_calls import JobCalls
from riffle_spark.spark.job_operators import JobOperator, JobOperators
from riffle_spark.spark.job_wiring import wire_job
from riffle_spark.spark.key_lookup import KeyLookup

__all__ = ["RunningJob"]

_logger = logging.getLogger("riffle_spark")
_STOP_SECONDS = 5.0
_LOOK = "look"
_LONGEST_LOOK_SECONDS = 60.0


class RunningJob:
    """The batch loop of one job in this process.

    ``watermark_source`` is ``spark`` if the query uses Spark's own ``withWatermark`` (``IncomingBatch``). Then ``tick``
    starts batches without rows, and ``side`` takes late rows.
    """

    def __init__(
        self,
        declared: Sequence[JobOperator],
        settings: Settings | None,
        spark: SparkSession,
        reached: Callable[[str], None],
        watermark_source: WatermarkSource = "rows",
        tick: Tick | None = None,
        side: SideOutput | None = None,
    ) -> None:
        check_driver_packages()
        self._spark = spark
        self._query_id = inventory.DIRECT
        stores = [each.store for each in declared]
        parts = wire_job(spark, settings, stores, lambda: inventory.is_active(spark, self._query_id), reached)
        self._settings = parts.settings
        self._home = parts.home
        self._clock = parts.clock
        self._cluster = parts.cluster
        self._background = parts.background
        self.driver = parts.driver
        placement = self.driver.ownership.placement
        self._operators = JobOperators(declared, self._settings, watermark_source, placement.weights)
        self.lookup = KeyLookup(placement, self._operators)
        self._frames = PlacedFrames(kept=len(Groups.of_query(stores, self._settings.store_groups).names))
        self._run_id: str | None = None
        self._calls = JobCalls(self._home.root)
        self._policy: WatermarkPolicy = "min"
        self._source = watermark_source
        self._tick = tick
        self._side = side
        self._pulse = Pulse(self._between_batches, IDLE_SECONDS)
        self._failures: Delays[str] = Delays(IDLE_SECONDS, _LONGEST_LOOK_SECONDS)

    def is_of(self, spark: SparkSession) -> bool:
        """Return whether this job belongs to the session's application: a process may stop one and start another."""
        return self._home.application == inventory.application_id(spark)

    def is_active(self) -> bool:
        """Return whether the run of the last batch continues."""
        try:
            return inventory.is_active(self._spark, self._query_id, self._run_id)
        except Exception as error:  # noqa: BLE001 - a JVM that shuts down may raise anything
            _logger.debug("it is unknown whether the query runs: %s", error)
            return False

    def stop(self) -> None:
        """Start no more upkeep, cancel what runs, and wait a while for its end. Idempotent.

        Pending deletes are dropped: the next driver's scan finds these objects.
        """
        self._pulse.stop(_STOP_SECONDS)
        if self._tick is not None:
            self._tick.stop()
        self._background.stop()
        self._cluster.stop()
        if not self._background.ended(_STOP_SECONDS):
            _logger.warning(
                "[RIFFLE-0308] a piece of upkeep has not ended %g s after the stop; it changes nothing", _STOP_SECONDS
            )

    def process(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Run one micro-batch and return its report."""
        incoming = inventory.batch_facts(batch, batch_id, self._clock.wall_ms())
        self._query_id = incoming.query_id
        self._calls.check(batch, incoming)
        if self._run_id != incoming.run_id:
            self._begin(batch)
            self._run_id = incoming.run_id
            incoming = replace(incoming, offsets_before=inventory.offsets_before(batch, batch_id))
        rows = batch if self._side is None else self._side.mapped(batch, incoming.time_ms)
        operators = self._operators.of_batch(rows)
        incoming = replace(incoming, watermark_policy=self._policy, watermark_source=self._source)
        report = self.driver.process(incoming, operators, self._work(batch, rows, operators))
        self._calls.done(batch, incoming)
        if self._tick is not None:
            self._schedule_tick(self._tick, batch, incoming, operators)
        self._log_report(report)
        if inventory.may_rest(batch.sparkSession, incoming):
            self._pulse.begin()
        return report

    def _begin(self, batch: DataFrame) -> None:
        """Read what the first batch of a run reveals: watermark policy, source, executors, and racks of its input."""
        self._policy = routing.policy_in(batch.sparkSession)
        for warning in (unbounded_batches(batch), inventory.checkpoint_warning(batch, self._home.root)):
            if warning is not None:
                _logger.warning("%s", warning)
        expected = inventory.expected_executors(batch.sparkSession, self._settings)
        inventory.await_executors(batch.sparkSession, self._settings, expected)
        if self._settings.rack_aware_assignment_strategy != "none":
            kafka = kafka_of(batch)
            self.driver.ownership.placement.weights.reads(partition_racks(*kafka) if kafka else {})
            self._operators.forget()

    def _work(self, batch: DataFrame, rows: DataFrame, operators: Sequence[Operator]) -> SparkWork:
        """Return the Spark side of a batch: ``rows`` are those of ``batch`` with the columns of late rows."""
        declared = self._operators.declared
        sinks = Sinks(
            {each.store: each.sink for each in declared if each.sink is not None},
            late=None if self._side is None else partial(self._side.deliver, batch),
            letters={each.store: each.dead_letters for each in declared if each.dead_letters is not None},
        )
        reads = {each.store: each.reads for each in declared if each.reads is not None}
        prepared = routing.prepared(rows, [operator for operator in operators if operator.store not in reads])
        initial = self._operators.initial_states(operators)
        return SparkWork(prepared, operators, sinks, self._frames, self._home, self._settings, initial, reads)

    def _schedule_tick(
        self, tick: Tick, batch: DataFrame, incoming: IncomingBatch, operators: Sequence[Operator]
    ) -> None:
        closing = {each.store for each in self._operators.declared if each.closes}
        by_watermark = any(o.store in closing and o.goes_by_watermark for o in operators)
        tick.after(batch, incoming, self.driver.first_due_ms(operators), by_watermark=by_watermark)

    def _between_batches(self) -> bool:
        """Look after the query while it runs no batch; return whether its run continues.

        A failure is a warning, and the next look waits longer.
        """
        now = self._clock.seconds()
        if not self.driver.idle_operators or self._failures.holds(_LOOK, now):
            return True
        try:
            is_active = inventory.is_active(self._spark, self._query_id, self._run_id)
            executors = inventory.executors(self._spark) if is_active else ()
        except Exception as error:  # noqa: BLE001 - a JVM that shuts down may raise anything
            _logger.debug("looks between batches end: %s", error)
            return False
        try:
            self.driver.between_batches(executors)
        except Exception as error:  # noqa: BLE001 - a failure between batches must not fail the query
            self._failures.failed(_LOOK, now)
            _logger.warning("[RIFFLE-0309] what was to be done between two batches is tried again later: %s", error)
        else:
            self._failures.forget(_LOOK)
        return is_active

    def _log_report(self, report: BatchReport) -> None:
        """Log a report and its warnings, and append it to ``report_file`` if that is set."""
        _logger.info("batch %s", report.to_json())
        for warning in report.warnings:
            _logger.warning("%s", warning)
        try:
            if self._settings.report_file:
                with Path(self._settings.report_file).open("a") as file:
                    file.write(report.to_json() + "\n")
        except OSError as error:
            _logger.warning("[RIFFLE-0310] the report is not in report_file, and the query goes on: %s", error)
