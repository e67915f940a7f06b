"""Read a join of two streams in a plan as a stage, with its map side and its evaluation in the JVM.

1. Spark's optimiser splits the join into equi-keys, one-sided filters and residual conditions.
2. Spark's own helper derives from conditions on event times how long a row can still match.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.cut import CLOCKS, Hole
from riffle_spark.process.plans.grouping_keys import GroupingKey, KeyColumn, read_grouping_keys
from riffle_spark.process.plans.joins import EquiJoin, ExpressionFacts, JoinMapSide
from riffle_spark.process.plans.plan_values import (
    Expression,
    PlanNode,
    attribute_ids,
    split_conjuncts,
    walk,
    walk_expression,
)
from riffle_spark.process.types.stage_specs import JoinSpec
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import Node, analysed
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder, new_leaf

_LEFT_ONLY: Final = ("LeftSemi", "LeftAnti")
"""Joins whose rows have the columns of the left side only."""
_OUTSIDE: Final = ("InSubquery", "Exists", *CLOCKS)
"""Expressions that Spark's optimiser replaces in a join: by another join, or by the time of the start."""
_WATERMARK_MS: Final = 1_700_000_000_000
"""Any watermark, because only its distance to the bound that Spark derives from it is used."""


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A stage that joins two streams: its specification, and its map side and evaluation as pieces.

    The holes of ``map_side`` are for the left and the right input. ``meanings`` describe the stored columns. They
    differ if a changed join could not continue with the stored rows.
    """

    spec: JoinSpec
    meanings: Mapping[str, str]
    map_side: Piece
    evaluation: Piece


@dataclass(frozen=True, slots=True)
class _JoinInput:
    """A side of a join: a leaf with its output, its columns, and its plan below the join."""

    leaf: Node
    columns: Sequence[Column]
    plan: Node


def read_join(
    reader: PlanReader,
    node: PlanNode,
    used_stores: tuple[str, ...] = (),
    used_columns: Collection[int] | None = None,
) -> JoinPlan:
    """Read a join of two streams in an analysed plan as a stage.

    ``used_stores`` are the names of the query's other stores. ``used_columns`` are the ids of the join's columns that
    the query reads, the others become null; ``None`` means all. Raises ``ConfigError`` for columns that cannot be keys,
    for conditions of an outer or semi join that slots cannot evaluate, and for an invalid store name.
    """
    catalyst = reader.catalyst
    plans = [reader.fetch(child.handle) for child in node.children]
    inputs = [_JoinInput(*reader.read_output(plan), plan) for plan in plans]
    output_sides = inputs[:1] if node.join_type in _LEFT_ONLY else inputs
    output = [column for side in output_sides for column in side.columns]
    optimised, join = _read_equi_join(reader, node, inputs, output, used_columns)
    columns = {column.id: column for side in inputs for column in side.columns}
    rows = JoinMapSide(join, ExpressionFacts(reader.sql, partial(reader.field_json, columns=columns)))
    map_side, holes = _map_side(reader, optimised, inputs, rows)
    spec = rows.make_spec(arrow_schema(catalyst.frame(map_side)), used_stores)
    leaf, leaf_columns = new_leaf(catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, leaf_columns)
    results = [builder.alias(column.name, rows.result_value(column), column.expression) for column in output]
    plan = catalyst.project(results, leaf)
    for condition in rows.spark_conditions:
        plan = catalyst.filter(reader.fetch(condition.handle), plan)
    evaluation = read_piece(reader, analysed(catalyst.frame(plan)))
    return JoinPlan(spec, rows.stored_meanings(), read_piece(reader, map_side, holes), evaluation)


def _map_side(
    reader: PlanReader, optimised: PlanNode, inputs: Sequence[_JoinInput], rows: JoinMapSide
) -> tuple[Node, tuple[Hole, ...]]:
    """Return the union of both sides' rows, with the pushed-down filters, and the positions of the leaves."""
    builder = TreeBuilder(reader)
    plans = list[Node]()
    holes = list[Hole]()
    for side, join_input in enumerate(inputs):
        filters = [node for node in walk(optimised.children[side]) if node.kind == "Filter"]
        child = join_input.leaf
        for node in reversed(filters):
            child = reader.catalyst.filter(reader.fetch(node.expressions["condition"][0].handle), child)
        plans.append(builder.project(rows.side_columns(side), child))
        holes.append(Hole((side, 0, *(0 for _ in filters)), side))
    return reader.catalyst.construct("plans.logical.Union", reader.catalyst.seq(plans)), tuple(holes)


def _read_equi_join(
    reader: PlanReader,
    node: PlanNode,
    inputs: Sequence[_JoinInput],
    output: Sequence[Column],
    used_columns: Collection[int] | None,
) -> tuple[PlanNode, EquiJoin]:
    """Return the join as Spark optimises it, and split into its parts. One-sided conditions are pushed down.

    ``output`` are the join's columns. ``used_columns`` are the ids of the columns that the query reads; ``None`` if it
    reads all.
    """
    used = [column for column in output if used_columns is None or column.id in used_columns] or list(output[:1])
    join, equi_keys = _optimised_join(reader, node, inputs, used)
    left_keys, right_keys = (
        _read_side_keys(reader, expressions, join_input)
        for expressions, join_input in zip((equi_keys._2(), equi_keys._3()), inputs, strict=True)
    )
    if [len(key.parts) for key in left_keys] != [len(key.parts) for key in right_keys]:
        raise rules.refusal_error("join_structs", ", ".join(key.name for key in left_keys))
    pairs = enumerate(zip(left_keys, right_keys, strict=True))
    event_time_key = next((index for index, pair in pairs if any(key.delay_ms is not None for key in pair)), None)
    event_times = [
        _event_time_column(join_input, child) for join_input, child in zip(inputs, join.children, strict=True)
    ]
    residual_conditions = list[Expression]()
    if equi_keys._4().isDefined():
        filtered = reader.read(reader.catalyst.filter(equi_keys._4().get(), inputs[0].leaf))
        residual_conditions = list(split_conjuncts(filtered.expressions["condition"][0]))
    delays = (None, None) if event_time_key is not None else _eviction_delays(reader, join, event_times)
    return join, EquiJoin(
        node.join_type,
        (inputs[0].columns, inputs[1].columns),
        (left_keys, right_keys),
        residual_conditions,
        event_time_key,
        event_times,
        delays,
        {column.id for column in used},
    )


def _optimised_join(
    reader: PlanReader, node: PlanNode, inputs: Sequence[_JoinInput], used: Sequence[Column]
) -> tuple[PlanNode, Node]:
    """Return the optimised join over the inputs' leaves, and its equi-keys in the JVM.

    ``used`` are the columns that the query reads. Raises ``ConfigError`` for a join without equi-keys, and if Spark
    evaluates a condition outside of the join.
    """
    catalyst = reader.catalyst
    plan = reader.fetch(node.handle).withNewChildren(catalyst.seq([join_input.leaf for join_input in inputs]))
    plan = catalyst.project([reader.fetch(column.expression.handle) for column in used], plan)
    optimised = reader.read(catalyst.optimised(plan))
    join = next((plan_node for plan_node in walk(optimised) if plan_node.kind == "Join"), None)
    parts = (part for condition in node.all_expressions for part in walk_expression(condition))
    if any(part.kind in _OUTSIDE for part in parts) or (join is not None and not _has_all_conditions(optimised)):
        raise rules.refusal_error("join_outside", node.join_type)
    if join is not None:
        equi_keys = catalyst.object_named("planning.ExtractEquiJoinKeys").unapply(reader.fetch(join.handle))
        if equi_keys.isDefined():
            return join, equi_keys.get()
    raise rules.refusal_error("join_keys", node.join_type)


def _has_all_conditions(optimised: PlanNode) -> bool:
    """Return whether all conditions of an optimised join are in the join, or in filters of its sides.

    Spark evaluates Python functions and sub-queries in other nodes, above or below the join.
    """
    kinds = [plan_node.kind for plan_node in walk(optimised) if plan_node.children]
    position = kinds.index("Join")
    return {*kinds[:position]} <= {"Project"} and {*kinds[position + 1 :]} <= {"Project", "Filter"}


def _read_side_keys(reader: PlanReader, expressions: Node, join_input: _JoinInput) -> list[GroupingKey]:
    """Return the keys of a side. Their JVM expressions are read as grouping expressions of an aggregate."""
    catalyst = reader.catalyst
    plan = catalyst.aggregate(expressions, catalyst.seq([]), join_input.leaf)
    grouping = reader.read(plan).expressions.get("groupingExpressions", ())
    return read_grouping_keys(key_columns(reader, grouping, join_input.columns, join_input.leaf, join_input.plan))


def key_columns(
    reader: PlanReader, expressions: Sequence[Expression], columns: Sequence[Column], leaf: Node, plan: Node
) -> list[KeyColumn]:
    """Return key expressions as columns: an attribute with its metadata, or an expression named by its SQL.

    ``columns`` and ``leaf`` are the output of the side's ``plan``.
    """
    catalyst = reader.catalyst
    by_id = {column.id: column for column in columns}
    random = reader.random_columns(plan)
    texts = {expression.handle: reader.sql(expression) for expression in expressions}
    computed = [expression for expression in expressions if expression.kind != "AttributeReference"]
    aliases = [catalyst.alias(reader.fetch(expression.handle), texts[expression.handle]) for expression in computed]
    aliased = iter(reader.read_columns(catalyst.project(aliases, leaf)) if aliases else ())
    keys = list[KeyColumn]()
    for expression in expressions:
        column = by_id[expression.id] if expression.kind == "AttributeReference" else next(aliased)
        is_random = not attribute_ids(expression).isdisjoint(random)
        keys.append(KeyColumn(column, texts[expression.handle], is_random))
    return keys


def _event_time_column(join_input: _JoinInput, child: PlanNode) -> Column | None:
    """Return the column of event time that the optimiser leaves below a side of a join, or ``None``."""
    while child.kind == "Filter":
        (child,) = child.children
    output = child.expressions.get("projectList") or child.expressions.get("output") or ()
    ids = {column.id for column in output}
    return next((column for column in join_input.columns if column.delay_ms is not None and column.id in ids), None)


def _eviction_delays(
    reader: PlanReader, join: PlanNode, event_times: Sequence[Column | None]
) -> tuple[int | None, int | None]:
    """Return for each side how many milliseconds after its event time a row can still match, ``None`` for ever.

    Uses Spark's ``StreamingJoinHelper``, with conditions on event times only: it would also take conditions on other
    columns for bounds.
    """
    time_ids = {column.id for column in event_times if column is not None}
    conditions = [part for condition in join.expressions.get("condition", ()) for part in split_conjuncts(condition)]
    on_times = [reader.fetch(part.handle) for part in conditions if attribute_ids(part) <= time_ids]
    if not on_times:
        return None, None
    catalyst = reader.catalyst
    condition = on_times[0]
    for part in on_times[1:]:
        condition = catalyst.class_named("expressions.And")(condition, part)
    helper = catalyst.object_named("analysis.StreamingJoinHelper")
    outputs = [reader.fetch(child.handle).outputSet() for child in join.children]

    def delay(side: int) -> int | None:
        if event_times[side] is None:
            return None
        watermark = catalyst.some(_WATERMARK_MS)
        bound = helper.getStateValueWatermark(outputs[side], outputs[1 - side], catalyst.some(condition), watermark)
        return _WATERMARK_MS - int(bound.get()) if bound.isDefined() else None

    return delay(0), delay(1)
