"""Convert the state of Spark's operators to rows of riffle's stores, for each kind of stage.

A conversion is a projection in SQL, so rows stay on the executors. Types are compared before anything is written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.grouping_keys import GroupingKey
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.stages.merged_groups import MergedGroups
from riffle_spark.process.stages.rows_to_state import buffer_folding
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.process.types.stage_specs import FunctionSpec
from riffle_spark.protocol.operator import Operator
from riffle_spark.spark.engine.routing import arrow_of, spark_schema
from riffle_spark.spark.imports.native_state import NativeState
from riffle_spark.spark.queries.planned_stages import PlannedStage
from riffle_spark.spark.seeds.first_version import FirstRows


@dataclass(frozen=True)
class StageState:
    """A stage, its operator, and Spark's state of it.

    ``function_ids`` are the ids of an aggregate's results, in the order of their buffers in Spark's state.
    ``side_ids`` are the ids of the columns that Spark stores of both sides of a join.
    """

    stage: PlannedStage
    operator: Operator
    native: NativeState
    function_ids: Sequence[int] = ()
    side_ids: Sequence[Sequence[int]] = ()

    @property
    def store(self) -> str:
        """The name of the store."""
        return self.stage.store

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        """Raise the error for state that cannot be moved."""
        # Cause: riffle stores this state in another form, which cannot be computed from Spark's.
        raise ConfigError(
            f"The state of store {self.store!r} cannot be moved: {problem}",
            remedy=remedy,
            where=self.store,
            id="RIFFLE-1613",
        )

    def first_rows(self, frame: DataFrame) -> FirstRows:
        """Return the rows of the store, given a frame with the columns of its state by position.

        Structs may have other names of fields. Raises ``ConfigError`` if the types differ.
        """
        text = self.operator.schema_after({}, 1)
        compute = self.operator.compute
        folding = buffer_folding(compute) if isinstance(compute, MergedGroups | SessionGroups) else None
        expected = self.operator.schema.part_schema() if folding is None else folding.rows
        types = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in expected.types]
        expected = pa.schema(list(map(pa.Field.with_type, expected, types)))
        frame = frame.toDF(*[f"c{index}" for index in range(len(expected))])
        self.check_types(arrow_of(frame.schema), expected)
        targets = [field.dataType for field in spark_schema(expected)]
        columns = [F.col(f"c{index}").cast(target) for index, target in enumerate(targets)]
        return FirstRows(self.operator.schema, text, frame.select(*columns), folding)

    def check_types(self, moved: pa.Schema, expected: pa.Schema) -> None:
        """Raise ``ConfigError`` unless the columns have the types that the store expects."""
        for field, moved_type in zip(expected, moved.types, strict=True):
            if _plain(field.type) != _plain(moved_type):
                self.refuse(
                    f"Spark stored column {field.name!r} as {moved_type}, but the query stores {field.type}.",
                    "Pass the query that wrote the checkpoint, with the same columns and types.",
                )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type as it is compared: structs without names, and all types without nullability."""
    if pa.types.is_struct(kind):
        return pa.struct([(str(index), _plain(kind.field(index).type)) for index in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return pa.timestamp(kind.unit, kind.tz and "UTC") if pa.types.is_timestamp(kind) else kind


def key_columns(keys: Sequence[GroupingKey], positions: Sequence[int], struct: str = "key") -> Iterator[str]:
    """Yield the SQL of each key column, from the fields of a struct at these positions, one per grouping key."""
    for key, position in zip(keys, positions, strict=True):
        for part in key.parts:
            path = "".join(f".f{index}" for index in part.path)
            value = f"{struct}.f{position}{path}"
            yield f"{value} is null" if part.is_null_flag else value


def _check_field_count(state: StageState, column: str, expected: int, frame: DataFrame) -> None:
    """Raise ``ConfigError`` unless a struct column of a frame has this many fields."""
    count = len(frame.schema[column].dataType.fieldNames())  # type: ignore[attr-defined] # it is a struct
    if count != expected:
        state.refuse(
            f"Spark stored {count} {column} columns, but the query needs {expected}.",
            "Pass the query that wrote the checkpoint. Leave out literals and repeated columns of groupBy, which Spark "
            "does not store, and results that the query does not use.",
        )


def rows_of_distinct(state: StageState) -> FirstRows:
    """Return the rows of a de-duplication: its keys, and within the watermark their due times."""
    compute = state.operator.compute
    assert isinstance(compute, DistinctRows), "a de-duplication"
    frame = state.native.rows()
    ids = [key.id for key in state.stage.stage.node.expressions.get("keys", ())]
    _check_field_count(state, "key", len(ids), frame)
    positions = [ids.index(key.column.id) for key in state.stage.grouping if key.column is not None]
    columns = list(key_columns(state.stage.grouping, positions))
    if compute.spec.stores_due:
        columns.append("timestamp_micros(value.f0)")
    return state.first_rows(frame.selectExpr(*columns))


def rows_of_aggregate(state: StageState) -> FirstRows:
    """Return the rows of an aggregate: the keys and buffers of its groups."""
    compute = state.operator.compute
    if isinstance(compute, SessionGroups):
        return _rows_of_sessions(state, compute)
    if not isinstance(compute, MergedGroups):
        state.refuse("Spark has no streaming aggregates with DISTINCT.", "Pass the query that wrote the checkpoint.")
    frame = state.native.rows()
    grouping = [key for key in state.stage.grouping if key.column is not None]
    _check_field_count(state, "key", len(grouping), frame)
    keys = list(key_columns(grouping, range(len(grouping)))) if grouping else ["0"]
    buffers = _buffer_columns(state, compute.spec.functions, frame, 0)
    return state.first_rows(frame.selectExpr(*keys, *buffers))


def _rows_of_sessions(state: StageState, compute: SessionGroups) -> FirstRows:
    """Return the rows of an aggregate of session windows: one row per session."""
    frame = state.native.rows()
    grouping = state.stage.grouping
    keys = list(key_columns(grouping, range(len(grouping)), "value"))
    buffers = _buffer_columns(state, compute.spec.functions, frame, len(grouping))
    return state.first_rows(frame.selectExpr(*keys, *buffers))


def _buffer_columns(state: StageState, functions: Sequence[FunctionSpec], frame: DataFrame, start: int) -> list[str]:
    """Return the SQL of the buffer columns, in the order of ``functions``.

    ``start`` is the position of the first buffer in the value of Spark's state. Raises ``ConfigError`` for functions
    that keep their buffers in Spark's own binary form.
    """
    by_id = dict(zip(state.stage.result_ids, functions, strict=True))
    for function in functions:
        if function.argument is not None:
            state.refuse(
                f"Spark keeps the buffer of {function.argument.meaning} in its own binary form.",
                "Start the query without state, or leave this result out.",
            )
    unused = [function for result_id, function in by_id.items() if result_id not in state.function_ids]
    if unused:
        # Cause: Spark's optimiser drops results that nothing reads.
        state.refuse(
            f"Spark stores no {unused[0].buffers[0].meaning}, because no later part of the query reads it.",
            "Remove this result from the query.",
        )
    types = [field.dataType for field in frame.schema["value"].dataType.fields]  # type: ignore[attr-defined] # it is a struct
    columns = dict[int, list[str]]()
    position = start
    for result_id in state.function_ids:
        if result_id not in by_id:
            state.refuse("Spark's plan has a function that the query does not have.", "Report the query.")
        function = by_id[result_id]
        first = types[position].typeName() if position < len(types) else ""
        columns[result_id] = list(_function_columns(function, position, first))
        position += 1 if _is_unscaled_sum(function, first) else len(function.buffers)
    if position != len(types):
        state.refuse(
            f"Spark stored {len(types) - start} buffers, but the query needs {position - start}.",
            "Pass the query that wrote the checkpoint.",
        )
    return [column for result_id in state.stage.result_ids for column in columns[result_id]]


def _is_unscaled_sum(function: FunctionSpec, stored: str) -> bool:
    """Return whether Spark sums the unscaled values of a short decimal, as its optimiser does for speed."""
    return function.function == "Sum" and pa.types.is_decimal(function.buffers[0].type) and stored == "long"


def _function_columns(function: FunctionSpec, position: int, stored: str) -> Iterator[str]:
    """Yield the SQL of a function's buffers. ``stored`` is the type of the first buffer in Spark's state."""
    value = f"value.f{position}"
    kind = function.buffers[0].type
    if _is_unscaled_sum(function, stored):
        yield _scaled(value, kind)
        if len(function.buffers) > 1:
            yield f"{value} is null"
    elif function.function == "Average" and pa.types.is_decimal(kind) and stored == "double":
        yield _scaled(f"cast({value} as bigint)", kind)
        yield f"value.f{position + 1}"
    else:
        yield from (f"value.f{position + index}" for index in range(len(function.buffers)))


def _scaled(value: str, kind: pa.DataType) -> str:
    """Return the SQL of a decimal whose unscaled value is a bigint."""
    unit = "1" if kind.scale == 0 else f"0.{'0' * (kind.scale - 1)}1"
    unit_type = f"decimal({kind.scale + 1}, {kind.scale})"
    product = f"cast({value} as decimal(19, 0)) * cast('{unit}' as {unit_type})"
    return f"cast({product} as decimal({kind.precision}, {kind.scale}))"
