"""A join of two streams of Spark's plan as a stage, with its two ends in the JVM.

Spark's optimiser first makes of the join what it would run, and Spark's own helper derives the bounds of event time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.cut import Hole
from riffle_spark.process.plans.grouping_keys import GroupingKey, KeyColumn, read_keys
from riffle_spark.process.plans.joins import ExpressionFacts, FoundJoin, JoinRows
from riffle_spark.process.plans.plan_values import Expression, PlanNode, attribute_ids, conjuncts, walk
from riffle_spark.process.types.stage_specs import JoinSpec
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import Node, analysed
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder, leaf_of

__all__ = ["JoinPlan", "key_columns", "read_join"]

_FILTER: Final = "plans.logical.Filter"
_OF_LEFT: Final = ("LeftSemi", "LeftAnti")
"""Joins whose rows have the columns of the left side alone."""
_SOME_TIME_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A stage that is a join: its specification, and its two ends as pieces on the rows of each batch.

    The holes of ``map_side`` are those of the left input and of the right one. ``meanings`` say what is kept in each
    column: another join may find in kept rows neither what it compares, nor whether they had a partner, nor the columns
    that it answers.
    """

    spec: JoinSpec
    meanings: Mapping[str, str]
    map_side: Piece
    evaluation: Piece


def read_join(
    reader: PlanReader, node: PlanNode, taken: tuple[str, ...] = (), read: Collection[int] | None = None
) -> JoinPlan:
    """Read a join of an analysed plan. ``taken`` are the names of stores that the query has already, ``read`` the ids
    of the columns that the query reads of it: the others are null; ``None``: all are read.

    Raises ``ConfigError`` for columns that cannot be keys, for conditions that only Spark can evaluate if rows without
    a partner count, and for a store's name that cannot be one.
    """
    catalyst = reader.catalyst
    sides = [reader.output(reader.found(child.handle)) for child in node.children]
    output = [column for _, columns in sides[: 1 if node.join_type in _OF_LEFT else 2] for column in columns]
    optimised, found = _found_join(reader, node, sides, output, read)
    columns = {column.id: column for _, each in sides for column in each}
    rows = JoinRows(found, ExpressionFacts(reader.sql, partial(reader.field, columns=columns)))
    builder, plans, holes = TreeBuilder(reader), list[Node](), list[Hole]()
    for side, (leaf, _) in enumerate(sides):
        filters = [each for each in walk(optimised.children[side]) if each.kind == "Filter"]
        below = leaf
        for each in reversed(filters):
            below = catalyst.named(_FILTER)(reader.found(each.expressions["condition"][0].handle), below)
        plans.append(builder.project(rows.row(side), below))
        holes.append(Hole((side, 0, *(0 for _ in filters)), side))
    map_side = catalyst.filled("plans.logical.Union", catalyst.seq(plans))
    spec = rows.spec(arrow_schema(catalyst.frame(map_side)), taken)
    leaf, names = leaf_of(catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, names)
    lower = [builder.named(column.name, rows.answered(column), column.expression) for column in output]
    plan = catalyst.project(lower, leaf)
    for part in rows.left_over:
        plan = catalyst.named(_FILTER)(reader.found(part.handle), plan)
    evaluation = read_piece(reader, analysed(catalyst.frame(plan)))
    return JoinPlan(spec, rows.meanings(), read_piece(reader, map_side, tuple(holes)), evaluation)


def _found_join(
    reader: PlanReader,
    node: PlanNode,
    sides: Sequence[tuple[Node, Sequence[Column]]],
    output: Sequence[Column],
    read: Collection[int] | None,
) -> tuple[PlanNode, FoundJoin]:
    """Return a join as Spark's optimiser has it, which pushes down the conditions on one side alone."""
    catalyst, joined = reader.catalyst, reader.found(node.handle)
    some = [column for column in output if read is None or column.id in read] or list(output[:1])
    bare = joined.withNewChildren(catalyst.seq([leaf for leaf, _ in sides]))
    bare = catalyst.project([reader.found(column.expression.handle) for column in some], bare)
    whole = reader.read(catalyst.optimised(bare))
    join = next((each for each in walk(whole) if each.kind == "Join"), None)
    extracted = catalyst.module("planning.ExtractEquiJoinKeys")
    equal = None if join is None else extracted.unapply(reader.found(join.handle))
    if join is None or equal is None or equal.isEmpty():
        raise rules.refusal("join_keys", node.join_type)
    equal = equal.get()
    keys = [
        _keys_of(reader, _expressions(reader, expressions, leaf), columns, leaf, reader.found(child.handle))
        for expressions, (leaf, columns), child in zip((equal._2(), equal._3()), sides, node.children, strict=True)
    ]
    if [len(key.parts) for key in keys[0]] != [len(key.parts) for key in keys[1]]:
        raise rules.refusal("join_structs", ", ".join(key.name for key in keys[0]))
    timed = (at for at, pair in enumerate(zip(*keys, strict=True)) if any(key.delay_ms is not None for key in pair))
    by_key, rest = next(timed, None), equal._4()
    times = [
        next((column for column in columns if column.delay_ms is not None and column.id in _output_ids(child)), None)
        for (_, columns), child in zip(sides, join.children, strict=True)
    ]
    parts = list[Expression]()
    if rest.isDefined():
        condition = reader.read(catalyst.named(_FILTER)(rest.get(), sides[0][0])).expressions["condition"][0]
        parts = list(conjuncts(condition))
    bounds = (None, None) if by_key is not None else _bounds(reader, join, times)
    read_ids = {column.id for column in some}
    outputs = (sides[0][1], sides[1][1])
    return join, FoundJoin(node.join_type, outputs, (keys[0], keys[1]), parts, by_key, times, bounds, read_ids)


def _expressions(reader: PlanReader, expressions: Node, leaf: Node) -> tuple[Expression, ...]:
    """Return a sequence of the JVM's expressions as values: read as those of an aggregate."""
    catalyst = reader.catalyst
    made = catalyst.named("plans.logical.Aggregate")(expressions, catalyst.seq([]), leaf, catalyst.none())
    return reader.read(made).expressions.get("groupingExpressions", ())


def _keys_of(
    reader: PlanReader, expressions: Sequence[Expression], columns: Sequence[Column], leaf: Node, plan: Node
) -> list[GroupingKey]:
    return read_keys(key_columns(reader, expressions, columns, leaf, plan))


def key_columns(
    reader: PlanReader, expressions: Sequence[Expression], columns: Sequence[Column], leaf: Node, plan: Node
) -> list[KeyColumn]:
    """Return the keys of one side: the column that each is, with its metadata, or else an expression under its text."""
    catalyst, by_id, random = reader.catalyst, {column.id: column for column in columns}, reader.random_columns(plan)
    texts = {each.handle: reader.sql(each) for each in expressions}
    made = [each for each in expressions if each.kind != "AttributeReference"]
    aliases = [catalyst.alias(reader.found(each.handle), texts[each.handle]) for each in made]
    named = iter(reader.columns(catalyst.project(aliases, leaf)) if aliases else ())
    keys = list[KeyColumn]()
    for each in expressions:
        column = by_id[each.id] if each.kind == "AttributeReference" else next(named)
        keys.append(KeyColumn(column, texts[each.handle], not attribute_ids(each).isdisjoint(random)))
    return keys


def _output_ids(node: PlanNode) -> set[int]:
    """Return the ids of the columns of one of the few nodes that the optimiser leaves below a join."""
    while node.kind == "Filter":
        (node,) = node.children
    columns = node.expressions.get("projectList") or node.expressions.get("output") or ()
    return {column.id for column in columns}


def _bounds(reader: PlanReader, join: PlanNode, times: Sequence[Column | None]) -> tuple[int | None, int | None]:
    """Return how much later than its event time a row of each side leaves.

    Spark's helper derives it from a watermark. It is asked with comparisons of event times alone, because it would take
    those of other columns for bounds, too.
    """
    of_times = {column.id for column in times if column is not None}
    parts = [part for condition in join.expressions.get("condition", ()) for part in conjuncts(condition)]
    told = [reader.found(part.handle) for part in parts if attribute_ids(part) <= of_times]
    if not told:
        return None, None
    catalyst, whole = reader.catalyst, told[0]
    for part in told[1:]:
        whole = catalyst.named("expressions.And")(whole, part)
    helper = catalyst.module("analysis.StreamingJoinHelper")
    sets = [reader.found(child.handle).outputSet() for child in join.children]
    condition, some_time = catalyst.some(whole), catalyst.some(_SOME_TIME_MS)
    later = list[int | None]()
    for at, time in enumerate(times):
        bound = helper.getStateValueWatermark(sets[at], sets[1 - at], condition, some_time) if time else None
        later.append(_SOME_TIME_MS - int(bound.get()) if bound is not None and bound.isDefined() else None)
    return later[0], later[1]
