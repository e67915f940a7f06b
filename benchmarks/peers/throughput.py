"""Measure the rows per second of an engine, from a generator or from a topic that was filled before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from apps.demo.servers import Child
from benchmarks.peers.readings import interval_rates, marks_in
from riffle_spark.errors import UnavailableError

__all__ = ["INTERVALS", "Rate", "measured"]

INTERVALS = 6
COUNTED = 4
START_SECONDS = 180.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Rate:
    """Rows per second: the median of the counted intervals, and the rates of these intervals."""

    rows_per_s: float
    intervals: tuple[float, ...]


def measured(child: Child, seconds: float, before_end: Callable[[], None] = lambda: None) -> Rate:
    """Run a started engine for all intervals, end it, and return the rate of the last intervals.

    ``before_end`` is called while it still runs. If the topic ends early there are fewer intervals; none is an error.
    """
    try:
        child.wait_until(lambda: _has_begun(child), START_SECONDS)
        end = time.monotonic() + seconds * 1.1 + 1
        while time.monotonic() < end and child.alive:
            time.sleep(POLL_SECONDS)
        before_end()
        child.check_alive()
    finally:
        child.stop()
    rates = interval_rates(marks_in(child.log.read_text(errors="replace")), seconds / INTERVALS, INTERVALS)
    counted_rates = rates[INTERVALS - COUNTED :]
    if not counted_rates:
        raise UnavailableError(f"only {len(rates)} of {INTERVALS} intervals had rows", where=str(child.log))
    return Rate(statistics.median(counted_rates), tuple(counted_rates))


def _has_begun(child: Child) -> bool:
    return any(mark.rows > 0 for mark in marks_in(child.log_tail()))
