"""Read a user's function in a plan as a stage: ``applyInPandasWithState`` and both forms of ``transformWithState``."""

from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.process.plans.grouping_keys import GroupingKey, choose_store_name
from riffle_spark.process.plans.groups import FunctionMapSide, read_group_keys
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.spark_schemas import schema_of_json
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.spark.engine.routing import arrow_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.tree_builder import TreeBuilder


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """A stage with a user's function: its specification, and its map side and evaluation as pieces.

    ``time`` is Spark's name of the timeout or time mode. ``grouping`` are its keys.
    """

    catalyst: Catalyst
    node: Node
    spec: GroupsSpec
    time: str
    map_side: Piece
    evaluation: Piece
    grouping: tuple[GroupingKey, ...]

    def state(self) -> pa.Schema:
        """Return the fields of a group's state in ``applyInPandasWithState``."""
        return schema_of_json(str(self.node.stateType().json()))

    def command(self) -> bytes:
        """Return the user's function as PySpark pickled it."""
        return self.catalyst.pickled_function(self.node.functionExpr())


def read_groups(reader: PlanReader, stage: PlanNode, stage_kind: str, used_stores: tuple[str, ...] = ()) -> GroupsPlan:
    """Read the node of a user's function as a stage.

    ``stage_kind`` is the kind of the stage, which names its store. ``used_stores`` are the names of the query's other
    stores. Raises ``ConfigError`` for columns that cannot be keys, and for an invalid store name.
    """
    catalyst = reader.catalyst
    node = reader.fetch(stage.handle)
    child = node.child()
    leaf, columns = reader.read_output(child)
    by_id = {column.id: column for column in columns}
    is_of_frames = stage.kind == "FlatMapGroupsInPandasWithState"
    if is_of_frames:
        grouping = [by_id[attribute.id] for attribute in stage.expressions.get("groupingAttributes", ())]
    else:
        grouping = list(columns[: int(str(stage.fields["groupingAttributesLen"]))])
    keys = read_group_keys(grouping, reader.random_columns(child))
    rows = FunctionMapSide(keys, by_id)
    rows.add_arguments(stage.expressions["functionExpr"][0].children)
    event_time = rows.add_event_time(columns)
    map_side = TreeBuilder(reader).project(rows.values.items(), leaf)
    schema = arrow_schema(catalyst.frame(map_side))
    store = choose_store_name(stage_kind, keys, used_stores)
    results = catalyst.no_rows(node.output())
    output = arrow_schema(catalyst.frame(results))
    spec = GroupsSpec(store, pa.schema(list(schema)[: len(keys)]), schema, rows.arguments, output, event_time)
    time = str((node.timeout() if is_of_frames else node.timeMode()).toString())
    pieces = read_piece(reader, map_side), read_piece(reader, results)
    return GroupsPlan(catalyst, node, spec, time, *pieces, tuple(keys))
