"""A query cut at its stateful nodes: below the first of them its inputs, which Spark itself runs; each node a stage;
between and above them pieces, which are put on each batch's results. And the marks that make a plan ours. Knows which
nodes of Spark's plans keep state. Does not know what a stage computes, or what may not be.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from riffle_spark.errors import ConfigError
from riffle_spark.spark.plans.batch_pieces import Hole, Piece, piece_of
from riffle_spark.spark.plans.plan_nodes import (
    Catalyst,
    Node,
    Path,
    at,
    children,
    expressions,
    id_of,
    items,
    kind,
    placed,
    replaced,
    walk,
)

__all__ = [
    "STATEFUL",
    "CutPlan",
    "Input",
    "LatestRows",
    "Mark",
    "Stage",
    "Table",
    "cut",
    "is_table",
    "marks_in",
    "table_of",
    "tables_in",
]

_SAID = (
    "riffle: these rows come from a frame that riffle_spark runs, and Spark was about to run it alone, with its own "
    "state. What to do: wrap the frame that is started by riffle_spark.on(that_frame), and start it from there."
)
_CHANGES = (
    "riffle: these rows are changes of a table that riffle_spark.latest made, and Spark was about to run them as they "
    "are. What to do: join the table with a stream that riffle_spark.on has wrapped, and start what comes of that."
)
_EVENT_TIME = "UpdateEventTimeWatermarkColumn"
_MARK = re.compile(re.escape(_SAID) + r" \[mark (\d+) of (.*)\]\Z", re.DOTALL)
_LATEST = re.compile(re.escape(_CHANGES) + r" \[latest (.*)\]\Z", re.DOTALL)

STATEFUL = {
    "Aggregate": "aggregate",
    "Deduplicate": "distinct",
    "DeduplicateWithinWatermark": "distinct",
    "Join": "join",
    "FlatMapGroupsInPandasWithState": "groups",
    "TransformWithStateInPandas": "processor",
    "TransformWithStateInPySpark": "processor",
}
"""Spark's nodes that keep state where their rows are a stream, and what kind of stage each is."""
_PASSING = frozenset(("Project", "Aggregate", "Filter", "SubqueryAlias"))
"""Spark's nodes that read of the columns below them what their expressions say."""
_VIEWS = frozenset(("Project", "Filter", "SubqueryAlias", "View"))
"""Spark's nodes that make a table of a table, row by row."""
_TABLE = "table"


@dataclass(frozen=True, slots=True)
class Mark:
    """What makes a plan ours: a filter that lets nothing pass, and fails with a sentence that tells the way out. It
    carries a number, under which more is known in this process, and the root; ``""``: none was given.
    """

    number: int
    root: str

    @property
    def condition(self) -> str:
        """The filter in SQL."""
        return _raising(f"{_SAID} [mark {self.number} of {self.root}]")


@dataclass(frozen=True, slots=True)
class LatestRows:
    """What makes a table of a stream of changes: of each key, by the names of its columns, the row counts that is the
    last one in the order of others. It stands in the plan as a filter, as a mark does.
    """

    key: tuple[str, ...]
    by: tuple[str, ...]

    @property
    def condition(self) -> str:
        """The filter in SQL."""
        return _raising(f"{_CHANGES} [latest {json.dumps([self.key, self.by])}]")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a stream is joined with: which child of the join it is, the plan of its changes, and what stands
    between that and the join, what is below first.
    """

    side: int
    latest: LatestRows
    changes: Node
    views: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A part of the query that keeps no state and stands below some stage: Spark's own streaming query runs it."""

    number: int
    plan: Node


@dataclass(frozen=True, slots=True)
class Stage:
    """A stateful node of the plan, what kind it is, and what its children are: inputs, or pieces on other stages.
    ``read`` are the ids of those of its columns that somebody reads; ``None``: all of them.
    """

    number: int
    kind: str
    node: Node
    below: tuple[Input | Piece, ...]
    read: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A query without its marks: the root that these tell, ``""`` if none does, inputs and stages, those nearest to the
    sources first, and the piece on top.

    Without a stage ``top`` has no hole, and is all of the plan.
    """

    plan: Node
    root: str
    inputs: tuple[Input, ...]
    stages: tuple[Stage, ...]
    top: Piece


def cut(catalyst: Catalyst, plan: Node) -> CutPlan:
    """Cut an analysed plan. Raises ``ConfigError`` where its marks tell several roots.

    As in Spark, what ``WITH`` names is put where it is used, and ``SELECT DISTINCT`` is an aggregate without functions.
    """
    bare, marks = _without_marks(catalyst, plan)
    root = _root_of(marks)
    names = {kind(node) for node in walk(bare)}
    if "WithCTE" in names:
        bare = catalyst.filled("optimizer.InlineCTE", True).apply(bare)
    if "Distinct" in names:
        bare = catalyst.module("optimizer.ReplaceDistinctWithAggregate").apply(bare)
    cutter = _Cutter(catalyst)
    top = cutter.part(_with_times(catalyst, bare))
    if isinstance(top, Input):
        return CutPlan(bare, root, (), (), piece_of(catalyst, bare, ()))
    return CutPlan(bare, root, tuple(cutter.inputs), tuple(cutter.stages), top)


def _root_of(marks: Sequence[Mark]) -> str:
    roots = sorted({mark.root for mark in marks if mark.root})
    if len(roots) > 1:
        raise ConfigError(
            f"the query reads frames of several roots: {', '.join(roots)}",
            remedy="give riffle_spark.on the same root for all streams of a query: their stores commit together",
            where="root",
        )
    return roots[0] if roots else ""


def _with_times(catalyst: Catalyst, plan: Node) -> Node:
    """Return a plan in which columns say themselves that they are event times, where Spark has a node for it above a
    user's function: no batch can run that node, which looks for the watermark of Spark's own stream.
    """
    for path in _deepest_first([path for path, node in placed(plan) if kind(node) == _EVENT_TIME]):
        node = at(plan, path)
        plan = replaced(catalyst, plan, {path: catalyst.project(items(node.output()), node.child())})
    return plan


@dataclass(slots=True)
class _Cutter:
    """Numbers inputs and stages on the way back from the sources."""

    catalyst: Catalyst
    inputs: list[Input] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def part(self, plan: Node, above: Node = None) -> Input | Piece:
        """Return what a plan is: a piece on stages, or else an input. ``above`` is the stateful node right above it."""
        holes = tuple(Hole(path, self.stage(at(plan, path), _read(plan, path, above))) for path in list(_topmost(plan)))
        if holes:
            piece = piece_of(self.catalyst, plan, holes)
            _check_streams(piece)
            return piece
        self.inputs.append(Input(len(self.inputs), plan))
        return self.inputs[-1]

    def stage(self, node: Node, read: frozenset[int] | None) -> int:
        """Cut what is below a stateful node, and return its own number; an initial state is no stream. Of a table it is
        the changes: what it is made to be is the stage's.
        """
        table, sides = table_of(node), [child for child in children(node) if child.isStreaming()]
        if table is not None:
            sides[table.side] = table.changes
        below = tuple(self.part(child, node) for child in sides)
        of_kind = STATEFUL[kind(node)] if table is None else _TABLE
        self.stages.append(Stage(len(self.stages), of_kind, node, below, read))
        return len(self.stages) - 1


def _read(plan: Node, path: Path, above: Node) -> frozenset[int] | None:
    """Return the ids of columns that are read of the node at a place: a projection passes on what it is asked for."""
    nodes = [*(at(plan, path[:depth]) for depth in reversed(range(len(path)))), *([above] if above else [])]
    read: frozenset[int] | None = None
    for node in reversed(list(takewhile(lambda one: kind(one) in _PASSING, nodes))):
        if kind(node) == "Aggregate" or (kind(node) == "Project" and read is None):
            read = _ids([node])
        elif kind(node) == "Project":
            read = _ids([one for one in items(node.projectList()) if id_of(one) in (read or ())])
        elif read is not None:
            read |= _ids([node])
    return read


def _ids(nodes: Sequence[Node]) -> frozenset[int]:
    """Return the ids of the columns that nodes or expressions refer to."""
    return frozenset(id_of(one) for node in nodes for one in items(node.references().toSeq()))


def _topmost(node: Node, path: Path = ()) -> Iterator[Path]:
    """Yield where the stateful nodes are above which there is no other."""
    if not node.isStreaming():
        return
    below, name = children(node), kind(node)
    if name in STATEFUL and (name != "Join" or all(child.isStreaming() for child in below)):
        yield path
        return
    for index, child in enumerate(below):
        yield from _topmost(child, (*path, index))


def _check_streams(piece: Piece) -> None:
    """Raise ``ConfigError`` for a stream that comes past the stages: its rows would be there in other batches."""
    for node in piece.nodes():
        if node.isStreaming() and not children(node):
            raise ConfigError(
                "rows of a stream meet results of a stateful operator without another one (Spark's Union)",
                remedy="write the two to their sinks as two queries, or unite the streams before the operator",
                where=kind(node),
            )


def table_of(node: Node) -> Table | None:
    """Return the table that a node joins a stream with, if it does; of two it is the right one."""
    for side in (1, 0) if kind(node) == "Join" else ():
        views, below = list[Node](), children(node)[side]
        while (latest := _latest_of(below)) is None and kind(below) in _VIEWS:
            views.append(below)
            (below,) = children(below)
        if latest is not None:
            return Table(side, latest, children(below)[0], tuple(reversed(views)))
    return None


def tables_in(plan: Node) -> Iterator[tuple[Path, Table]]:
    """Yield the tables of a plan that are joined with a stream, and where these joins stand, what is above first."""
    for path, node in placed(plan):
        table = table_of(node)
        if table is not None:
            yield path, table


def is_table(node: Node) -> bool:
    """Tell whether a node is what makes a table of the changes below it."""
    return _latest_of(node) is not None


def marks_in(plan: Node) -> tuple[Mark, ...]:
    """Return the marks in a plan, each once."""
    return tuple(dict.fromkeys(mark for node in walk(plan) if (mark := _mark_of(node)) is not None))


def _without_marks(catalyst: Catalyst, plan: Node) -> tuple[Node, tuple[Mark, ...]]:
    """Return a plan without its marks, and these."""
    found = [(path, mark) for path, node in placed(plan) if (mark := _mark_of(node)) is not None]
    for path in _deepest_first([path for path, _ in found]):
        plan = replaced(catalyst, plan, {path: children(at(plan, path))[0]})
    return plan, tuple(dict.fromkeys(mark for _, mark in found))


def _deepest_first(paths: Sequence[Path]) -> list[Path]:
    """Return paths so that whoever takes a node away at one leaves the others where they are."""
    return sorted(paths, key=len, reverse=True)


def _mark_of(node: Node) -> Mark | None:
    """Return the mark that a node is."""
    found = _raised(node, _MARK)
    return Mark(int(found[1]), found[2]) if found else None


def _latest_of(node: Node) -> LatestRows | None:
    """Return what a node makes a table by."""
    found = _raised(node, _LATEST)
    if found is None:
        return None
    key, by = json.loads(found[1])
    return LatestRows(tuple(key), tuple(by))


def _raising(text: str) -> str:
    """Return a condition in SQL that nothing passes: it fails with a text."""
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"raise_error('{quoted}') is null"


def _raised(node: Node, words: re.Pattern[str]) -> re.Match[str] | None:
    """Return what a filter fails with, if it is one that says these words."""
    if kind(node) != "Filter" or kind(node.condition()) != "IsNull" or kind(node.condition().child()) != "RaiseError":
        return None
    texts = (str(one.value()) for one in expressions(node) if kind(one) == "Literal")
    return next(filter(None, map(words.match, texts)), None)
