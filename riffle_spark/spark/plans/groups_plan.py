"""A user's own function of Spark's plan as a stage: ``applyInPandasWithState``, and both forms of
``transformWithState``. Python has the functions themselves.
"""

from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.process.plans.grouping_keys import stored_as
from riffle_spark.process.plans.groups import SeenRows, group_keys
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.spark_schemas import schema_of_json
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.spark.engine.routing import arrow_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder

__all__ = ["GroupsPlan", "read_groups"]


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """A stage with a function of the user's: its specification, and its two ends as pieces on the rows of each batch.

    ``time`` is Spark's name of what its time-outs or timers go by.
    """

    catalyst: Catalyst
    node: Node
    spec: GroupsSpec
    time: str
    map_side: Piece
    evaluation: Piece

    def state(self) -> pa.Schema:
        """Return the fields of a group's state, where there is one."""
        return schema_of_json(str(self.node.stateType().json()))

    def command(self) -> bytes:
        """Return the function as PySpark pickled it."""
        return bytes(self.node.functionExpr().func().command().unsafeArray())


def read_groups(reader: PlanReader, stage: PlanNode, of_kind: str, taken: tuple[str, ...] = ()) -> GroupsPlan:
    """Read the node of a user's function. ``of_kind`` is the kind of its stage, ``taken`` are the names of stores that
    the query has already.

    Raises ``ConfigError`` for columns that cannot be keys, and for a store's name that cannot be one.
    """
    catalyst, node = reader.catalyst, reader.found(stage.handle)
    below = node.child()
    leaf, columns = reader.output(below)
    by_id = {column.id: column for column in columns}
    is_of_frames = stage.kind == "FlatMapGroupsInPandasWithState"
    if is_of_frames:
        grouping = [by_id[each.id] for each in stage.expressions.get("groupingAttributes", ())]
    else:
        grouping = list(columns[: int(str(stage.fields["groupingAttributesLen"]))])
    keys = group_keys(grouping, reader.random_columns(below))
    seen = SeenRows(keys, by_id)
    seen.see(stage.expressions["functionExpr"][0].children)
    event_time = seen.event_time(columns)
    map_side = TreeBuilder(reader).project(seen.parts.items(), leaf)
    rows = arrow_schema(catalyst.frame(map_side))
    store = stored_as(of_kind, keys, taken)
    results = catalyst.no_rows(node.output())
    output = arrow_schema(catalyst.frame(results))
    spec = GroupsSpec(store, pa.schema(list(rows)[: len(keys)]), rows, seen.shown, output, event_time)
    time = str((node.timeout() if is_of_frames else node.timeMode()).toString())
    return GroupsPlan(catalyst, node, spec, time, read_piece(reader, map_side), read_piece(reader, results))
