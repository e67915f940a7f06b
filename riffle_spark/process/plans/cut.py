"""Cut a query's plan at its stateful nodes.

1. Below the lowest stateful nodes are the query's *inputs*. Spark's own streaming query runs them.
2. Each stateful node becomes a *stage*.
3. Between stages, and above the last stage, are *pieces*: plans that are applied to the results of each batch.

Marks are filters in the plan. They show that a query belongs to riffle, and carry the root of its state.
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
    transform_up,
    walk,
    walk_expression,
)

# Cause: The frame was derived outside riffle, for example by spark.sql over a view, and was not wrapped again.
_WRAPPED: Final = (
    "[RIFFLE-0600] This frame was wrapped by riffle_spark.on, but Spark was about to run its query alone, with its own "
    "state. What to do: start the query from riffle_spark.on(that_frame)."
)
_CHANGES: Final = (
    "[RIFFLE-0601] This frame is a table of riffle_spark.latest, but Spark was about to run its changes as a query. "
    "What to do: join the table with a stream that riffle_spark.on has wrapped, and start that query."
)
_EVENT_TIME: Final = "UpdateEventTimeWatermarkColumn"
_MARK: Final = re.compile(re.escape(_WRAPPED) + r" \[mark (\d+) of (.*)\]\Z", re.DOTALL)
_LATEST: Final = re.compile(re.escape(_CHANGES) + r" \[latest (.*)\]\Z", re.DOTALL)

_SHOWN_MARK: Final = re.compile(r"'?Filter [^\n]*\[(RIFFLE-060[01])\][^\n]*")
"""The line of a mark in the text of a plan, with the id of its error."""
_MARKED_BY: Final = {"RIFFLE-0600": "riffle_spark.on", "RIFFLE-0601": "riffle_spark.latest"}

STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "distinct",
    "DeduplicateWithinWatermark": "distinct",
    "Join": "join",
    "FlatMapGroupsInPandasWithState": "groups",
    "TransformWithStateInPandas": "processor",
    "TransformWithStateInPySpark": "processor",
}
"""Spark's nodes that keep state if their input is a stream, and the kind of their stage."""
CLOCKS: Final = (
    *("CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp"),
    *("CurrentTimestampNanos", "LocalTimestampNanos"),
)
"""Spark's expressions that return the time of the batch."""
_PASSING: Final = frozenset(("Project", "Aggregate", "Filter", "SubqueryAlias"))
"""Spark's nodes that read only the columns of their child that their expressions name."""
_VIEWS: Final = frozenset(("Project", "Filter", "SubqueryAlias", "View"))
"""Spark's nodes that transform a table row by row."""
_TABLE: Final = "table"


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a wrapped frame: a filter that raises an error if Spark runs the query alone.

    ``number`` is the key of the options that this process keeps for the mark. ``root`` is ``""`` if none was set.
    """

    number: int
    root: str

    @property
    def condition(self) -> str:
        """The filter of the mark as SQL."""
        return _sql_of_error(_WRAPPED, f"mark {self.number} of {self.root}")


@dataclass(frozen=True, slots=True)
class LatestRows:
    """The filter that turns a stream of changes into a table of the last row per key, in the order of ``by``."""

    key: tuple[str, ...]
    by: tuple[str, ...]

    @property
    def condition(self) -> str:
        """The SQL of the filter that marks this table."""
        return _sql_of_error(_CHANGES, f"latest {json.dumps([self.key, self.by])}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a stream is joined with: its side of the join (0 or 1), and the plan of its changes.

    ``views`` are the nodes between the changes and the join, the lowest first.
    """

    side: int
    latest: LatestRows
    changes: PlanNode
    views: tuple[PlanNode, ...]


@dataclass(frozen=True, slots=True)
class Hole:
    """The position in a piece for the result of a stage."""

    path: Path
    stage: int


@dataclass(frozen=True, slots=True)
class PlanPiece:
    """A plan with holes for the results of stages. Until a result fills it, a hole holds the node of its stage.

    ``clocks`` are the positions of the nodes that read the current time.
    """

    plan: PlanNode
    holes: tuple[Hole, ...]
    clocks: tuple[Path, ...]

    def nodes(self) -> list[PlanNode]:
        """Return the nodes of the piece. The nodes in its holes belong to earlier stages and are left out."""
        return [node for _, node in _nodes_outside(self.plan, self.holes)]


@dataclass(frozen=True, slots=True)
class Input:
    """A part of the query without state, below a stage."""

    number: int
    plan: PlanNode


@dataclass(frozen=True, slots=True)
class Stage:
    """A stateful node and its stage. ``below`` are its inputs, or pieces over the results of other stages.

    ``used_columns`` are the ids of its columns that the rest of the query reads; ``None`` means all.
    """

    number: int
    kind: str
    node: PlanNode
    below: tuple[Input | PlanPiece, ...]
    used_columns: frozenset[int] | None = None

    @property
    def pieces(self) -> list[PlanPiece]:
        """The plan pieces between this stage and the earlier stages that it reads."""
        return [part for part in self.below if isinstance(part, PlanPiece)]


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A query's plan without its marks, and its parts. Inputs and stages are numbered from the sources on.

    ``root`` is ``""`` if no mark has a root. Without stages ``top`` is the whole plan and has no hole.
    """

    plan: PlanNode
    root: str
    inputs: tuple[Input, ...]
    stages: tuple[Stage, ...]
    top: PlanPiece


def cut_plan(plan: PlanNode) -> CutPlan:
    """Cut an analysed plan at its stateful nodes into inputs, stages and the plan pieces between them.

    Raises ``ConfigError`` if its marks have several roots.
    """
    root = _find_root(find_marks(plan))
    bare = transform_up(plan, lambda node: node if _read_mark(node) is None else node.children[0])
    cutter = _Cutter()
    top = cutter.cut_part(transform_up(bare, _replace_event_time))
    if isinstance(top, Input):
        return CutPlan(bare, root, (), (), make_piece(bare, ()))
    return CutPlan(bare, root, tuple(cutter.inputs), tuple(cutter.stages), top)


def make_piece(plan: PlanNode, holes: tuple[Hole, ...]) -> PlanPiece:
    """Return a plan as a piece with these holes, with the positions of its clock nodes."""
    clocks = (path for path, node in _nodes_outside(plan, holes) if any(map(reads_clock, node.all_expressions)))
    return PlanPiece(plan, holes, tuple(clocks))


def reads_clock(expression: Expression) -> bool:
    """Return whether an expression reads the current time."""
    return any(part.kind in CLOCKS for part in walk_expression(expression))


def _nodes_outside(plan: PlanNode, holes: tuple[Hole, ...]) -> Iterator[tuple[Path, PlanNode]]:
    """Yield the nodes of a plan that are not in a hole, with their positions."""
    for path, node in nodes_with_paths(plan):
        if not any(path[: len(hole.path)] == hole.path for hole in holes):
            yield path, node


def _find_root(marks: Sequence[Mark]) -> str:
    """Return the state root that the marks name, ``""`` if no mark does. Raises ``ConfigError`` for several roots."""
    roots = sorted({mark.root for mark in marks if mark.root})
    if len(roots) > 1:
        raise ConfigError(
            f"The query reads frames with several roots: {', '.join(roots)}.",
            remedy="Pass the same root to riffle_spark.on for all streams of a query. Their stores commit together.",
            where="root",
            id="RIFFLE-0188",
        )
    return roots[0] if roots else ""


def _replace_event_time(node: PlanNode) -> PlanNode:
    """Return a projection to the same output in place of the node that sets a user function's event-time column. Return
    other nodes unchanged.

    A batch cannot run that node, because it looks for the watermark of Spark's own stream.
    """
    if node.kind != _EVENT_TIME:
        return node
    return replace(node, kind="Project", expressions={}, is_original=False, edit="project")


@dataclass(slots=True)
class _Cutter:
    """Cuts a plan, and numbers its inputs and stages from the sources on."""

    inputs: list[Input] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def cut_part(
        self, plan: PlanNode, above: PlanNode | None = None, used_above: frozenset[int] | None = None
    ) -> Input | PlanPiece:
        """Return the plan below ``above``, a stateful node, as a piece if it has stages, else as an input.

        Records both. ``used_above`` are the ids of the columns of ``above`` that the query reads; ``None`` means all.
        """
        holes = tuple(
            Hole(path, self.cut_stage(find_node(plan, path), _used_columns(plan, path, above, used_above)))
            for path in list(_topmost_stateful(plan))
        )
        if holes:
            piece = make_piece(plan, holes)
            _check_streams(piece)
            return piece
        self.inputs.append(Input(len(self.inputs), plan))
        return self.inputs[-1]

    def cut_stage(self, node: PlanNode, used_columns: frozenset[int] | None) -> int:
        """Cut the plan below a stateful node, record its stage, and return the number of the stage.

        An initial state is not an input, because it is not a stream. The input for a table is the plan of its changes.
        """
        table = find_table(node)
        streams = [child for child in node.children if child.is_streaming]
        if table is not None:
            streams[table.side] = table.changes
        below = tuple(self.cut_part(stream, node, used_columns) for stream in streams)
        kind = STATEFUL[node.kind] if table is None else _TABLE
        self.stages.append(Stage(len(self.stages), kind, node, below, used_columns))
        return len(self.stages) - 1


def _used_columns(
    plan: PlanNode, path: Path, above: PlanNode | None, used_above: frozenset[int] | None = None
) -> frozenset[int] | None:
    """Return the ids of the columns of the node at ``path`` that the nodes above it read; ``None`` means all.

    ``above`` is the stateful node above the plan, ``used_above`` are the ids of its columns that the query reads.
    """
    nodes = [find_node(plan, path[:depth]) for depth in reversed(range(len(path)))]
    nodes += [above] if above is not None else []
    passing = list(takewhile(lambda node: node.kind in _PASSING, nodes))
    used: frozenset[int] | None = None
    # Spark's optimiser removes columns that the query does not read after dropDuplicates below it, too.
    if above is not None and above.kind == "Deduplicate" and used_above is not None and len(passing) == len(path):
        used = used_above | _all_attribute_ids(above.all_expressions)
    for node in reversed(passing):
        if node.kind == "Aggregate" or (node.kind == "Project" and used is None):
            used = _all_attribute_ids(node.all_expressions)
        elif node.kind == "Project":
            columns = node.expressions.get("projectList", ())
            used = _all_attribute_ids(column for column in columns if column.id in (used or ()))
        elif used is not None:
            used |= _all_attribute_ids(node.all_expressions)
    return used


def _all_attribute_ids(expressions: Iterator[Expression]) -> frozenset[int]:
    return frozenset[int]().union(*map(attribute_ids, expressions))


def _topmost_stateful(plan: PlanNode) -> Iterator[Path]:
    """Yield the positions of the stateful nodes that have no stateful node above them in the plan."""
    waiting: list[tuple[Path, PlanNode]] = [((), plan)]
    while waiting:
        path, node = waiting.pop()
        if not node.is_streaming:
            continue
        if node.kind in STATEFUL and (node.kind != "Join" or all(child.is_streaming for child in node.children)):
            yield path
        else:
            waiting += [((*path, index), child) for index, child in reversed(list(enumerate(node.children)))]


def _check_streams(piece: PlanPiece) -> None:
    """Raise ``ConfigError`` if a piece unites a stream with the results of a stage."""
    for node in piece.nodes():
        if node.is_streaming and not node.children:
            raise ConfigError(
                "The query unites the rows of a stream with the results of a stateful operator.",
                remedy="Write the two to their sinks as two queries, or unite the streams before the operator.",
                where=node.kind,
                id="RIFFLE-0189",
            )


def find_table(node: PlanNode) -> Table | None:
    """Return the table that a join node joins with a stream, ``None`` for other nodes.

    If both sides are tables, return the right one.
    """
    for side in (1, 0) if node.kind == "Join" else ():
        views = list[PlanNode]()
        child = node.children[side]
        while (latest := _read_latest_rows(child)) is None and child.kind in _VIEWS:
            views.append(child)
            (child,) = child.children
        if latest is not None:
            return Table(side, latest, child.children[0], tuple(reversed(views)))
    return None


def is_table(node: PlanNode) -> bool:
    """Return whether a node is the filter of ``riffle_spark.latest``, which turns the changes below it into a table."""
    return _read_latest_rows(node) is not None


def find_marks(plan: PlanNode) -> tuple[Mark, ...]:
    """Return the marks in a plan, each once."""
    return tuple(dict.fromkeys(mark for node in walk(plan) if (mark := _read_mark(node)) is not None))


def hide_marks(text: str) -> str:
    """Return an error text of Spark with the function that made each mark instead of the mark's filter.

    >>> hide_marks("Cannot resolve x.\\n+- Filter isnull(raise_error([RIFFLE-0600] ...))\\n   +- Relation")
    'Cannot resolve x.\\n+- riffle_spark.on\\n   +- Relation'
    """
    return _SHOWN_MARK.sub(lambda match: _MARKED_BY[match[1]], text)


def _read_mark(node: PlanNode) -> Mark | None:
    """Return the mark that a filter node holds, or ``None``."""
    match = _match_error(node, _MARK)
    return Mark(int(match[1]), match[2]) if match else None


def _read_latest_rows(node: PlanNode) -> LatestRows | None:
    """Return the table definition that a filter node holds, or ``None``."""
    match = _match_error(node, _LATEST)
    if match is None:
        return None
    key, by = json.loads(match[1])
    return LatestRows(tuple(key), tuple(by))


def _sql_of_error(message: str, data: str) -> str:
    """Return a condition as SQL that raises an error if Spark evaluates it.

    ``data`` is in brackets in the error text, and is read from the plan again.
    """
    quoted = f"{message} [{data}]".replace("\\", "\\\\").replace("'", "\\'")
    return f"raise_error('{quoted}') is null"


def _match_error(node: PlanNode, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the match of ``pattern`` in the error text that a filter node raises; ``None`` for other nodes."""
    for condition in node.expressions.get("condition", ()) if node.kind == "Filter" else ():
        if condition.kind == "IsNull" and condition.children[0].kind == "RaiseError":
            texts = [str(part.fields["value"]) for part in walk_expression(condition) if part.kind == "Literal"]
            return next(filter(None, map(pattern.match, texts)), None)
    return None
