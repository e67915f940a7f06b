"""A de-duplication as a stage: its key columns, the rows that slots get, and when keys expire.

Slots get whole rows: first the key columns, with structs split into fields, then all others. Floating-point numbers in
keys are not normalised here. The slots return a key of -0.0 as 0.0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from riffle_spark.process.plans.columns import Column, quote_name
from riffle_spark.process.plans.grouping_keys import (
    GroupingKey,
    KeyColumn,
    choose_store_name,
    make_time_spec,
    read_grouping_keys,
)
from riffle_spark.process.plans.new_expressions import Value, event_time_value, remove_collation
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.plans.rules import refusal_error
from riffle_spark.process.types.stage_specs import DistinctSpec, TimeSpec, make_unique_name

_WITHIN_WATERMARK: Final = "DeduplicateWithinWatermark"
_KNOWN_UNTIL: Final = "known_until"
_EVENT_TIME: Final = "event_time"


@dataclass(frozen=True, slots=True)
class DistinctMapSide:
    """The rows that a de-duplication sends to its slots: keys, and payload columns by their names in the rows.

    ``time`` is the column by which rows are late. ``window_end`` holds this column if it is not part of the output.
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
        """The names of the columns of rows that pass."""
        return [*self.key_columns, *self.payload]

    @property
    def values(self) -> dict[str, Value]:
        """The columns of the rows that slots get, as expressions by name."""
        keys = {name: value for key in self.keys for name, value in key.column_values().items()}
        payload = {name: remove_collation(column, column.expression) for name, column in self.payload.items()}
        return {**keys, **payload, **self.window_end}


def read_distinct_rows(
    node: PlanNode, output: Sequence[Column], random: Collection[int], used_columns: Collection[int] | None = None
) -> DistinctMapSide:
    """Return the rows that a de-duplication node with this output sends to slots. Its keys are in the order of the
    columns.

    ``random`` are the ids of columns that differ if a batch runs again. ``used_columns`` are the ids of the columns
    that the query reads after the operator; ``None`` means all. Raises ``ConfigError`` for columns that cannot be keys.
    """
    key_ids = {key.id for key in node.expressions.get("keys", ())}
    columns = list({column.id: column for column in output}.values())
    grouping = [
        KeyColumn(column, quote_name(column.name), column.id in random) for column in columns if column.id in key_ids
    ]
    keys = tuple(
        replace(key, expression=grouped.expression)
        for key, grouped in zip(read_grouping_keys(grouping), grouping, strict=True)
    )
    key_names = [column for key in keys for column in key.columns]
    payload = dict[str, Column]()
    for column in columns:
        if column.id not in key_ids:
            payload[make_unique_name(column.name, [*key_names, *payload])] = column
    # Spark's optimiser removes other columns below dropDuplicates, and then no row is late by them.
    is_within = node.kind == _WITHIN_WATERMARK
    seen = [
        column
        for column in columns
        if is_within or used_columns is None or column.id in used_columns or column.id in key_ids
    ]
    time, window_end = _find_late_column(_find_event_time(seen), keys, payload)
    return DistinctMapSide(keys, payload, time, window_end)


def make_distinct_spec(
    node: PlanNode, rows: DistinctMapSide, schema: pa.Schema, used_stores: Collection[str]
) -> DistinctSpec:
    """Return the specification of a de-duplication.

    Its slots get rows of ``schema``. ``used_stores`` are the names of the query's other stores.
    """
    is_within = node.kind == _WITHIN_WATERMARK
    keys = pa.schema([schema.field(name) for name in rows.key_columns])
    output = pa.schema([schema.field(name) for name in rows.output_columns])
    store = choose_store_name("within" if is_within else "distinct", rows.keys, used_stores)
    due = rows.time.column if rows.time is not None and rows.time.column in keys.names else None
    return DistinctSpec(
        store, keys, output, rows.time, make_unique_name(_KNOWN_UNTIL, keys.names) if is_within else due
    )


def _find_event_time(output: Sequence[Column]) -> Column | None:
    """Return the only event-time column, ``None`` without one. Raises ``ConfigError`` for several, as Spark does."""
    timed = [column for column in output if column.delay_ms is not None]
    if len(timed) > 1:
        raise refusal_error("event_times", ", ".join(column.name for column in timed))
    return timed[0] if timed else None


def _find_late_column(
    event_time: Column | None, keys: Sequence[GroupingKey], payload: Mapping[str, Column]
) -> tuple[TimeSpec | None, dict[str, Value]]:
    """Return the column that decides which rows are late (``None``: none is), and the end of a window if the output
    does not have it.
    """
    if event_time is None:
        return None, {}
    in_key = make_time_spec([key for key in keys if key.column is not None and key.column.id == event_time.id])
    if in_key is not None:
        return in_key, {}
    if not event_time.is_struct:
        name = next(name for name, column in payload.items() if column.id == event_time.id)
        return TimeSpec(name, event_time.delay_ms), {}
    column = make_unique_name(_EVENT_TIME, [*payload, *(column for key in keys for column in key.columns)])
    return TimeSpec(column, event_time.delay_ms), {column: event_time_value(event_time)}
