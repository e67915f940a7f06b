"""Shapes by the way in which a query is written, and chains of several operators.

Queries are written with SQL over views, unions, joins with static frames, and functions of users around an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.kit.queries.query_shape import Batch, Frames, Shape, beside, events

__all__ = ["SHAPES"]

Build = Callable[[Frames], DataFrame]

STORY = events("0a1 0b2 4a3 5a3 12b5", "9a1 13b4 21a2 21a2 22c7", "1a9 2b9 14a1 30b1 35c2", "", "3a1 50a1 41b2", "90z1")
# In each batch at most one window of a key ends, because the order of several would be undefined.
ONE_A_BATCH = events(
    "0a1 0b2 4a3 4a3 12b5", "9d1 13b4 21a2 21a2 22c7", "1a9 2b9 14a1 30b1 35c2", "", "3a1 50a1 41b2", "90z1"
)
BOTH = beside(("0a1 5b2", "1a3"), ("12a1", "11b5 14c2"), ("30c1", None), (None, "31a1 2a1"), ("90z1", "95y1"))


def _sql(name: str, text: str, batches: Sequence[Batch] = STORY, **shape_fields: Any) -> Shape:
    return Shape(f"sql_{name}", "sql", lambda streams: streams.sql(text, rows=streams.timed()), batches, **shape_fields)


IN_TENS = "FROM rows GROUP BY window(at, '10 seconds'), k"
SQL = (
    _sql("having", f"SELECT window.end, k, count(*) AS c {IN_TENS} HAVING count(*) > 1 AND max(n) < 9"),
    _sql("with", "WITH named AS (SELECT at, k || '!' AS k FROM rows WHERE n > 1), counted AS (SELECT window, k, "
                 "count(*) AS c FROM named GROUP BY window(at, '10 seconds'), k) SELECT window.end, k, c FROM counted"),
    _sql("complete", "SELECT k, count(*) AS c FROM rows GROUP BY k ORDER BY c DESC, k LIMIT 2", mode="complete",
         ordered=True),
)  # fmt: skip


def _form(name: str, build: Build, batches: Sequence[Batch] = STORY, **shape_fields: Any) -> Shape:
    return Shape(f"form_{name}", "form", build, batches, **shape_fields)


def _totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", "10 seconds"), "k").agg(F.count("*").alias("c"), F.sum("n").alias("s"))


def doubled(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Double the numbers."""
    for frame in frames:
        yield frame[["at", "k"]].assign(n=frame["n"] * 2)


def large(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep only sums that are greater than 2."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([row for row in batch.to_pylist() if row["s"] > 2], schema=batch.schema)


def _union(streams: Frames) -> DataFrame:
    others = streams.timed_others().selectExpr("bt AS at", "j AS k", "m AS n")
    return _totals(streams.timed().select("at", "k", "n").union(others))


def _shorter(streams: Frames) -> DataFrame:
    """Return totals by the first letter of the key, which a user's function computes."""
    first = F.udf(lambda k: None if k is None else k[:1] + "!", "string")
    return _totals(streams.timed().withColumn("k", first("k")))


def _static_after(streams: Frames) -> DataFrame:
    return (
        _totals(streams.timed())
        .join(streams.names(), F.expr("k = key"), "left_outer")
        .select("window.end", "name", "s")
    )


FORMS = (
    _form(
        "static_before", lambda streams: _totals(streams.timed().join(streams.names(), F.expr("k = key")).drop("key"))
    ),
    _form("static_after", _static_after),
    _form("union", _union, BOTH),
    _form("users_function", _shorter),
    _form(
        "map_in_pandas_before",
        lambda streams: _totals(
            streams.events.mapInPandas(doubled, "at timestamp, k string, n long").withWatermark("at", "10 seconds")
        ),
    ),
    _form(
        "map_in_arrow_after",
        lambda streams: _totals(streams.timed()).select("k", "s").mapInArrow(large, "k string, s long"),
        mode="update",
    ),
    _form("no_operator", lambda streams: streams.timed().where("n > 1").select("at", "k", F.expr("n * 2 AS twice"))),
    _form(
        "static_frame_of_ours",
        lambda streams: streams.again(streams.names().join(streams.events, F.expr("k = key"))).groupBy("name").count(),
        mode="update",
    ),
)


def _chain(name: str, build: Build, batches: Sequence[Batch] = STORY, **shape_fields: Any) -> Shape:
    return Shape(f"chain_{name}", "chain", build, batches, **shape_fields)


def _in_fives(streams: Frames) -> DataFrame:
    return streams.timed().groupBy(F.window("at", "5 seconds"), "k").agg(F.count("*").alias("c"), F.sum("n").alias("s"))


def _of_windows(streams: Frames) -> DataFrame:
    return (
        _in_fives(streams).groupBy(F.window("window", "10 seconds")).agg(F.sum("c").alias("c"), F.max("s").alias("m"))
    )


def _by_window_time(streams: Frames) -> DataFrame:
    fives = _in_fives(streams).select(F.window_time("window").alias("at"), "k", "s")
    return fives.groupBy(F.window("at", "20 seconds"), "k").agg(F.sum("s").alias("s"))


def _three(streams: Frames) -> DataFrame:
    once = streams.timed().dropDuplicates(["at", "k", "n"])
    fives = once.groupBy(F.window("at", "5 seconds"), "k").agg(F.sum("n").alias("s"))
    return fives.groupBy(F.window("window", "20 seconds")).agg(F.max("s").alias("most"), F.count("*").alias("keys"))


def _joined_then_counted(streams: Frames) -> DataFrame:
    return _pairs(streams, "bt BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 10 SECONDS")


def _joined_after_then_counted(streams: Frames) -> DataFrame:
    return _pairs(streams, "bt > at + INTERVAL 5 SECONDS")


def _joined_ever_then_counted(streams: Frames) -> DataFrame:
    return _pairs(streams, "n = m")


def _outer_joined_then_counted(streams: Frames) -> DataFrame:
    return _pairs(streams, "bt BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 10 SECONDS", "left_outer")


def _pairs(streams: Frames, bound: str, how: str = "inner") -> DataFrame:
    others = streams.timed_others().select("bt", "j", "m")
    joined = streams.timed().select("at", "k", "n").join(others, F.expr(f"k = j AND {bound}"), how)
    return joined.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("pairs"), F.sum("m").alias("m"))


def _counted_then_joined(streams: Frames) -> DataFrame:
    left = streams.timed().groupBy(F.window("at", "10 seconds").alias("w"), "k").agg(F.sum("n").alias("s"))
    others = streams.timed_others().groupBy(F.window("bt", "10 seconds").alias("v"), "j").agg(F.sum("m").alias("t"))
    return left.join(others, F.expr("w = v AND k = j")).select("w.end", "k", "s", "t")


def _united_then_counted(streams: Frames) -> DataFrame:
    others = streams.timed_others().groupBy(F.window("bt", "5 seconds").alias("window"), "j").agg(F.sum("m").alias("s"))
    both = _in_fives(streams).select("window", "k", "s").union(others)
    return both.groupBy(F.window("window", "20 seconds")).agg(F.sum("s").alias("s"), F.count("*").alias("fives"))


def _sessions_then_windows(streams: Frames) -> DataFrame:
    visits = streams.timed().groupBy(F.session_window("at", "5 seconds"), "k").count()
    return visits.select(F.window_time("session_window").alias("at"), "count").groupBy(
        F.window("at", "20 seconds")).agg(F.max("count").alias("longest"), F.count("*").alias("visits"))  # fmt: skip


def _once_then_sessions(streams: Frames) -> DataFrame:
    once = streams.timed().select("at", "k", "n").dropDuplicatesWithinWatermark(["k", "n"])
    return once.groupBy(F.session_window("at", "10 seconds"), "k").count()


def _once_then_counted(streams: Frames) -> DataFrame:
    once = streams.timed().dropDuplicates(["at", "k", "n"])
    return once.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("c"), F.sum("n").alias("s"))


def _united_sketches(streams: Frames) -> DataFrame:
    """Return the number of distinct numbers in windows of 10 seconds, merged from sketches of windows of 5 seconds."""
    fives = streams.timed().groupBy(F.window("at", "5 seconds"), "k").agg(F.hll_sketch_agg("n", 10).alias("s"))
    tens = fives.groupBy(F.window("window", "10 seconds"))
    return tens.agg(F.hll_sketch_estimate(F.hll_union_agg("s")).alias("ns"), F.count("*").alias("fives"))


def _windows_then_once(streams: Frames) -> DataFrame:
    return _in_fives(streams).select(F.window_time("window").alias("at"), "k").dropDuplicatesWithinWatermark(["k"])


CHAINS = (
    _chain("of_windows", _of_windows),
    _chain("of_windows_over_restart", _of_windows, restart_after=2),
    _chain("by_window_time", _by_window_time),
    _chain("three", _three, restart_after=1),
    _chain("joined_then_counted", _joined_then_counted, BOTH),
    _chain("joined_after_then_counted", _joined_after_then_counted, BOTH),
    _chain("joined_ever_then_counted", _joined_ever_then_counted, BOTH),
    _chain("outer_joined_then_counted", _outer_joined_then_counted, BOTH, restart_after=2),
    _chain("counted_then_joined", _counted_then_joined, BOTH),
    _chain("united_then_counted", _united_then_counted, BOTH, breaks_in=1),
    _chain("sessions_then_windows", _sessions_then_windows),
    _chain("once_then_sessions", _once_then_sessions),
    _chain("once_then_counted_in_complete", _once_then_counted, mode="complete"),
    _chain("of_sketches", _united_sketches, restart_after=1),
    _chain("windows_then_once", _windows_then_once, ONE_A_BATCH),
)

SHAPES = (*SQL, *FORMS, *CHAINS)
