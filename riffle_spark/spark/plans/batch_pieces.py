"""Pieces of a query in the JVM: plans with holes, which are put on the rows of each batch.

A piece keeps the nodes that Spark has analysed. Expressions that ask for the time get the time of the batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from riffle_spark.process.plans.cut import Hole, PlanPiece, piece_of
from riffle_spark.process.plans.plan_values import PlanNode, find_node
from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.plan_changes import timed
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, at, items, replaced
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["KeptRows", "Piece", "PiecesOnRows", "read_piece"]


@dataclass(slots=True)
class Piece:
    """A piece whose holes hold the nodes of the stages, so that types and names are known before any batch."""

    reader: PlanReader
    values: PlanPiece
    _way: tuple["_Step", ...] | None = field(default=None, init=False)

    @property
    def catalyst(self) -> Catalyst:
        """What makes nodes in the session's JVM."""
        return self.reader.catalyst

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The positions that the results of stages take."""
        return self.values.holes

    @property
    def plan(self) -> Node:
        """The plan in the JVM, with the nodes of the stages in the holes."""
        return self.reader.build(self.values.plan)

    def leaf(self, hole: Hole) -> Node:
        """Return what a hole holds before any batch."""
        return self.reader.build(find_node(self.values.plan, hole.path))

    def on(self, results: Mapping[int, Node], time_ms: int | None = None) -> Node:
        """Return the plan on results of stages, by their numbers; each has the attributes of the stage's node.

        ``time_ms`` is the time of the batch. The plan asks for no other time, so a batch that runs again gives the
        same rows.
        """
        if len(self.holes) == 1:
            plan = results[self.holes[0].stage]
            for step in self._steps():
                plan = step.on(self.reader, plan)
        else:
            plan = self.reader.with_results(self.values.plan, {hole.path: results[hole.stage] for hole in self.holes})
        if time_ms is not None:
            for path in self.values.clocks:
                plan = replaced(self.catalyst, plan, {path: timed(self.catalyst, at(plan, path), time_ms)})
        return plan

    def _steps(self) -> tuple["_Step", ...]:
        """Return the nodes above the one hole, the nearest first. They are the same in each batch."""
        if self._way is None:
            path = self.holes[0].path
            nodes = ((find_node(self.values.plan, path[:depth]), path[depth]) for depth in reversed(range(len(path))))
            self._way = tuple(_Step.of(self.reader, node, index) for node, index in nodes)
        return self._way


@dataclass(frozen=True, slots=True)
class _Step:
    """A node above the hole: the index of its child on the way to the hole, and its other children in the JVM."""

    node: PlanNode
    index: int
    others: tuple[Node, ...]

    @staticmethod
    def of(reader: PlanReader, node: PlanNode, index: int) -> "_Step":
        """Return a node as a step, with its other children built."""
        children = enumerate(node.children)
        return _Step(node, index, tuple(None if at == index else reader.build(child) for at, child in children))

    def on(self, reader: PlanReader, made: Node) -> Node:
        """Return the node on top of another one."""
        return reader.on(self.node, [made if at == self.index else other for at, other in enumerate(self.others)])


def read_piece(reader: PlanReader, plan: Node, holes: tuple[Hole, ...] | None = None) -> Piece:
    """Return a plan of the JVM as a piece. Without ``holes`` its hole is its only leaf."""
    values = reader.read(plan)
    if holes is None:
        holes = (Hole(tuple(_way_down(values)), 0),)
    return Piece(reader, piece_of(values, holes))


def _way_down(plan: PlanNode) -> Iterator[int]:
    while plan.children:
        yield 0
        (plan,) = plan.children


class KeptRows:
    """Puts the rows of each batch's frame under the same attributes, those of a piece's leaf.

    A frame that has the attributes of the frame before, as the frames of sinks have, is put below the same projection.
    """

    def __init__(self, catalyst: Catalyst, attributes: Node) -> None:
        self._catalyst = catalyst
        self._attributes = attributes
        self._kept: tuple[Node, Node] | None = None

    def of(self, frame: DataFrame) -> Node:
        """Return the plan of a frame's rows, whose columns are the attributes' in their order."""
        plan = plan_nodes.analysed(frame)
        output = plan.output()
        if self._kept is not None and self._kept[0].equals(output):
            return self._kept[1].withNewChildInternal(plan)
        spark = self._catalyst
        columns = [
            spark.alias(spark.typed(column, one.dataType()), one.name(), one.exprId())
            for column, one in zip(items(output), items(self._attributes), strict=True)
        ]
        self._kept = output, spark.project(columns, plan)
        return self._kept[1]


class PiecesOnRows:
    """What the slots of a stage answer, evaluated, and under the pieces that follow, the nearest first."""

    def __init__(self, evaluation: Piece, *above: Piece) -> None:
        self._pieces = (evaluation, *above)
        self._rows: KeptRows | None = None

    def of(self, answers: DataFrame, time_ms: int) -> Node:
        """Return the plan of a batch's answers; each piece has all its holes from the one before."""
        if self._rows is None:
            evaluation, (hole,) = self._pieces[0], self._pieces[0].holes
            self._rows = KeptRows(evaluation.catalyst, evaluation.leaf(hole).output())
        plan = self._rows.of(answers)
        for piece in self._pieces:
            plan = piece.on({hole.stage: plan for hole in piece.holes}, time_ms)
        return plan
