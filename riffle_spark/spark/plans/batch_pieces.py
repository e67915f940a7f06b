"""A piece of a query: a plan with holes, which is put on each batch's rows. Knows how to keep the nodes that Spark has
analysed, and to hold the clock at the batch's time. Does not know where the rows come from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, Path, asks_time, at, items, placed, replaced

__all__ = ["Hole", "Piece", "piece_of"]


@dataclass(frozen=True, slots=True)
class Hole:
    """Where in a piece the result of a stage goes."""

    path: Path
    stage: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A plan whose holes hold the stages' own nodes, so that types and names are there before any batch. ``clocks`` are
    the places of its nodes that ask for the time, what is below first.
    """

    catalyst: Catalyst
    plan: Node
    holes: tuple[Hole, ...]
    clocks: tuple[Path, ...]

    def nodes(self) -> list[Node]:
        """Return the nodes that are the piece's own: those of its stages and below these are not."""
        return [node for _, node in _own(self.plan, self.holes)]

    def on(self, results: Mapping[int, Node], time_ms: int | None = None) -> Node:
        """Return the plan on results of stages, by their numbers; each has the attributes of the stage's node. With a
        batch's time it is that time wherever the plan asks for it, so that a batch that runs again says the same.
        """
        plan = replaced(self.catalyst, self.plan, {hole.path: results[hole.stage] for hole in self.holes})
        if time_ms is not None:
            for path in self.clocks:
                plan = replaced(self.catalyst, plan, {path: self.catalyst.timed(at(plan, path), time_ms)})
        return plan


def piece_of(catalyst: Catalyst, plan: Node, holes: tuple[Hole, ...]) -> Piece:
    """Return a plan as a piece."""
    clocks = [path for path, node in _own(plan, holes) if any(map(asks_time, items(node.expressions())))]
    return Piece(catalyst, plan, holes, tuple(sorted(clocks, key=lambda path: (-len(path), path))))


def _own(plan: Node, holes: tuple[Hole, ...]) -> Iterator[tuple[Path, Node]]:
    """Yield the nodes of a plan, with their places, that are not in a hole."""
    for path, node in placed(plan):
        if not any(path[: len(hole.path)] == hole.path for hole in holes):
            yield path, node
