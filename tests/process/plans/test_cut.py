"""A plan is cut at its stateful nodes into inputs, stages, the pieces between them, and one piece on top.

The plans were recorded with each supported version of Spark.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import CutPlan, Input, Mark, PlanPiece, cut_plan, find_marks
from riffle_spark.process.plans.plan_values import (
    Expression,
    PlanNode,
    attribute_ids,
    parse_plan,
    split_conjuncts,
    transform_up,
    walk,
)
from riffle_spark.process.plans.rules import REFUSED, check_rules, check_tables
from tests.kit.recorded_plans import VERSIONS, plan_of

ROOT = "file:///state/of/visits"
SHAPES = {
    "a tumbling window": "aggregate(input 0); stage 0",
    "a condition and a projection on it": "aggregate(input 0); Project Filter stage 0",
    "HAVING in SQL over a view": "aggregate(input 0); Filter stage 0",
    "a window in SQL": "aggregate(input 0); stage 0",
    "a sub-query in FROM": "aggregate(input 0); Project Filter SubqueryAlias stage 0",
    "WITH, used twice": "aggregate(input 0); aggregate(input 1); "
    "Union Project SubqueryAlias SubqueryAlias Project Project SubqueryAlias SubqueryAlias stage 0+1",
    "SELECT DISTINCT": "aggregate(input 0); stage 0",
    "a session": "aggregate(input 0); stage 0",
    "a union below": "aggregate(input 0); stage 0",
    "a union with a plain stream": "aggregate(input 0); stage 0",
    "a union of two aggregates": "aggregate(input 0); aggregate(input 1); Union Project stage 0+1",
    "a static join below": "aggregate(input 0); stage 0",
    "a static join above": "aggregate(input 0); Project Join Project Range stage 0",
    "window of windows": "aggregate(input 0); aggregate(Project Filter Project stage 0); stage 1",
    "distinct, then an aggregate": "distinct(input 0); aggregate(stage 0); stage 1",
    "distinct rows": "distinct(input 0); stage 0",
    "within the watermark": "distinct(input 0); Project stage 0",
    "a join of streams": "join(input 0, input 1); Filter stage 0",
    "a join behind an aggregate": "aggregate(input 0); join(Project Project stage 0, input 1); stage 1",
    "a join with a table": "table(input 0, input 1); stage 0",
    "a table that is on the left, and another behind it": ""
    "table(input 0, input 1); table(stage 0, input 2); Project stage 1",
    "an aggregate behind a table": "table(input 0, input 1); aggregate(stage 0); stage 1",
    "a cube": "aggregate(input 0); stage 0",
    "groups with state": "groups(input 0); stage 0",
    "pandas between": "aggregate(input 0); stage 0",
    "an order in complete mode": "aggregate(input 0); GlobalLimit LocalLimit Sort stage 0",
    "no state at all": "",
}
"""The expected cut of each query: for each stage its kind and its inputs, then the nodes of the top piece."""
REFUSED_NODES = {
    "limit": "append",
    "watermark": "update",
    "set": "append",
    "unknown": "update",
    "scala": "update",
    "table_alone": "append",
    "table_outer": "append",
}
"""Refused nodes, each with an output mode that Spark allows for it."""


def shape_of(parts: CutPlan) -> str:
    """Return a cut as one line of text."""

    def described(part: Input | PlanPiece) -> str:
        if isinstance(part, Input):
            return f"input {part.number}"
        stages = "+".join(str(hole.stage) for hole in part.holes)
        return " ".join([*(node.kind for node in part.nodes()), f"stage {stages}"])

    stages = [f"{stage.kind}({', '.join(map(described, stage.below))})" for stage in parts.stages]
    return "; ".join([*stages, described(parts.top)])


def _check(parts: CutPlan, mode: str) -> None:
    check_tables(parts)
    check_rules(parts, mode)


def test_plans_are_recorded_for_each_supported_spark_line() -> None:
    """Plans are recorded for the newest Spark 3.5, and for the oldest and the newest supported Spark 4."""
    assert VERSIONS == ["3.5.9", "4.0.5", "4.3.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_event_time_of_a_users_function_becomes_a_projection(version: str) -> None:
    """The node that sets the event time of a user function's output becomes a projection, because a batch has no
    watermark of Spark's stream.
    """
    name = "a condition and a projection on it"

    def timed(node: PlanNode) -> PlanNode:
        return replace(node, kind="UpdateEventTimeWatermarkColumn") if node.kind == "Project" else node

    parts = cut_plan(transform_up(plan_of(version, name).plan, timed))
    assert shape_of(parts) == SHAPES[name]
    (projection,) = [node for node in parts.top.nodes() if node.kind == "Project"]
    assert (projection.edit, projection.is_original) == ("project", False)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_query_is_cut_at_its_stateful_nodes(name: str, version: str) -> None:
    """A query is cut at its stateful nodes. Stages are numbered from the sources, and no part has a mark."""
    parts = cut_plan(plan_of(version, name).plan)
    if not SHAPES[name]:
        assert (parts.stages, parts.inputs, parts.top.holes) == ((), (), ())
    else:
        assert shape_of(parts) == SHAPES[name]
    assert parts.root == ROOT
    assert not find_marks(parts.plan)
    assert not any(find_marks(each.plan) for each in parts.inputs)


def test_nested_marks_are_removed_and_nodes_around_them_stay() -> None:
    """A stream may be wrapped twice. Each mark is removed, and the query's nodes between and below them stay."""

    def node(kind: str, *children: PlanNode, **expressions: tuple[Expression, ...]) -> PlanNode:
        return PlanNode(kind, children, expressions, {}, is_streaming=True, handle=0)

    def marked(number: int, child: PlanNode) -> PlanNode:
        text = Mark(number, ROOT).condition.removeprefix("raise_error('").removesuffix("') is null")
        raised = Expression("RaiseError", (Expression("Literal", (), {"value": text}, 0),), {}, 0)
        return node("Filter", child, condition=(Expression("IsNull", (raised,), {}, 0),))

    own_filter = node("Filter", node("Source"), condition=(Expression("Literal", (), {"value": "true"}, 0),))
    wrapped_twice = marked(1, node("Project", marked(2, own_filter)))
    assert [mark.number for mark in find_marks(wrapped_twice)] == [1, 2]
    parts = cut_plan(wrapped_twice)
    assert list(walk(parts.plan))[1:] == list(walk(own_filter))
    assert [each.kind for each in walk(parts.plan)] == ["Project", "Filter", "Source"]
    assert not find_marks(parts.plan)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_queries_that_spark_allows_are_accepted(name: str, version: str) -> None:
    """Each query that Spark allows passes the rules, in append mode, or in complete mode if it sorts its result."""
    parts = cut_plan(plan_of(version, name).plan)
    _check(parts, "complete" if "order" in name else "append")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", REFUSED_NODES)
def test_a_refused_node_raises_its_error_with_a_remedy(name: str, version: str) -> None:
    """A refused node raises the listed error, which contains Spark's name of the node."""
    parts = cut_plan(plan_of(version, f"refused {name}").plan)
    with pytest.raises(ConfigError) as refused:
        _check(parts, REFUSED_NODES[name])
    assert (refused.value.id, bool(refused.value.where)) == (REFUSED[name].id, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stage_behind_an_aggregate_is_refused_in_update_mode(version: str) -> None:
    """A stage behind an aggregate is accepted in append mode and refused in update mode, which repeats results."""
    parts = cut_plan(plan_of(version, "window of windows").plan)
    check_rules(parts, "append")
    with pytest.raises(ConfigError, match=REFUSED["several_stages"].id):
        check_rules(parts, "update")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stage_lists_its_columns_that_later_nodes_read(version: str) -> None:
    """A stage lists its columns that later nodes read: the aggregate above the table reads only `at`."""
    plan = plan_of(version, "an aggregate behind a table")
    table, _ = cut_plan(plan.plan).stages
    names = {column.id: column.name for side in plan.outputs[0] for column in side}
    assert table.used_columns is not None
    assert [names[each] for each in table.used_columns] == ["at"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stage_lists_columns_that_only_a_filter_reads(version: str) -> None:
    """A stage's columns that only a filter reads are listed too."""
    (stage,) = cut_plan(plan_of(version, "a condition and a projection on it").plan).stages
    names = {each.id: each.name for each in stage.node.expressions["aggregateExpressions"]}
    assert stage.used_columns is not None
    assert sorted(names[each] for each in stage.used_columns) == ["count", "window"]


@pytest.mark.parametrize("version", VERSIONS)
def test_handles_number_the_objects_in_the_order_of_reading(version: str) -> None:
    """Handles number the objects in the order of reading, so each reading of a plan gives the same handles."""
    nodes = list(walk(plan_of(version, "a join behind an aggregate").plan))
    handles = [node.handle for node in nodes]
    assert handles == sorted(set(handles))
    assert handles == [node.handle for node in walk(plan_of(version, "a join behind an aggregate").plan)]


@pytest.mark.parametrize("depth", [1, 5_000])
def test_deeply_nested_plans_are_read(depth: int) -> None:
    """Plans with thousands of nested conditions or projections are read without recursion errors."""
    attribute = {"class": "expressions.AttributeReference", "num-children": 0, "name": "n", "exprId": {"id": 1}}
    both = {"class": "expressions.And", "num-children": 2, "left": 0, "right": 1}
    condition = [both] * depth + [attribute] * (depth + 1)
    filters = [{"class": "plans.logical.Filter", "num-children": 1, "condition": condition, "child": 0}]
    projections = [{"class": "plans.logical.Project", "num-children": 1, "projectList": [[attribute]]}] * depth
    source = {"class": "plans.logical.Range", "num-children": 0, "isStreaming": True}
    plan, accesses = parse_plan(json.dumps([*filters, *projections, source]), lambda _: False)
    (condition_read,) = plan.expressions["condition"]
    assert [each.id for each in split_conjuncts(condition_read)] == [1] * (depth + 1)
    assert attribute_ids(condition_read) == {1}
    assert [node.kind for node in walk(plan)] == ["Filter", *["Project"] * depth, "Range"]
    assert all(node.is_streaming for node in walk(plan))
    assert len(accesses) == 2 * depth + 1 + depth + depth + 1
    parts = cut_plan(plan)
    assert len(list(walk(parts.plan))) == depth + 2
