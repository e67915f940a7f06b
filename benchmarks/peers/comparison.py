"""Compute the ratios between engines, and format the table of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["Figures", "table", "with_ratios"]

Figures = Mapping[str, Mapping[str, float]]
"""Figures by engine and name."""
PLACES = (
    "rows_per_s",
    "rows_per_s_from_kafka",
    "flink_rocksdb_ratio",
    "flink_rocksdb_ratio_from_kafka",
    "flink_heap_ratio",
    "kafka_streams_ratio",
    "latency_p50_ms",
    "latency_p99_ms",
    "kill_standby_s",
    "kill_cold_s",
    "scale_out_s",
)
AGAINST = {
    "flink_rocksdb_ratio": ("flink_rocksdb", "rows_per_s"),
    "flink_rocksdb_ratio_from_kafka": ("flink_rocksdb", "rows_per_s_from_kafka"),
    "flink_heap_ratio": ("flink_heap", "rows_per_s"),
    "kafka_streams_ratio": ("kafka_streams", "rows_per_s_from_kafka"),
}
"""The divisor of each ratio. Kafka Streams reads only from Kafka, so its ratio uses the rates from Kafka."""


def with_ratios(results: Figures) -> dict[str, dict[str, float]]:
    """Return the figures with the ratios of rates between engines, if both rates are known.

    The only rate of Kafka Streams is that from Kafka.
    """
    by_engine = {name: dict(figures) for name, figures in results.items()}
    streams = by_engine.get("kafka_streams", {})
    if "rows_per_s_from_kafka" in streams:
        streams["rows_per_s"] = streams["rows_per_s_from_kafka"]
    return {name: {**figures, **_ratios(figures, by_engine)} for name, figures in by_engine.items()}


def _ratios(figures: Mapping[str, float], by_engine: Figures) -> dict[str, float]:
    pairs = {
        ratio: (figures.get(name, math.nan), by_engine.get(other_engine, {}).get(name, math.nan))
        for ratio, (other_engine, name) in AGAINST.items()
    }
    return {ratio: round(ours / theirs, 3) for ratio, (ours, theirs) in pairs.items() if math.isfinite(ours / theirs)}


def table(figures: Figures) -> str:
    """Return a table with a line per figure and a column per engine. A figure that was not measured is a dash."""
    other_names = sorted({name for figure in figures.values() for name in figure} - set(PLACES))
    head = f"{'':40}" + "".join(f"{engine:>16}" for engine in figures)
    return "\n".join([head, *(f"{name:40}" + _cells(figures, name) for name in (*PLACES, *other_names))])


def _cells(figures: Figures, name: str) -> str:
    return "".join(f"{figure[name]:>16,.6g}" if name in figure else f"{'-':>16}" for figure in figures.values())
