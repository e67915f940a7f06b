"""What is said of a batch that was run as often as it may and lost its place each time. Knows who must act."""

from __future__ import annotations

from collections.abc import Collection

from riffle_spark.errors import Misplaced, OutOfDate, UnavailableError
from riffle_spark.protocol.ports import StaleRows

__all__ = ["lost_place"]

_EXECUTORS_GO = "look at why executors are lost"
_RESULT_GOES = (
    "look at what drops what Spark keeps: a sink that releases RDDs which are not its own, or that reads the frame of "
    "an earlier batch, or executors whose disks lose files"
)
_TASKS_GO_ELSEWHERE = "look at why tasks do not run where their copies are: busy executors, a short spark.locality.wait"


def lost_place(
    version: int, runs: int, error: StaleRows | Misplaced | OutOfDate, gone: Collection[str], root: str
) -> UnavailableError:
    """Return the error for a batch, by its last run's error and which executors went while it was run."""
    if gone:
        remedy = f"{_EXECUTORS_GO} ({', '.join(sorted(gone))} while the batch was run)"
    elif isinstance(error, StaleRows):
        remedy = _RESULT_GOES
    elif isinstance(error, Misplaced):
        remedy = _TASKS_GO_ELSEWHERE
    else:
        remedy = _EXECUTORS_GO
    problem = "lost its place"
    if isinstance(error, StaleRows):
        problem = "lost rows while its sink read them" + ("" if gone else ", though no executor was seen to go")
    return UnavailableError(
        f"batch {version} was run {runs} times and each time {problem}: {error}",
        remedy=f"{remedy}; the query can be restarted, nothing was committed",
        where=root,
    )
