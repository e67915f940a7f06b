"""A join of two streams as a stage: its keys, what of the condition is checked where, and when rows of each side leave.

Rows of both sides go to the slots in one exchange. Each row has the columns of its own side, and nulls in the others.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from riffle_spark.process.plans.built import (
    Built,
    Value,
    cast_back,
    end_value,
    leaf_column,
    literal,
    null_like,
    without_collation,
)
from riffle_spark.process.plans.columns import Column, catalog_name
from riffle_spark.process.plans.grouping_keys import GroupingKey, stored_as
from riffle_spark.process.plans.plan_values import Expression, attribute_ids, same_expression
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types import stage_specs

__all__ = ["ExpressionFacts", "FoundJoin", "JoinRows"]

_IS_LEFT: Final = "is_left"
_EVENT_TIME: Final = "event_time"
_PASSES: Final = "passes"
_COMPARED: Final = "compared"
_OUTER: Final = {"LeftOuter": ("left",), "RightOuter": ("right",), "FullOuter": ("left", "right")}
_SEMI: Final = "LeftSemi"
_ATTRIBUTE: Final = "AttributeReference"
_FUNCTIONS: Final = {
    "LessThan": ("less", "greater"),
    "LessThanOrEqual": ("less_equal", "greater_equal"),
    "GreaterThan": ("greater", "less"),
    "GreaterThanOrEqual": ("greater_equal", "less_equal"),
}
"""Spark's comparisons in Arrow's words: of left with right, and the other way round."""
_ALIKE: Final = frozenset(
    ("boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string", "binary")
)
"""Types whose values Arrow and Spark order alike; so they do decimals."""


@dataclass(frozen=True, slots=True)
class ExpressionFacts:
    """What only the JVM knows of an expression: its text in SQL, and the JSON of a field that has its type."""

    sql: Callable[[Expression], str]
    field: Callable[[Expression], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class FoundJoin:
    """A join as Spark's optimiser has it: for each side its output, its keys and its column of event time, and how much
    later than that its rows leave.

    ``rest`` are the parts of the condition beside the keys. ``by_key`` is the key that is event time. A column that the
    optimiser has removed below the join, because nothing reads it, is no event time either, as in Spark. ``read`` are
    the ids of the columns that the query reads of the join.
    """

    how: str
    outputs: tuple[Sequence[Column], Sequence[Column]]
    keys: tuple[Sequence[GroupingKey], Sequence[GroupingKey]]
    rest: Sequence[Expression]
    by_key: int | None
    times: Sequence[Column | None]
    later_ms: tuple[int | None, int | None]
    read: Collection[int]


@dataclass(slots=True)
class JoinRows:
    """What is sent of rows: the columns of each side as expressions, by names that are unique."""

    found: FoundJoin
    facts: ExpressionFacts
    columns: tuple[dict[str, Value], dict[str, Value]] = field(default_factory=lambda: ({}, {}))
    compared: list[stage_specs.Comparison] = field(default_factory=list)
    passes: tuple[list[Expression], list[Expression]] = field(default_factory=lambda: ([], []))
    left_over: list[Expression] = field(default_factory=list)
    key_columns: list[str] = field(default_factory=list)
    told: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    comparisons: list[str] = field(default_factory=list)
    of_key: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    is_left: str = _IS_LEFT
    event_time: str | None = None
    of_passes: str = _PASSES

    def __post_init__(self) -> None:
        """Choose the columns. Raises ``ConfigError`` for a condition that only Spark can evaluate, unless it may filter
        the join's results.
        """
        found = self.found
        self.key_columns = [column for key in found.keys[0] for column in key.columns]
        self.left_over = [each for each in found.rest if all(self._sides(each)) and self._comparison(each) is None]
        if self.left_over and found.how != "Inner":
            raise refusal("join_condition", self.facts.sql(self.left_over[0]))
        read = set(found.read).union(*map(attribute_ids, self.left_over))
        for side, output in enumerate(found.outputs[:1] if found.how == _SEMI else found.outputs):
            of_key = self._of_key(side)
            for column in (column for column in output if column.id in read):
                if column.id in of_key:
                    name = self._free(column.name)
                    self.told[side][column.id] = name
                    self.of_key[side][name] = of_key[column.id]
                else:
                    self.told[side][column.id] = self._column(side, column.name, column.expression)
        for part in found.rest:
            self._take_condition(part)
        self.is_left, self.of_passes = self._free(_IS_LEFT), self._free(_PASSES)
        if any(time is not None for time in found.times):
            self.event_time = self._free(_EVENT_TIME)

    def _of_key(self, side: int) -> dict[int, str]:
        """Return the attributes of a side that are keys as they are, and the key columns that these have."""
        pairs = zip(self.found.keys[side], self.found.keys[0], strict=True)
        return {
            key.expression.id: named.columns[0]
            for key, named in pairs
            if isinstance(key.expression, Expression) and key.expression.kind == _ATTRIBUTE and len(key.parts) == 1
        }

    def _free(self, name: str) -> str:
        taken = [*self.key_columns, *self.columns[0], *self.columns[1], *self.of_key[0], *self.of_key[1]]
        return stage_specs.free_name(name, taken)

    def _column(self, side: int, name: str, expression: Expression) -> str:
        free = self._free(name)
        self.columns[side][free] = expression
        return free

    def _take_condition(self, part: Expression) -> None:
        """Take a part of the condition: of one side, or a comparison of both."""
        compared, sides = self._comparison(part), self._sides(part)
        if compared is not None:
            left, word, right = compared
            self.compared.append(stage_specs.Comparison(self._known(0, left), word, self._known(1, right)))
            self.comparisons.append(self.facts.sql(part))
        elif not all(sides):
            self.passes[0 if sides[0] else 1].append(part)

    def _sides(self, part: Expression) -> list[bool]:
        """Tell for each side whether a part of the condition has columns of it."""
        ids = attribute_ids(part)
        return [not ids.isdisjoint(column.id for column in output) for output in self.found.outputs]

    def _comparison(self, part: Expression) -> tuple[Expression, str, Expression] | None:
        """Return what a part of the condition compares, if it is something of one side with something of the other."""
        words, operands = _FUNCTIONS.get(part.kind), part.children
        if words is None or not self._are_alike(operands[0]):
            return None
        for word, (left, right) in zip(words, (operands, operands[::-1]), strict=True):
            if self._sides(left) == [True, False] and self._sides(right) == [False, True]:
                return left, word, right
        return None

    def _are_alike(self, expression: Expression) -> bool:
        """Tell whether Arrow and Spark order an expression's values alike."""
        stated = self.facts.field(expression)
        name = str(stated["type"])
        return (name in _ALIKE and "collate" not in catalog_name(stated)) or name.startswith("decimal")

    def _known(self, side: int, expression: Expression) -> str:
        """Return the column that is an expression of a side."""
        is_plain = expression.kind == _ATTRIBUTE
        if is_plain and expression.id in self.told[side]:
            return self.told[side][expression.id]
        for name, value in self.columns[side].items():
            if isinstance(value, Expression) and same_expression(value, expression):
                return name
        return self._column(side, expression.name if is_plain else _COMPARED, expression)

    def row(self, side: int) -> Iterator[tuple[str, Value]]:
        """Yield the columns of one side's rows."""
        times = [None if time is None else end_value(time) for time in self.found.times]
        yield self.is_left, literal(side == 0)
        parts = [part for key in self.found.keys[side] for part in key.split_letters().values()]
        yield from zip(self.key_columns, parts, strict=True)
        if self.event_time is not None:
            own, other = times[side], times[1 - side]
            if own is None:
                assert other is not None, "a side has an event time"
                own = null_like(other)
            yield self.event_time, own
        for of, columns in enumerate(self.columns):
            for name, value in columns.items():
                yield name, self._without_collation(value, value if of == side else null_like(value))
        if any(self.passes):
            whole: Value = literal(True)
            for part in self.passes[side]:
                whole = Built("and", (whole, part))
            yield self.of_passes, whole

    def _without_collation(self, value: Value, sent: Value) -> Value:
        if isinstance(value, Expression) and value.kind == _ATTRIBUTE:
            column = next((each for output in self.found.outputs for each in output if each.id == value.id), None)
            if column is not None:
                return without_collation(column, sent)
        return Built("plain", (sent,))

    def spec(self, schema: pa.Schema, taken: Collection[str]) -> stage_specs.JoinSpec:
        """Return the specification of the join, whose rows are sent with this schema."""
        left, right = (self._side(side, schema) for side in (0, 1))
        keys = pa.schema([schema.field(name) for name in self.key_columns])
        return stage_specs.JoinSpec(
            stored_as("join", self.found.keys[0], taken),
            keys,
            self.is_left,
            left,
            right,
            tuple(self.compared),
            _OUTER.get(self.found.how, ()),
            self.found.how == _SEMI,
            self.event_time,
        )

    def _side(self, side: int, schema: pa.Schema) -> stage_specs.JoinSide:
        found, due, later = self.found, None, 0
        if found.by_key is not None:
            due = found.keys[0][found.by_key].columns[-1]
        elif found.later_ms[side] is not None:
            due, later = self.event_time, found.later_ms[side] or 0
        of_key = self.of_key[side]
        told, kept = (
            pa.schema([(name, schema.field(of_key.get(name, name)).type) for name in names])
            for names in (self.told[side].values(), self.columns[side])
        )
        passes = self.of_passes if any(self.passes) else None
        return stage_specs.JoinSide(told, kept, passes, due, later, tuple(of_key.items()))

    def meanings(self) -> dict[str, str]:
        """Return what is kept in each column, and which kind of join says which rows had a partner."""
        kept = {
            name: f"{side} {self._text(value)}"
            for side, columns in zip(("left", "right"), self.columns, strict=True)
            for name, value in columns.items()
        }
        return {"join": " ".join([self.found.how, *self.comparisons]), **kept}

    def _text(self, value: Value) -> str:
        assert isinstance(value, Expression), "sides send expressions of the plan"
        return value.name if value.kind == _ATTRIBUTE else self.facts.sql(value)

    def answered(self, column: Column) -> Value:
        """Return a column of the join's output, of what slots answer; null if nothing reads it."""
        names = {**self.told[0], **self.told[1]}
        if column.id not in names:
            return null_like(column.expression)
        return cast_back(leaf_column(names[column.id]), column)
