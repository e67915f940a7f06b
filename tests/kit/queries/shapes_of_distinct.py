"""Shapes of de-duplication in its three forms, and of exact distinct counts, for which Spark has only a batch query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.kit.queries.query_shape import Batch, Frames, Shape, events

__all__ = ["SHAPES"]

Build = Callable[[Frames], DataFrame]

TWICE = events(
    "0a1 0a1 1a1 2b2 40b1", "0a1 1a2 30c1 40b1 41b1", "30c1 29c1 60a1 2b2", "", "60a1 61a1 45_1 46_1", "99z1"
)
"""Rows that are repeated in the same batch, in a later batch, and when they are late."""
NO_TIMES = events("0a1 1a1", "0a1 40a1 ?b1 ?c1", "?b1 50a1", "0a1 ?b1 90a1")
"""Rows without a time. Spark treats them as rows of 1970 when it expires keys, but never drops them as late."""


def _distinct(kind: str, name: str, build: Build, batches: Sequence[Batch] = TWICE, **shape_fields: Any) -> Shape:
    return Shape(f"{kind}_{name}", kind, build, batches, **shape_fields)


def _first_of(*columns: str) -> Build:
    return lambda streams: streams.timed().dropDuplicates([*columns])


def _in_windows(streams: Frames) -> DataFrame:
    return streams.timed().select(F.window("at", "10 seconds").alias("w"), "k", "n", "k")


WITHOUT_WATERMARK = (
    _distinct("dedup", "rows", lambda streams: streams.events.dropDuplicates(), restart_after=2),
    _distinct(
        "dedup",
        "sql",
        lambda streams: streams.sql("SELECT DISTINCT k, n > 1 AS large FROM rows", rows=streams.events),
        mode="update",
    ),
)

WITH_WATERMARK = (
    _distinct("dedup", "by_time", lambda streams: streams.timed().select("at", "k").dropDuplicates(["k", "at"])),
    _distinct("dedup", "by_time_over_restart", _first_of("at", "k", "n"), restart_after=1),
    _distinct(
        "dedup",
        "by_key_alone",
        lambda streams: streams.timed().select("at", "k").dropDuplicates(["k"]),
    ),
    _distinct(
        "dedup",
        "by_time_or_none",
        lambda streams: streams.timed().select("at", "k").dropDuplicates(["k", "at"]),
        NO_TIMES,
    ),
    _distinct("dedup", "by_window", lambda streams: _in_windows(streams).dropDuplicates(["w", "n"])),
    _distinct("dedup", "beside_window", lambda streams: _in_windows(streams).dropDuplicates(["n"]), play="together"),
    _distinct(
        "dedup", "by_struct", lambda streams: streams.timed().selectExpr("at", "struct(k, n) AS s").dropDuplicates()
    ),
)


def _within(name: str, build: Build, batches: Sequence[Batch] = TWICE, **shape_fields: Any) -> Shape:
    return _distinct("within", name, build, batches, **shape_fields)


def _once(*columns: str, delay: str = "10 seconds") -> Build:
    return lambda streams: streams.timed(delay).select("at", "k", "n").dropDuplicatesWithinWatermark([*columns] or None)


AGAIN = events("0a1 40b1", "41a1 30c1", "60b1 50b1 54a1", "61b1 62a1", "100a1 100z1")
"""Keys that are repeated before and after they expire."""
WITHIN = (
    _within("no_times", _once("k"), NO_TIMES),
    _within("by_key", _once("k"), AGAIN),
    _within("by_key_over_restart", _once("k"), AGAIN, restart_after=2),
    _within("long_delay", _once("k", delay="1 minute"), AGAIN),
    _within(
        "by_struct",
        lambda streams: streams.timed().selectExpr("at", "struct(k, n) AS s").dropDuplicatesWithinWatermark(["s"]),
    ),
)  # fmt: skip


def _exact(name: str, build: Build, batches: Sequence[Batch] = TWICE, **shape_fields: Any) -> Shape:
    return Shape(f"exact_{name}", "exact", build, batches, "complete", oracle="batch", **shape_fields)


EXACT = (
    _exact("count", lambda streams: streams.events.groupBy("k").agg(F.countDistinct("n").alias("ns"))),
    _exact(
        "beside_others", lambda streams: streams.events.groupBy("k").agg(F.countDistinct("n"), F.count("*"), F.max("n"))
    ),
    _exact(
        "filtered", lambda streams: streams.events.groupBy("k").agg(F.expr("count(DISTINCT n) FILTER (WHERE n > 1)"))
    ),
    _exact(
        "in_windows", lambda streams: streams.events.groupBy(F.window("at", "10 seconds")).agg(F.countDistinct("k"))
    ),
    _exact("over_restart", lambda streams: streams.events.groupBy("k").agg(F.countDistinct("at")), restart_after=1),
)

SHAPES = (*WITHOUT_WATERMARK, *WITH_WATERMARK, *WITHIN, *EXACT)
