"""A de-duplication of Spark's plan as a stage, with its two ends in the JVM."""

from dataclasses import dataclass

from riffle_spark.process.plans.built import cast_back, leaf_column
from riffle_spark.process.plans.distinct import distinct_spec, read_rows
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.stage_specs import DistinctSpec
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import analysed
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder, leaf_of

__all__ = ["DistinctPlan", "read_distinct"]


@dataclass(frozen=True, slots=True)
class DistinctPlan:
    """A stage that is a de-duplication: its specification, and its two ends as pieces on the rows of each batch."""

    spec: DistinctSpec
    map_side: Piece
    evaluation: Piece


def read_distinct(reader: PlanReader, node: PlanNode, taken: tuple[str, ...] = ()) -> DistinctPlan:
    """Read a de-duplication of an analysed plan. ``taken`` are the names of stores that the query has already.

    Raises ``ConfigError`` for columns that cannot be keys, for several columns of event time, and for a store's name
    that cannot be one.
    """
    catalyst, below = reader.catalyst, reader.found(node.handle).child()
    leaf, output = reader.output(below)
    rows = read_rows(node, output, reader.random_columns(below))
    columns = {column.id: column for column in output}
    builder = TreeBuilder(reader)
    map_side = builder.project(rows.sent.items(), leaf)
    spec = distinct_spec(node, rows, arrow_schema(catalyst.frame(map_side)), taken)
    answer, names = leaf_of(catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, names)
    passed = {name: leaf_column(name) for name in spec.output.names}
    made = {key.column.id: key.put_together(passed) for key in rows.keys if key.column is not None}
    made |= {column.id: cast_back(passed[name], column) for name, column in rows.others.items()}
    lower = [builder.named(column.name, made[column.id], column.expression) for column in columns.values()]
    evaluation = catalyst.project(lower, answer)
    if len(columns) < len(output):  # A column may occur twice.
        evaluation = catalyst.project_to(below.output(), evaluation)
    return DistinctPlan(spec, read_piece(reader, map_side), read_piece(reader, analysed(catalyst.frame(evaluation))))
