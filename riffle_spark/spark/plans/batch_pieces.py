"""A piece of a query: a plan with holes, which is put on each batch's rows. Knows how to keep the nodes that Spark has
analysed, and to hold the clock at the batch's time. Does not know where the rows come from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.plan_changes import asks_time, timed
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, Path, at, items, placed, replaced

__all__ = ["Hole", "KeptRows", "Piece", "PiecesOnRows", "piece_of"]


@dataclass(frozen=True, slots=True)
class Hole:
    """Where in a piece the result of a stage goes."""

    path: Path
    stage: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A node on the way from the top to the one hole: what is right below it, and which of these the way goes by."""

    node: Node
    below: tuple[Node, ...]
    index: int
    is_unary: bool

    def on(self, catalyst: Catalyst, made: Node) -> Node:
        """Return the node on top of another one: in one call where nothing else is below it."""
        if self.is_unary:
            return self.node.withNewChildInternal(made)
        others = [made if index == self.index else one for index, one in enumerate(self.below)]
        return self.node.withNewChildren(catalyst.seq(others))


@dataclass(frozen=True, slots=True)
class Piece:
    """A plan whose holes hold the stages' own nodes, so that types and names are there before any batch. ``clocks`` are
    the places of its nodes that ask for the time, what is below first. ``way`` leads from the hole up, if it is one.
    """

    catalyst: Catalyst
    plan: Node
    holes: tuple[Hole, ...]
    clocks: tuple[Path, ...]
    way: tuple[_Step, ...] | None = None

    def nodes(self) -> list[Node]:
        """Return the nodes that are the piece's own: those of its stages and below these are not."""
        return [node for _, node in _own(self.plan, self.holes)]

    def on(self, results: Mapping[int, Node], time_ms: int | None = None) -> Node:
        """Return the plan on results of stages, by their numbers; each has the attributes of the stage's node. With a
        batch's time it is that time wherever the plan asks for it, so that a batch that runs again says the same.
        """
        if self.way is None:
            plan = replaced(self.catalyst, self.plan, {hole.path: results[hole.stage] for hole in self.holes})
        else:
            plan = results[self.holes[0].stage]
            for step in self.way:
                plan = step.on(self.catalyst, plan)
        if time_ms is not None:
            for path in self.clocks:
                plan = replaced(self.catalyst, plan, {path: timed(self.catalyst, at(plan, path), time_ms)})
        return plan


def piece_of(catalyst: Catalyst, plan: Node, holes: tuple[Hole, ...]) -> Piece:
    """Return a plan as a piece."""
    clocks = [path for path, node in _own(plan, holes) if any(map(asks_time, items(node.expressions())))]
    piece = Piece(catalyst, plan, holes, tuple(sorted(clocks, key=lambda path: (-len(path), path))))
    return replace(piece, way=tuple(_way(catalyst, plan, holes[0].path))) if len(holes) == 1 else piece


def _way(catalyst: Catalyst, plan: Node, path: Path) -> Iterator[_Step]:
    """Yield the nodes above a place, the nearest first."""
    for depth in reversed(range(len(path))):
        node = at(plan, path[:depth])
        yield _Step(node, tuple(plan_nodes.children(node)), path[depth], catalyst.is_unary(node))


def _own(plan: Node, holes: tuple[Hole, ...]) -> Iterator[tuple[Path, Node]]:
    """Yield the nodes of a plan, with their places, that are not in a hole."""
    for path, node in placed(plan):
        if not any(path[: len(hole.path)] == hole.path for hole in holes):
            yield path, node


class KeptRows:
    """The rows of each batch's frame under attributes that stay: what a piece takes for its leaf. Frames that have the
    attributes of the one before, as those of sinks have, go below the same projection.
    """

    def __init__(self, catalyst: Catalyst, attributes: Node) -> None:
        self._catalyst = catalyst
        self._attributes = items(attributes)
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
            for column, one in zip(items(output), self._attributes, strict=True)
        ]
        self._kept = output, spark.project(columns, plan)
        return self._kept[1]


class PiecesOnRows:
    """What the slots of a stage answer, evaluated, and under the pieces that follow, the nearest first."""

    def __init__(self, evaluation: Piece, *above: Piece) -> None:
        (hole,) = evaluation.holes
        self._pieces = (evaluation, *above)
        self._rows = KeptRows(evaluation.catalyst, at(evaluation.plan, hole.path).output())

    def of(self, answers: DataFrame, time_ms: int) -> Node:
        """Return the plan of a batch's answers; each piece has all its holes from the one before."""
        plan = self._rows.of(answers)
        for piece in self._pieces:
            plan = piece.on({hole.stage: plan for hole in piece.holes}, time_ms)
        return plan
