"""Keys, and the rows of each kind of stage, are read from recorded plans of each version of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.columns import Column, catalog_name, quote_name
from riffle_spark.process.plans.cut import cut_plan, find_table
from riffle_spark.process.plans.distinct import make_distinct_spec, read_distinct_rows
from riffle_spark.process.plans.grouping_keys import (
    GroupingKey,
    KeyColumn,
    Result,
    choose_store_name,
    make_time_spec,
    read_element_columns,
    read_grouping_keys,
    read_projected_results,
)
from riffle_spark.process.plans.groups import FunctionMapSide, read_group_keys
from riffle_spark.process.plans.joins import EquiJoin, ExpressionFacts, JoinMapSide
from riffle_spark.process.plans.new_expressions import (
    NewExpression,
    assemble_struct,
    cast_back,
    field_of,
    is_null,
    leaf_column,
    literal,
    struct,
)
from riffle_spark.process.plans.plan_values import Expression, PlanNode, split_conjuncts
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.process.plans.tables import TableJoin, TableMapSide, split_join_condition
from riffle_spark.process.types.stage_specs import TimeSpec
from tests.kit.recorded_plans import VERSIONS, RecordedPlan, plan_of

every_version = pytest.mark.parametrize("version", VERSIONS)


def column(name: str, data_type: object = "long", number: int = 0, **changes: Any) -> Column:
    """Return a column that is in no plan."""
    attribute = Expression("AttributeReference", (), {"name": name, "exprId": {"id": number}}, -1 - number)
    return Column(attribute, {"name": name, "type": data_type, "nullable": True, "metadata": {}, **changes})


def keyed(columns: Sequence[Column]) -> list[KeyColumn]:
    """Return columns as grouping columns."""
    return [KeyColumn(each, quote_name(each.name)) for each in columns]


def grouped(plan: RecordedPlan) -> tuple[PlanNode, list[GroupingKey]]:
    """Return the first aggregate of a plan and its grouping keys."""
    stage = next(each for each in cut_plan(plan.plan).stages if each.kind == "aggregate")
    by_id = {each.id: each for each in plan.outputs[stage.number][0]}
    return stage.node, read_grouping_keys(
        keyed([by_id[each.id] for each in stage.node.expressions["groupingExpressions"]])
    )


def test_results_of_a_split_aggregate_have_the_names_of_the_projection_above() -> None:
    """Spark 4 gives results of a split aggregate generated names. A projection above it has the query's names."""

    def alias(child: Expression, name: str, number: int) -> Expression:
        return Expression("Alias", (child,), {"name": name, "exprId": {"id": number}}, -1)

    key, count, total = (column(name, number=number).expression for number, name in enumerate(("k", "count", "sum")))
    generated = [alias(count, "_aggregateexpression", 11), alias(total, "_aggregateexpression", 12)]
    of_count, of_total = (column("_aggregateexpression", number=number).expression for number in (11, 12))
    added = Expression("Add", (of_total, of_total), {}, -1)
    projected = [key, alias(of_count, "c", 21), alias(of_total, "t", 22), alias(added, "more", 23)]
    assert read_projected_results(projected, [key, *generated]) == (
        key,
        alias(count, "c", 21),
        alias(total, "t", 22),
        alias(added, "more", 23),
    )


@every_version
def test_a_window_key_is_stored_as_start_and_end(version: str) -> None:
    """A window key is stored as start and end. Rows are late by the end, with the watermark delay of the metadata."""
    _, keys = grouped(plan_of(version, "a tumbling window"))
    assert [key.columns for key in keys] == [["window_start", "window_end"], ["page"]]
    assert make_time_spec(keys) == TimeSpec("window_end", 600_000, "time", "window_start")
    assert choose_store_name("aggregate", keys, ()) == "aggregate.window-page"


@every_version
def test_the_event_time_of_an_aggregate_is_its_session_end(version: str) -> None:
    """With a session and another event time, the event time of the aggregate is the end of the session."""
    _, keys = grouped(plan_of(version, "a session"))
    assert [key.window for key in keys] == ["session", ""]
    assert make_time_spec(keys) == TimeSpec("session_window_end", 600_000, "session", "session_window_start")


def test_the_session_end_is_the_event_time_at_any_position_of_the_key() -> None:
    """The end of a session is the event time, also if another event-time key is before it."""
    ends: list[Any] = [column(name, "timestamp").field for name in ("start", "end")]
    marks = {"spark.sessionWindow": True, "spark.watermarkDelayMs": 5}
    session = column("s", {"type": "struct", "fields": ends}, 1, metadata=marks)
    keys = read_grouping_keys(keyed([column("at", "timestamp", metadata={"spark.watermarkDelayMs": 5}), session]))
    assert make_time_spec(keys) == TimeSpec("s_end", 5, "session", "s_start")
    assert make_time_spec(keys[:1]) == TimeSpec("at", 5)


def test_a_struct_key_is_stored_as_its_fields() -> None:
    """A struct key is stored as its fields and assembled again. A nullable struct has a column for null."""
    fields = [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]
    struct = column("s", {"type": "struct", "fields": fields})
    (key,) = read_grouping_keys(keyed([struct]))
    assert key.columns == ["s_is_null", "s_a"]
    assert key.column_values() == {
        "s_is_null": is_null(struct.expression),
        "s_a": NewExpression("field", (struct.expression,), 0),
    }
    whole = key.assemble({name: leaf_column(name) for name in key.columns})
    assert isinstance(whole, NewExpression)
    assert whole.kind == "if"
    assert whole.parts[0] == leaf_column("s_is_null")
    assert whole.parts[2] == NewExpression("struct", (leaf_column("s_a"),), ("a",))


def test_a_struct_of_one_field_is_not_stored_whole() -> None:
    """A key column may hold a plain value or the only field of a struct. Only the former can stand for the key."""
    fields = [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]
    struct = column("s", {"type": "struct", "fields": fields}, 1, nullable=False)
    keys = read_grouping_keys(keyed([column("k"), struct]))
    assert [(key.columns, key.is_stored_whole) for key in keys] == [(["k"], True), (["s_a"], False)]


def test_struct_fields_of_the_same_name_get_different_columns() -> None:
    """A struct may have two fields of one name, as in Spark. They get different columns."""
    fields = [column("a").field, column("a").field]
    (key,) = read_grouping_keys(keyed([column("s", {"type": "struct", "fields": fields}, nullable=False)]))
    assert key.columns == ["s_a", "s_a_2"]
    whole = key.assemble({name: leaf_column(name) for name in key.columns})
    assert whole == NewExpression("struct", (leaf_column("s_a"), leaf_column("s_a_2")), ("a", "a"))


def test_floating_point_keys_are_normalised() -> None:
    """Floating-point keys are normalised, because Spark treats 0.0 and -0.0 as equal and state compares bits."""
    plain, floating = read_grouping_keys(keyed([column("a"), column("b", "double", 1)]))
    assert (plain.expression, floating.expression) == (
        plain.column.expression if plain.column else None,
        NewExpression("normalised", (column("b", "double", 1).expression,)),
    )


def test_a_key_is_named_by_its_result_column() -> None:
    """A key is named by its result column without Spark's ids. Column names are unique, ignoring case."""
    alias = Column(
        Expression("Alias", (column("n").expression,), {"name": "(n + 1)#7", "exprId": {"id": 7}}, 0),
        {
            "name": "(n + 1)#7",
            "type": "long",
            "nullable": True,
            "metadata": {"riffle.store": "inherited"},
        },
    )
    (named,) = read_grouping_keys([KeyColumn(alias, "(n + 1)")], [Result(7, "k", {"riffle.store": "visits"})])
    assert (named.name, named.columns, named.store) == ("k", ["k"], "visits")
    (plain,) = read_grouping_keys([KeyColumn(alias, "(n + 1)")], [Result(7, "k")])
    assert plain.store == "inherited"
    (unnamed,) = read_grouping_keys([KeyColumn(alias, "(n + 1)#7")])
    assert unnamed.name == "(n + 1)"
    twice = read_grouping_keys(keyed([column("A"), column("a", number=1)]))
    assert [key.columns for key in twice] == [["A"], ["a_2"]]


COLLATED = {"__COLLATIONS": {"a": "spark.UTF8_LCASE"}}
REFUSED_KEYS: dict[str, tuple[object, Mapping[str, object]]] = {
    "array_key": ({"type": "array", "elementType": "long", "containsNull": True}, {}),
    "void_key": ("void", {}),
    "collated_key": ("string", COLLATED),
}


@pytest.mark.parametrize("is_field", [False, True])
@pytest.mark.parametrize("name", REFUSED_KEYS)
def test_a_column_that_cannot_be_a_key_is_refused_with_its_type(name: str, is_field: bool) -> None:
    """A column that cannot be a key is refused with its Spark type, also as a field of a struct."""
    data_type, metadata = REFUSED_KEYS[name]
    refused_column = column("a", data_type, metadata=metadata)
    if is_field:
        refused_column = column("a", {"type": "struct", "fields": [column("b").field, refused_column.field]})
    with pytest.raises(ConfigError) as refused:
        read_grouping_keys(keyed([refused_column]))
    assert refused.value.id == REFUSED[name].id
    assert refused.value.where == f"a: {catalog_name(refused_column.field)}"


@pytest.mark.parametrize("data_type", ["string", "string collate UTF8_BINARY"])
@pytest.mark.parametrize("is_field", [False, True])
def test_a_string_that_is_cast_to_the_plain_collation_is_a_key(is_field: bool, data_type: str) -> None:
    """A string that Spark 4.3 names as UTF8_BINARY, in its type or its metadata, is plain, so it can be a key."""
    metadata = {"__COLLATIONS": {"a": "spark.UTF8_BINARY"}} if data_type == "string" else {}
    plain = column("a", data_type, metadata=metadata)
    key_column = column("s", {"type": "struct", "fields": [plain.field]}) if is_field else plain
    (key,) = read_grouping_keys(keyed([key_column]))
    assert key.columns[-1] == ("s_a" if is_field else "a")
    assert catalog_name(key_column.field) == ("struct<a:string>" if is_field else "string")


def test_a_user_defined_type_cannot_be_a_key() -> None:
    """A key of a user-defined type is refused with the name of its class, not with its stored type."""
    kind = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "sqlType": "long"}
    with pytest.raises(ConfigError, match=r"RIFFLE-0204.*VectorUDT \(a user-defined type\)"):
        read_grouping_keys(keyed([column("v", kind)]))


def test_fields_of_a_struct_get_their_collation_back() -> None:
    """Fields of a struct that Python workers returned without collations are cast to their types in the query."""
    fields = [column(name, "string").field for name in ("a", "b")]
    plain = column("s", {"type": "struct", "fields": fields})
    collated = replace(plain, field={**plain.field, "metadata": {"__COLLATIONS": {"s.a": "spark.UTF8_LCASE"}}})
    values: dict[tuple[int, ...], Expression | NewExpression] = {(0,): literal("x"), (1,): literal("y")}
    assert assemble_struct(values, {}, plain) == struct([("a", literal("x")), ("b", literal("y"))])
    assembled = assemble_struct(values, {}, collated)
    assert isinstance(assembled, NewExpression)
    assert [part.kind for part in assembled.parts] == ["cast", "cast"]
    assert assembled.parts[1] == NewExpression("cast", (literal("y"), field_of(collated.expression, 1)))


@pytest.mark.parametrize(("data_type", "is_cast"), [("time(0)", True), ("interval hour", True), ("timestamp", False)])
def test_a_value_from_workers_gets_the_precision_of_its_type(data_type: str, is_cast: bool) -> None:
    """Workers return every TIME with microseconds and every interval in days to seconds, so both are cast back."""
    value = cast_back(leaf_column("a"), column("a", data_type))
    assert (value == leaf_column("a")) is not is_cast


def test_a_distinct_value_counts_only_in_rows_that_pass_the_filter() -> None:
    """A distinct value counts only in rows that pass the filter, and only if it is not null."""
    argument, condition = column("n"), column("is_wanted", "boolean", 1).expression
    counted = Expression("Count", (argument.expression,), {}, 2)
    function = Expression("AggregateExpression", (counted, condition), {"isDistinct": True}, 3)
    elements = read_element_columns([(function, "count(DISTINCT n)", keyed([argument]))], ["page", "n"])
    assert elements.names == ["distinct_for", "n_2"]
    assert elements.column_values() == {
        "n_2": argument.expression,
        "passes 0": NewExpression("if", (is_null(argument.expression), literal(False), condition)),
    }


def test_a_nondeterministic_key_is_refused() -> None:
    """A key that is not deterministic is refused, because a repeated batch would route its rows to other keys."""
    with pytest.raises(ConfigError, match=REFUSED["random_key"].id):
        read_grouping_keys([KeyColumn(column("r"), "r", is_random=True)])


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        ("long", "bigint"),
        ("timestamp_ntz", "timestamp_ntz"),
        ({"type": "map", "keyType": "integer", "valueType": "byte", "valueContainsNull": True}, "map<int,tinyint>"),
        ({"type": "struct", "fields": [{"name": "x", "type": "short", "metadata": {}}]}, "struct<x:smallint>"),
        ({"type": "udt", "class": "V", "sqlType": "binary"}, "binary"),
    ],
)
def test_types_are_named_as_sparks_catalog_names_them(data_type: object, name: str) -> None:
    """Types are named as in Spark's catalog, not as in its JSON."""
    assert catalog_name(column("a", data_type).field) == name


def test_names_are_quoted_as_in_sparks_sql() -> None:
    """Names are quoted as in Spark's SQL, only if they are not plain identifiers."""
    assert [quote_name(each) for each in ("a_1", "1a", "a b", "a`b")] == ["a_1", "`1a`", "`a b`", "`a``b`"]


def arrow(names: Sequence[str]) -> pa.Schema:
    """Return a schema with these names. All types are int64."""
    return pa.schema([(name, pa.int64()) for name in names])


@every_version
def test_a_de_duplication_sends_all_columns_of_a_row(version: str) -> None:
    """A de-duplication sends keys first, then the other columns. Rows are late by the key that is an event time."""
    plan = plan_of(version, "distinct, then an aggregate")
    node = cut_plan(plan.plan).stages[0].node
    rows = read_distinct_rows(node, plan.outputs[0][0], ())
    assert (rows.key_columns, list(rows.payload)) == (["at", "page"], ["n"])
    spec = make_distinct_spec(node, rows, arrow(list(rows.values)), ())
    assert (spec.store, spec.due, spec.time) == ("distinct.at-page", "at", TimeSpec("at", 600_000))


@every_version
def test_drop_duplicates_within_watermark_keeps_keys_until_a_time(version: str) -> None:
    """`dropDuplicatesWithinWatermark` keeps keys until a time. Rows are late by a column that is not a key."""
    plan = plan_of(version, "within the watermark")
    node = cut_plan(plan.plan).stages[0].node
    rows = read_distinct_rows(node, plan.outputs[0][0], ())
    spec = make_distinct_spec(node, rows, arrow(list(rows.values)), ("within.page",))
    assert (spec.store, spec.due, spec.time) == ("within.page-2", "known_until", TimeSpec("at", 600_000))


def test_the_end_of_a_window_that_is_not_a_key_is_sent_as_a_column() -> None:
    """If a window that is not a key is the event time, its end is sent as an additional column."""
    ends: list[Any] = [column(name, "timestamp").field for name in ("start", "end")]
    window = column("w", {"type": "struct", "fields": ends}, 1, metadata={"spark.watermarkDelayMs": 5})
    key = column("k")
    node = PlanNode("Deduplicate", (), {"keys": (key.expression,)}, {}, is_streaming=True, handle=0)
    rows = read_distinct_rows(node, [key, window], ())
    assert rows.time == TimeSpec("event_time", 5)
    assert rows.values == {
        "k": key.expression,
        "w": window.expression,
        "event_time": NewExpression("field", (window.expression,), 1),
    }


@pytest.mark.parametrize(
    ("kind", "used", "late"),
    [
        ("Deduplicate", None, "at"),
        ("Deduplicate", {1}, None),
        ("Deduplicate", {0, 1}, "at"),
        ("DeduplicateWithinWatermark", {1}, "at"),
    ],
)
def test_rows_are_late_only_by_an_event_time_that_the_query_reads(
    kind: str, used: set[int] | None, late: str | None
) -> None:
    """Rows are late only by an event time that the query reads later, or that tells when keys expire."""
    at, key = column("at", "timestamp", metadata={"spark.watermarkDelayMs": 5}), column("k", number=1)
    node = PlanNode(kind, (), {"keys": (key.expression,)}, {}, is_streaming=True, handle=0)
    rows = read_distinct_rows(node, [at, key], (), used)
    assert rows.time == (None if late is None else TimeSpec(late, 5))


def test_of_two_event_times_only_the_key_counts_if_the_query_reads_neither() -> None:
    """Of two event times that are not read later, the key decides which rows are late, as in Spark."""
    at, bt = (column(name, "timestamp", i, metadata={"spark.watermarkDelayMs": 5}) for i, name in enumerate("ab"))
    node = PlanNode("Deduplicate", (), {"keys": (at.expression,)}, {}, is_streaming=True, handle=0)
    assert read_distinct_rows(node, [at, bt], (), ()).time == TimeSpec("a", 5)


def test_a_de_duplication_renames_columns_of_the_same_name() -> None:
    """Columns with the same name, also with the name of a key, get different names in a de-duplication."""
    key, *others = column("k"), column("n", number=1), column("n", number=2), column("k", number=3)
    node = PlanNode("Deduplicate", (), {"keys": (key.expression,)}, {}, is_streaming=True, handle=0)
    rows = read_distinct_rows(node, [key, *others], ())
    assert rows.payload == {"n": others[0], "n_2": others[1], "k_2": others[2]}


def test_two_columns_of_event_time_are_refused() -> None:
    """Two columns with event time are refused, as in Spark."""
    timed = [
        column(name, "timestamp", number, metadata={"spark.watermarkDelayMs": 1}) for number, name in enumerate("ab")
    ]
    node = PlanNode("Deduplicate", (), {"keys": (timed[0].expression,)}, {}, is_streaming=True, handle=0)
    with pytest.raises(ConfigError, match=REFUSED["event_times"].id):
        read_distinct_rows(node, timed, ())


@every_version
def test_arguments_of_a_grouped_function_are_sent_once_by_name(version: str) -> None:
    """Each argument of a grouped function is sent once under its name, and so is the event time."""
    plan = plan_of(version, "groups with state")
    (stage,), ((below,),) = cut_plan(plan.plan).stages, plan.outputs.values()
    by_id = {each.id: each for each in below}
    keys = read_group_keys([by_id[each.id] for each in stage.node.expressions["groupingAttributes"]], frozenset())
    rows = FunctionMapSide(keys, by_id)
    rows.add_arguments(stage.node.expressions["functionExpr"][0].children)
    assert rows.add_event_time(below) == "at"
    assert rows.arguments == (("at", "at"), ("page", "page"), ("n", "n"))
    assert list(rows.values) == ["page", "at", "n"]


def test_an_argument_that_is_passed_twice_is_sent_twice() -> None:
    """An argument that is passed twice, or whose key is sent normalised, has a column of its own. So has the end of a
    window that is compared with the watermark.
    """
    price, n = column("price", "double", 1), column("n", number=2)
    rows = FunctionMapSide(read_group_keys([price], frozenset()), {1: price, 2: n})
    rows.add_arguments([price.expression, n.expression, n.expression])
    assert [name for name, _ in rows.arguments] == ["price", "n", "n"]
    assert len({sent for _, sent in rows.arguments} | {"price"}) == 4
    assert next(iter(rows.values)) == "price"
    assert all(rows.values[sent] in (price.expression, n.expression) for _, sent in rows.arguments)
    ends: list[Any] = [column(name, "timestamp").field for name in ("start", "end")]
    window = column("w", {"type": "struct", "fields": ends}, 3, metadata={"spark.watermarkDelayMs": 5})
    sent = rows.add_event_time([n, window])
    assert sent is not None
    assert rows.values[sent] == field_of(window.expression, 1)


def joined(version: str, query: str, how: str | None = None) -> JoinMapSide:
    """Return the map side of a recorded join. Its keys are the equalities of the condition."""
    plan = plan_of(version, query)
    stage = next(each for each in cut_plan(plan.plan).stages if each.kind == "join")
    left, right = plan.outputs[stage.number]
    parts = list(split_conjuncts(stage.node.expressions["condition"][0]))
    by_id = {each.id: each for each in (*left, *right)}
    equal = [[by_id[side.id] for side in part.children] for part in parts if part.kind == "EqualTo"]
    keys = [read_grouping_keys(keyed(columns)) for columns in zip(*equal, strict=True)]
    rest = [part for part in parts if part.kind != "EqualTo"]
    times = [next(each for each in side if each.delay_ms is not None) for side in (left, right)]
    join = EquiJoin(
        how or stage.node.join_type, (left, right), (keys[0], keys[1]), rest, None, times, (60_000, 0), by_id.keys()
    )

    def field(expression: Expression) -> Mapping[str, object]:
        typed = next((each for each in expression.children if each.kind == "AttributeReference"), expression)
        return by_id[typed.id].field if typed.kind == "AttributeReference" else {"name": "", "type": "timestamp"}

    return JoinMapSide(join, ExpressionFacts(lambda expression: expression.kind, field))


@every_version
def test_a_join_compares_columns_of_both_sides(version: str) -> None:
    """A join stores the key once, gives both sides unique names, and compares columns of both sides."""
    rows = joined(version, "a join of streams")
    spec = rows.make_spec(arrow([name for name, _ in rows.side_columns(0)]), ())
    assert (spec.store, spec.keys.names, spec.event_time) == ("join.page", ["page"], "event_time")
    assert (spec.left.buffered.names, spec.right.buffered.names[:2]) == (["at", "n", "compared"], ["seen", "m"])
    assert [(each.left, each.function, each.right) for each in spec.comparisons] == [
        ("at", "less_equal", "seen"),
        ("compared", "greater_equal", "seen"),
    ]
    assert (spec.left.due, spec.left.eviction_delay_ms, spec.right.eviction_delay_ms) == ("event_time", 60_000, 0)
    assert [name for name, _ in rows.side_columns(0)] == [name for name, _ in rows.side_columns(1)]


@every_version
@pytest.mark.parametrize(("how", "outer"), [("Inner", ()), ("LeftOuter", ("left",)), ("FullOuter", ("left", "right"))])
def test_an_outer_join_lists_sides_whose_unmatched_rows_are_emitted(
    version: str, how: str, outer: tuple[str, ...]
) -> None:
    """An outer join lists the sides whose unmatched rows are emitted. The stored meanings have the kind of join."""
    rows = joined(version, "a join of streams", how)
    assert rows.make_spec(arrow([name for name, _ in rows.side_columns(0)]), ()).outer == outer
    assert rows.stored_meanings()["join"].split()[0] == how


@every_version
def test_a_column_called_join_does_not_hide_the_kind_of_join(version: str) -> None:
    """A stored column that the query calls ``join`` keeps its name, and the kind of join is stored beside it."""
    rows = joined(version, "a join of streams", "LeftOuter")
    rows.payload[0]["join"] = rows.payload[0]["n"]
    meanings = rows.stored_meanings()
    assert next(iter(meanings)) == "join_2"
    assert meanings["join_2"].split()[0] == "LeftOuter"
    assert meanings["join"].startswith("left")


def test_conditions_that_arrow_orders_differently_are_left_to_spark() -> None:
    """A comparison of doubles, whose NaN Arrow orders differently, and another condition are not compared in slots."""
    a, x, b, y = (column(name, kind, number) for number, (name, kind) in enumerate(
        [("a", "long"), ("x", "double"), ("b", "long"), ("y", "double")]
    ))  # fmt: skip
    both = (x.expression, y.expression)
    rest = [Expression("LessThan", both, {}, 0), Expression("NotEqual", both, {}, 0)]
    keys = (read_grouping_keys(keyed([a])), read_grouping_keys(keyed([b])))
    join = EquiJoin("Inner", ([a, x], [b, y]), keys, rest, None, (None, None), (None, None), {0, 1, 2, 3})
    rows = JoinMapSide(join, ExpressionFacts(lambda expression: expression.kind, lambda _: x.field))
    assert rows.comparisons == []
    spec = rows.make_spec(arrow([name for name, _ in rows.side_columns(0)]), ())
    assert (spec.left.filter_column, spec.right.filter_column, spec.comparisons) == (None, None, ())


def test_rows_of_a_join_by_window_are_due_at_its_end() -> None:
    """In a join by window, rows of both sides are due at the end of the window."""
    ends: list[Any] = [column(name, "timestamp").field for name in ("start", "end")]
    metadata = {"spark.timeWindow": True, "spark.watermarkDelayMs": 5}
    windows = [column("w", {"type": "struct", "fields": ends}, number, metadata=metadata) for number in (0, 1)]
    (left,), (right,) = (read_grouping_keys(keyed([window])) for window in windows)
    sides = ([windows[0]], [windows[1]])
    join = EquiJoin("Inner", sides, ([left], [right]), (), 0, (windows[0], windows[1]), (None, None), {0, 1})
    rows = JoinMapSide(join, ExpressionFacts(lambda expression: expression.kind, lambda _: windows[0].field))
    spec = rows.make_spec(pa.schema([(name, pa.timestamp("us")) for name, _ in rows.side_columns(0)]), ())
    assert (spec.left.due, spec.right.due) == ("w_end", "w_end")


@every_version
def test_a_table_join_stores_the_columns_that_the_query_reads(version: str) -> None:
    """A join with a table stores the columns that the query reads and those that order the changes."""
    plan = plan_of(version, "a join with a table")
    (stage,) = cut_plan(plan.plan).stages
    left, right = plan.outputs[0]
    table = find_table(stage.node)
    assert table is not None
    equal, rest = split_join_condition(stage.node, table, (left, right))
    assert (list(equal), rest, table.side, [view.kind for view in table.views]) == (["other"], [], 1, ["Filter"])
    by_id = {each.id: each for each in (*left, *right)}
    keys = [
        read_grouping_keys(keyed([by_id[equal["other"].id]])),
        read_grouping_keys(keyed([each for each in right if each.name == "other"])),
    ]
    rows = TableMapSide(
        TableJoin(stage.node, table, (left, right), (keys[0], keys[1]), rest), [each.id for each in right], None
    )
    assert (rows.key_columns, list(rows.stream_columns.values()), list(rows.stored_columns.values())) == (
        ["other"],
        ["at", "n"],
        ["seen", "m"],
    )
    spec = rows.make_spec(arrow([name for name, _ in rows.side_columns(0)]), ())
    assert (spec.store, spec.order_by, spec.keeps_unmatched) == ("table.other", ("seen",), True)
    columns, passes = rows.result_values([*left, *right])
    assert [each.name for each, _ in columns] == ["at", "page", "n", "seen", "other", "m"]
    assert passes is None


@every_version
def test_a_table_stores_only_order_columns_and_columns_that_are_read(version: str) -> None:
    """A table stores its order columns and only those other columns that the query reads."""
    plan = plan_of(version, "a join with a table")
    (stage,) = cut_plan(plan.plan).stages
    left, right = plan.outputs[0]
    table = find_table(stage.node)
    assert table is not None
    table = replace(table, views=())
    of_table = [each for each in right if each.name == "other"]
    keys = [
        read_grouping_keys(keyed([each for each in left if each.name == "page"])),
        read_grouping_keys(keyed(of_table)),
    ]
    join = TableJoin(stage.node, table, (left, right), (keys[0], keys[1]), [])
    rows = TableMapSide(join, [each.id for each in of_table], ())
    assert (list(rows.stored_columns.values()), list(rows.stream_columns.values())) == (["seen"], [])


@every_version
def test_a_second_equality_with_the_table_key_is_a_condition(version: str) -> None:
    """The first equality with the table's key finds the row. A second one is a condition on it."""
    plan = plan_of(version, "a join with a table")
    (stage,) = cut_plan(plan.plan).stages
    table, (left, right) = find_table(stage.node), plan.outputs[0]
    assert table is not None
    columns = {each.name: each.expression for each in (*left, *right)}
    some, other = (Expression("EqualTo", (columns["other"], columns[name]), {}, 0) for name in ("page", "n"))
    both = Expression("And", (some, other), {}, 0)
    node = replace(stage.node, expressions={"condition": (both,)})
    without_views = replace(table, views=())
    assert split_join_condition(node, without_views, (left, right)) == ({"other": columns["page"]}, [other])


@every_version
def test_a_join_that_does_not_use_the_table_key_is_refused(version: str) -> None:
    """A join that does not use the table's key is refused, and the error names the key."""
    plan = plan_of(version, "a join with a table")
    (stage,) = cut_plan(plan.plan).stages
    table, (left, right) = find_table(stage.node), plan.outputs[0]
    assert table is not None
    without = PlanNode("Join", stage.node.children, {}, {}, is_streaming=True, handle=0)
    with pytest.raises(ConfigError, match=REFUSED["table_keys"].id) as refused:
        split_join_condition(without, table, (left, right))
    assert refused.value.where == "other"


@every_version
def test_struct_keys_of_a_table_join_must_have_the_same_fields(version: str) -> None:
    """A join of a struct with a table's key of other fields is refused, and the error names the table's key."""
    plan = plan_of(version, "a join with a table")
    (stage,) = cut_plan(plan.plan).stages
    table, (left, right) = find_table(stage.node), plan.outputs[0]
    assert table is not None
    fields: list[Any] = [column(name).field for name in ("a", "b")]
    pair = read_grouping_keys(keyed([column("s", {"type": "struct", "fields": fields}, 90)]))
    other = read_grouping_keys(keyed([each for each in right if each.name == "other"]))
    join = TableJoin(stage.node, table, (left, right), (pair, other), [])
    with pytest.raises(ConfigError, match=REFUSED["join_structs"].id) as refused:
        TableMapSide(join, [], None)
    assert refused.value.where == "other"
