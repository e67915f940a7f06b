"""Add up readings for systems of metrics without labels, such as Spark's MetricsSystem.

Labels with an open set of values (stores, executors, partitions, ...) are added up. A label with a fixed set of values
becomes a part of the name: ``riffle_members`` with ``state="quarantined"`` is ``riffle_members.quarantined``.
"""

from collections.abc import Iterable
from typing import Final

from riffle_spark.observe.readings import Reading

FIXED_LABELS: Final = frozenset({"by", "decision", "kind", "outcome", "phase", "role", "state", "step"})
"""The labels whose values the metric list enumerates."""
_LARGEST: Final = frozenset({"seconds", "ratio"})
"""Units of gauges whose sum means nothing, so that the total is the largest value."""


def totals(readings: Iterable[Reading]) -> dict[str, int | float]:
    """Return one value per name: sums, and for gauges in seconds or shares the largest value."""
    values: dict[str, int | float] = {}
    for reading in readings:
        labels = zip(reading.metric.labels, reading.labels, strict=True)
        name = ".".join([reading.metric.name, *(value for label, value in labels if label in FIXED_LABELS)])
        if reading.metric.kind == "gauge" and reading.metric.unit in _LARGEST:
            values[name] = max(reading.value, values.get(name, reading.value))
        else:
            values[name] = reading.value + values.get(name, 0)
    return values
