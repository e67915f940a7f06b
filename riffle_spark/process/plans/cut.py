"""Cut a query's plan at its stateful nodes.

Below the first of them are the query's inputs, which Spark's own streaming query runs. Each stateful node is a stage.
Between the stages, and above the last of them, are pieces: they are put on the results of each batch. Marks are filters
in the plan; they show that a query belongs to riffle, and carry the root of its state.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.plan_values import (
    Expression,
    Path,
    PlanNode,
    attribute_ids,
    find_node,
    nodes_with_paths,
    replace_nodes,
    walk,
    walk_expression,
)

__all__ = [
    "STATEFUL",
    "CutPlan",
    "Hole",
    "Input",
    "LatestRows",
    "Mark",
    "PlanPiece",
    "Stage",
    "Table",
    "asks_time",
    "cut",
    "is_table",
    "marks_in",
    "piece_of",
    "table_of",
    "tables_in",
]

_SAID: Final = (
    "riffle: these rows come from a frame that riffle_spark runs, and Spark was about to run it alone, with its own "
    "state. What to do: wrap the frame that is started by riffle_spark.on(that_frame), and start it from there."
)
_CHANGES: Final = (
    "riffle: these rows are changes of a table that riffle_spark.latest made, and Spark was about to run them as they "
    "are. What to do: join the table with a stream that riffle_spark.on has wrapped, and start what comes of that."
)
_EVENT_TIME: Final = "UpdateEventTimeWatermarkColumn"
_MARK: Final = re.compile(re.escape(_SAID) + r" \[mark (\d+) of (.*)\]\Z", re.DOTALL)
_LATEST: Final = re.compile(re.escape(_CHANGES) + r" \[latest (.*)\]\Z", re.DOTALL)

STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "distinct",
    "DeduplicateWithinWatermark": "distinct",
    "Join": "join",
    "FlatMapGroupsInPandasWithState": "groups",
    "TransformWithStateInPandas": "processor",
    "TransformWithStateInPySpark": "processor",
}
"""Spark's nodes that keep state if their rows are a stream, and the kind of stage that each is."""
CLOCKS: Final = ("CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp")
"""Spark's expressions whose value is the time of the batch."""
_PASSING: Final = frozenset(("Project", "Aggregate", "Filter", "SubqueryAlias"))
"""Spark's nodes that read only those columns of their child that their expressions name."""
_VIEWS: Final = frozenset(("Project", "Filter", "SubqueryAlias", "View"))
"""Spark's nodes that make a table of a table, row by row."""
_TABLE: Final = "table"


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a wrapped frame: a filter that no row passes, and that fails with the remedy.

    ``number`` is the key of the options that this process keeps for it. ``root`` is ``""`` if none was set.
    """

    number: int
    root: str

    @property
    def condition(self) -> str:
        """The filter in SQL."""
        return _raising(f"{_SAID} [mark {self.number} of {self.root}]")


@dataclass(frozen=True, slots=True)
class LatestRows:
    """The filter that makes a table of a stream of changes: it keeps the last row per key, in the order of ``by``."""

    key: tuple[str, ...]
    by: tuple[str, ...]

    @property
    def condition(self) -> str:
        """The filter in SQL."""
        return _raising(f"{_CHANGES} [latest {json.dumps([self.key, self.by])}]")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a stream is joined with: the side of the join that it is on, the plan of its changes, and the nodes
    between the changes and the join, the lowest first.
    """

    side: int
    latest: LatestRows
    changes: PlanNode
    views: tuple[PlanNode, ...]


@dataclass(frozen=True, slots=True)
class Hole:
    """The position in a piece that the result of a stage takes."""

    path: Path
    stage: int


@dataclass(frozen=True, slots=True)
class PlanPiece:
    """A plan with holes. They hold the nodes of the stages, whose attributes the results of a batch have.

    ``clocks`` are the positions of the nodes that ask for the time, the deepest first.
    """

    plan: PlanNode
    holes: tuple[Hole, ...]
    clocks: tuple[Path, ...]

    def nodes(self) -> list[PlanNode]:
        """Return the nodes of the piece itself, without those in its holes."""
        return [node for _, node in _nodes_outside(self.plan, self.holes)]


@dataclass(frozen=True, slots=True)
class Input:
    """A part of the query without state, below some stage."""

    number: int
    plan: PlanNode


@dataclass(frozen=True, slots=True)
class Stage:
    """A stateful node, the kind of its stage, and what is below it: inputs, or pieces on the results of other stages.

    ``read`` are the ids of the columns that the rest of the query reads of it; ``None``: all of them.
    """

    number: int
    kind: str
    node: PlanNode
    below: tuple[Input | PlanPiece, ...]
    read: frozenset[int] | None = None

    @property
    def pieces(self) -> list[PlanPiece]:
        """The pieces through which it reads the results of other stages."""
        return [part for part in self.below if isinstance(part, PlanPiece)]


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A query's plan without its marks, and its parts. Inputs and stages are numbered from the sources on.

    ``root`` is ``""`` if no mark has one. Without a stage ``top`` is the whole plan, and has no hole.
    """

    plan: PlanNode
    root: str
    inputs: tuple[Input, ...]
    stages: tuple[Stage, ...]
    top: PlanPiece


def cut(plan: PlanNode) -> CutPlan:
    """Cut an analysed plan. Raises ``ConfigError`` if its marks have several roots."""
    bare, marks = _without_marks(plan)
    root = _root_of(marks)
    cutter = _Cutter()
    top = cutter.part(_with_times(bare))
    if isinstance(top, Input):
        return CutPlan(bare, root, (), (), piece_of(bare, ()))
    return CutPlan(bare, root, tuple(cutter.inputs), tuple(cutter.stages), top)


def piece_of(plan: PlanNode, holes: tuple[Hole, ...]) -> PlanPiece:
    """Return a plan as a piece."""
    clocks = [path for path, node in _nodes_outside(plan, holes) if any(map(asks_time, node.all_expressions))]
    return PlanPiece(plan, holes, tuple(sorted(clocks, key=lambda path: (-len(path), path))))


def asks_time(expression: Expression) -> bool:
    """Tell whether an expression asks for the time."""
    return any(each.kind in CLOCKS for each in walk_expression(expression))


def _nodes_outside(plan: PlanNode, holes: tuple[Hole, ...]) -> Iterator[tuple[Path, PlanNode]]:
    for path, node in nodes_with_paths(plan):
        if not any(path[: len(hole.path)] == hole.path for hole in holes):
            yield path, node


def _root_of(marks: Sequence[Mark]) -> str:
    roots = sorted({mark.root for mark in marks if mark.root})
    if len(roots) > 1:
        raise ConfigError(
            f"the query reads frames of several roots: {', '.join(roots)}",
            remedy="give riffle_spark.on the same root for all streams of a query: their stores commit together",
            where="root",
            id="RIFFLE-0188",
        )
    return roots[0] if roots else ""


def _with_times(plan: PlanNode) -> PlanNode:
    """Return a plan without Spark's node that sets the watermark column above a user's function.

    No batch can run that node, because it looks for the watermark of Spark's own stream. A projection to its output
    takes its place.
    """
    for path in _deepest_first([path for path, node in nodes_with_paths(plan) if node.kind == _EVENT_TIME]):
        node = find_node(plan, path)
        projection = replace(node, kind="Project", expressions={}, is_original=False, edit="project")
        plan = replace_nodes(plan, {path: projection})
    return plan


@dataclass(slots=True)
class _Cutter:
    """Numbers inputs and stages on the way back from the sources."""

    inputs: list[Input] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def part(self, plan: PlanNode, above: PlanNode | None = None) -> Input | PlanPiece:
        """Return a plan as a piece if it has stages, else as an input. ``above`` is the stateful node above it."""
        holes = tuple(
            Hole(path, self.stage(find_node(plan, path), _read_columns(plan, path, above)))
            for path in list(_topmost(plan))
        )
        if holes:
            piece = piece_of(plan, holes)
            _check_streams(piece)
            return piece
        self.inputs.append(Input(len(self.inputs), plan))
        return self.inputs[-1]

    def stage(self, node: PlanNode, read: frozenset[int] | None) -> int:
        """Cut the plan below a stateful node, and return the number of its stage.

        An initial state is no input, because it is not a stream. Below a table are its changes.
        """
        table, sides = table_of(node), [child for child in node.children if child.is_streaming]
        if table is not None:
            sides[table.side] = table.changes
        below = tuple(self.part(child, node) for child in sides)
        kind = STATEFUL[node.kind] if table is None else _TABLE
        self.stages.append(Stage(len(self.stages), kind, node, below, read))
        return len(self.stages) - 1


def _read_columns(plan: PlanNode, path: Path, above: PlanNode | None) -> frozenset[int] | None:
    """Return the ids of the columns that the nodes above a position read of it."""
    nodes = [find_node(plan, path[:depth]) for depth in reversed(range(len(path)))]
    nodes += [above] if above is not None else []
    read: frozenset[int] | None = None
    for node in reversed(list(takewhile(lambda each: each.kind in _PASSING, nodes))):
        if node.kind == "Aggregate" or (node.kind == "Project" and read is None):
            read = _ids(node.all_expressions)
        elif node.kind == "Project":
            columns = node.expressions.get("projectList", ())
            read = _ids(each for each in columns if each.id in (read or ()))
        elif read is not None:
            read |= _ids(node.all_expressions)
    return read


def _ids(expressions: Iterator[Expression]) -> frozenset[int]:
    return frozenset[int]().union(*map(attribute_ids, expressions))


def _topmost(node: PlanNode, path: Path = ()) -> Iterator[Path]:
    """Yield the positions of the stateful nodes above which there is no other one."""
    if not node.is_streaming:
        return
    if node.kind in STATEFUL and (node.kind != "Join" or all(child.is_streaming for child in node.children)):
        yield path
        return
    for index, child in enumerate(node.children):
        yield from _topmost(child, (*path, index))


def _check_streams(piece: PlanPiece) -> None:
    """Raise ``ConfigError`` for a stream that meets the results of a stage: its rows would be in other batches."""
    for node in piece.nodes():
        if node.is_streaming and not node.children:
            raise ConfigError(
                "rows of a stream meet results of a stateful operator without another one (Spark's Union)",
                remedy="write the two to their sinks as two queries, or unite the streams before the operator",
                where=node.kind,
                id="RIFFLE-0189",
            )


def table_of(node: PlanNode) -> Table | None:
    """Return the table that a node joins a stream with, if there is one; of two tables it is the right one."""
    for side in (1, 0) if node.kind == "Join" else ():
        views, below = list[PlanNode](), node.children[side]
        while (latest := _latest_of(below)) is None and below.kind in _VIEWS:
            views.append(below)
            (below,) = below.children
        if latest is not None:
            return Table(side, latest, below.children[0], tuple(reversed(views)))
    return None


def tables_in(plan: PlanNode) -> Iterator[tuple[Path, Table]]:
    """Yield the tables of a plan that are joined with a stream, and the positions of these joins, the highest first."""
    for path, node in nodes_with_paths(plan):
        table = table_of(node)
        if table is not None:
            yield path, table


def is_table(node: PlanNode) -> bool:
    """Tell whether a node makes a table of the changes below it."""
    return _latest_of(node) is not None


def marks_in(plan: PlanNode) -> tuple[Mark, ...]:
    """Return the marks in a plan, each once."""
    return tuple(dict.fromkeys(mark for node in walk(plan) if (mark := _mark_of(node)) is not None))


def _without_marks(plan: PlanNode) -> tuple[PlanNode, tuple[Mark, ...]]:
    """Return a plan without its marks, and the marks."""
    marked = [(path, mark) for path, node in nodes_with_paths(plan) if (mark := _mark_of(node)) is not None]
    for path in _deepest_first([path for path, _ in marked]):
        plan = replace_nodes(plan, {path: find_node(plan, path).children[0]})
    return plan, tuple(dict.fromkeys(mark for _, mark in marked))


def _deepest_first(paths: Sequence[Path]) -> list[Path]:
    """Return paths in an order in which the removal of one node leaves the others where they are."""
    return sorted(paths, key=len, reverse=True)


def _mark_of(node: PlanNode) -> Mark | None:
    raised = _raised(node, _MARK)
    return Mark(int(raised[1]), raised[2]) if raised else None


def _latest_of(node: PlanNode) -> LatestRows | None:
    raised = _raised(node, _LATEST)
    if raised is None:
        return None
    key, by = json.loads(raised[1])
    return LatestRows(tuple(key), tuple(by))


def _raising(text: str) -> str:
    """Return a condition in SQL that no row passes, and that fails with a text."""
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"raise_error('{quoted}') is null"


def _raised(node: PlanNode, words: re.Pattern[str]) -> re.Match[str] | None:
    """Return the match of the text that a filter fails with, if it matches."""
    for condition in node.expressions.get("condition", ()) if node.kind == "Filter" else ():
        if condition.kind == "IsNull" and condition.children[0].kind == "RaiseError":
            texts = [str(each.fields["value"]) for each in walk_expression(condition) if each.kind == "Literal"]
            return next(filter(None, map(words.match, texts)), None)
    return None
