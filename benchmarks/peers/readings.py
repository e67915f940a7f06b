"""Compute figures from the logs of a run: rows per second, ages of results, and downtime of partitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

__all__ = ["Downtime", "Mark", "Result", "ages_ms", "downtime_around", "interval_rates", "marks_in", "results_in"]

ARRIVAL_S = 0.2
"""Results within this time after the first result of an arrival belong to this arrival, because batches write many at
once.
"""


class Mark(NamedTuple):
    """The number of processed rows at a time."""

    at: float
    rows: int


class Result(NamedTuple):
    """The time when a result could be read, the partition of its key, and the time when its newest row was put."""

    at: float
    partition: int
    put_at: float


class Downtime(NamedTuple):
    """The downtime of partitions in seconds: that of the worst one, and the mean by rows."""

    worst: float
    mean: float


def marks_in(log: str) -> list[Mark]:
    """Return the marks in lines ``rows MILLISECONDS TOTAL``. An incomplete last line is left out."""
    words = (line.split() for line in _whole_lines(log) if line.startswith("rows "))
    return [Mark(int(at_us) / 1e3, int(rows)) for _, at_us, rows in words]


def results_in(log: str) -> list[Result]:
    """Return the results in lines ``result ARRIVED PARTITION LAST``, whose times are in microseconds."""
    words = (line.split() for line in _whole_lines(log) if line.startswith("result "))
    return [Result(int(at_us) / 1e6, int(partition), int(last) / 1e6) for _, at_us, partition, last in words]


def _whole_lines(log: str) -> list[str]:
    return log.split("\n")[:-1]


def interval_rates(marks: Sequence[Mark], seconds: float, intervals: int) -> list[float]:
    """Return the rows per second of each interval after the first row, if the marks reach its end.

    Rows are spread evenly between two marks, such as the rows of a batch over the time since the previous batch.
    """
    first = next((mark_before for mark_before, mark in pairwise(marks) if mark.rows > mark_before.rows), None)
    if first is None:
        return []
    grown = [first, *(mark for previous_mark, mark in pairwise(marks) if mark.rows > previous_mark.rows)]
    ends = [end for number in range(intervals + 1) if (end := first.at + seconds * number) <= grown[-1].at]
    rows = np.interp(ends, [mark.at for mark in grown], [mark.rows for mark in grown])
    return [float(rate) for rate in np.diff(rows) / seconds]


def ages_ms(results: Iterable[Result], since: float, until: float) -> list[float]:
    """Return the age of each result's newest row when the result could be read, for rows put between two times."""
    return [1000 * (result.at - result.put_at) for result in results if since <= result.put_at < until]


def downtime_around(results: Iterable[Result], event: float, until: float) -> Downtime:
    """Return the downtime of partitions around an event.

    It is the longest time between two arrivals that ends after the event, minus the median time between arrivals before
    it. Results that are not newer than earlier ones, such as repeated results after a restart, do not count.
    """
    arrivals, rows = _arrivals(results)
    if not arrivals:
        raise ValueError("there are no results")
    downtimes = {partition: _partition_downtime(times, event, until) for partition, times in arrivals.items()}
    mean = sum(downtimes[partition] * rows[partition] for partition in downtimes) / sum(rows.values())
    return Downtime(max(downtimes.values()), mean)


def _arrivals(results: Iterable[Result]) -> tuple[dict[int, list[float]], dict[int, int]]:
    newest: dict[int, float] = {}
    times: dict[int, list[float]] = {}
    rows: dict[int, int] = {}
    for second, partition, put_at in sorted(results):
        if put_at > newest.get(partition, -math.inf):
            newest[partition] = put_at
            rows[partition] = rows.get(partition, 0) + 1
            put_times = times.setdefault(partition, [])
            if not put_times or second - put_times[-1] >= ARRIVAL_S:
                put_times.append(second)
    return times, rows


def _partition_downtime(times: Sequence[float], event: float, until: float) -> float:
    gaps = [time - last for last, time in pairwise(times) if time <= event]
    if not gaps:
        raise ValueError("a partition has no two results before the event")
    longest = max((time - last for last, time in pairwise([*times, until]) if time > event), default=0.0)
    return max(0.0, longest - statistics.median(gaps))
