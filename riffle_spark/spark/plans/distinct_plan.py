"""Read a de-duplication in a plan as a stage, with its map side and its evaluation in the JVM."""

from collections.abc import Collection
from dataclasses import dataclass

from riffle_spark.process.plans.distinct import make_distinct_spec, read_distinct_rows
from riffle_spark.process.plans.grouping_keys import GroupingKey
from riffle_spark.process.plans.new_expressions import cast_back, leaf_column
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.stage_specs import DistinctSpec
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import analysed
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder, new_leaf


@dataclass(frozen=True, slots=True)
class DistinctPlan:
    """A stage that is a de-duplication: its specification, and its map side and evaluation as pieces.

    ``grouping`` are its keys, in the order of ``spec``.
    """

    spec: DistinctSpec
    map_side: Piece
    evaluation: Piece
    grouping: tuple[GroupingKey, ...]


def read_distinct(
    reader: PlanReader,
    node: PlanNode,
    used_stores: tuple[str, ...] = (),
    used_columns: Collection[int] | None = None,
) -> DistinctPlan:
    """Read a de-duplication in an analysed plan as a stage.

    ``used_stores`` are the names of the query's other stores. ``used_columns`` are the ids of the columns that the
    query reads after the operator; ``None`` means all. Raises ``ConfigError`` for columns that cannot be keys,
    for several columns of event time, and for an invalid store name.
    """
    catalyst = reader.catalyst
    child = reader.fetch(node.handle).child()
    leaf, output = reader.read_output(child)
    rows = read_distinct_rows(node, output, reader.random_columns(child), used_columns)
    columns = {column.id: column for column in output}
    map_side = TreeBuilder(reader).project(rows.values.items(), leaf)
    spec = make_distinct_spec(node, rows, arrow_schema(catalyst.frame(map_side)), used_stores)
    slot_rows, leaf_columns = new_leaf(catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, leaf_columns)
    passed = {name: leaf_column(name) for name in spec.output.names}
    values = {key.column.id: key.assemble(passed) for key in rows.keys if key.column is not None}
    values |= {column.id: cast_back(passed[name], column) for name, column in rows.payload.items()}
    results = [builder.alias(column.name, values[column.id], column.expression) for column in columns.values()]
    evaluation = catalyst.project(results, slot_rows)
    if len(columns) < len(output):  # A column may occur twice.
        evaluation = catalyst.project_to(child.output(), evaluation)
    pieces = read_piece(reader, map_side), read_piece(reader, analysed(catalyst.frame(evaluation)))
    return DistinctPlan(spec, *pieces, rows.keys)
