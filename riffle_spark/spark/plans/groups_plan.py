"""A user's own function of Spark's plan as a stage: ``applyInPandasWithState``, and both forms of
``transformWithState``. What its rows bring, which of their columns it sees, and what comes out. Knows the nodes of
these operators. Does not know the functions, which Python has.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.process.plans import rules
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.spark_schemas import schema_of_json
from riffle_spark.process.types.stage_specs import GroupsSpec, free_name
from riffle_spark.spark.engine.routing import arrow_schema
from riffle_spark.spark.plans import batch_pieces, grouping_keys
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, children, id_of, items, kind
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["GroupsPlan", "read_groups"]

_STRUCT = "struct"
_EVENT_TIME = "event_time"
_NO_WORD = re.compile(r"\W")
"""What a column's name need not have that nobody sees."""


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """A stage with a function of the user's: its specification, and its two ends as pieces on the rows of each batch.

    ``time`` is Spark's name of what its time-outs or timers go by.
    """

    catalyst: Catalyst
    node: Node
    spec: GroupsSpec
    time: str
    map_side: batch_pieces.Piece
    evaluation: batch_pieces.Piece

    def state(self) -> pa.Schema:
        """Return the fields of a group's state, where there is one."""
        return schema_of_json(str(self.node.stateType().json()))

    def command(self) -> bytes:
        """Return the function as PySpark pickled it."""
        return bytes(self.node.functionExpr().func().command().unsafeArray())


def read_groups(reader: PlanReader, stage: PlanNode, of_kind: str, taken: tuple[str, ...] = ()) -> GroupsPlan:
    """Read such a node of an analysed plan. ``of_kind`` is what its stage is called, ``taken`` are names of stores that
    the query has already.

    Raises ``ConfigError`` for keys that cannot be had, and for a store's name that cannot be one.
    """
    catalyst, node = reader.catalyst, reader.found(stage.handle)
    below = node.child()
    is_of_frames = stage.kind == "FlatMapGroupsInPandasWithState"
    columns = items(below.output())
    grouping = items(node.groupingAttributes()) if is_of_frames else columns[: node.groupingAttributesLen()]
    keys = grouping_keys.read_keys(catalyst, grouping, [], below)
    for key in keys:
        if str(key.expression.dataType().typeName()) == _STRUCT:
            raise rules.refusal("struct_key", f"{key.name}: {key.expression.dataType().catalogString()}")
    seen = _Seen(catalyst, keys, children(node.functionExpr()))
    event_time = seen.event_time(columns)
    columns_of_rows = [catalyst.alias(catalyst.plain(one), name) for name, one in seen.parts.items()]
    map_side = catalyst.project(columns_of_rows, catalyst.no_rows(below.output()))
    rows = arrow_schema(catalyst.frame(map_side))
    store = grouping_keys.stored_as(of_kind, keys, taken)
    leaf = catalyst.no_rows(node.output())
    output = arrow_schema(catalyst.frame(leaf))
    spec = GroupsSpec(store, pa.schema(list(rows)[: len(keys)]), rows, seen.shown, output, event_time)
    time = str((node.timeout() if is_of_frames else node.timeMode()).toString())
    rows_end = batch_pieces.read_piece(reader, map_side)
    result_end = batch_pieces.read_piece(reader, leaf)
    return GroupsPlan(catalyst, node, spec, time, rows_end, result_end)


class _Seen:
    """The columns that rows bring, by their names: those of the key first, and what the function sees behind them. A
    column that is the key's is brought once.
    """

    def __init__(self, catalyst: Catalyst, keys: list[grouping_keys.GroupingKey], seen: list[Node]) -> None:
        self._catalyst = catalyst
        self.parts: dict[str, Node] = {}
        self._shown: dict[str, str] = {}
        for key in keys:
            self.parts.update(key.taken_apart(catalyst))
        self._columns = {id_of(one): name for name, one in self.parts.items() if kind(one) == "AttributeReference"}
        for attribute in seen:
            if self._columns.get(id_of(attribute)) in self._shown:  # it is there twice
                del self._columns[id_of(attribute)]
            self._shown[self._column(attribute)] = str(attribute.name())

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """What the function sees: names, and columns."""
        return tuple((name, column) for column, name in self._shown.items())

    def event_time(self, columns: list[Node]) -> str | None:
        """Return which of all columns is compared with the watermark, and bring it."""
        told = next((one for one in columns if grouping_keys.delay_of(one) is not None), None)
        if told is None:
            return None
        end = grouping_keys.end_of(self._catalyst, told)
        if end is told:
            return self._column(told)
        column = free_name(_EVENT_TIME, self.parts)
        self.parts[column] = end
        return column

    def _column(self, attribute: Node) -> str:
        """Return the column that an attribute is, and bring it, if it is not there yet."""
        known = self._columns.get(id_of(attribute))
        if known is None:
            known = free_name(_NO_WORD.sub("_", str(attribute.name())) or "_", self.parts)
            self._columns[id_of(attribute)], self.parts[known] = known, attribute
        return known
