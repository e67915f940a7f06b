"""De-duplication of Spark's plan as a stage: by which columns, what of its rows travels, and when keys leave. Knows the
two nodes that it may be. Does not know what becomes of rows.

Rows are sent whole: the columns of keys first, structs among them taken apart, then all others as they are. A key's
floating numbers are not changed for it: the row that passes has them as they came.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.stage_specs import DistinctSpec, TimeSpec, free_name
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans import batch_pieces, grouping_keys
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, analysed, id_of, items
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["DistinctPlan", "read_distinct"]

_WITHIN = "DeduplicateWithinWatermark"
_UNTIL = "known_until"
_EVENT_TIME = "event_time"


@dataclass(frozen=True, slots=True)
class DistinctPlan:
    """A stage that is a de-duplication: its specification, and its two ends as pieces on the rows of each batch."""

    spec: DistinctSpec
    map_side: batch_pieces.Piece
    evaluation: batch_pieces.Piece


def read_distinct(reader: PlanReader, stage: PlanNode, taken: tuple[str, ...] = ()) -> DistinctPlan:
    """Read a de-duplication of an analysed plan. ``taken`` are names of stores that the query has already.

    Raises ``ConfigError`` for keys that cannot be had, for several columns of event time, and for a store's name that
    cannot be one.
    """
    catalyst, node = reader.catalyst, reader.found(stage.handle)
    rows, is_within = _Rows.of(catalyst, node), stage.kind == _WITHIN
    map_side = catalyst.project(
        [catalyst.alias(catalyst.plain(one), name) for name, one in rows.sent.items()],
        catalyst.no_rows(node.child().output()),
    )
    schema = arrow_schema(catalyst.frame(map_side))
    keys, told = (pa.schema([schema.field(name) for name in names]) for names in (rows.key_columns, rows.told))
    store = grouping_keys.stored_as("within" if is_within else "distinct", rows.keys, taken)
    due = rows.time.column if rows.time is not None and rows.time.column in keys.names else None
    spec = DistinctSpec(store, keys, told, rows.time, free_name(_UNTIL, keys.names) if is_within else due)
    evaluation = analysed(catalyst.frame(rows.put_together(told)))
    return DistinctPlan(
        spec,
        batch_pieces.read_piece(reader, map_side),
        batch_pieces.read_piece(reader, evaluation),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is sent of rows: ``sent`` are the columns as expressions, of keys first, ``told`` those of them that rows
    which pass have. ``others`` are the attributes that are no keys, by their columns.
    """

    catalyst: Catalyst
    output: list[Node]
    keys: list[grouping_keys.GroupingKey]
    others: Mapping[str, Node]
    time: TimeSpec | None
    beside: Mapping[str, Node]

    @staticmethod
    def of(catalyst: Catalyst, node: Node) -> "_Rows":
        """Read what a de-duplication has below it. Keys go as their columns do, in whatever order they are named."""
        below = node.child()
        output = list({id_of(one): one for one in items(below.output())}.values())
        ids = {id_of(one) for one in items(node.keys())}
        attributes = [one for one in output if id_of(one) in ids]
        keys = [
            replace(key, expression=one)
            for key, one in zip(grouping_keys.read_keys(catalyst, attributes, [], below), attributes, strict=True)
        ]
        taken = [column for key in keys for column in key.columns]
        others = dict[str, Node]()
        for one in output:
            if id_of(one) not in ids:
                others[free_name(str(one.name()), [*taken, *others])] = one
        time, beside = _time(catalyst, _event_time(output), keys, others)
        return _Rows(catalyst, items(below.output()), keys, others, time, beside)

    @property
    def key_columns(self) -> list[str]:
        return [column for key in self.keys for column in key.columns]

    @property
    def told(self) -> list[str]:
        return [*self.key_columns, *self.others]

    @property
    def sent(self) -> dict[str, Node]:
        parts = [key.taken_apart(self.catalyst) for key in self.keys]
        return {name: one for columns in (*parts, self.others, self.beside) for name, one in columns.items()}

    def put_together(self, told: pa.Schema) -> Node:
        """Return the plan of rows that passed, under the attributes that they had."""
        spark = self.catalyst
        leaf, columns = spark.leaf(spark_schema(told))
        made = {id_of(key.attribute): key.put_together(spark, columns) for key in self.keys}
        made |= {id_of(one): spark.typed(columns[name], one.dataType()) for name, one in self.others.items()}
        once = {id_of(one): one for one in self.output}
        lower = [spark.alias(made[number], str(one.name()), one.exprId()) for number, one in once.items()]
        return spark.project(self.output, spark.project(lower, leaf))


def _event_time(output: list[Node]) -> Node | None:
    """Return the one column of event time, as Spark has it."""
    found = [one for one in output if grouping_keys.delay_of(one) is not None]
    if len(found) > 1:
        raise rules.refusal("event_times", ", ".join(str(one.name()) for one in found))
    return found[0] if found else None


def _time(
    catalyst: Catalyst, event_time: Node | None, keys: list[grouping_keys.GroupingKey], others: Mapping[str, Node]
) -> tuple[TimeSpec | None, dict[str, Node]]:
    """Return by which column rows are late, and that column where rows that pass do not have it: a window's end."""
    if event_time is None:
        return None, {}
    of_key = grouping_keys.time_of([key for key in keys if id_of(key.attribute) == id_of(event_time)])
    if of_key is not None:
        return of_key, {}
    delay, end = grouping_keys.delay_of(event_time), grouping_keys.end_of(catalyst, event_time)
    if end is event_time:
        return TimeSpec(next(name for name, one in others.items() if one is event_time), delay), {}
    column = free_name(_EVENT_TIME, [*others, *(column for key in keys for column in key.columns)])
    return TimeSpec(column, delay), {column: end}
