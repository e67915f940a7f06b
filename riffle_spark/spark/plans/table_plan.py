"""A join of a stream with a table of Spark's plan as a stage, with its two ends in the JVM."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from riffle_spark.process.plans.cut import Hole, table_of
from riffle_spark.process.plans.grouping_keys import read_keys
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.plans.tables import FoundTable, TableRows, equalities
from riffle_spark.process.types.stage_specs import TableSpec
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.join_plan import key_columns
from riffle_spark.spark.plans.plan_nodes import Node, analysed
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder, leaf_of

__all__ = ["TablePlan", "read_table"]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A stage that is a join with a table: its specification, and its two ends as pieces on the rows of each batch.

    The holes of ``map_side`` are those of the left input and of the right one. ``meanings`` say what is kept, and in
    what order.
    """

    spec: TableSpec
    meanings: Mapping[str, str]
    map_side: Piece
    evaluation: Piece


def read_table(
    reader: PlanReader, node: PlanNode, taken: tuple[str, ...] = (), read: Collection[int] | None = None
) -> TablePlan:
    """Read a join with a table of an analysed plan. ``taken`` are the names of stores that the query has already,
    ``read`` the ids of the columns that the query reads of it; ``None``: all are read.

    Raises ``ConfigError`` for a join by anything but the table's key, for columns that cannot be a key or have no
    order, and for a store's name that cannot be one.
    """
    catalyst, table = reader.catalyst, table_of(node)
    assert table is not None, "a stage of this kind joins a table"
    children = list(node.children)
    children[table.side] = table.changes
    plans = [reader.found(child.handle) for child in children]
    sides = [reader.output(plan) for plan in plans]
    outputs = (sides[0][1], sides[1][1])
    equal, rest = equalities(node, table, outputs)
    changes = {column.name: column.expression for column in outputs[table.side]}
    grouped = [[equal[name] for name in table.latest.key]] * 2
    grouped[table.side] = [changes[name] for name in table.latest.key]
    left, right = (
        read_keys(key_columns(reader, expressions, columns, leaf, plan))
        for expressions, (leaf, columns), plan in zip(grouped, sides, plans, strict=True)
    )
    found = FoundTable(node, table, outputs, (left, right), rest)
    joined = reader.output(reader.found(node.children[table.side].handle))[1]
    rows = TableRows(found, [column.id for column in joined], read)
    builder, ends, holes = TreeBuilder(reader), list[Node](), list[Hole]()
    for side, (leaf, _) in enumerate(sides):
        below, is_table = leaf, side == table.side
        if is_table:
            below = catalyst.named("plans.logical.Filter")(builder.value(rows.has_key()), leaf)
        ends.append(builder.project(rows.row(side), below))
        holes.append(Hole((side, 0, 0) if is_table else (side, 0), side))
    map_side = catalyst.filled("plans.logical.Union", catalyst.seq(ends))
    spec = rows.spec(arrow_schema(catalyst.frame(map_side)), taken)
    evaluation = read_piece(reader, analysed(catalyst.frame(_evaluation(reader, node, rows, spec))))
    return TablePlan(spec, rows.meanings(spec), read_piece(reader, map_side, tuple(holes)), evaluation)


def _evaluation(reader: PlanReader, node: PlanNode, rows: TableRows, spec: TableSpec) -> Node:
    """Return the plan of the join's rows, under its own attributes, of what slots answer."""
    leaf, names = leaf_of(reader.catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, names)
    columns, passes = rows.results(reader.output(reader.found(node.handle))[1])
    if passes is not None:
        leaf = reader.catalyst.named("plans.logical.Filter")(builder.value(passes), leaf)
    made = [builder.named(column.name, value, column.expression) for column, value in columns]
    return reader.catalyst.project(made, leaf)
