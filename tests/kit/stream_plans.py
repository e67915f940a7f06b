"""Streams whose rows a test sets, and slots that merge the partial results of aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

import riffle_spark
from riffle_spark import Stateful
from riffle_spark.process.plans.plan_values import nodes_with_paths
from riffle_spark.process.stages.session_groups import make_group_computation
from riffle_spark.process.types.stage_specs import AggregateSpec
from riffle_spark.spark import compat
from riffle_spark.spark.plans.aggregate_plan import AggregatePlan, read_aggregate
from riffle_spark.spark.plans.batch_pieces import Piece
from riffle_spark.spark.plans.cut_query import CutQuery, cut_query
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.testing import Harness
from tests.kit.arrow_frames import frame_of_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["ROOT", "answer", "cut_of", "merge_in_slots", "rdd_of", "stream_of", "with_rows"]

ROOT = "file:///state/of/visits"


def stream_of(rows: DataFrame, folder: str, root: str | None = ROOT) -> DataFrame:
    """Return a wrapped stream with the columns of rows. Nothing is read from its folder."""
    plain = rows.sparkSession.readStream.schema(rows.schema).parquet(folder)
    return riffle_spark.on(plain, root=root)


def cut_of(frame: DataFrame) -> CutQuery:
    """Return the plan of a frame, cut into stages."""
    return cut_query(frame)


def answer(
    query: DataFrame, rows: DataFrame, time_ms: int | None = None, batches: int = 1
) -> tuple[list[Row], list[AggregateSpec]]:
    """Return the output rows of a wrapped query of aggregates, and its stages.

    Slots merge the rows in ``batches`` parts.
    """
    catalyst = Catalyst(query.sparkSession)
    cut = cut_of(query)
    results = dict[int, Node]()
    specs = list[AggregateSpec]()
    for stage in cut.stages:
        (below,) = cut.below(stage)
        plan = read_aggregate(cut.reader, stage.node, tuple(spec.store for spec in specs))
        if isinstance(below, Piece):
            stage_input = below.fill(results, time_ms)
        else:
            stage_input = with_rows(catalyst, cut.reader.build(below.plan), rows)
        sent_rows = catalyst.frame(plan.map_side.fill({0: stage_input}, time_ms))
        results[stage.number] = merge_in_slots(plan, sent_rows, time_ms, batches)
        specs.append(plan.spec)
    return catalyst.frame(cut.top.fill(results, time_ms)).collect(), specs


def merge_in_slots(plan: AggregatePlan, sent_rows: DataFrame, time_ms: int | None = None, batches: int = 1) -> Node:
    """Return the result of an aggregate over partial rows of its map side, with the aggregate's own attributes."""
    table = compat.to_arrow(sent_rows).cast(plan.spec.rows)
    size = -(-table.num_rows // batches)
    operator = Stateful("slots", plan.spec.stored_key.names, make_group_computation(plan.spec, "complete"))
    with Harness(operator, plan.spec.rows) as slots:
        outputs = [slots.feed(table.slice(start, size)) for start in range(0, table.num_rows, size)]
    merged = frame_of_table(sent_rows.sparkSession, pa.Table.from_pylist(outputs[-1], schema=plan.spec.output))
    evaluation = plan.evaluation
    leaf = evaluation.catalyst.rows(evaluation.leaf(evaluation.holes[0]).output(), rdd_of(merged))
    return evaluation.fill({0: leaf}, time_ms)


def rdd_of(frame: DataFrame) -> Node:
    """Return the rows of a frame as an RDD of the JVM."""
    rdd: Node = frame._jdf.queryExecution().toRdd()
    return rdd


def with_rows(spark: Catalyst, plan: Node, rows: DataFrame) -> Node:
    """Return the plan of an input with rows instead of its sources, and without its watermarks.

    Spark 3.5.0 cannot plan a watermark of rows that are not a stream. Later versions ignore it.
    """
    reader = PlanReader(spark)
    values = reader.read(plan)
    leaves = {path: node for path, node in nodes_with_paths(values) if node.is_streaming and not node.children}
    outputs = {path: reader.fetch(leaf.handle).output() for path, leaf in leaves.items()}
    watermarks = [path for path, node in nodes_with_paths(values) if node.kind == "EventTimeWatermark"]
    return reader.build_with(
        values,
        {path: spark.rows(output, rdd_of(rows)) for path, output in outputs.items()},
        dict.fromkeys(watermarks, lambda watermark: watermark.children().apply(0)),
    )
