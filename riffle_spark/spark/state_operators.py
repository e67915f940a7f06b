"""Convert the report of a batch to state operators of Spark's progress."""

from collections.abc import Mapping, Sequence

from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.protocol.batch.batch_report import BatchReport, StoreFigures
from riffle_spark.spark.engine.spark_progress import StateOperator
from riffle_spark.spark.job_operators import JobOperator

__all__ = ["observed_figures", "state_operators"]

_MS = 1000
_NAMES = {
    "aggregate": "stateStoreSave",
    "distinct": "dedupe",
    "exact": "stateStoreSave",
    "groups": "applyInPandasWithState",
    "join": "symmetricHashJoin",
    "processor": "transformWithStateInPandasExec",
    "sessions": "sessionWindowStateStoreSaveExec",
    "within": "dedupeWithinWatermark",
}
"""Spark's names of its own operators, by the kind of stage."""
_NODES = {
    "dedupe": "StreamingDeduplicateExec",
    "dedupeWithinWatermark": "StreamingDeduplicateWithinWatermarkExec",
}
"""Spark's classes of these operators. All others are ``StateStoreSaveExec``, with the name of the operator."""
_ROWS_OF_PROCESSOR = "transformWithStateInPySparkExec"
"""Spark's name of a processor of ``Row`` objects."""


def state_operators(
    operators: Sequence[JobOperator], report: BatchReport, stored_rows: Mapping[str, int]
) -> list[StateOperator]:
    """Return the figures of all stages for Spark's own progress, the last stage first, as Spark lists them.

    ``stored_rows`` has the number of state rows of each store after the batch. Times are sums over all slots.
    """
    return [_state_operator(operator, report, stored_rows) for operator in reversed(operators)]


def _state_operator(operator: JobOperator, report: BatchReport, stored_rows: Mapping[str, int]) -> StateOperator:
    """Return a stage's figures as the metrics of Spark's node."""
    name = _operator_name(operator)
    figures = report.by_store.get(operator.store, StoreFigures())
    seconds = figures.slot_seconds
    metrics = {
        "numTotalStateRows": stored_rows.get(operator.store, 0),
        "numUpdatedStateRows": figures.rows_updated,
        "numRemovedStateRows": figures.rows_removed,
        "allUpdatesTimeMs": _ms(seconds, "touch", "fold", "read", "compute", "user"),
        "commitTimeMs": _ms(seconds, "seal", "put"),
        "stateMemory": round(figures.peak_memory_mb * 1_000_000),
        "numRowsDroppedByWatermark": figures.late_rows,
        "numStateStoreInstances": report.slots,
    }
    if name == "dedupe":
        metrics["numDroppedDuplicateRows"] = figures.rows - figures.late_rows - figures.output_rows
    return StateOperator(_NODES.get(name, "StateStoreSaveExec"), name, report.slots, metrics)


def _operator_name(operator: JobOperator) -> str:
    """Return Spark's name of an operator. Stores of ``foreachBatch`` jobs and tables have that of an aggregate."""
    kind = operator.store.partition(".")[0]
    if kind == "processor" and getattr(operator.compute, "pandas", None) is None:
        return _ROWS_OF_PROCESSOR
    return _NAMES.get("sessions" if isinstance(operator.compute, SessionGroups) else kind, "stateStoreSave")


def observed_figures(report: BatchReport) -> dict[str, float]:
    """Return the figures of a batch for which Spark's state operators have no field, by name."""
    return {
        "output_rows": report.output_rows,
        "dead_rows": report.dead_rows,
        "timers_fired": report.timers_fired,
        "runs": report.runs,
        "requests": sum(report.requests.values()),
        "sealed_bytes": report.sealed_bytes,
        "fetched_bytes": report.fetched_bytes,
        "restores": report.restores,
        "moves": len(report.moves),
        "members": len(report.members),
        "standby_lag_records": sum(report.lag_records.values()),
        "warnings": len(report.warnings),
        **{f"{phase}_seconds": duration for phase, duration in report.seconds.items()},
    }


def _ms(seconds: Mapping[str, float], *steps: str) -> int:
    return round(sum(seconds.get(step, 0.0) for step in steps) * _MS)
