"""Shapes of event-time windows: tumbling, sliding and session windows, with late rows and batches without rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from tests.kit.queries.query_shape import Batch, Frames, Shape, events

__all__ = ["SHAPES"]

Build = Callable[[Frames], DataFrame]

STORY = events("0a1 0b2 4a3 5a3 12b5", "9a1 13b4 21a2 21a2 22c7", "1a9 2b9 14a1 30b1 35c2", "", "3a1 50a1 41b2", "90z1")
"""Rows on time, rows at the watermark, late rows, an empty batch, and a last row that closes nearly all windows."""
LATE = events("0a1 40a1", "1a1 2a1 3b1 41a1", "50a1 40a3 39a5", "50a1 51a1 80b1")
"""Rows of windows that the same batch closes, and late rows that are dropped."""
APART = events("0a1 1b2", "100a1", "99a1 200b1", "?a1 201_2", "300c1 300c1")
"""Times that are far from each other, a null time and a null key."""


def _tumbling(name: str, build: Build, batches: Sequence[Batch] = STORY, **shape_fields: Any) -> Shape:
    return Shape(f"tumbling_{name}", "tumbling", build, batches, **shape_fields)


def _in_tens(streams: Frames, *keys: str, delay: str = "10 seconds") -> GroupedData:
    return streams.timed(delay).groupBy(F.window("at", "10 seconds"), *keys)


def _count_and_sum(streams: Frames) -> DataFrame:
    return _in_tens(streams, "k").agg(F.count("*").alias("c"), F.sum("n").alias("s"))


TUMBLING = (
    _tumbling("append", _count_and_sum),
    _tumbling("update", _count_and_sum, mode="update"),
    _tumbling("append_over_restart", _count_and_sum, restart_after=1),
    _tumbling("update_over_break", _count_and_sum, mode="update", breaks_in=2),
    _tumbling("append_together", _count_and_sum, play="together"),
    _tumbling("late_append", lambda streams: _in_tens(streams, "k").count(), LATE),
    _tumbling("far_apart", lambda streams: _in_tens(streams, "k").agg(F.max("n"), F.min("at")), APART),
    _tumbling("no_delay", lambda streams: _in_tens(streams, "k", delay="0 seconds").count(), LATE),
    _tumbling(
        "offset",
        lambda streams: streams.timed().groupBy(F.window("at", "10 seconds", "10 seconds", "3 seconds")).count(),
    ),
    _tumbling(
        "no_watermark", lambda streams: streams.events.groupBy(F.window("at", "10 seconds")).count(), mode="update"
    ),
    _tumbling("of_event_time", lambda streams: streams.timed().groupBy("at", "k").agg(F.sum("n").alias("s")), LATE),
    _tumbling(
        "many_functions",
        lambda streams: _in_tens(streams, "k").agg(
            F.first("n"), F.last("n"), F.stddev("n"), F.max_by("n", "at"), F.count_if(F.col("n") > 1), F.max("at")
        ),
    ),
)


def _sliding(name: str, build: Build, batches: Sequence[Batch] = STORY, **shape_fields: Any) -> Shape:
    return Shape(f"sliding_{name}", "sliding", build, batches, **shape_fields)


def _slides(streams: Frames, *keys: str, length: str = "10 seconds", slide: str = "5 seconds") -> GroupedData:
    return streams.timed().groupBy(F.window("at", length, slide), *keys)


SLIDING = (
    _sliding("append", lambda streams: _slides(streams, "k").agg(F.count("*").alias("c"), F.sum("n").alias("s"))),
    _sliding("update", lambda streams: _slides(streams, "k").agg(F.avg("x")), mode="update"),
    _sliding("uneven", lambda streams: _slides(streams, "k", length="10 seconds", slide="3 seconds").count(), LATE),
    _sliding(
        "offset",
        lambda streams: streams.timed().groupBy(F.window("at", "10 seconds", "5 seconds", "2 seconds")).count(),
        APART,
        breaks_in=1,
    ),
)


VISITS = events(
    "0a1 3a2 20b1 26b2 1c5", "5a3 31b7 50a1 51c1", "4a9 30a1 36a2 90a1", "", "60b1 85a4 100c1 100c2", "200z1"
)
"""Sessions that grow at both ends, that merge, that touch, and that have ended."""
MEETING = events("0a1 8a2 20b1", "4a3 40b1 36b1", "38b2 12a1", "70a1 71b1", "120z1")
"""Rows between two sessions, which merge them."""


def _session(name: str, build: Build, batches: Sequence[Batch] = VISITS, **shape_fields: Any) -> Shape:
    return Shape(f"session_{name}", "session", build, batches, **shape_fields)


def _visits(streams: Frames, *keys: str, gap: Any = "5 seconds", delay: str = "10 seconds") -> GroupedData:
    return streams.timed(delay).groupBy(F.session_window("at", gap), *(keys or ("k",)))


def _gap_by_row(_: Frames) -> Any:
    return F.expr("CASE WHEN n > 4 THEN '20 seconds' WHEN n > 1 THEN '5 seconds' ELSE '2 seconds' END")


SESSIONS = (
    _session("count", lambda streams: _visits(streams).count()),
    _session("over_break", lambda streams: _visits(streams).count(), MEETING, breaks_in=1),
    _session("meeting", lambda streams: _visits(streams).agg(F.count("*").alias("c"), F.sum("n")), MEETING),
    _session("touching", lambda streams: _visits(streams).count(), events("0a1 5a1 20b1 26b1", "10a1 60c1", "90z1")),
    _session("gap_by_row", lambda streams: _visits(streams, gap=_gap_by_row(streams)).agg(F.count("*"), F.sum("n"))),
    _session("no_gap", lambda streams: _visits(streams, gap=F.expr("if(n > 2, '0 seconds', '5 seconds')")).count()),
    _session("complete", lambda streams: _visits(streams).agg(F.sum("n").alias("s")), MEETING, mode="complete"),
)  # fmt: skip

SHAPES = (*TUMBLING, *SLIDING, *SESSIONS)
