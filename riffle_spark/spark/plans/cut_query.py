"""Read and cut the query of a wrapped frame, and run Spark's own checks on it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.cut import CutPlan, Input, PlanPiece, Stage, cut_plan, find_table
from riffle_spark.process.plans.plan_values import PlanNode, transform_up, walk, walk_expression
from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.batch_pieces import Piece
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader


@dataclass(frozen=True, slots=True)
class CutQuery:
    """A query's parts, and the reader that builds them in the JVM."""

    reader: PlanReader
    values: CutPlan
    top: Piece

    @property
    def plan(self) -> Node:
        """Return the plan in the JVM, without its marks."""
        return self.reader.build(self.values.plan)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stateful nodes, from the sources on."""
        return self.values.stages

    def below(self, stage: Stage) -> tuple[Input | Piece, ...]:
        """Return the inputs that a stage reads, and the pieces between it and earlier stages."""
        return tuple(Piece(self.reader, part) if isinstance(part, PlanPiece) else part for part in stage.below)


def read_frame(frame: DataFrame) -> tuple[PlanReader, PlanNode]:
    """Return a frame's analysed plan as values, and the reader that knows their handles."""
    reader = PlanReader(Catalyst(frame.sparkSession))
    return reader, reader.read(plan_nodes.analysed(frame))


def cut_query(frame: DataFrame) -> CutQuery:
    """Read and cut a frame's plan. Raises ``ConfigError`` if its marks have several roots."""
    reader, plan = read_query(frame)
    values = cut_plan(plan)
    return CutQuery(reader, values, Piece(reader, values.top))


def read_query(frame: DataFrame) -> tuple[PlanReader, PlanNode]:
    """Return a frame's plan, prepared for cutting, and the reader that knows its handles.

    As in Spark, the plans that ``WITH`` names are inlined, ``SELECT DISTINCT`` becomes an aggregate, and the nodes that
    mark the operators of ``|>`` are removed.
    """
    reader, plan = read_frame(frame)
    kinds = {node.kind for node in walk(plan)}
    rewritten = reader.fetch(plan.handle)
    if "WithCTE" in kinds:
        rewritten = reader.catalyst.construct("optimizer.InlineCTE", True).apply(rewritten)
    if "Distinct" in kinds:
        rewritten = reader.catalyst.object_named("optimizer.ReplaceDistinctWithAggregate").apply(rewritten)
    if "PipeOperator" in kinds:
        rewritten = reader.catalyst.object_named("expressions.EliminatePipeOperators").apply(rewritten)
    if kinds & {"WithCTE", "Distinct", "PipeOperator"}:
        plan = reader.read(rewritten)
    return reader, plan


def check_plan(query: CutQuery, mode: str) -> None:
    """Raise the error of Spark's own checker for a query with output mode ``mode``, else ``ConfigError``.

    ``ConfigError`` is for terms that only riffle refuses.
    """
    catalyst = query.reader.catalyst
    rules.check_tables(query.values)
    checker = catalyst.object_named("analysis.UnsupportedOperationChecker")
    for plan, plan_mode in _with_static_tables(query.values.plan, mode):
        # Spark refuses DISTINCT aggregates of streams, which riffle supports. Its other rules still apply to them.
        checker.checkForStreaming(query.reader.build(_count_all(plan)), catalyst.output_mode(plan_mode.capitalize()))
    rules.check_rules(query.values, mode)
    for stage in query.stages:
        if stage.kind == "join":
            join = query.reader.fetch(stage.node.handle)
            if catalyst.object_named("planning.ExtractEquiJoinKeys").unapply(join).isEmpty():
                raise rules.refusal_error("join_keys", stage.node.join_type)


def _with_static_tables(plan: PlanNode, mode: str) -> Iterator[tuple[PlanNode, str]]:
    """Yield a plan with static frames in place of tables, then the plans of the changes, each with its output mode.

    A stream joins a table as it would join a static frame. The changes of a table are never in complete mode.
    """

    def make_static(node: PlanNode) -> PlanNode:
        table = find_table(node)
        if table is None:
            return node
        children = list(node.children)
        children[table.side] = replace(
            children[table.side], children=(), expressions={}, is_streaming=False, is_original=False, edit="no_rows"
        )
        return node.with_children(children)

    yield transform_up(plan, make_static), mode
    for node in walk(plan):
        table = find_table(node)
        if table is not None:
            yield from _with_static_tables(table.changes, "append" if mode == "complete" else mode)


def _count_all(plan: PlanNode) -> PlanNode:
    """Return a plan whose aggregate functions have no DISTINCT, so that Spark's checker accepts it."""

    def without_distinct(node: PlanNode) -> PlanNode:
        parts = (part for expression in node.all_expressions for part in walk_expression(expression))
        if not any(part.fields.get("isDistinct") is True for part in parts):
            return node
        return replace(node, is_original=False, edit="count_all")

    return transform_up(plan, without_distinct)
