"""The rows that a user's own function gets: which of their columns it sees, and under which names they travel."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from riffle_spark.process.plans.built import Value, end_value, without_collation
from riffle_spark.process.plans.columns import Column, catalog_name, quoted_name
from riffle_spark.process.plans.grouping_keys import GroupingKey, KeyColumn, read_keys
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types.stage_specs import free_name

__all__ = ["SeenRows", "group_keys"]

_EVENT_TIME: Final = "event_time"
_NO_WORD: Final = re.compile(r"\W")
"""Characters that the name of a column which no user sees need not have."""


def group_keys(grouping: Sequence[Column], random: frozenset[int]) -> list[GroupingKey]:
    """Return the keys of a user's function. Raises ``ConfigError`` for columns that cannot be keys, as structs."""
    keys = read_keys([KeyColumn(each, quoted_name(each.name), each.id in random) for each in grouping])
    for key, column in zip(keys, grouping, strict=False):
        if column.is_struct:
            raise refusal("struct_key", f"{key.name}: {catalog_name(column.field)}")
    return keys


@dataclass(slots=True)
class SeenRows:
    """The columns that rows bring, by their names: those of the key first, and then what the function sees.

    A column that is the key's is brought once.
    """

    keys: Sequence[GroupingKey]
    columns: Mapping[int, Column]
    parts: dict[str, Value] = field(default_factory=dict)
    _shown: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.keys:
            self.parts.update(key.split_letters())
        for name, part in self.parts.items():
            if isinstance(part, Expression) and part.kind == "AttributeReference":
                self._names[part.id] = name

    def see(self, attributes: Sequence[Expression]) -> None:
        """Bring the columns that the function sees."""
        for attribute in attributes:
            if self._names.get(attribute.id) in self._shown:  # the function sees it twice
                del self._names[attribute.id]
            self._shown[self._name(attribute)] = attribute.name

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """What the function sees: names, and columns."""
        return tuple((name, column) for column, name in self._shown.items())

    def event_time(self, columns: Sequence[Column]) -> str | None:
        """Return which of all columns is compared with the watermark, and bring it."""
        timed = next((column for column in columns if column.delay_ms is not None), None)
        if timed is None:
            return None
        if not timed.is_struct:
            return self._name(timed.expression)
        name = free_name(_EVENT_TIME, self.parts)
        self.parts[name] = end_value(timed)
        return name

    def _name(self, attribute: Expression) -> str:
        """Return the name under which an attribute travels, and bring it if it is not there yet."""
        known = self._names.get(attribute.id)
        if known is None:
            known = free_name(_NO_WORD.sub("_", attribute.name) or "_", self.parts)
            self._names[attribute.id] = known
            column = self.columns.get(attribute.id)
            self.parts[known] = attribute if column is None else without_collation(column, column.expression)
        return known
