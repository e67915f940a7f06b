"""The rules that refuse unsupported terms in a wrapped query.

Each refusal has Spark's term, the reason and an alternative. Spark's own checker runs first, so terms that Spark
refuses are refused in Spark's words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import CutPlan, find_table, is_table
from riffle_spark.process.plans.plan_values import PlanNode, walk
from riffle_spark.process.types.kept_types import check_columns

_CURRENT_USER: Final = "current_user()"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The message, remedy and id for a term of Spark's that riffle does not support."""

    problem: str
    remedy: str
    id: str


REFUSED: Final = {
    "several_stages": Refusal(
        "A stateful operator after an aggregate in update or complete mode is not supported, because the aggregate "
        "emits a row again with each change, so the row would count twice.",
        "Use outputMode('append') with a watermark, or make two queries with a sink between them.",
        id="RIFFLE-0602",
    ),
    "several_results": Refusal(
        "A union of the results of several stateful operators at the end of a query is not supported, because a sink "
        "takes the results of one store per batch.",
        "Write each to the sink with its own query, or unite the streams before the operator.",
        id="RIFFLE-0603",
    ),
    "result_and_input": Refusal(
        "A join of a stateful operator's results with another stream is not supported, because the rows of a batch "
        "would come from a store and from a source.",
        "Write the results to a sink and join them in a second query. Or group the other stream too, for example with "
        "dropDuplicates by its key and time, which keeps one of several rows with the same key and time.",
        id="RIFFLE-0604",
    ),
    "limit": Refusal(
        "limit, offset or tail of a stream is not supported, because it counts rows over the whole query, but each "
        "batch would start at zero.",
        "Limit the result of an aggregate in complete mode, or limit in foreachBatch.",
        id="RIFFLE-0605",
    ),
    "set": Refusal(
        "intersect, except or subtract of streams is not supported, because riffle does not keep their state.",
        "Use dropDuplicates and a join: left_semi for intersect, left_anti with a static frame for except.",
        id="RIFFLE-0606",
    ),
    "unknown": Refusal(
        "An unknown operator is not supported, because it may keep state of earlier rows.",
        "Use it in foreachBatch.",
        id="RIFFLE-0607",
    ),
    "watermark": Refusal(
        "withWatermark after a stateful operator is not supported, because the watermark of a query is computed from "
        "its sources.",
        "Call withWatermark before the first stateful operator.",
        id="RIFFLE-0608",
    ),
    "scala": Refusal(
        "flatMapGroupsWithState, mapGroupsWithState or transformWithState of Scala is not supported, because Python "
        "processes keep the state and cannot call JVM functions.",
        "Write the function in Python, for applyInPandasWithState or transformWithState.",
        id="RIFFLE-0609",
    ),
    "join_keys": Refusal(
        "A join of two streams without an equality is not supported, because rows are matched by key, as in Spark.",
        "Add a condition that a column of one side equals a column of the other side.",
        id="RIFFLE-0610",
    ),
    "join_condition": Refusal(
        "An outer or semi join of two streams whose condition on both sides is not a comparison by <, <=, > or >= of "
        "integers, decimals, strings, binary values, booleans, dates or timestamps is not supported, because the "
        "processes that match rows cannot evaluate Spark's expressions.",
        "Compare an expression of one side with one of the other: a.n > 3 - b.m instead of a.n + b.m > 3. Cast other "
        "types to one of these, for example a double to a decimal.",
        id="RIFFLE-0611",
    ),
    "join_outside": Refusal(
        "A join of two streams whose condition calls a Python function, reads the current time or has a sub-query with "
        "IN or EXISTS is not supported, because Spark evaluates it outside of the join.",
        "Add its value as a column with withColumn before the join, and put the column in the condition. Or write the "
        "condition in a where: before the join if it reads one side, after an inner join if it reads both.",
        id="RIFFLE-1840",
    ),
    "join_structs": Refusal(
        "A join of two streams by structs that are nullable on one side only is not supported, because their columns "
        "in the state would differ.",
        "Join by the fields of the structs.",
        id="RIFFLE-0612",
    ),
    "table_alone": Refusal(
        "A table of riffle_spark.latest that is not joined with a stream is not supported, because a table is only "
        "stored for lookups and has no results of its own.",
        "Join a stream with the table, with only select, where and similar between them. For the last row per key as a"
        " result use groupBy and max_by.",
        id="RIFFLE-0613",
    ),
    "table_keys": Refusal(
        "A join with a table of riffle_spark.latest by other columns than its key is not supported, because a row only"
        " finds the table's row with the same key.",
        "Join each column of the key by equality with an expression of the stream that has the same type. Cast the "
        "column before riffle_spark.latest if the types differ. Further conditions are allowed.",
        id="RIFFLE-0614",
    ),
    "table_outer": Refusal(
        "An outer join that also emits the unmatched rows of a riffle_spark.latest table, or a left_semi or left_anti "
        "join with the table on the left is not supported, because a match may still arrive at any time.",
        "Use an inner join or an outer join that keeps the stream's rows. With the table on the right, left_semi and "
        "left_anti work too.",
        id="RIFFLE-0615",
    ),
    "array_key": Refusal(
        "groupBy or dropDuplicates by an array, map or variant is not supported, because key columns must be "
        "comparable and hashable.",
        "Group by single fields, or by to_json of the column.",
        id="RIFFLE-0616",
    ),
    "void_key": Refusal(
        "groupBy or dropDuplicates by NULL without a type is not supported, because a stored column needs a type.",
        "Cast it: CAST(NULL AS STRING).",
        id="RIFFLE-0617",
    ),
    "collated_key": Refusal(
        "groupBy or dropDuplicates by a string with a collation is not supported, because keys are compared by their "
        "bytes.",
        "Group by CAST(column AS STRING COLLATE UTF8_BINARY) to compare bytes, by lower(...) of it to ignore case, or "
        "by rtrim(...) of it to ignore trailing spaces.",
        id="RIFFLE-0618",
    ),
    "struct_key": Refusal(
        "applyInPandasWithState or transformWithState by a struct or window is not supported, because keys "
        "are stored as plain columns, so the function would get other columns than declared.",
        "Group by the fields: window.start and window.end.",
        id="RIFFLE-0619",
    ),
    "random_key": Refusal(
        "groupBy or dropDuplicates by an expression that is not deterministic is not supported, because a batch that "
        "runs again would send its rows to other keys.",
        "Group by an expression of the row's columns, for example a hash of them.",
        id="RIFFLE-0620",
    ),
    "user_key": Refusal(
        "groupBy by current_user() is not supported, because if the frame has no column user, Spark reads the name as "
        "current_user(), and all rows would have one key.",
        "Correct the name of the column, or select it before groupBy.",
        id="RIFFLE-1126",
    ),
    "event_times": Refusal(
        "dropDuplicates of rows with several event-time columns that are keys or read later is not supported, because "
        "a row could be late by one column and not by the other. Spark refuses it too.",
        "Drop all but one of them, or copy a time under another type: cast(at AS STRING).",
        id="RIFFLE-0621",
    ),
    "distinct": Refusal(
        "A DISTINCT aggregate over session windows, or collect_list(DISTINCT ...) is not supported, because distinct "
        "values are stored under the keys of their group, and the ends of a session change.",
        "Use approx_count_distinct or collect_set, or dropDuplicates by key and value before the aggregate.",
        id="RIFFLE-0622",
    ),
    "own_buffer": Refusal(
        "An aggregate function with its own binary buffer (percentile, mode, pivot, ...) is not supported, because "
        "only Spark's own operators can merge such a buffer.",
        "Use another function: percentile_approx for percentile and median, approx_count_distinct for sketches of "
        "values, sum(n) FILTER (WHERE k = 'a') for each value of pivot, count by key and value, slice(sort_array("
        "collect_list(struct(y, x)), false), 1, n) for max_by(x, y, n), or your own function with "
        "riffle_spark.user_aggregate.",
        id="RIFFLE-0623",
    ),
    "user_function": Refusal(
        "A user-defined aggregate function (pandas_udf of GROUPED_AGG, udaf) is not supported, because it needs all "
        "rows of a group at once, but they arrive in many batches.",
        "Write it with init, update, merge and finish for riffle_spark.user_aggregate, or as applyInPandasWithState.",
        id="RIFFLE-0624",
    ),
    "ordered_texts": Refusal(
        "listagg with an order, or of binary values is not supported, because its texts are stored in the order in "
        "which rows arrive.",
        "Collect structs of order and text with collect_list, and join the sorted list in a select after it.",
        id="RIFFLE-0625",
    ),
}
"""The refusals by name. The table in docs/move-your-query.md is generated from them."""

_BY_NAME: Final = {
    **dict.fromkeys(("GlobalLimit", "LocalLimit", "Offset", "Tail"), "limit"),
    **dict.fromkeys(("FlatMapGroupsWithState", "TransformWithState"), "scala"),
    **dict.fromkeys(("Intersect", "Except"), "set"),
}
_TABLE_JOINS: Final = (
    ("Inner", "Cross", "RightOuter"),
    ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"),
)
"""Allowed types of joins with a table, by the table's side."""
_COMPLETE_ONLY: Final = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
"""Spark's nodes that are allowed above an aggregate in complete mode."""
_ROW_BY_ROW: Final = frozenset(
    (
        *("Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark", "UpdateEventTimeWatermarkColumn"),
        *("Union", "Join", "LateralJoin", "Expand", "Generate", "ResolvedHint", "UnresolvedHint", "CollectMetrics"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions", "ScriptTransformation"),
        *("MapInPandas", "MapInArrow", "PythonMapInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"),
        *("SerializeFromObject", "DeserializeToObject", "MapElements", "MapPartitions", "TypedFilter"),
        *("MapGroups", "AppendColumns"),
    )
)
"""Spark's nodes that keep nothing of earlier rows, so they may run per batch."""
_UNHASHABLE: Final = re.compile(r"\b(array|map)<|(^|:)variant\b")
_KEY_CALLS: Final = "groupBy, dropDuplicates or join"
_VOID: Final = re.compile(r"(^|:)void\b")


def refusal_error(rule: str, query_text: str) -> ConfigError:
    """Return the error for something in a query that is not supported.

    ``rule`` is the key in ``REFUSED``. ``query_text`` is the term as the query writes it.
    """
    refused = REFUSED[rule]
    return ConfigError(refused.problem, remedy=refused.remedy, where=query_text, id=refused.id)


def check_tables(cut: CutPlan) -> None:
    """Raise ``ConfigError`` for a table that no stream is joined with, and for a join that keeps a table's unmatched
    rows.
    """
    pieces = [*(piece for stage in cut.stages for piece in stage.pieces), cut.top]
    nodes = [node for part in cut.inputs for node in walk(part.plan)]
    nodes += [node for piece in pieces for node in piece.nodes()]
    if any(map(is_table, nodes)):
        raise refusal_error("table_alone", "riffle_spark.latest")
    for stage in cut.stages:
        table = find_table(stage.node)
        if table is not None and stage.node.join_type not in _TABLE_JOINS[table.side]:
            raise refusal_error("table_outer", stage.node.join_type)


def check_rules(cut: CutPlan, mode: str) -> None:
    """Raise ``ConfigError`` for the first unsupported node in a query. ``mode`` is its output mode.

    Queries without a stage are never refused, because Spark runs them.
    """
    for name, where in _refused_nodes(cut, is_complete=mode == "complete") if cut.stages else ():
        raise refusal_error(name, where)
    for stage in cut.stages:
        for below in (cut.stages[hole.stage] for piece in stage.pieces for hole in piece.holes):
            if below.kind == "aggregate" and mode != "append":
                raise refusal_error("several_stages", f"{below.node.kind} below {stage.node.kind}")


def _refused_nodes(cut: CutPlan, *, is_complete: bool) -> Iterator[tuple[str, str]]:
    """Yield the unsupported nodes of inputs and pieces: the key in ``REFUSED``, and Spark's name of the node."""
    for part in cut.inputs:
        yield from _refused_in_nodes(list(walk(part.plan)), may_sort=False)
    for piece in (piece for stage in cut.stages for piece in stage.pieces):
        yield from _refused_in_piece(piece.nodes(), may_sort=False)
    yield from _refused_in_piece(cut.top.nodes(), may_sort=is_complete)


def _refused_in_piece(nodes: Sequence[PlanNode], *, may_sort: bool) -> Iterator[tuple[str, str]]:
    """Yield the unsupported nodes of a piece above a stage, also watermarks: the key in ``REFUSED``, and the name in
    the query.
    """
    yield from _refused_in_nodes(nodes, may_sort=may_sort)
    for node in nodes:
        if node.kind == "EventTimeWatermark":
            yield "watermark", node.expressions["eventTime"][0].name


def _refused_in_nodes(nodes: Sequence[PlanNode], *, may_sort: bool) -> Iterator[tuple[str, str]]:
    """Yield the streaming nodes that a batch cannot run by themselves: the key in ``REFUSED``, and Spark's name of the
    node. Sources are supported.
    """
    for node in nodes:
        if node.kind in _ROW_BY_ROW or not node.is_streaming or not node.children:
            continue
        if not (may_sort and node.kind in _COMPLETE_ONLY):
            yield _BY_NAME.get(node.kind, "unknown"), node.kind


def check_key(field: Mapping[str, object], type_name: str, sql: str, *, is_random: bool) -> None:
    """Raise ``ConfigError`` for an expression that cannot be a key.

    ``field`` is the JSON of a column with its type, ``type_name`` is Spark's name of the type, and ``sql`` is the
    expression. ``is_random`` is true if its value differs when a batch runs again.
    """
    if isinstance(field["type"], Mapping) and field["type"]["type"] == "udt":  # type_name is that of the stored type.
        check_columns([field], "key", where=_KEY_CALLS)
    if _UNHASHABLE.search(type_name):
        raise refusal_error("array_key", f"{sql}: {type_name}")
    if _VOID.search(type_name):
        raise refusal_error("void_key", f"{sql}: {type_name}")
    if " collate " in type_name:
        raise refusal_error("collated_key", f"{sql}: {type_name}")
    check_columns([field], "key", where=_KEY_CALLS)
    if is_random:
        raise refusal_error("random_key", sql)
    if sql.lower() == _CURRENT_USER:
        raise refusal_error("user_key", sql)
