"""Convert Spark's state of joins and of users' functions to rows of riffle's stores."""

from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riffle_spark.process.plans.plan_values import attribute_ids
from riffle_spark.process.stages.paired_rows import LEFT, RIGHT, PairedRows
from riffle_spark.process.types.stage_specs import JoinSide, JoinSpec
from riffle_spark.spark.engine.routing import arrow_of, quoted, spark_schema
from riffle_spark.spark.imports.stage_states import StageState, key_columns
from riffle_spark.spark.plans.batch_pieces import FrameRows
from riffle_spark.spark.plans.plan_nodes import Node, items
from riffle_spark.spark.processors.grouped_frames import GroupedFrames
from riffle_spark.spark.seeds.first_version import FirstRows
from riffle_spark.state.schemas.variable_kinds import TIMER, Variable
from riffle_spark.state.schemas.variables import VariableColumns

_SIDES: Final = (LEFT, RIGHT)
_NEVER: Final = -1
"""Spark's timeout of a group without one."""


def rows_of_join(state: StageState) -> FirstRows:
    """Return the rows of a join: the buffered rows of both sides, and whether each has had a partner.

    Spark's rows pass through the stage's own map side, as if they were rows of a batch. It computes their columns.
    """
    compute = state.operator.compute
    schema = state.operator.schema
    assert isinstance(compute, PairedRows), "a join"
    assert isinstance(schema, VariableColumns), "a join has a variable per side"
    frames = list[DataFrame]()
    for side in (0, 1):
        for has_partner in (False, True):
            if compute.spec.semi and side == 0 and has_partner:
                continue  # Left rows of a semi join leave when they first match.
            rows = _joined_rows(state, side, has_partner=has_partner)
            frames.append(_elements(rows, compute.spec, schema, side, has_partner=has_partner))
    return state.first_rows(reduce(DataFrame.unionAll, frames))


def _joined_rows(state: StageState, side: int, *, has_partner: bool) -> DataFrame:
    """Return Spark's buffered rows of a side in the columns of the map side: those with or those without a partner."""
    stage = state.stage
    rows = state.native.rows(storeName=f"{_SIDES[side]}-keyWithIndexToValue")
    stored_ids = state.side_ids[side]
    stored_names = [field.name for field in rows.schema["value"].dataType.fields]  # type: ignore[attr-defined] # it is a struct
    if len(stored_names) != len(stored_ids) + 1:
        state.refuse(
            f"Spark stored {len(stored_names) - 1} columns of {_SIDES[side]} rows, not {len(stored_ids)}.",
            "Pass the query that wrote the checkpoint.",
        )
    rows = rows.where(f"value is not null and value.{stored_names[-1]} = {str(has_partner).lower()}")
    catalyst = stage.map_side.catalyst
    expressions = [part for node in stage.map_side.values.nodes() for part in node.all_expressions]
    read_ids = set[int]().union(*map(attribute_ids, expressions))
    plans = dict[int, Node]()
    for hole in stage.map_side.holes:
        attributes = stage.map_side.leaf(hole).output()
        if hole.stage != side:
            plans[hole.stage] = catalyst.no_rows(attributes)
            continue
        columns = list[str]()
        for attribute in items(attributes):
            attribute_id = int(attribute.exprId().id())
            if attribute_id in stored_ids:
                columns.append(f"value.f{stored_ids.index(attribute_id)}")
                continue
            if attribute_id in read_ids:
                # Cause: Spark's optimiser found that no later part of the query reads the column.
                state.refuse(
                    f"Spark stored no {attribute.name()} of {_SIDES[side]} rows.", "Leave this column out of the query."
                )
            columns.append(f"cast(null as {attribute.dataType().sql()})")
        frame = rows.selectExpr(*[f"{column} as c{index}" for index, column in enumerate(columns)])
        plans[hole.stage] = FrameRows(catalyst, attributes).project(frame)
    return catalyst.frame(stage.map_side.fill(plans))


def _elements(rows: DataFrame, spec: JoinSpec, schema: VariableColumns, side: int, *, has_partner: bool) -> DataFrame:
    """Return the rows of a side as rows of the store."""
    join_side: JoinSide = (spec.left, spec.right)[side]
    columns = [F.col(quoted(name)) for name in schema.key.names]
    due = F.lit(None).cast("long")
    if join_side.due is not None:
        time = quoted(join_side.due)
        due = F.expr(
            f"unix_millis({time}) + if(pmod(unix_micros({time}), 1000) = 0, 0, 1) + {join_side.eviction_delay_ms}L"
        )
    columns += [F.lit(_SIDES[side]), F.lit(None).cast("long"), due]
    for number, name in enumerate(_SIDES):
        variable = schema.by_name[name]
        kind = spark_schema(variable.value)
        if number != side:
            columns.append(F.lit(None).cast(kind))
            continue
        values = [F.col(quoted(field)) for field in join_side.buffered.names]
        if len(kind) > len(values):
            values.append(F.lit(has_partner))
        columns.append(F.struct(*values))
    return rows.select(*[column.alias(f"c{index}") for index, column in enumerate(columns)])


def rows_of_groups(state: StageState) -> FirstRows:
    """Return the rows of ``applyInPandasWithState``: the fields of each group's state, and its timeout."""
    compute = state.operator.compute
    assert isinstance(compute, GroupedFrames), "a function that gets frames"
    frame = state.native.rows()
    columns = list(key_columns(state.stage.grouping, range(len(state.stage.grouping))))
    if compute.timeout != "NoTimeout":
        columns.append(f"if(value.f1 = {_NEVER}, null, value.f1 + 1)")
        columns.append("value.f0 is not null")
    columns += [f"value.f0.f{index}" for index in range(len(compute.state))]
    return state.first_rows(frame.selectExpr(*columns))


def rows_of_processor(state: StageState) -> FirstRows:
    """Return the rows of a ``StatefulProcessor``: its variables, and its timers."""
    schema = state.operator.schema
    assert isinstance(schema, VariableColumns), "a processor has variables"
    frames = [_variable_rows(state, schema, variable) for variable in schema.variables]
    if state.operator.declared.time_mode != "None":
        timers = state.native.rows(readRegisteredTimers="true")
        frames.append(_wide_rows(state, schema, timers, TIMER, due="expiration_timestamp_ms"))
    if not frames:
        state.refuse("The processor has no state.", "Start the query without state, in an empty root.")
    return state.first_rows(reduce(DataFrame.unionAll, frames))


def _variable_rows(state: StageState, schema: VariableColumns, variable: Variable) -> DataFrame:
    """Return the rows of a variable as rows of the store. With a time to live, each value has the time of its end."""
    name = variable.name
    options = {"stateVarName": name}
    column = "value"
    if variable.kind == "list":
        options["flattenCollectionTypes"] = "false"
    elif variable.kind == "map":
        column = "user_map_value"
    rows = state.native.rows(**options)
    if variable.kind == "list":
        rows = rows.selectExpr("key", "posexplode(list_value) as (position, value)")
    value, due = column, "cast(null as bigint)"
    if variable.ttl_ms is not None:
        stored = rows.schema[column].dataType
        if [field.dataType.typeName() for field in getattr(stored, "fields", ())] != ["struct", "long"]:
            state.refuse(
                f"Variable {name!r} has a time to live in the query, but not in the checkpoint.",
                "Pass the query that wrote the checkpoint.",
            )
        value, due = f"{column}.f0", f"{column}.f1"
    if variable.kind == "map":
        value = f"named_struct('key', user_map_key, 'value', {value})"
    index = "cast(position as bigint)" if variable.kind == "list" else "cast(null as bigint)"
    return _wide_rows(state, schema, rows, name, index=index, value=value, due=due)


def _wide_rows(
    state: StageState,
    schema: VariableColumns,
    rows: DataFrame,
    name: str,
    *,
    index: str = "cast(null as bigint)",
    value: str = "null",
    due: str = "cast(null as bigint)",
) -> DataFrame:
    """Return rows of the variable ``name`` as rows of the store, given the SQL of its columns."""
    texts = [*key_columns(state.stage.grouping, range(len(state.stage.grouping))), f"'{name}'", index, due]
    columns = [F.expr(text) for text in texts]
    for variable in schema.variables:
        column = F.lit(None)
        if variable.name == name:
            column = F.expr(value)
            state.check_types(arrow_of(rows.select(column.alias(name)).schema), pa.schema([(name, variable.type)]))
        columns.append(column.cast(spark_schema(pa.schema([(name, variable.type)]))[name].dataType))
    return rows.select(*[column.alias(f"c{number}") for number, column in enumerate(columns)])
