"""Pieces of a query in the JVM: plans with holes, to be filled with the rows of each batch.

A piece keeps the nodes that Spark has analysed. Expressions that read the current time get the time of the batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from riffle_spark.process.plans.cut import Hole, PlanPiece, make_piece
from riffle_spark.process.plans.plan_values import PlanNode, find_node
from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.plan_changes import set_current_time
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, items
from riffle_spark.spark.plans.plan_reader import PlanReader


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a plan in the JVM with holes for the results of stages.

    Before the first batch the holes contain the nodes of these stages, so that types and names are known.
    """

    reader: PlanReader
    values: PlanPiece

    @property
    def catalyst(self) -> Catalyst:
        """Return the factory of nodes in the session's JVM."""
        return self.reader.catalyst

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Return the positions in the plan that the results of stages take."""
        return self.values.holes

    @property
    def plan(self) -> Node:
        """Return the plan in the JVM, with the nodes of the stages in the holes."""
        return self.reader.build(self.values.plan)

    def leaf(self, hole: Hole) -> Node:
        """Return the node that a hole contains before the first batch."""
        return self.reader.build(find_node(self.values.plan, hole.path))

    def fill(self, results: Mapping[int, Node], time_ms: int | None = None) -> Node:
        """Return the plan with the results of stages in its holes. They have the attributes of the stages' nodes.

        ``results`` maps the number of a stage to its result. ``time_ms`` is the time of the batch. The plan reads no
        other clock, so a batch that runs again gives the same rows.
        """
        plans = {hole.path: results[hole.stage] for hole in self.holes}
        if time_ms is None:
            return self.reader.build_with(self.values.plan, plans)
        change = partial(set_current_time, self.catalyst, time_ms=time_ms)
        return self.reader.build_with(self.values.plan, plans, dict.fromkeys(self.values.clocks, change))


def read_piece(reader: PlanReader, plan: Node, holes: tuple[Hole, ...] | None = None) -> Piece:
    """Return a JVM plan as a piece with these holes. By default its only leaf is its hole."""
    values = reader.read(plan)
    if holes is None:
        holes = (Hole(tuple(_path_to_leaf(values)), 0),)
    return Piece(reader, make_piece(values, holes))


def _path_to_leaf(plan: PlanNode) -> Iterator[int]:
    """Yield the child indexes from a plan of unary nodes down to its leaf, which are all 0."""
    while plan.children:
        yield 0
        (plan,) = plan.children


class FrameRows:
    """Projects the frame of each batch to the attributes of a piece's leaf.

    The projection is kept for frames with equal output, such as the frames of sinks.
    """

    def __init__(self, catalyst: Catalyst, attributes: Node) -> None:
        """Store the attributes (a Scala sequence) to which ``project`` maps the columns of a frame."""
        self._catalyst = catalyst
        self._attributes = attributes
        self._last: tuple[Node, Node] | None = None

    def project(self, frame: DataFrame) -> Node:
        """Return the plan of a frame's rows, with a column per attribute, in the same order."""
        plan = plan_nodes.analysed(frame)
        output = plan.output()
        if self._last is not None and self._last[0].equals(output):
            return self._last[1].withNewChildInternal(plan)
        catalyst = self._catalyst
        columns = [
            catalyst.alias(catalyst.restore_type(column, attribute.dataType()), attribute.name(), attribute.exprId())
            for column, attribute in zip(items(output), items(self._attributes), strict=True)
        ]
        projection = catalyst.project(columns, plan)
        self._last = output, projection
        return projection


class StageResults:
    """Turns the rows that the slots of a stage return into results.

    ``evaluation`` evaluates the rows. Then the pieces ``above`` are applied, nearest first.
    """

    def __init__(self, evaluation: Piece, *above: Piece) -> None:
        """Create the evaluation of a stage. The class describes the arguments."""
        self._pieces = (evaluation, *above)
        self._rows: FrameRows | None = None

    def plan(self, slot_rows: DataFrame, time_ms: int) -> Node:
        """Return the plan of a batch's results, given the rows that slots returned.

        The result of each piece fills all holes of the next one. ``time_ms`` is the time of the batch.
        """
        if self._rows is None:
            evaluation = self._pieces[0]
            (hole,) = evaluation.holes
            self._rows = FrameRows(evaluation.catalyst, evaluation.leaf(hole).output())
        plan = self._rows.project(slot_rows)
        for piece in self._pieces:
            plan = piece.fill({hole.stage: plan for hole in piece.holes}, time_ms)
        return plan
