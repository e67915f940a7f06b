"""Shapes of aggregates: functions and keys in update mode, and queries in complete mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.kit.queries.query_shape import Batch, Frames, Shape, events

__all__ = ["SHAPES"]

FEW = events("0a1 0b2 4a3 5a3 12b5", "9a1 13b4 21a2 21a2 22c7", "", "1a? 2b-9 14_1 30b1 ?c2")
MORE = events("0a1 1a5 2a2 3b8 4b8 5b1 6c4", "7a9 8b3 9b2 10c6 11c6", "12a4 13a7 14b0 15c-3 16d10")
LARGE = events("0a4611686018427387904 1b4611686018427387904 2b1", "3a4611686018427387904 4b4611686018427387903 5c7")
_ODD = (float("nan"), -0.0, 0.0, 1.5, float("inf"), None)
DOUBLES: tuple[Batch, ...] = tuple(
    {"events": pa.table({"k": ["a", "b", "a", "b", "c", "c"], "x": pa.array(values, pa.float64())})}
    for values in (_ODD, _ODD[::-1], (0.0, float("nan"), -0.0, 2.5, None, float("-inf")))
)
TYPES: tuple[Batch, ...] = tuple(
    {"events": pa.Table.from_pylist([{"b": n % 2 == 0, "day": n % 3, "raw": bytes([n % 2]), "n": n} for n in numbers])}
    for numbers in (range(5), range(3, 8))
)


def _update(
    name: str, build: Callable[[Frames], DataFrame], batches: Sequence[Batch] = FEW, **shape_fields: Any
) -> Shape:
    return Shape(name, shape_fields.pop("kind", "aggregate"), build, batches, "update", **shape_fields)


def _by_key(*columns: str) -> Callable[[Frames], DataFrame]:
    """Return a query that groups by key with these aggregates in SQL."""
    return lambda streams: streams.events.groupBy("k").agg(*map(F.expr, columns))


AGGREGATES = (
    _update("count_by_key", lambda streams: streams.events.groupBy("k").count(), restart_after=1),
    _update("sums", _by_key("sum(n) AS n", "sum(x) AS x", "sum(n * 2 + 1) AS m"), breaks_in=1),
    _update("extremes", _by_key("min(n)", "max(n)", "min(x)", "max(d)", "min(at)", "max(at)", "max(string(n))")),
    _update("first_and_last", _by_key("first(n)", "last(n)", "first(n, true)", "last(n, true)", "any_value(n)")),
    _update("extremes_by", _by_key("max_by(n, at)", "min_by(n, at)", "max_by(at, n)", "min_by(struct(at, n), n)")),
    _update("moments", _by_key("stddev(n)", "variance(x)", "stddev_pop(n)", "var_pop(x)"), MORE),
    _update("decimals", _by_key("sum(d) AS total", "avg(d) AS mean", "sum(d * n) AS weighed", "min(d)", "max(d)")),
    _update(
        "over_results", _by_key("round(sum(n) / count(*), 2) + max(n) AS mixed", "struct(sum(n) AS s, min(n) AS m)")
    ),
    _update("lists", _by_key("collect_list(n) AS ns", "sort_array(collect_set(n)) AS set", "array_agg(n) AS all")),
    _update("texts", _by_key("listagg(string(n), ',') AS told"), MORE),
    _update("approximate_distinct", _by_key("approx_count_distinct(n) AS ns", "approx_count_distinct(x, 0.1) AS xs")),
    _update("distinct_sketches", _by_key("hll_sketch_estimate(hll_sketch_agg(n)) AS ns"), MORE),
    _update("approximate_quantiles", _by_key("percentile_approx(n, array(0.25, 0.5, 1.0)) AS quarters"), MORE),
    _update(
        "sums_that_wrap", _by_key("sum(n) AS n", "try_sum(n) AS tried"), LARGE, conf={"spark.sql.ansi.enabled": "false"}
    ),
    _update("special_doubles", _by_key("min(x)", "max(x)", "sum(x)", "first(x, true)", "count(x)"), DOUBLES),
    _update("keyless", lambda streams: streams.events.where("n > 2").groupBy().agg(F.expr("count(*)"), F.sum("n"))),
    _update("rollup", lambda streams: streams.events.rollup("k", F.expr("n % 2 AS odd")).agg(F.count("*").alias("c"))),
)


def _keyed(
    name: str, build: Callable[[Frames], DataFrame], batches: Sequence[Batch] = FEW, **shape_fields: Any
) -> Shape:
    return _update(name, build, batches, kind="key", **shape_fields)


KEYS = (
    _keyed("two_keys", lambda streams: streams.events.groupBy("k", F.expr("n % 2").alias("odd")).count()),
    _keyed(
        "struct_key", lambda streams: streams.events.groupBy(F.struct("k", F.expr("n % 2 AS odd")).alias("s")).count()
    ),
    _keyed(
        "null_struct_key",
        lambda streams: streams.events.groupBy(F.expr("if(n > 2, struct(k), null) AS key")).agg(
            F.count("*").alias("c")
        ),
    ),
    _keyed("double_key", lambda streams: streams.events.groupBy("x").count(), DOUBLES),
    _keyed(
        "typed_keys",
        lambda streams: streams.events.groupBy("b", "raw", F.expr("date_add('2026-01-01', int(day)) AS day")).count(),
        TYPES,
    ),
    _keyed(
        "decimal_key", lambda streams: streams.events.groupBy("d").agg(F.count("*").alias("c"), F.sum("d").alias("s"))
    ),
)


def _complete(
    name: str, build: Callable[[Frames], DataFrame], batches: Sequence[Batch] = FEW, **shape_fields: Any
) -> Shape:
    return Shape(f"complete_{name}", "complete", build, batches, "complete", **shape_fields)


COMPLETE = (
    _complete("count", lambda streams: streams.events.groupBy("k").count(), restart_after=1),
    _complete(
        "top",
        lambda streams: streams.events.groupBy("k").agg(F.sum("n").alias("s")).orderBy(F.desc("s"), "k").limit(2),
        ordered=True,
    ),
    _complete(
        "late_counts",
        lambda streams: streams.timed("1 second").groupBy(F.window("at", "5 seconds"), "k").agg(F.sum("n").alias("s")),
        events("0a1 40a1", "1a1 2b3 41a1", "0a5 60c1"),
    ),
    _complete(
        "joined", lambda streams: streams.events.groupBy("k").count().join(streams.names(), F.expr("k = key"), "left")
    ),
)

SHAPES = (*AGGREGATES, *KEYS, *COMPLETE)
