"""A piece of a query: a plan with holes, which is put on each batch's rows. Knows how to keep the nodes that Spark has
analysed, and to hold the clock at the batch's time. Does not know where the rows come from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, Path, at, placed, replaced, tells_time

__all__ = ["Hole", "Piece"]


@dataclass(frozen=True, slots=True)
class Hole:
    """Where in a piece the result of a stage goes."""

    path: Path
    stage: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A plan whose holes hold the stages' own nodes, so that types and names are there before any batch."""

    catalyst: Catalyst
    plan: Node
    holes: tuple[Hole, ...]

    def nodes(self) -> list[Node]:
        """Return the nodes that are the piece's own: those of its stages and below these are not."""
        return [node for path, node in placed(self.plan) if not self._is_below(path)]

    def on(self, results: Mapping[int, Node], time_ms: int | None = None) -> Node:
        """Return the plan on results of stages, by their numbers; each has the attributes of the stage's node. With a
        batch's time it is that time wherever the plan asks for it, so that a batch that runs again says the same.
        """
        plan = replaced(self.catalyst, self.plan, {hole.path: results[hole.stage] for hole in self.holes})
        return plan if time_ms is None else _timed(self.catalyst, plan, self._clocks(), time_ms)

    def _clocks(self) -> list[Path]:
        """Return where nodes of the piece's own ask for the time, what is below first."""
        found = [path for path, node in placed(self.plan) if not self._is_below(path) and tells_time(node)]
        return sorted(found, key=lambda path: (-len(path), path))

    def _is_below(self, path: Path) -> bool:
        return any(path[: len(hole.path)] == hole.path for hole in self.holes)


def _timed(catalyst: Catalyst, plan: Node, clocks: Sequence[Path], time_ms: int) -> Node:
    for path in clocks:
        plan = replaced(catalyst, plan, {path: catalyst.timed(at(plan, path), time_ms)})
    return plan
