"""Cache the properties of a query's run that never change, because reading them takes calls to the JVM."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riffle_spark.spark.engine.jvm_errors import is_interruption

_AVAILABLE_NOW = "AvailableNow"


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """The id of a run, whether its trigger is ``availableNow``, and the JVM's handles of the run and its offset log."""

    execution: Any
    offset_log: Any
    id: str
    is_available_now: bool


_runs: dict[str, ActiveRun] = {}
"""The last run by query id."""


def active_run(query_id: str, find_execution: Callable[[], Any]) -> ActiveRun | None:
    """Return the active run of a query, or ``None`` if there is none.

    ``find_execution`` returns the JVM's handle of the run. It is called if the last known run is no longer active. A
    query has at most one active run.
    """
    run = _runs.get(query_id)
    if run is not None and _is_active(run):
        return run
    for ended in [known for known, other in list(_runs.items()) if not _is_active(other)]:
        _runs.pop(ended, None)
    execution = find_execution()
    if execution is None:
        return None
    is_available_now = _AVAILABLE_NOW in str(execution.trigger().toString())
    run_id = str(execution.runId())  # not from the job group, which a user may rename
    run = ActiveRun(execution, execution.offsetLog(), run_id, is_available_now)
    _runs[query_id] = run
    return run


def _is_active(run: ActiveRun) -> bool:
    """Return whether a run has not ended. It has ended if its JVM does not answer."""
    try:
        return bool(run.execution.isActive())
    except Exception as error:
        if is_interruption(error):
            raise
        return False
