"""Convert the report of a batch to state operators with Spark's field names."""

from collections.abc import Mapping, Sequence

from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.protocol.batch.batch_report import BatchReport, StoreFigures
from riffle_spark.spark.engine.spark_progress import StateOperator
from riffle_spark.spark.job_operators import JobOperator

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
_METRICS = {
    "numRowsTotal": "numTotalStateRows",
    "numRowsUpdated": "numUpdatedStateRows",
    "numRowsRemoved": "numRemovedStateRows",
    "allUpdatesTimeMs": "allUpdatesTimeMs",
    "commitTimeMs": "commitTimeMs",
    "memoryUsedBytes": "stateMemory",
    "numRowsDroppedByWatermark": "numRowsDroppedByWatermark",
    "numStateStoreInstances": "numStateStoreInstances",
}
"""The metrics of Spark's nodes that have the fields of a state operator."""
_DUPLICATES = "numDroppedDuplicateRows"


def state_operator(operator: JobOperator, report: BatchReport, stored_rows: Mapping[str, int]) -> dict[str, object]:
    """Return a stage's figures in the form of Spark's state operators.

    ``stored_rows`` has the number of state rows of each store after the batch. Times are sums over all slots.
    """
    figures = report.by_store.get(operator.store, StoreFigures())
    seconds = figures.slot_seconds
    metrics: dict[str, object] = {
        "outputRows": figures.output_rows,
        "deadRows": figures.dead_rows,
        "sealedBytes": figures.sealed_bytes,
        "fetchedBytes": figures.fetched_bytes,
        "restores": figures.restores,
        "runs": report.runs,
        "requests": sum(report.requests.values()),
        **{f"{phase}Ms": round(duration * _MS) for phase, duration in report.seconds.items()},
    }
    if isinstance(operator.compute, DistinctRows):
        metrics[_DUPLICATES] = figures.rows - figures.late_rows - figures.output_rows
    return {
        "operatorName": _operator_name(operator),
        "numRowsTotal": stored_rows.get(operator.store, 0),
        "numRowsUpdated": figures.rows_updated,
        "allUpdatesTimeMs": _ms(seconds, "touch", "fold", "read", "compute", "user"),
        "numRowsRemoved": figures.rows_removed,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": _ms(seconds, "seal", "put"),
        "memoryUsedBytes": round(figures.peak_memory_mb * 1_000_000),
        "numRowsDroppedByWatermark": figures.late_rows,
        "numShufflePartitions": report.slots,
        "numStateStoreInstances": report.slots,
        "customMetrics": metrics,
    }


def _operator_name(operator: JobOperator) -> str:
    """Return Spark's name of an operator. The operator of a ``foreachBatch`` job has the name of its store."""
    kind = operator.store.partition(".")[0]
    if kind not in _NAMES:
        return operator.store
    if kind == "processor" and getattr(operator.compute, "pandas", None) is None:
        return _ROWS_OF_PROCESSOR
    return _NAMES["sessions" if isinstance(operator.compute, SessionGroups) else kind]


def state_operators(
    operators: Sequence[JobOperator], report: BatchReport, stored_rows: Mapping[str, int]
) -> list[StateOperator]:
    """Return the figures of all stages for Spark's own progress, the last stage first, as Spark lists them."""
    return [_spark_node(state_operator(operator, report, stored_rows), report) for operator in reversed(operators)]


def _spark_node(fields: Mapping[str, object], report: BatchReport) -> StateOperator:
    name = str(fields["operatorName"])
    node = _NODES.get(name, "StateStoreSaveExec")
    metrics = {metric: int(str(fields[field])) for field, metric in _METRICS.items()}
    duplicates = dict(fields["customMetrics"]).get(_DUPLICATES) if node == "StreamingDeduplicateExec" else None  # type: ignore[call-overload]
    shown = name if name in {*_NAMES.values(), _ROWS_OF_PROCESSOR} else "stateStoreSave"
    return StateOperator(node, shown, report.slots, metrics | ({} if duplicates is None else {_DUPLICATES: duplicates}))


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
