"""A running query with Spark's face: its methods are Spark's, and its progress says what our batches did. Knows
PySpark's ``StreamingQuery`` and our reports. Does not know plans, or the steps of a batch.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.protocol.batch.batch_report import BatchReport, StoreFigures
from riffle_spark.settings import Settings
from riffle_spark.spark.engine.stage_frames import SideOutput
from riffle_spark.spark.engine.tick import Tick
from riffle_spark.spark.job import RunningJob
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.spark.stateful import StatefulJob
from riffle_spark.spark.transform import TransformWithState

__all__ = ["StreamJob", "StreamQuery"]

_MS = 1000
_NAMES = {
    "aggregate": "stateStoreSave",
    "distinct": "dedupe",
    "exact": "stateStoreSave",
    "groups": "applyInPandasWithState",
    "join": "symmetricHashJoin",
    "processor": "transformWithStateInPandasExec",
    "within": "dedupeWithinWatermark",
}
"""What Spark calls its own operators, by the kinds of stages."""
_NONE_NOW: Mapping[str, object] = {"numRowsUpdated": 0, "numRowsDroppedByWatermark": 0}
"""What Spark tells of an operator where no batch was due."""


class StreamJob(StatefulJob):
    """The ``foreachBatch`` function of a wrapped query: its stages as operators that are known before any batch."""

    def __init__(
        self, operators: Sequence[JobOperator], settings: Settings, tick: Tick, side: SideOutput | None = None
    ) -> None:
        super().__init__([], settings)
        self.operators = list(operators)
        self._tick = tick
        self._side = side
        self._stored: dict[int, Mapping[str, int]] = {}

    def stored_rows(self, version: int) -> Mapping[str, int]:
        """Return how many rows each store's parts had after a batch: no fewer than it has keys."""
        return self._stored.get(version, {})

    def end(self) -> None:
        """End what runs beside the batches, once the query has ended."""
        self._end_loop()

    def _create_loop(self, spark: SparkSession) -> RunningJob:
        return RunningJob(self.operators, self.settings, spark, self._reached, "spark", self._tick, self._side)

    def _call_on_report(self, report: BatchReport) -> None:
        if self._driver is not None:
            self._stored[report.version] = self._driver.stored_rows()
        for version in [one for one in self._stored if one not in {kept.version for kept in self.reports}]:
            del self._stored[version]
        super()._call_on_report(report)


class StreamQuery(StreamingQuery):
    """A wrapped query that runs: Spark's own object with what riffle knows of its batches.

    ``job`` has the operations of a running query (``pause``, ``reconfigure``, ``readiness``), ``reports`` what each
    batch did. The query is among ``spark.streams.active`` as Spark's own object of the same id.
    """

    def __init__(self, query: StreamingQuery, job: StreamJob, told: Callable[[], Sequence[str]]) -> None:
        super().__init__(query._jsq)
        self.job = job
        self._told = told
        self._variables: dict[str, Mapping[str, int]] = {}

    @property
    def reports(self) -> deque[BatchReport]:
        """What the last batches did."""
        return self.job.reports

    def stop(self) -> None:
        """Stop the query, in the middle of a batch too, and what runs beside it."""
        super().stop()
        self.job.end()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end of the query, as Spark's own method does; raise what it failed with."""
        try:
            return super().awaitTermination(timeout)
        finally:
            if not self.isActive:
                self.job.end()

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - Spark's name
        """What Spark tells of the last batches, with a state operator for each stage."""
        return [self._progress(json.loads(one.json())) for one in self._jsq.recentProgress()]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - Spark's name
        """What Spark tells of the last batch, with a state operator for each stage."""
        last = self._jsq.lastProgress()
        return self._progress(json.loads(last.json())) if last else None

    def explain(self, extended: bool = False) -> None:
        """Print Spark's plan of the last batch's input, the stages, and what follows them."""
        super().explain(extended)
        print("\n".join(self._told()))  # noqa: T201 - as Spark does

    def _progress(self, told: dict[str, Any]) -> StreamingQueryProgress:
        """Return Spark's progress of a batch with what our report of it says; both go by the batch's id.

        Spark also tells, now and then, that no batch was due: then state is as the last one left it.
        """
        report = next((one for one in reversed(self.job.reports) if one.version <= told["batchId"]), None)
        if report is not None and report.decision == "run":
            now = {} if report.version == told["batchId"] else _NONE_NOW
            operators = [self._state_operator(one, report) for one in reversed(self.job.operators)]
            told["stateOperators"] = [{**one, **now} for one in operators]
        return StreamingQueryProgress.fromJson(told)

    def _state_operator(self, operator: JobOperator, report: BatchReport) -> dict[str, object]:
        """Return what Spark would say of a stage. ``numRowsTotal`` is no less than there are keys: it counts what the
        parts of the store hold. Times are those of all slots together.
        """
        of_store = report.by_store.get(operator.store, StoreFigures())
        seconds = of_store.slot_seconds
        phases = {f"{name}Ms": round(took * _MS) for name, took in report.seconds.items()}
        updated, of_kind = of_store.keys, dict[str, int]()
        if isinstance(operator.compute, DistinctRows):  # Only what is new changes its state.
            updated = of_store.output_rows
            of_kind["numDroppedDuplicateRows"] = of_store.rows - of_store.late_rows - updated
        return {
            "operatorName": _NAMES.get(operator.store.partition(".")[0], operator.store),
            "numRowsTotal": self.job.stored_rows(report.version).get(operator.store, 0),
            "numRowsUpdated": updated,
            "allUpdatesTimeMs": _ms(seconds, "touch", "fold", "read", "compute", "user"),
            "numRowsRemoved": of_store.expired,
            "allRemovalsTimeMs": 0,
            "commitTimeMs": _ms(seconds, "seal", "put"),
            "memoryUsedBytes": round(of_store.peak_memory_mb * 1_000_000),
            "numRowsDroppedByWatermark": of_store.late_rows,
            "numShufflePartitions": report.slots,
            "numStateStoreInstances": report.slots,
            "customMetrics": {
                "outputRows": of_store.output_rows, "deadRows": of_store.dead_rows,
                "sealedBytes": of_store.sealed_bytes, "fetchedBytes": of_store.fetched_bytes,
                "restores": of_store.restores, "runs": report.runs,
                "requests": sum(report.requests.values()), **phases, **of_kind, **self._variables_of(operator),
            },
        }  # fmt: skip

    def _variables_of(self, operator: JobOperator) -> Mapping[str, int]:
        """Return what kinds of state variables a processor has; ``init`` says so, and has run well before."""
        if isinstance(operator.compute, TransformWithState) and operator.store not in self._variables:
            self._variables[operator.store] = operator.compute.counted()
        return self._variables.get(operator.store, {})


def _ms(seconds: Mapping[str, float], *names: str) -> int:
    return round(sum(seconds.get(name, 0.0) for name in names) * _MS)
