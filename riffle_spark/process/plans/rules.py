"""What a wrapped query refuses, and the rules that decide it on the values of its plan.

Each refusal names Spark's term, the reason and the way out. Spark's own checker runs first, in the module that knows
the JVM, so that what Spark refuses is refused in Spark's words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import CutPlan, is_table, table_of
from riffle_spark.process.plans.plan_values import PlanNode, walk
from riffle_spark.process.types.kept_types import check_columns

__all__ = ["REFUSED", "Refused", "check_key", "check_rules", "check_tables", "refusal"]


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
    return ConfigError(
        f"{refused.term} is refused: {refused.reason}", remedy=refused.way_out, where=where, id="RIFFLE-0190"
    )


def check_tables(cut: CutPlan) -> None:
    """Refuse tables that no stream reads, and joins that need the rows of a table that no stream's row matches."""
    pieces = [*(piece for stage in cut.stages for piece in stage.pieces), cut.top]
    nodes = [node for each in cut.inputs for node in walk(each.plan)]
    nodes += [node for piece in pieces for node in piece.nodes()]
    if any(map(is_table, nodes)):
        raise refusal("table_alone", "riffle_spark.latest")
    for stage in cut.stages:
        table = table_of(stage.node)
        if table is not None and stage.node.join_type not in _OF_STREAM[table.side]:
            raise refusal("table_outer", stage.node.join_type)


def check_rules(cut: CutPlan, mode: str) -> None:
    """Raise ``ConfigError`` for the first thing in a query with this output mode that riffle refuses.

    Spark runs a query without a stage, so nothing of it is refused.
    """
    for name, where in _refused_nodes(cut, is_complete=mode == "complete") if cut.stages else ():
        raise refusal(name, where)
    for stage in cut.stages:
        for below in (cut.stages[hole.stage] for piece in stage.pieces for hole in piece.holes):
            if below.kind == "aggregate" and mode != "append":
                raise refusal("several_stages", f"{below.node.kind} below {stage.node.kind}")


def _refused_nodes(cut: CutPlan, *, is_complete: bool) -> Iterator[tuple[str, str]]:
    """Yield the refused nodes of inputs and pieces: the names of their refusals, and Spark's names of the nodes."""
    for each in cut.inputs:
        yield from _in_nodes(list(walk(each.plan)), may_sort=False)
    for piece in (piece for stage in cut.stages for piece in stage.pieces):
        yield from _in_piece(piece.nodes(), may_sort=False)
    yield from _in_piece(cut.top.nodes(), may_sort=is_complete)


def _in_piece(nodes: Sequence[PlanNode], *, may_sort: bool) -> Iterator[tuple[str, str]]:
    yield from _in_nodes(nodes, may_sort=may_sort)
    for node in nodes:
        if node.kind == "EventTimeWatermark":
            yield "watermark", node.expressions["eventTime"][0].name


def _in_nodes(nodes: Sequence[PlanNode], *, may_sort: bool) -> Iterator[tuple[str, str]]:
    """Yield each node of a stream, except its sources, that does not treat rows independently of each other."""
    for node in nodes:
        if node.kind in _ROW_BY_ROW or not node.is_streaming or not node.children:
            continue
        if not (may_sort and node.kind in _OF_ALL):
            yield _BY_NAME.get(node.kind, "unknown"), node.kind


def check_key(field: Mapping[str, object], type_name: str, sql: str, *, is_random: bool) -> None:
    """Raise ``ConfigError`` for an expression that cannot be a key.

    ``field`` is the JSON of a column that has its type, ``type_name`` is Spark's name of that type, and ``sql`` the
    expression's text. ``is_random`` tells whether it has other values when a batch runs again.
    """
    if _is_user_defined(field):
        check_columns([field], "key", where=_KEYS)
    if _NO_KEY.search(type_name):
        raise refusal("array_key", f"{sql}: {type_name}")
    if _NO_TYPE.search(type_name):
        raise refusal("void_key", f"{sql}: {type_name}")
    if " collate " in type_name:
        raise refusal("collated_key", f"{sql}: {type_name}")
    check_columns([field], "key", where=_KEYS)
    if is_random:
        raise refusal("random_key", sql)


def _is_user_defined(field: Mapping[str, object]) -> bool:
    """Tell whether a field's JSON is of a user-defined type, which Spark names by the type that it is stored as."""
    return isinstance(field["type"], Mapping) and field["type"]["type"] == "udt"
