"""A wrapped frame's query, read and cut, and what Spark's own checker says of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.cut import CutPlan, Input, PlanPiece, Stage, cut, tables_in
from riffle_spark.process.plans.plan_values import (
    Expression,
    Path,
    PlanNode,
    find_node,
    nodes_with_paths,
    replace_nodes,
    walk,
    walk_expression,
)
from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.batch_pieces import Piece
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["CutQuery", "check_plan", "cut_query", "read_frame", "read_query"]


@dataclass(frozen=True, slots=True)
class CutQuery:
    """A query's parts, and the reader that builds them in the JVM."""

    reader: PlanReader
    values: CutPlan
    top: Piece

    @property
    def catalyst(self) -> Catalyst:
        """What makes nodes in the session's JVM."""
        return self.reader.catalyst

    @property
    def plan(self) -> Node:
        """The plan in the JVM, without its marks."""
        return self.reader.build(self.values.plan)

    @property
    def root(self) -> str:
        """The root that the query's marks have; ``""``: none."""
        return self.values.root

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The parts that Spark's own streaming query runs."""
        return self.values.inputs

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stateful nodes, those nearest to the sources first."""
        return self.values.stages

    def below(self, stage: Stage) -> tuple[Input | Piece, ...]:
        """Return what a stage reads, its pieces ready to be put on the rows of batches."""
        return tuple(Piece(self.reader, part) if isinstance(part, PlanPiece) else part for part in stage.below)


def read_frame(frame: DataFrame) -> tuple[PlanReader, PlanNode]:
    """Return a frame's analysed plan as values, and the reader that knows their handles."""
    reader = PlanReader(Catalyst(frame.sparkSession))
    return reader, reader.read(plan_nodes.analysed(frame))


def cut_query(frame: DataFrame) -> CutQuery:
    """Read a frame's plan and cut it. Raises ``ConfigError`` if its marks have several roots."""
    reader, plan = read_query(frame)
    values = cut(plan)
    return CutQuery(reader, values, Piece(reader, values.top))


def read_query(frame: DataFrame) -> tuple[PlanReader, PlanNode]:
    """Return a query's plan as values, in the form in which it is cut, and the reader that knows their handles.

    As in Spark, the plans that ``WITH`` names are put where they are used, and ``SELECT DISTINCT`` becomes an aggregate
    without functions.
    """
    reader, plan = read_frame(frame)
    names = {node.kind for node in walk(plan)}
    changed = reader.found(plan.handle)
    if "WithCTE" in names:
        changed = reader.catalyst.filled("optimizer.InlineCTE", True).apply(changed)
    if "Distinct" in names:
        changed = reader.catalyst.module("optimizer.ReplaceDistinctWithAggregate").apply(changed)
    if names & {"WithCTE", "Distinct"}:
        plan = reader.read(changed)
    return reader, plan


def check_plan(query: CutQuery, mode: str) -> None:
    """Raise what Spark's checker raises for a query with this output mode, else ``ConfigError`` for what is refused."""
    catalyst = query.catalyst
    rules.check_tables(query.values)
    checker = catalyst.module("analysis.UnsupportedOperationChecker")
    for plan, of_plan in _with_static_tables(query.values.plan, mode):
        # Spark refuses distinct aggregates of streams; everything else that it refuses of them stays refused.
        checker.checkForStreaming(query.reader.build(_counting_all(plan)), catalyst.output_mode(of_plan.capitalize()))
    rules.check_rules(query.values, mode)
    for stage in query.stages:
        if stage.kind == "join":
            join = query.reader.found(stage.node.handle)
            if catalyst.module("planning.ExtractEquiJoinKeys").unapply(join).isEmpty():
                raise rules.refusal("join_keys", stage.node.join_type)


def _with_static_tables(plan: PlanNode, mode: str) -> Iterator[tuple[PlanNode, str]]:
    """Yield a plan whose tables are static frames, because rows that are joined with a table find it as such a frame.

    Then yield the plans of the tables' changes. Each has its mode: changes are never complete.
    """
    tables = list(tables_in(plan))
    static = dict[Path, PlanNode]()
    for path, table in tables:
        joined = find_node(plan, path).children[table.side]
        static[(*path, table.side)] = replace(
            joined, children=(), expressions={}, is_streaming=False, is_original=False, edit="no_rows"
        )
    yield replace_nodes(plan, static), mode
    for _, table in tables:
        yield from _with_static_tables(table.changes, "append" if mode == "complete" else mode)


def _counting_all(plan: PlanNode) -> PlanNode:
    """Return a plan whose aggregate functions count every value, also those that are to count each value once."""
    distinct = [path for path, node in nodes_with_paths(plan) if any(map(_has_distinct, node.all_expressions))]
    for path in sorted(distinct, key=len, reverse=True):
        node = replace(find_node(plan, path), is_original=False, edit="count_all")
        plan = replace_nodes(plan, {path: node})
    return plan


def _has_distinct(expression: Expression) -> bool:
    return any(each.fields.get("isDistinct") is True for each in walk_expression(expression))
