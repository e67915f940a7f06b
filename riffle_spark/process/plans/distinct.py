"""A de-duplication as a stage: its key columns, the rows that slots get, and when keys expire.

Slots get whole rows: first the key columns, with structs split into fields, then all others. Floating-point numbers in
keys are not normalised, because a row that passes must have them unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from riffle_spark.process.plans.columns import Column, quoted_name
from riffle_spark.process.plans.grouping_keys import GroupingKey, KeyColumn, read_keys, store_for, time_spec
from riffle_spark.process.plans.new_expressions import Value, end_value, without_collation
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types.stage_specs import DistinctSpec, TimeSpec, free_name

__all__ = ["DistinctMapSide", "distinct_spec", "read_rows"]

_WITHIN_WATERMARK: Final = "DeduplicateWithinWatermark"
_KNOWN_UNTIL: Final = "known_until"
_EVENT_TIME: Final = "event_time"


@dataclass(frozen=True, slots=True)
class DistinctMapSide:
    """The rows of a de-duplication: its keys, and its payload columns by their names in the rows.

    ``time`` is the column by which rows are late. ``window_end`` is this column if it is not part of the output.
    """

    keys: tuple[GroupingKey, ...]
    payload: Mapping[str, Column]
    time: TimeSpec | None
    window_end: Mapping[str, Value]

    @property
    def key_columns(self) -> list[str]:
        """The names of the key columns."""
        return [column for key in self.keys for column in key.columns]

    @property
    def output_columns(self) -> list[str]:
        """The columns of rows that pass."""
        return [*self.key_columns, *self.payload]

    @property
    def values(self) -> dict[str, Value]:
        """The columns of the rows that slots get, as expressions."""
        keys = {name: value for key in self.keys for name, value in key.column_values().items()}
        payload = {name: without_collation(column, column.expression) for name, column in self.payload.items()}
        return {**keys, **payload, **self.window_end}


def read_rows(node: PlanNode, output: Sequence[Column], random: Collection[int]) -> DistinctMapSide:
    """Return the rows of a de-duplication with this output, with keys in the order of the columns.

    ``random`` are the ids of columns that differ if a batch runs again.
    """
    key_ids = {key.id for key in node.expressions.get("keys", ())}
    columns = list({column.id: column for column in output}.values())
    grouping = [
        KeyColumn(column, quoted_name(column.name), column.id in random) for column in columns if column.id in key_ids
    ]
    keys = tuple(
        replace(key, expression=grouped.expression) for key, grouped in zip(read_keys(grouping), grouping, strict=True)
    )
    key_names = [column for key in keys for column in key.columns]
    payload = dict[str, Column]()
    for column in columns:
        if column.id not in key_ids:
            payload[free_name(column.name, [*key_names, *payload])] = column
    time, window_end = _lateness(_event_time(columns), keys, payload)
    return DistinctMapSide(keys, payload, time, window_end)


def distinct_spec(
    node: PlanNode, rows: DistinctMapSide, schema: pa.Schema, used_stores: Collection[str]
) -> DistinctSpec:
    """Return the specification of a de-duplication. Its slots get rows of ``schema``."""
    is_within = node.kind == _WITHIN_WATERMARK
    keys = pa.schema([schema.field(name) for name in rows.key_columns])
    output = pa.schema([schema.field(name) for name in rows.output_columns])
    store = store_for("within" if is_within else "distinct", rows.keys, used_stores)
    due = rows.time.column if rows.time is not None and rows.time.column in keys.names else None
    return DistinctSpec(store, keys, output, rows.time, free_name(_KNOWN_UNTIL, keys.names) if is_within else due)


def _event_time(output: Sequence[Column]) -> Column | None:
    """Return the only event-time column, if any. Like Spark, refuses several."""
    timed = [column for column in output if column.delay_ms is not None]
    if len(timed) > 1:
        raise refusal("event_times", ", ".join(column.name for column in timed))
    return timed[0] if timed else None


def _lateness(
    event_time: Column | None, keys: Sequence[GroupingKey], payload: Mapping[str, Column]
) -> tuple[TimeSpec | None, dict[str, Value]]:
    """Return the column that decides which rows are late, and the end of a window if the output does not have it."""
    if event_time is None:
        return None, {}
    in_key = time_spec([key for key in keys if key.column is not None and key.column.id == event_time.id])
    if in_key is not None:
        return in_key, {}
    if not event_time.is_struct:
        name = next(name for name, column in payload.items() if column.id == event_time.id)
        return TimeSpec(name, event_time.delay_ms), {}
    column = free_name(_EVENT_TIME, [*payload, *(column for key in keys for column in key.columns)])
    return TimeSpec(column, event_time.delay_ms), {column: end_value(event_time)}
