"""A de-duplication as a stage: by which columns, which columns of its rows travel, and when keys leave.

Rows are sent whole: the columns of keys first, with structs among them taken apart, then all others as they are. The
floating-point numbers of a key stay as they are, because the row that passes has them unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from riffle_spark.process.plans.built import Value, end_value, without_collation
from riffle_spark.process.plans.columns import Column, quoted_name
from riffle_spark.process.plans.grouping_keys import GroupingKey, KeyColumn, read_keys, stored_as, time_of
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types.stage_specs import DistinctSpec, TimeSpec, free_name

__all__ = ["DistinctRows", "distinct_spec", "read_rows"]

_WITHIN: Final = "DeduplicateWithinWatermark"
_UNTIL: Final = "known_until"
_EVENT_TIME: Final = "event_time"


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """What a de-duplication sends of its rows: keys, and the columns that are no keys by the names that they travel by.

    ``time`` is the column by which rows are late. ``beside`` is that column if rows that pass do not have it.
    """

    keys: tuple[GroupingKey, ...]
    others: Mapping[str, Column]
    time: TimeSpec | None
    beside: Mapping[str, Value]

    @property
    def key_columns(self) -> list[str]:
        """The names of the key columns."""
        return [column for key in self.keys for column in key.columns]

    @property
    def told(self) -> list[str]:
        """The columns of rows that pass."""
        return [*self.key_columns, *self.others]

    @property
    def sent(self) -> dict[str, Value]:
        """The columns of rows that are sent, as expressions."""
        parts = {name: part for key in self.keys for name, part in key.split_letters().items()}
        columns = {name: without_collation(column, column.expression) for name, column in self.others.items()}
        return {**parts, **columns, **self.beside}


def read_rows(node: PlanNode, output: Sequence[Column], random: Collection[int]) -> DistinctRows:
    """Return what a de-duplication sends of rows with this output. ``random`` are the ids of columns that differ when a
    batch runs again.

    Keys come in the order of the columns, in whatever order the query names them.
    """
    ids = {each.id for each in node.expressions.get("keys", ())}
    columns = list({column.id: column for column in output}.values())
    grouping = [KeyColumn(each, quoted_name(each.name), each.id in random) for each in columns if each.id in ids]
    keys = tuple(
        replace(key, expression=grouped.expression) for key, grouped in zip(read_keys(grouping), grouping, strict=True)
    )
    taken = [column for key in keys for column in key.columns]
    others = dict[str, Column]()
    for column in columns:
        if column.id not in ids:
            others[free_name(column.name, [*taken, *others])] = column
    time, beside = _time(_event_time(columns), keys, others)
    return DistinctRows(keys, others, time, beside)


def distinct_spec(node: PlanNode, rows: DistinctRows, sent: pa.Schema, taken: Collection[str]) -> DistinctSpec:
    """Return the specification of a de-duplication, whose rows are sent with this schema."""
    is_within = node.kind == _WITHIN
    keys, told = (pa.schema([sent.field(name) for name in names]) for names in (rows.key_columns, rows.told))
    store = stored_as("within" if is_within else "distinct", rows.keys, taken)
    due = rows.time.column if rows.time is not None and rows.time.column in keys.names else None
    return DistinctSpec(store, keys, told, rows.time, free_name(_UNTIL, keys.names) if is_within else due)


def _event_time(output: Sequence[Column]) -> Column | None:
    """Return the one column of event time, as Spark has it."""
    timed = [column for column in output if column.delay_ms is not None]
    if len(timed) > 1:
        raise refusal("event_times", ", ".join(column.name for column in timed))
    return timed[0] if timed else None


def _time(
    event_time: Column | None, keys: Sequence[GroupingKey], others: Mapping[str, Column]
) -> tuple[TimeSpec | None, dict[str, Value]]:
    """Return by which column rows are late, and that column if rows that pass do not have it: a window's end."""
    if event_time is None:
        return None, {}
    of_key = time_of([key for key in keys if key.column is not None and key.column.id == event_time.id])
    if of_key is not None:
        return of_key, {}
    if not event_time.is_struct:
        name = next(name for name, column in others.items() if column.id == event_time.id)
        return TimeSpec(name, event_time.delay_ms), {}
    column = free_name(_EVENT_TIME, [*others, *(column for key in keys for column in key.columns)])
    return TimeSpec(column, event_time.delay_ms), {column: end_value(event_time)}
