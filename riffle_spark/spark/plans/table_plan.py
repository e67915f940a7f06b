"""Read a join of a stream with a table in a plan as a stage, with its map side and its evaluation in the JVM."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from riffle_spark.process.plans.cut import Hole, find_table
from riffle_spark.process.plans.grouping_keys import read_grouping_keys
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.plans.tables import TableJoin, TableMapSide, split_join_condition
from riffle_spark.process.types.stage_specs import TableSpec
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.join_plan import key_columns
from riffle_spark.spark.plans.plan_nodes import Node, analysed
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder, new_leaf


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A stage that joins a stream with a table: its specification, and its map side and evaluation as pieces.

    The holes of ``map_side`` are for the left and the right input. ``meanings`` describe the stored columns
    and their order.
    """

    spec: TableSpec
    meanings: Mapping[str, str]
    map_side: Piece
    evaluation: Piece


def read_table(
    reader: PlanReader,
    node: PlanNode,
    used_stores: tuple[str, ...] = (),
    used_columns: Collection[int] | None = None,
) -> TablePlan:
    """Read a join of a stream with a table in an analysed plan as a stage.

    ``used_stores`` are the names of the query's other stores. ``used_columns`` are the ids of the join's columns that
    the query reads; ``None`` means all. Raises ``ConfigError`` for a join by other columns than the table's key, for
    columns that cannot be keys or have no order, and for an invalid store name.
    """
    table = find_table(node)
    assert table is not None, "a stage of this kind joins a table"
    inputs = list(node.children)
    inputs[table.side] = table.changes
    plans = [reader.fetch(child.handle) for child in inputs]
    sides = [reader.read_output(plan) for plan in plans]
    columns = (sides[0][1], sides[1][1])
    equalities, residual_conditions = split_join_condition(node, table, columns)
    changes = {column.name: column.expression for column in columns[table.side]}
    grouping = [[equalities[name] for name in table.latest.key]] * 2
    grouping[table.side] = [changes[name] for name in table.latest.key]
    left_keys, right_keys = (
        read_grouping_keys(key_columns(reader, expressions, side_columns, leaf, plan))
        for expressions, (leaf, side_columns), plan in zip(grouping, sides, plans, strict=True)
    )
    join = TableJoin(node, table, columns, (left_keys, right_keys), residual_conditions)
    table_output = reader.read_output(reader.fetch(node.children[table.side].handle))[1]
    rows = TableMapSide(join, [column.id for column in table_output], used_columns)
    map_side, holes = _map_side(reader, rows, [leaf for leaf, _ in sides])
    catalyst = reader.catalyst
    spec = rows.make_spec(arrow_schema(catalyst.frame(map_side)), used_stores)
    evaluation = read_piece(reader, analysed(catalyst.frame(_evaluation(reader, node, rows, spec))))
    return TablePlan(spec, rows.stored_meanings(spec), read_piece(reader, map_side, holes), evaluation)


def _map_side(reader: PlanReader, rows: TableMapSide, leaves: list[Node]) -> tuple[Node, tuple[Hole, ...]]:
    """Return the union of both sides' rows over their leaves, and the positions of the leaves."""
    builder = TreeBuilder(reader)
    inputs = list[Node]()
    holes = list[Hole]()
    for side, leaf in enumerate(leaves):
        is_table = side == rows.join.table.side
        child = reader.catalyst.filter(builder.expression(rows.has_key()), leaf) if is_table else leaf
        inputs.append(builder.project(rows.side_columns(side), child))
        holes.append(Hole((side, 0, 0) if is_table else (side, 0), side))
    return reader.catalyst.construct("plans.logical.Union", reader.catalyst.seq(inputs)), tuple(holes)


def _evaluation(reader: PlanReader, node: PlanNode, rows: TableMapSide, spec: TableSpec) -> Node:
    """Return the plan from the slots' rows to the join's output, under the join's attributes."""
    leaf, leaf_columns = new_leaf(reader.catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, leaf_columns)
    results, condition = rows.result_values(reader.read_output(reader.fetch(node.handle))[1])
    if condition is not None:
        leaf = reader.catalyst.filter(builder.expression(condition), leaf)
    columns = [builder.alias(column.name, value, column.expression) for column, value in results]
    return reader.catalyst.project(columns, leaf)
