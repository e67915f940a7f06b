"""A running wrapped query with the interface and the progress of Spark's own."""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.settings import Settings
from riffle_spark.spark import compat
from riffle_spark.spark.engine.stage_frames import SideOutput
from riffle_spark.spark.engine.tick import Tick
from riffle_spark.spark.job import RunningJob
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.spark.state_operators import state_operator
from riffle_spark.spark.stateful import StatefulJob
from riffle_spark.spark.transform import TransformWithState

_IDLE: Mapping[str, object] = {"numRowsUpdated": 0, "numRowsDroppedByWatermark": 0}
"""Spark's figures of an operator when no batch was due."""


class StreamJob(StatefulJob):
    """The ``foreachBatch`` function of a wrapped query. Its operators are known before the first batch.

    ``time_shift_ms`` is added to the time of each batch, for tests.
    """

    def __init__(
        self,
        operators: Sequence[JobOperator],
        settings: Settings,
        tick: Tick,
        late_rows: SideOutput | None = None,
        seed: Callable[[SparkSession], None] | None = None,
    ) -> None:
        """Create the job of a wrapped query.

        ``tick`` starts batches without rows, ``late_rows`` gets late rows. ``seed`` is called before the first batch of
        this process.
        """
        super().__init__([], settings)
        self.operators = list(operators)
        self._tick = tick
        self._late_rows = late_rows
        self._seed = seed
        self._stored_rows: dict[int, Mapping[str, int]] = {}
        self.time_shift_ms = 0

    def stored_rows(self, version: int) -> Mapping[str, int]:
        """Return the number of state rows of each store after a batch."""
        return self._stored_rows.get(version, {})

    def set_step_listener(self, reached: Callable[[str], None]) -> None:
        """Call a function at each step of a batch, from the next start of the driver on."""
        self._reached = reached

    def end(self) -> None:
        """Stop the job's threads, after the query has ended."""
        self._stop_running_job()

    def _create_running_job(self, spark: SparkSession) -> RunningJob:
        """Return the batch loop of this query. Write the initial state before it starts."""
        if self._seed is not None:
            self._seed(spark)
        job = RunningJob(self.operators, self.settings, spark, self._reached, "spark", self._tick, self._late_rows)
        job.time_shift_ms = self.time_shift_ms
        return job

    def _call_on_report(self, report: BatchReport) -> None:
        """Keep the number of stored rows for the reports that are kept, and call the user's ``on_report``."""
        if self._driver is not None:
            self._stored_rows[report.version] = self._driver.stored_rows()
        reported = {kept_report.version for kept_report in self.reports}
        for version in [version for version in self._stored_rows if version not in reported]:
            del self._stored_rows[version]
        super()._call_on_report(report)


class StreamQuery(StreamingQuery):
    """A running wrapped query: Spark's ``StreamingQuery``, with riffle's reports and operations.

    ``job`` has the operations of a running query (``pause``, ``reconfigure``, ``readiness``). ``reports`` holds the
    figures of the last batches. ``spark.streams.active`` lists the query as Spark's own object with the same id.

    >>> query = counts.writeStream.outputMode("update").format("console").start()  # doctest: +SKIP
    >>> query.reports[-1].output_rows  # doctest: +SKIP
    """

    def __init__(self, query: StreamingQuery, job: StreamJob, describe: Callable[[], Sequence[str]]) -> None:
        """Wrap Spark's query. ``describe`` returns the lines that ``explain`` adds."""
        super().__init__(query._jsq)
        self.job = job
        self._describe = describe
        self._variables: dict[str, Mapping[str, int]] = {}

    @property
    def root(self) -> str:
        """Return the root of the query's state, as commands take it."""
        return (self.job.settings and self.job.settings.root) or ""

    @property
    def reports(self) -> deque[BatchReport]:
        """The reports of the last batches, the newest last."""
        return self.job.reports

    def stop(self) -> None:
        """Stop the query after its current batch, and the job's threads. After 10 seconds the batch is interrupted."""
        self.job.stop(StreamingQuery(self._jsq))
        self.job.end()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end of the query, as in Spark. Raises the error that ended it."""
        try:
            return super().awaitTermination(timeout)
        finally:
            if not self.isActive:
                self.job.end()

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - Spark's name
        """Spark's progress of the last batches, with a state operator for each stage."""
        return [self._progress(json.loads(progress.json())) for progress in self._jsq.recentProgress()]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - Spark's name
        """Spark's progress of the last batch, with a state operator for each stage."""
        last = self._jsq.lastProgress()
        return self._progress(json.loads(last.json())) if last else None

    def explain(self, extended: bool = False) -> None:
        """Print Spark's plan of the last batch's input, the stages, and the plan after them."""
        super().explain(extended)
        print("\n".join(self._describe()))  # noqa: T201 - as Spark does

    def _progress(self, progress: dict[str, Any]) -> StreamingQueryProgress:
        """Return Spark's progress with the figures of the report of the same batch.

        Spark also reports progress when no batch was due. Then the figures of state are from the last batch.
        """
        reports = reversed(self.job.reports)
        report = next((report for report in reports if report.version <= progress["batchId"]), None)
        if report is not None and report.decision == "run":
            changes = {} if report.version == progress["batchId"] else _IDLE
            operators = [self._state_operator(operator, report) for operator in reversed(self.job.operators)]
            progress["stateOperators"] = [{**operator, **changes} for operator in operators]
        return compat.progress_of(progress)

    def _state_operator(self, operator: JobOperator, report: BatchReport) -> dict[str, object]:
        """Return a stage's figures in the form of Spark's state operators."""
        fields = state_operator(operator, report, self.job.stored_rows(report.version))
        metrics: dict[str, object] = fields["customMetrics"]  # type: ignore[assignment]
        return {**fields, "customMetrics": {**metrics, **self._variables_of(operator)}}

    def _variables_of(self, operator: JobOperator) -> Mapping[str, int]:
        """Return the number of a processor's state variables by kind, once its ``init`` has run. Empty for others."""
        if isinstance(operator.compute, TransformWithState) and operator.store not in self._variables:
            self._variables[operator.store] = operator.compute.counted()
        return self._variables.get(operator.store, {})
