"""Shapes of stream-stream joins: inner, outer and semi joins by equal keys, windows and ranges of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.kit.queries.query_shape import Batch, Frames, Shape, beside

__all__ = ["SHAPES"]

Build = Callable[[Frames], DataFrame]

WITHIN = "j = k AND bt BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 10 SECONDS"
AFTER = "j = k AND bt >= at AND bt < at + INTERVAL 10 SECONDS"

PAIRS = beside(
    ("0a1 1b2 2c3", "1a1 4b1 20a2"),
    ("10a1 12b1 30a4", "3c1 11a3 12b2 30a1"),
    ("40a1 5c1", None),
    (None, "41a1 45b1 33a2"),
    ("60b1 60b2", "60b1 2a9"),
    ("", "61_1 62c1"),
    ("120z1 63c1 64_1", "120y1"),
    ("200z1", "200y1"),
)
"""Rows that pair within and across batches, keys with many rows, late rows, null keys, and batches of one stream."""
FEW = beside(("0a1 1b2 2a3", "0a5 3b1"), ("4a1 30c1", "5a2 31c1 32d1"), ("60a1", "61b1"), ("120z1", "121z1"))
UNBOUNDED = beside(("0a1", "0a1 60b1"), ("1a1", "5a2"), ("2a1", "61a1"), ("120z1", "55z1 130a1"), ("130z1", "100z1"))
"""Rows that would be late after a batch without rows. Spark runs no such batch if rows never expire."""


def _join(kind: str, name: str, build: Build, batches: Sequence[Batch] = PAIRS, **shape_fields: Any) -> Shape:
    return Shape(f"{kind}_{name}", kind, build, batches, **shape_fields)


def _on(how: str, condition: str, *, timed: bool = True) -> Build:
    """Return a query that joins both streams on a SQL condition."""

    def build(streams: Frames) -> DataFrame:
        left = (streams.timed() if timed else streams.events).select("at", "k", "n")
        return left.join(streams.timed_others("5 seconds") if timed else streams.others, F.expr(condition), how)

    return build


def _in_windows(how: str) -> Build:
    """Return a query that joins both streams by key and window."""

    def build(streams: Frames) -> DataFrame:
        left = streams.timed().select(F.window("at", "10 seconds").alias("w"), "k", "n")
        right = streams.timed_others().select(F.window("bt", "10 seconds").alias("v"), "j", "m")
        return left.join(right, F.expr("w = v AND k = j"), how)

    return build


def _at_the_same_time(how: str) -> Build:
    return _on(how, "k = j AND at = bt")


MAX_POLICY = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}
INNER = (
    _join("inner", "by_key", _on("inner", "k = j", timed=False), FEW, restart_after=1),
    _join("inner", "within", _on("inner", WITHIN)),
    _join("inner", "after", _on("inner", AFTER), restart_after=2),
    _join("inner", "now", _on("inner", WITHIN), play="now"),
    _join("inner", "same_time", _at_the_same_time("inner")),
    _join("inner", "both_sided", _on("inner", f"{WITHIN} AND n + m > 3")),
    _join("inner", "compared", _on("inner", f"{AFTER} AND n < m")),
    _join("inner", "unbounded", _on("inner", "k = j"), UNBOUNDED),
    _join("inner", "latest_watermark", _on("inner", AFTER), conf=MAX_POLICY),
)

OUTER = (
    _join("outer", "left", _on("left_outer", WITHIN)),
    _join("outer", "right", _on("right_outer", WITHIN)),
    _join("outer", "full", _on("full_outer", WITHIN)),
    _join("outer", "full_over_restart", _on("full_outer", AFTER), restart_after=1),
    _join("outer", "full_one_sided", _on("full_outer", f"{WITHIN} AND m < 3")),
    _join("outer", "full_in_windows", _in_windows("full_outer")),
    _join("outer", "left_compared", _on("left_outer", f"{AFTER} AND n < m")),
)

SEMI = (
    _join("semi", "before", _on("left_semi", "k = j AND bt > at - INTERVAL 20 SECONDS AND bt < at")),
    _join("semi", "within", _on("left_semi", WITHIN)),
    _join("semi", "after", _on("left_semi", AFTER), restart_after=2),
    _join("semi", "compared", _on("left_semi", f"{WITHIN} AND n < m")),
)

SHAPES = (*INNER, *OUTER, *SEMI)
