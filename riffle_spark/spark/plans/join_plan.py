"""A join of two streams of Spark's plan as a stage: its keys, what of the condition is whose, and when rows of each
side leave. Knows how Spark's optimiser has such a join, and asks Spark's own helper for bounds. Does not know how rows
meet.

Rows of both sides go to the slots in one exchange: each has the columns of its own side, those of the other are null.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.cut import Hole
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types import stage_specs
from riffle_spark.spark.engine import routing
from riffle_spark.spark.plans import batch_pieces, grouping_keys
from riffle_spark.spark.plans.plan_nodes import (
    Catalyst,
    Node,
    analysed,
    children,
    conjuncts,
    id_of,
    ids_in,
    items,
    kind,
    told_in_sql,
    walk,
)
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["JoinPlan", "read_join"]

_IS_LEFT, _EVENT_TIME, _PASSES, _COMPARED = "is_left", "event_time", "passes", "compared"
_OUTER: Final = {"LeftOuter": ("left",), "RightOuter": ("right",), "FullOuter": ("left", "right")}
_SEMI: Final = "LeftSemi"
_FUNCTIONS: Final = {
    "LessThan": ("less", "greater"),
    "LessThanOrEqual": ("less_equal", "greater_equal"),
    "GreaterThan": ("greater", "less"),
    "GreaterThanOrEqual": ("greater_equal", "less_equal"),
}
"""Spark's comparisons in Arrow's words: of left with right, and the other way round."""
_ALIKE: Final = (
    *("boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string", "binary"),
)
"""Types of which Arrow and Spark agree what is less."""
_SOME_TIME_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A stage that is a join: its specification, and its two ends as pieces on the rows of each batch. The holes of
    ``map_side`` are those of the left input and of the right one. ``meanings`` say what kept rows are good for:
    another join may find in them neither what it compares nor whether they had a partner, nor the columns it answers.
    """

    spec: stage_specs.JoinSpec
    meanings: Mapping[str, str]
    map_side: batch_pieces.Piece
    evaluation: batch_pieces.Piece


def read_join(
    reader: PlanReader, stage: PlanNode, taken: tuple[str, ...] = (), read: Collection[int] | None = None
) -> JoinPlan:
    """Read a join of an analysed plan. ``taken`` are names of stores that the query has already, ``read`` the ids of
    columns that somebody reads of it: the others are null; ``None``: all are read.

    Raises ``ConfigError`` for keys that cannot be had, for conditions that only Spark can evaluate where rows without
    a partner count, and for a store's name that cannot be one.
    """
    catalyst, node = reader.catalyst, reader.found(stage.handle)
    found = _Found.of(catalyst, node, read)
    rows = _Sent(catalyst, found)
    map_side, holes = rows.map_side()
    schema = routing.arrow_schema(catalyst.frame(map_side))
    left, right = (rows.side(at, schema) for at in (0, 1))
    spec = stage_specs.JoinSpec(
        grouping_keys.stored_as("join", found.keys[0], taken),
        pa.schema([schema.field(name) for name in rows.key_columns]), rows.is_left, left, right, tuple(rows.compared),
        _OUTER.get(found.how, ()), found.how == _SEMI, rows.event_time,
    )  # fmt: skip
    plan, hole = rows.evaluation(spec.answer, items(node.output()))
    return JoinPlan(
        spec,
        rows.meanings(),
        batch_pieces.read_piece(reader, map_side, holes),
        batch_pieces.read_piece(reader, analysed(catalyst.frame(plan)), (hole,)),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A join as Spark's optimiser has it: what is below it on each side, keys and output of each side, the other parts
    of its condition, the column of event time of each, and how much later rows leave. ``by_key`` is which key says it.

    What Spark's optimiser has taken away below the join, because nobody needs it, is no event time either: as in Spark.
    """

    how: str
    plans: tuple[Node, Node]
    outputs: tuple[list[Node], list[Node]]
    keys: tuple[list[grouping_keys.GroupingKey], list[grouping_keys.GroupingKey]]
    rest: list[Node]
    by_key: int | None
    times: list[Node | None]
    later_ms: tuple[int | None, int | None]
    read: Collection[int]

    @staticmethod
    def of(catalyst: Catalyst, node: Node, read: Collection[int] | None) -> "_Found":
        """Read a node: its sides stand as rows below the optimiser, which pushes down what is of one side alone."""
        outputs, told = (items(node.left().output()), items(node.right().output())), items(node.output())
        some = [one for one in told if read is None or id_of(one) in read] or told[:1]
        bare = node.withNewChildren(catalyst.seq([catalyst.no_rows(catalyst.seq(one)) for one in outputs]))
        bare = catalyst.project(some, bare)
        join = next((one for one in walk(catalyst.optimised(bare)) if kind(one) == "Join"), None)
        how = str(node.joinType().toString())
        equal = catalyst.module("planning.ExtractEquiJoinKeys").unapply(join) if join is not None else None
        if join is None or equal is None or equal.isEmpty():
            raise rules.refusal("join_keys", how)
        of_sides = [items(one) for one in (equal.get()._2(), equal.get()._3())]
        keys = [
            grouping_keys.read_keys(catalyst, [_named(catalyst, one, output) for one in expressions], [], child)
            for expressions, output, child in zip(of_sides, outputs, (node.left(), node.right()), strict=True)
        ]
        if [len(key.parts) for key in keys[0]] != [len(key.parts) for key in keys[1]]:
            raise rules.refusal("join_structs", ", ".join(key.name for key in keys[0]))
        by_key = next(
            (at for at, pair in enumerate(zip(*keys, strict=True)) if any(k.delay_ms is not None for k in pair)), None
        )
        seen = [{id_of(one) for one in items(child.output())} for child in (join.left(), join.right())]
        times = [
            next((one for one in output if grouping_keys.delay_of(one) is not None and id_of(one) in ids), None)
            for output, ids in zip(outputs, seen, strict=True)
        ]
        rest = equal.get()._4()
        bounds = (None, None) if by_key is not None else _bounds(catalyst, join, times)
        return _Found(
            how, (join.left(), join.right()), outputs, (keys[0], keys[1]),
            list(conjuncts(rest.get())) if rest.isDefined() else [], by_key, times, bounds, set(map(id_of, some)),
        )  # fmt: skip


def _named(catalyst: Catalyst, expression: Node, output: list[Node]) -> Node:
    """Return a key as a column: the attribute that it is, with all that is told of it, or else under a name."""
    if kind(expression) == "AttributeReference":
        return next(one for one in output if one.exprId().equals(expression.exprId()))
    return catalyst.alias(expression, told_in_sql(expression))


def _bounds(catalyst: Catalyst, join: Node, times: list[Node | None]) -> tuple[int | None, int | None]:
    """Return how much later than its time a row of each side leaves. Spark's helper says it of a watermark; it is asked
    with comparisons of event times alone, since it takes those of other columns for bounds, too.
    """
    of_times = {id_of(one) for one in times if one is not None}
    condition = join.condition()
    told = [one for one in conjuncts(condition.get()) if ids_in(one) <= of_times] if condition.isDefined() else []
    if not told:
        return None, None
    whole = told[0]
    for one in told[1:]:
        whole = catalyst.named("expressions.And")(whole, one)
    some, helper = catalyst.some, catalyst.module("analysis.StreamingJoinHelper")
    later = list[int | None]()
    for at, one in enumerate(times):
        sets = (join.left().outputSet(), join.right().outputSet())
        found = helper.getStateValueWatermark(sets[at], sets[1 - at], some(whole), some(_SOME_TIME_MS)) if one else None
        later.append(_SOME_TIME_MS - int(found.get()) if found is not None and found.isDefined() else None)
    return later[0], later[1]


@dataclass(slots=True)
class _Sent:
    """What is sent of rows: the columns of each side as expressions, by names that are one's alone."""

    catalyst: Catalyst
    found: _Found
    columns: tuple[dict[str, Node], dict[str, Node]] = field(default_factory=lambda: ({}, {}))
    compared: list[stage_specs.Comparison] = field(default_factory=list)
    passes: tuple[list[Node], list[Node]] = field(default_factory=lambda: ([], []))
    left_over: list[Node] = field(default_factory=list)
    key_columns: list[str] = field(default_factory=list)
    told: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    said: list[str] = field(default_factory=list)
    of_key: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    is_left: str = _IS_LEFT
    event_time: str | None = None
    of_passes: str = _PASSES

    def __post_init__(self) -> None:
        self.key_columns = [column for key in self.found.keys[0] for column in key.columns]
        self.left_over = [one for one in self.found.rest if all(self._sides(one)) and self._comparison(one) is None]
        if self.left_over and self.found.how != "Inner":
            raise rules.refusal("join_condition", str(self.left_over[0].sql()))
        read = set(self.found.read).union(*map(ids_in, self.left_over))
        for at, output in enumerate(self.found.outputs[:1] if self.found.how == _SEMI else self.found.outputs):
            of_key = self._of_key(at)
            for one in (one for one in output if id_of(one) in read):
                if id_of(one) in of_key:
                    self.told[at][id_of(one)] = name = self._free(str(one.name()))
                    self.of_key[at][name] = of_key[id_of(one)]
                else:
                    self.told[at][id_of(one)] = self._column(at, str(one.name()), one)
        for one in self.found.rest:
            self._condition(one)
        self.is_left, self.of_passes = self._free(_IS_LEFT), self._free(_PASSES)
        if any(self._times()):
            self.event_time = self._free(_EVENT_TIME)

    def _of_key(self, at: int) -> dict[int, str]:
        """Return the attributes of a side that are keys as they are, and the columns that these have."""
        pairs = zip(self.found.keys[at], self.found.keys[0], strict=True)
        plain = [(key, other) for key, other in pairs if kind(key.expression) == "AttributeReference"]
        return {id_of(key.expression): other.columns[0] for key, other in plain if len(key.parts) == 1}

    def _free(self, name: str) -> str:
        taken = [*self.key_columns, *self.columns[0], *self.columns[1], *self.of_key[0], *self.of_key[1]]
        return stage_specs.free_name(name, taken)

    def _column(self, at: int, name: str, expression: Node) -> str:
        free = self._free(name)
        self.columns[at][free] = expression
        return free

    def _condition(self, one: Node) -> None:
        """Take a part of the condition: of one side, or a comparison of both."""
        compared, sides = self._comparison(one), self._sides(one)
        if compared is not None:
            left, word, right = compared
            self.compared.append(stage_specs.Comparison(self._known(0, left), word, self._known(1, right)))
            self.said.append(told_in_sql(one))
        elif not all(sides):
            self.passes[0 if sides[0] else 1].append(one)

    def _sides(self, one: Node) -> list[bool]:
        """Tell of each side whether a part of the condition has columns of it."""
        return [not ids_in(one).isdisjoint(map(id_of, output)) for output in self.found.outputs]

    def _comparison(self, one: Node) -> tuple[Node, str, Node] | None:
        """Return what a part of the condition compares, if it is something of one side with something of the other."""
        words, below = _FUNCTIONS.get(kind(one)), children(one)
        if words is None or not _are_alike(below[0]):
            return None
        for word, (left, right) in zip(words, (below, below[::-1]), strict=True):
            if self._sides(left) == [True, False] and self._sides(right) == [False, True]:
                return left, word, right
        return None

    def _known(self, at: int, expression: Node) -> str:
        """Return the column that is an expression of a side."""
        is_plain = kind(expression) == "AttributeReference"
        if is_plain and id_of(expression) in self.told[at]:
            return self.told[at][id_of(expression)]
        known = (name for name, one in self.columns[at].items() if one.semanticEquals(expression))
        return next(known, None) or self._column(at, str(expression.name()) if is_plain else _COMPARED, expression)

    def _times(self) -> list[Node | None]:
        """Return the event time of each side's rows."""
        return [one if one is None else grouping_keys.end_of(self.catalyst, one) for one in self.found.times]

    def map_side(self) -> tuple[Node, tuple[Hole, ...]]:
        """Return the rows of both sides as one plan, and where the inputs go."""
        spark, holes, sides = self.catalyst, list[Hole](), list[Node]()
        for at, plan in enumerate(self.found.plans):
            below = spark.no_rows(spark.seq(self.found.outputs[at]))
            filters = [one.condition() for one in walk(plan) if kind(one) == "Filter"]
            for condition in reversed(filters):
                below = spark.named("plans.logical.Filter")(condition, below)
            sides.append(spark.project(list(self._row(at)), below))
            holes.append(Hole((at, 0, *(0 for _ in filters)), at))
        return spark.filled("plans.logical.Union", spark.seq(sides)), tuple(holes)

    def _row(self, at: int) -> Iterator[Node]:
        """Yield the columns of one side's rows."""
        spark, times = self.catalyst, self._times()
        yield spark.alias(spark.literal(at == 0), self.is_left)
        parts = [one for key in self.found.keys[at] for one in key.taken_apart(spark).values()]
        yield from (spark.alias(one, name) for name, one in zip(self.key_columns, parts, strict=True))
        if self.event_time is not None:
            one = times[at] if times[at] is not None else spark.null(times[1 - at])
            yield spark.alias(one, self.event_time)
        for of, columns in enumerate(self.columns):
            own = ((one if of == at else spark.null(one), name) for name, one in columns.items())
            yield from (spark.alias(spark.plain(one), name) for one, name in own)
        if any(self.passes):
            whole = spark.literal(True)
            for one in self.passes[at]:
                whole = spark.named("expressions.And")(whole, one)
            yield spark.alias(whole, self.of_passes)

    def side(self, at: int, schema: pa.Schema) -> stage_specs.JoinSide:
        """Return what is to be known of a side."""
        found, due, later = self.found, None, 0
        if found.by_key is not None:
            due = found.keys[0][found.by_key].columns[-1]
        elif found.later_ms[at] is not None:
            due, later = self.event_time, found.later_ms[at] or 0
        of_key = self.of_key[at]
        told, kept = (
            pa.schema([(name, schema.field(of_key.get(name, name)).type) for name in names])
            for names in (self.told[at].values(), self.columns[at])
        )
        passes = self.of_passes if any(self.passes) else None
        return stage_specs.JoinSide(told, kept, passes, due, later, tuple(of_key.items()))

    def meanings(self) -> dict[str, str]:
        """Return what is kept in each column, and what kind of join says which rows have had a partner."""
        kept = {
            name: f"{side} {one.name() if kind(one) == 'AttributeReference' else told_in_sql(one)}"
            for side, columns in zip(("left", "right"), self.columns, strict=True)
            for name, one in columns.items()
        }
        return {"join": " ".join([self.found.how, *self.said]), **kept}

    def evaluation(self, answer: pa.Schema, output: Sequence[Node]) -> tuple[Node, Hole]:
        """Return the plan of what is answered, under the attributes that the join has, and where rows go."""
        spark = self.catalyst
        leaf, columns = spark.leaf(routing.spark_schema(answer))
        names = {**self.told[0], **self.told[1]}
        plan = spark.project(
            [
                spark.alias(
                    spark.typed(columns[names[id_of(one)]], one.dataType()) if id_of(one) in names else spark.null(one),
                    str(one.name()),
                    one.exprId(),
                )
                for one in output
            ],
            leaf,
        )
        for one in self.left_over:
            plan = spark.named("plans.logical.Filter")(one, plan)
        return plan, Hole((0,) * (1 + len(self.left_over)), 0)


def _are_alike(expression: Node) -> bool:
    """Tell whether Arrow and Spark agree on the order of an expression's values."""
    name = str(expression.dataType().typeName())
    return name in _ALIKE or name.startswith("decimal")
