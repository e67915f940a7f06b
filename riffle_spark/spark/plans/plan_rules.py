"""What is refused when a query is built, and by whom: first what Spark's own checker refuses, in its words; then what
only we cannot do. Each of ours names Spark's term, the reason and the way out. Knows the cut. Does not know functions.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.kept_types import check_columns
from riffle_spark.spark.plans.batch_pieces import Piece
from riffle_spark.spark.plans.plan_changes import of_all_values
from riffle_spark.spark.plans.plan_cut import CutPlan, Stage, is_table, table_of, tables_in
from riffle_spark.spark.plans.plan_nodes import (
    Catalyst,
    Node,
    at,
    children,
    id_of,
    ids_in,
    items,
    kind,
    replaced,
    told_in_sql,
    walk,
)

__all__ = ["REFUSED", "Refused", "check_key", "check_plan", "refusal"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A term of Spark's that is refused, why, and what to write in its stead."""

    term: str
    reason: str
    way_out: str


REFUSED: Final = {
    "several_stages": Refused(
        "a stateful operator behind an aggregate in update or complete mode",
        "the aggregate's rows come again with each change, and would count twice",
        "use outputMode('append') with a watermark, or make two queries with a sink between them",
    ),
    "several_results": Refused(
        "results of several stateful operators at the end of a query, as a union of two aggregates",
        "a sink takes the results of one store in each batch",
        "write each to the sink by a query of its own, or unite the streams before the operator",
    ),
    "result_and_input": Refused(
        "join of a stateful operator's results with another stream",
        "the join's rows would come from a store and from a source in the same batch",
        "group the other stream, too (dropDuplicates by its key and time will do), or write the results to a sink by a "
        "query of its own, and join what that reads",
    ),
    "limit": Refused(
        "limit, offset and tail of a stream",
        "they count rows over the whole query, and each batch would begin anew",
        "limit the result of an aggregate in complete mode, or limit in foreachBatch",
    ),
    "set": Refused(
        "intersect, except and subtract of streams",
        "what they keep of earlier rows is not read from the plan",
        "join with the static side ('left_semi', 'left_anti') and use dropDuplicates",
    ),
    "unknown": Refused(
        "an operator that is not known here",
        "it is not known whether it may keep something of earlier rows",
        "use it in foreachBatch, behind the query",
    ),
    "watermark": Refused(
        "withWatermark behind a stateful operator",
        "the watermark of a query is made of what its sources tell, as Spark has it",
        "call withWatermark before the first stateful operator",
    ),
    "scala": Refused(
        "flatMapGroupsWithState, mapGroupsWithState and transformWithState of Scala",
        "their functions are the JVM's, and state is kept by Python processes",
        "write the function for applyInPandasWithState or transformWithState in Python",
    ),
    "join_keys": Refused(
        "join of two streams without an equality",
        "rows of both sides meet by their key, as in Spark",
        "say in the condition that a column of one side equals one of the other",
    ),
    "join_condition": Refused(
        "outer and semi joins of two streams with a condition on columns of both sides that is no comparison",
        "whether a row has a partner is found by processes that have none of Spark's expressions",
        "compare an expression of one side with one of the other: a.n > 3 - b.m instead of a.n + b.m > 3",
    ),
    "join_structs": Refused(
        "join of two streams by structs of which only one side may be null",
        "their columns in the state would differ",
        "join by the fields that you mean",
    ),
    "table_alone": Refused(
        "a table of riffle_spark.latest without a stream that is joined with it",
        "it is kept for the rows of another stream to read, and answers nothing itself",
        "join a stream with it, with nothing between but select, where and their like; for the last row of each key as "
        "a result use groupBy and max_by",
    ),
    "table_keys": Refused(
        "join with a table of riffle_spark.latest by other columns than its key",
        "a row finds the table's row of its own key, and no others",
        "say in the condition that each column of the key equals something of the stream that has its type (cast the "
        "column before riffle_spark.latest where the types differ); what is beside that may be any condition",
    ),
    "table_outer": Refused(
        "a join in which rows of a table of riffle_spark.latest count that no row of the stream has found",
        "whether one will be found is never over",
        "use an inner join or an outer one that keeps the stream's rows; with the table on the right left_semi and "
        "left_anti, too",
    ),
    "array_key": Refused(
        "groupBy and dropDuplicates by arrays, maps and variants",
        "a key is of columns that can be compared and hashed one by one",
        "group by the fields that you mean, or by to_json of the column",
    ),
    "void_key": Refused(
        "groupBy and dropDuplicates by NULL without a type",
        "a column that is kept has a type",
        "say which one it is: CAST(NULL AS STRING)",
    ),
    "collated_key": Refused(
        "groupBy and dropDuplicates by strings with a collation",
        "keys are compared by their bytes",
        "group by collation_key(column), or by lower(CAST(column AS STRING COLLATE UTF8_BINARY))",
    ),
    "struct_key": Refused(
        "applyInPandasWithState and transformWithState by structs, as windows are",
        "their keys are kept as columns, and a function would get others than it knows",
        "group by the fields that you mean: window.start and window.end",
    ),
    "random_key": Refused(
        "groupBy and dropDuplicates by an expression that is not deterministic",
        "a batch that runs again would send its rows to other keys",
        "group by what the rows themselves say, for example by a hash of them",
    ),
    "event_times": Refused(
        "dropDuplicates of rows with more than one column of event time",
        "Spark refuses it, since rows would be late by one of them and not by another",
        "drop all but one of them, or copy a time as something else: cast(at AS STRING)",
    ),
    "distinct": Refused(
        "distinct aggregates of session windows, and collect_list(DISTINCT ...)",
        "the values of a group are kept beside it by its keys, and a session's ends change",
        "use approx_count_distinct or collect_set, or dropDuplicates by key and value before the aggregate",
    ),
    "own_buffer": Refused(
        "an aggregate function that keeps its buffer in a form of its own (percentile, mode, pivot, ...)",
        "only Spark's own operators can merge such a buffer",
        "use another function: percentile_approx for percentile and median, approx_count_distinct for sketches of "
        "values, sum(n) FILTER (WHERE k = 'a') for each value of pivot, count by key and value, or one of your own for "
        "riffle_spark.user_aggregate",
    ),
    "user_function": Refused(
        "an aggregate function of the user's (pandas_udf of GROUPED_AGG, udaf)",
        "it wants all rows of a group at once, and these come in many batches",
        "write it with init, update, merge and finish for riffle_spark.user_aggregate, or as applyInPandasWithState",
    ),
    "ordered_texts": Refused(
        "listagg with an order of its own, or of binary",
        "its texts are kept in the order in which rows come",
        "collect_list structs of order and text, and join the sorted list in a select behind it",
    ),
}
"""What is refused, by a name that tests and the docs' table know."""

_BY_NAME: Final = {
    **dict.fromkeys(("GlobalLimit", "LocalLimit", "Offset", "Tail"), "limit"),
    **dict.fromkeys(("FlatMapGroupsWithState", "TransformWithState"), "scala"),
    **dict.fromkeys(("Intersect", "Except"), "set"),
}
_OF_STREAM: Final = (
    ("Inner", "Cross", "RightOuter"),
    ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"),
)
"""Spark's kinds of joins with a table, by the side that it is on."""
_OF_ALL: Final = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
"""Spark's nodes that stand where all of a result is there with each batch."""
_ROW_BY_ROW: Final = frozenset(
    (
        *("Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark", "UpdateEventTimeWatermarkColumn"),
        *("Union", "Join", "LateralJoin", "Expand", "Generate", "ResolvedHint", "UnresolvedHint", "CollectMetrics"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions", "ScriptTransformation"),
        *("MapInPandas", "MapInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"),
        *("SerializeFromObject", "DeserializeToObject", "MapElements", "MapPartitions", "TypedFilter"),
        *("MapGroups", "AppendColumns"),
    )
)
"""Spark's nodes that do with a batch's rows what they do in Spark's own query: they keep nothing of earlier ones."""
_NO_KEY: Final = re.compile(r"\b(array|map)<|(^|:)variant\b")
_KEYS: Final = "groupBy, dropDuplicates or join"
_NO_TYPE: Final = re.compile(r"(^|:)void\b")


def refusal(name: str, where: str) -> ConfigError:
    """Return the error for a term that is refused; ``where`` is what the query calls it."""
    refused = REFUSED[name]
    return ConfigError(f"{refused.term} is refused: {refused.reason}", remedy=refused.way_out, where=where)


def check_plan(catalyst: Catalyst, cut: CutPlan, mode: str) -> None:
    """Raise whatever Spark's checker raises for a query with this output mode, else ``ConfigError`` for what we refuse.

    Without a stage it is Spark that runs the query, so nothing is ours to refuse.
    """
    checker = catalyst.module("analysis.UnsupportedOperationChecker")
    _check_tables(cut)
    for plan, of_plan in _with_static_tables(catalyst, cut.plan, mode):
        # Spark refuses distinct aggregates of streams; whatever else it says of them is said.
        checker.checkForStreaming(of_all_values(catalyst, plan), catalyst.output_mode(of_plan.capitalize()))
    for name, where in _found(cut, is_complete=mode == "complete") if cut.stages else ():
        raise refusal(name, where)
    for stage in cut.stages:
        _check_join(catalyst, stage)
        for one in (cut.stages[hole.stage] for piece in _pieces(stage) for hole in piece.holes):
            if one.kind == "aggregate" and mode != "append":
                raise refusal("several_stages", f"{kind(one.node)} below {kind(stage.node)}")


def _check_tables(cut: CutPlan) -> None:
    """Refuse tables that no stream reads, and joins that ask for more than that."""
    pieces = [*(piece for stage in cut.stages for piece in _pieces(stage)), cut.top]
    nodes = [node for one in cut.inputs for node in walk(one.plan)] + [node for one in pieces for node in one.nodes()]
    if any(map(is_table, nodes)):
        raise refusal("table_alone", "riffle_spark.latest")
    for stage in cut.stages:
        table = table_of(stage.node)
        if table is not None and str(stage.node.joinType().toString()) not in _OF_STREAM[table.side]:
            raise refusal("table_outer", str(stage.node.joinType().toString()))


def _with_static_tables(catalyst: Catalyst, plan: Node, mode: str) -> Iterator[tuple[Node, str]]:
    """Yield a plan in which tables are static frames, which is how the rows that are joined with them find them, and
    what makes their changes; with the mode of each. Complete are the results of a query, not changes.
    """
    tables = list(tables_in(plan))
    joined = {(*path, table.side): children(at(plan, path))[table.side] for path, table in tables}
    yield replaced(catalyst, plan, {path: catalyst.no_rows(one.output()) for path, one in joined.items()}), mode
    for _, table in tables:
        yield from _with_static_tables(catalyst, table.changes, "append" if mode == "complete" else mode)


def _found(cut: CutPlan, *, is_complete: bool) -> Iterator[tuple[str, str]]:
    """Yield what is refused of the plans of inputs and pieces, and what the query calls it."""
    for one in cut.inputs:
        yield from _in_nodes(list(walk(one.plan)), may_sort=False)
    for piece in (piece for stage in cut.stages for piece in _pieces(stage)):
        yield from _in_piece(piece.nodes(), may_sort=False)
    yield from _in_piece(cut.top.nodes(), may_sort=is_complete)


def _pieces(stage: Stage) -> list[Piece]:
    """Return what a stage reads of other stages."""
    return [part for part in stage.below if isinstance(part, Piece)]


def _in_piece(nodes: list[Node], *, may_sort: bool) -> Iterator[tuple[str, str]]:
    yield from _in_nodes(nodes, may_sort=may_sort)
    for node in nodes:
        if kind(node) == "EventTimeWatermark":
            yield "watermark", str(node.eventTime().name())


def _in_nodes(nodes: list[Node], *, may_sort: bool) -> Iterator[tuple[str, str]]:
    """Yield each node of a stream, but the sources, that does not take rows one by one."""
    for node in nodes:
        name = kind(node)
        if name in _ROW_BY_ROW or not node.isStreaming() or not children(node):
            continue
        if not (may_sort and name in _OF_ALL):
            yield _BY_NAME.get(name, "unknown"), name


def _check_join(catalyst: Catalyst, stage: Stage) -> None:
    """Refuse two streams that have no key in common."""
    if stage.kind == "join" and catalyst.module("planning.ExtractEquiJoinKeys").unapply(stage.node).isEmpty():
        raise refusal("join_keys", str(stage.node.joinType().toString()))


def check_key(catalyst: Catalyst, expression: Node, below: Node) -> None:
    """Raise ``ConfigError`` for an expression that cannot be a key of rows that come from a plan."""
    type_name = str(expression.dataType().catalogString())
    field = catalyst.json_field(expression, told_in_sql(expression))
    if _is_user_defined(field):
        check_columns([field], "key", where=_KEYS)
    if _NO_KEY.search(type_name):
        raise refusal("array_key", f"{expression.sql()}: {type_name}")
    if _NO_TYPE.search(type_name):
        raise refusal("void_key", f"{expression.sql()}: {type_name}")
    if " collate " in type_name:
        raise refusal("collated_key", f"{expression.sql()}: {type_name}")
    check_columns([field], "key", where=_KEYS)
    if not below.deterministic() and not ids_in(expression).isdisjoint(_random_in(below)):
        raise refusal("random_key", str(expression.sql()))


def _is_user_defined(field: Mapping[str, object]) -> bool:
    """Tell whether a field's JSON is of a user-defined type, which Spark names by the type that it is stored as."""
    return isinstance(field["type"], Mapping) and field["type"]["type"] == "udt"


def _random_in(plan: Node) -> set[int]:
    """Return the ids of columns that are another one each time: those of which a projection somewhere below says so,
    as Spark makes one of what is random, and those that are made of them.
    """
    found = set[int]()
    for node in reversed([one for one in walk(plan) if kind(one) == "Project"]):
        for one in items(node.projectList()):
            if kind(one) == "Alias" and (not one.deterministic() or not ids_in(one).isdisjoint(found)):
                found.add(id_of(one))
    return found
