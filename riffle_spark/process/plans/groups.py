"""The rows for a user's function: the columns that the function sees, and their names in the rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from riffle_spark.process.plans.columns import Column, catalog_name, quote_name
from riffle_spark.process.plans.grouping_keys import GroupingKey, KeyColumn, read_grouping_keys
from riffle_spark.process.plans.new_expressions import Value, event_time_value, remove_collation
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.process.plans.rules import refusal_error
from riffle_spark.process.types.stage_specs import make_unique_name

_EVENT_TIME: Final = "event_time"
_SPECIAL: Final = re.compile(r"\W")
"""Characters that are replaced in the internal names of columns."""


def read_group_keys(grouping: Sequence[Column], random: frozenset[int]) -> list[GroupingKey]:
    """Return the grouping keys of a user's function.

    Raises ``ConfigError`` for columns that cannot be keys, such as structs. ``random`` are the ids of columns that
    differ if a batch runs again.
    """
    keys = read_grouping_keys([KeyColumn(column, quote_name(column.name), column.id in random) for column in grouping])
    for key, column in zip(keys, grouping, strict=False):
        if column.is_struct:
            raise refusal_error("struct_key", f"{key.name}: {catalog_name(column.field)}")
    return keys


@dataclass(slots=True)
class FunctionMapSide:
    """The columns of the rows that slots get: first the key columns, then the function's arguments.

    A column of the key that is also an argument occurs once.
    """

    keys: Sequence[GroupingKey]
    columns: Mapping[int, Column]
    values: dict[str, Value] = field(default_factory=dict)
    _argument_names: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put the key columns first, and remember which attributes they hold."""
        for key in self.keys:
            self.values.update(key.column_values())
        for name, value in self.values.items():
            if isinstance(value, Expression) and value.kind == "AttributeReference":
                self._names[value.id] = name

    def add_arguments(self, attributes: Sequence[Expression]) -> None:
        """Add the function's arguments to the columns of the rows."""
        for attribute in attributes:
            if self._names.get(attribute.id) in self._argument_names:  # The function gets it twice.
                del self._names[attribute.id]
            self._argument_names[self._add(attribute)] = attribute.name

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """The function's arguments as pairs: the name in the function, and the name in the rows."""
        return tuple((name, column) for column, name in self._argument_names.items())

    def add_event_time(self, columns: Sequence[Column]) -> str | None:
        """Add the column that is compared with the watermark to the rows.

        Return its name in the rows, or ``None`` if there is none.
        """
        timed = next((column for column in columns if column.delay_ms is not None), None)
        if timed is None:
            return None
        if not timed.is_struct:
            return self._add(timed.expression)
        name = make_unique_name(_EVENT_TIME, self.values)
        self.values[name] = event_time_value(timed)
        return name

    def _add(self, attribute: Expression) -> str:
        """Return the name of an attribute in the rows. The attribute is added unless the rows have it."""
        name = self._names.get(attribute.id)
        if name is None:
            name = make_unique_name(_SPECIAL.sub("_", attribute.name) or "_", self.values)
            self._names[attribute.id] = name
            column = self.columns.get(attribute.id)
            self.values[name] = attribute if column is None else remove_collation(column, column.expression)
        return name
