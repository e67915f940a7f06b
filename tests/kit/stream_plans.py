"""Streams whose rows a test gives at once, and what stands in for slots: buffers merged in Python, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import riffle_spark
from riffle_spark.process.plans.plan_values import nodes_with_paths
from riffle_spark.process.types.stage_specs import AggregateSpec
from riffle_spark.spark.plans.aggregate_plan import AggregatePlan, read_aggregate
from riffle_spark.spark.plans.batch_pieces import Piece
from riffle_spark.spark.plans.cut_query import CutQuery, cut_query
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["ROOT", "by_hand", "cut_of", "evaluated", "merged", "rdd_of", "stream_of", "with_rows"]

ROOT = "file:///state/of/visits"
_NAN = float("nan")
Values = list[Any]


def stream_of(rows: DataFrame, folder: str, root: str | None = ROOT) -> DataFrame:
    """Return a wrapped stream with the columns of rows; nothing is ever read from its folder."""
    plain = rows.sparkSession.readStream.schema(rows.schema).parquet(folder)
    return riffle_spark.on(plain, root=root)


def cut_of(frame: DataFrame) -> CutQuery:
    """Return a frame's plan, cut."""
    return cut_query(frame)


def by_hand(query: DataFrame, rows: DataFrame, time_ms: int | None = None) -> tuple[list[Row], list[AggregateSpec]]:
    """Return what a wrapped query of aggregates answers to rows, all in one batch, and what its stages are.

    The rows are put below the inputs' plans; what Spark makes of them for slots is merged here, a row at a time.
    """
    spark = Catalyst(query.sparkSession)
    cut = cut_of(query)
    results = dict[int, Node]()
    specs = list[AggregateSpec]()
    for stage in cut.stages:
        (below,) = cut.below(stage)
        plan = read_aggregate(cut.reader, stage.node, tuple(spec.store for spec in specs))
        if isinstance(below, Piece):
            rows_below = below.fill(results, time_ms)
        else:
            rows_below = with_rows(spark, cut.reader.build(below.plan), rows)
        state = merged(spark.frame(plan.map_side.fill({0: rows_below}, time_ms)), plan.spec)
        results[stage.number] = evaluated(plan, rdd_of(state), time_ms)
        specs.append(plan.spec)
    return spark.frame(cut.top.fill(results, time_ms)).collect(), specs


def evaluated(plan: AggregatePlan, rdd: Node, time_ms: int | None = None) -> Node:
    """Return an aggregate's result, under its own attributes, of an RDD of rows of ``spec.output``."""
    end = plan.evaluation
    leaf = end.catalyst.rows(end.leaf(end.holes[0]).output(), rdd)
    return end.fill({0: leaf}, time_ms)


def rdd_of(frame: DataFrame) -> Node:
    """Return a frame's rows as the JVM's."""
    rdd: Node = frame._jdf.queryExecution().toRdd()
    return rdd


def with_rows(spark: Catalyst, plan: Node, rows: DataFrame) -> Node:
    """Return an input's plan with rows in the place of its sources."""
    reader = PlanReader(spark)
    values = reader.read(plan)
    leaves = {path: node for path, node in nodes_with_paths(values) if node.is_streaming and not node.children}
    outputs = {path: reader.fetch(leaf.handle).output() for path, leaf in leaves.items()}
    return reader.build_with(values, {path: spark.rows(output, rdd_of(rows)) for path, output in outputs.items()})


def merged(sent: DataFrame, spec: AggregateSpec) -> DataFrame:
    """Return merged buffers, one row a key, of rows that slots would get."""
    from pyspark.sql.types import StructField, StructType

    from riffle_spark.spark.engine.routing import spark_schema

    assert sent.columns == spec.rows.names
    keys = len(spec.keys)
    groups = dict[tuple[object, ...], list[Values]]()
    for row in sent.collect():
        key = tuple(_same(value) for value in row[:keys])
        values = dict(zip(sent.columns, row, strict=True))
        state = groups.setdefault(key, [[] for _ in spec.functions])
        for function, found in zip(spec.functions, state, strict=True):
            if function.argument is not None:
                arguments = [values[function.argument.name]]
            else:
                arguments = [values.get(buffer.name, buffer.literal) for buffer in function.buffers]
            found[:] = MERGES[function.function](found, arguments)
    schema = spark_schema(spec.output)
    schema = StructType([StructField(field.name, field.dataType) for field in schema])
    answers = [[*key, *(value for values in state for value in values)] for key, state in groups.items()]
    return sent.sparkSession.createDataFrame(answers, schema)


def _same(value: object) -> object:
    """Return a value that equals itself."""
    return _NAN if isinstance(value, float) and math.isnan(value) else value


def _pairwise(*parts: Callable[[Any, Any], Any]) -> Callable[[Values, Values], Values]:
    """Return what merges each buffer for itself; nulls say nothing."""

    def merge(old: Values, new: Values) -> Values:
        if not old:
            return new
        return [
            old_value if new_value is None else new_value if old_value is None else part(old_value, new_value)
            for part, old_value, new_value in zip(parts, old, new, strict=False)
        ]

    return merge


def _add(left: Any, right: Any) -> Any:
    return left + right


def _both(left: object, right: object) -> object:
    return bool(left) and bool(right)


def _extreme(of: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return the least or greatest of two values, of structs field by field with nulls before all else."""

    def rank(value: Any) -> Any:
        return [(item is not None, rank(item)) for item in value] if isinstance(value, tuple) else value

    return lambda left, right: of(left, right, key=rank)


def _by(extreme: Callable[[Sequence[Any]], Any]) -> Callable[[Values, Values], Values]:
    def merge(old: Values, new: Values) -> Values:
        if not old or old[1] is None:
            return new
        return old if new[1] is None or (new[1] != old[1] and extreme([old[1], new[1]]) == old[1]) else new

    return merge


def _moments(old: Values, new: Values) -> Values:
    if not old or not old[0]:
        return new
    (n, mean, m2) = old
    (m, other_value, k2) = new
    total = n + m
    apart = other_value - mean
    return [total, mean + apart * m / total, m2 + k2 + apart * apart * n * m / total] if m else old


MERGES: dict[str, Callable[[Values, Values], Values]] = {
    "Count": _pairwise(_add),
    "Sum": _pairwise(_add, _both),
    "Average": _pairwise(_add, _add),
    "Min": _pairwise(_extreme(min)),
    "Max": _pairwise(_extreme(max)),
    "First": lambda old, new: old if old and old[1] else new,
    "Last": lambda old, new: new if new[1] else old,
    "MaxBy": _by(max),
    "MinBy": _by(min),
    "StddevSamp": _moments,
    "VariancePop": _moments,
    "BitOrAgg": _pairwise(lambda left, right: left | right),
    "CollectList": lambda old, new: [[*(old[0] if old else []), *(item for item in new if item is not None)]],
}
"""How two of a function's buffers merge, by Spark's name of it."""
