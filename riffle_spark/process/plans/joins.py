"""A join of two streams as a stage: its keys, its conditions, and how long rows can still match.

Rows of both sides go to the slots in a single exchange. Each row has the columns of its own side, and nulls in the
others. Conditions are evaluated in three places:

1. Conditions on a single side become a filter column of its rows.
2. Comparisons of both sides are evaluated by slots.
3. Other conditions are evaluated by Spark on joined rows. Only inner joins allow this.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from riffle_spark.process.plans.columns import Column, catalog_name
from riffle_spark.process.plans.grouping_keys import GroupingKey, choose_store_name
from riffle_spark.process.plans.new_expressions import (
    NewExpression,
    Value,
    cast_back,
    event_time_value,
    leaf_column,
    literal,
    null_like,
    remove_collation,
)
from riffle_spark.process.plans.plan_values import Expression, attribute_ids, same_expression
from riffle_spark.process.plans.rules import refusal_error
from riffle_spark.process.types import stage_specs

_IS_LEFT: Final = "is_left"
_EVENT_TIME: Final = "event_time"
_PASSES: Final = "passes"
_COMPARED: Final = "compared"
_JOIN: Final = "join"
"""The name under which a store records the type and the comparisons of its join."""
_OUTER: Final = {"LeftOuter": ("left",), "RightOuter": ("right",), "FullOuter": ("left", "right")}
_SEMI: Final = "LeftSemi"
_ATTRIBUTE: Final = "AttributeReference"
_FUNCTIONS: Final = {
    "LessThan": ("less", "greater"),
    "LessThanOrEqual": ("less_equal", "greater_equal"),
    "GreaterThan": ("greater", "less"),
    "GreaterThanOrEqual": ("greater_equal", "less_equal"),
}
"""Arrow's functions for Spark's comparisons of left with right, and of right with left."""
_SAME_ORDER: Final = frozenset(
    ("boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string", "binary")
)
"""Types that Arrow and Spark order alike. Decimals are another one."""


@dataclass(frozen=True, slots=True)
class ExpressionFacts:
    """Functions that read an expression in the JVM: its SQL, and the JSON of a field that has its type."""

    sql: Callable[[Expression], str]
    field: Callable[[Expression], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class EquiJoin:
    """A join as Spark's optimiser splits it: columns, equi-keys, residual conditions, event times and eviction delays.

    ``event_time_key`` is the index of the key that is an event time. As in Spark, a column that the optimiser removed
    below the join is not an event time. ``eviction_delays_ms`` holds per side how long after its event time a row can
    still match, or ``None`` if forever. ``used_columns`` are the ids of the columns that the query reads.
    """

    join_type: str
    columns: tuple[Sequence[Column], Sequence[Column]]
    keys: tuple[Sequence[GroupingKey], Sequence[GroupingKey]]
    residual_conditions: Sequence[Expression]
    event_time_key: int | None
    event_times: Sequence[Column | None]
    eviction_delays_ms: tuple[int | None, int | None]
    used_columns: Collection[int]


@dataclass(slots=True)
class JoinMapSide:
    """The rows that both sides send to the slots, with a unique name for each column.

    ``payload`` are the columns of each side as expressions. ``output_names`` maps the ids of the join's columns to
    names in the rows. ``key_backed`` maps such a name to the key column that holds its value.
    """

    join: EquiJoin
    facts: ExpressionFacts
    payload: tuple[dict[str, Value], dict[str, Value]] = field(default_factory=lambda: ({}, {}))
    comparisons: list[stage_specs.Comparison] = field(default_factory=list)
    comparison_sql: list[str] = field(default_factory=list)
    one_sided_conditions: tuple[list[Expression], list[Expression]] = field(default_factory=lambda: ([], []))
    spark_conditions: list[Expression] = field(default_factory=list)
    key_columns: list[str] = field(default_factory=list)
    output_names: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    key_backed: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    is_left: str = _IS_LEFT
    event_time: str | None = None
    filter_column: str = _PASSES

    def __post_init__(self) -> None:
        """Choose the columns of both sides.

        Raises ``ConfigError`` if an outer or semi join has a condition that slots cannot evaluate."""
        join = self.join
        self.key_columns = [column for key in join.keys[0] for column in key.columns]
        self.spark_conditions = [
            condition
            for condition in join.residual_conditions
            if all(self._reads_sides(condition)) and self._split_comparison(condition) is None
        ]
        if self.spark_conditions and join.join_type != "Inner":
            raise refusal_error("join_condition", self.facts.sql(self.spark_conditions[0]))
        used = set(join.used_columns).union(*map(attribute_ids, self.spark_conditions))
        for side, columns in enumerate(join.columns[:1] if join.join_type == _SEMI else join.columns):
            key_attributes = self._key_attributes(side)
            for column in (column for column in columns if column.id in used):
                if column.id in key_attributes:
                    name = self._unique_name(column.name)
                    self.output_names[side][column.id] = name
                    self.key_backed[side][name] = key_attributes[column.id]
                else:
                    self.output_names[side][column.id] = self._add_column(side, column.name, column.expression)
        for condition in join.residual_conditions:
            self._add_condition(condition)
        self.is_left = self._unique_name(_IS_LEFT)
        self.filter_column = self._unique_name(_PASSES)
        if any(time is not None for time in join.event_times):
            self.event_time = self._unique_name(_EVENT_TIME)

    def _key_attributes(self, side: int) -> dict[int, str]:
        """Return the attributes of a side that are themselves join keys: attribute id to key column."""
        pairs = zip(self.join.keys[side], self.join.keys[0], strict=True)
        return {
            key.expression.id: left_key.columns[0]
            for key, left_key in pairs
            if isinstance(key.expression, Expression) and key.expression.kind == _ATTRIBUTE and key.is_stored_whole
        }

    def _unique_name(self, name: str) -> str:
        """Return ``name``, or with a number if a column of the rows has it."""
        used_names = [*self.key_columns, *self.payload[0], *self.payload[1], *self.key_backed[0], *self.key_backed[1]]
        return stage_specs.make_unique_name(name, used_names)

    def _add_column(self, side: int, name: str, expression: Expression) -> str:
        """Add an expression to the columns of a side, and return its name in the rows."""
        unique_name = self._unique_name(name)
        self.payload[side][unique_name] = expression
        return unique_name

    def _add_condition(self, condition: Expression) -> None:
        """Add a residual condition of the join: a comparison of both sides, one that reads a single side, or one that
        Spark evaluates.
        """
        comparison = self._split_comparison(condition)
        reads_left, reads_right = self._reads_sides(condition)
        if comparison is not None:
            left, function, right = comparison
            left_column = self._find_or_add_column(0, left)
            right_column = self._find_or_add_column(1, right)
            self.comparisons.append(stage_specs.Comparison(left_column, function, right_column))
            self.comparison_sql.append(self.facts.sql(condition))
        elif not (reads_left and reads_right):
            self.one_sided_conditions[0 if reads_left else 1].append(condition)

    def _reads_sides(self, expression: Expression) -> list[bool]:
        """Return for the left and for the right side whether an expression reads columns of it."""
        ids = attribute_ids(expression)
        return [not ids.isdisjoint(column.id for column in columns) for columns in self.join.columns]

    def _split_comparison(self, condition: Expression) -> tuple[Expression, str, Expression] | None:
        """Return the left operand, Arrow's function and the right operand of a condition that compares both sides;
        ``None`` for other conditions.
        """
        functions = _FUNCTIONS.get(condition.kind)
        operands = condition.children
        if functions is None or not self._has_same_order_in_arrow(operands[0]):
            return None
        for function, (left, right) in zip(functions, (operands, operands[::-1]), strict=True):
            if self._reads_sides(left) == [True, False] and self._reads_sides(right) == [False, True]:
                return left, function, right
        return None

    def _has_same_order_in_arrow(self, expression: Expression) -> bool:
        """Return whether Arrow compares the values of an expression as Spark does."""
        field_json = self.facts.field(expression)
        name = str(field_json["type"])
        return (name in _SAME_ORDER and "collate" not in catalog_name(field_json)) or name.startswith("decimal")

    def _find_or_add_column(self, side: int, expression: Expression) -> str:
        """Return the name of the column that holds an expression of a side. The column is added if there is none."""
        is_attribute = expression.kind == _ATTRIBUTE
        if is_attribute and expression.id in self.output_names[side]:
            return self.output_names[side][expression.id]
        for name, value in self.payload[side].items():
            if isinstance(value, Expression) and same_expression(value, expression):
                return name
        return self._add_column(side, expression.name if is_attribute else _COMPARED, expression)

    def side_columns(self, side: int) -> Iterator[tuple[str, Value]]:
        """Yield the name and the expression of each column of a side's rows."""
        yield self.is_left, literal(side == 0)
        parts = [value for key in self.join.keys[side] for value in key.column_values().values()]
        yield from zip(self.key_columns, parts, strict=True)
        if self.event_time is not None:
            times = [None if time is None else event_time_value(time) for time in self.join.event_times]
            time = times[side]
            if time is None:
                other_time = times[1 - side]
                assert other_time is not None, "a side has an event time"
                time = null_like(other_time)
            yield self.event_time, time
        for column_side, columns in enumerate(self.payload):
            for name, value in columns.items():
                yield name, self._without_collation(value, value if column_side == side else null_like(value))
        if any(self.one_sided_conditions):
            conjunction: Value = literal(True)
            for condition in self.one_sided_conditions[side]:
                conjunction = NewExpression("and", (conjunction, condition))
            yield self.filter_column, conjunction

    def _without_collation(self, value: Value, sent: Value) -> Value:
        """Return ``sent``, the expression that is sent for column ``value``, without a collation."""
        if isinstance(value, Expression) and value.kind == _ATTRIBUTE:
            column = next((column for side in self.join.columns for column in side if column.id == value.id), None)
            if column is not None:
                return remove_collation(column, sent)
        return NewExpression("plain", (sent,))

    def make_spec(self, schema: pa.Schema, used_stores: Collection[str]) -> stage_specs.JoinSpec:
        """Return the specification of the join.

        Its slots get rows of ``schema``. ``used_stores`` are the names of the query's other stores.
        """
        return stage_specs.JoinSpec(
            choose_store_name("join", self.join.keys[0], used_stores),
            pa.schema([schema.field(name) for name in self.key_columns]),
            self.is_left,
            self._make_side(0, schema),
            self._make_side(1, schema),
            tuple(self.comparisons),
            _OUTER.get(self.join.join_type, ()),
            self.join.join_type == _SEMI,
            self.event_time,
        )

    def _make_side(self, side: int, schema: pa.Schema) -> stage_specs.JoinSide:
        """Return the specification of one side of the join, given the schema of the rows."""
        due: str | None = None
        delay_ms = self.join.eviction_delays_ms[side]
        if self.join.event_time_key is not None:
            due = self.join.keys[0][self.join.event_time_key].columns[-1]
            delay_ms = 0
        elif delay_ms is not None:
            due = self.event_time
        key_backed = self.key_backed[side]
        output, payload = (
            pa.schema([(name, schema.field(key_backed.get(name, name)).type) for name in names])
            for names in (self.output_names[side].values(), self.payload[side])
        )
        filter_column = self.filter_column if any(self.one_sided_conditions) else None
        return stage_specs.JoinSide(output, payload, filter_column, due, delay_ms or 0, tuple(key_backed.items()))

    def stored_meanings(self) -> dict[str, str]:
        """Return the join type and comparisons as ``join``, then the meaning of each stored column.

        They are compared on restart to detect a changed query. ``join`` gets a number if a column has this name.
        """
        columns = {
            name: f"{side} {self._sql_of(value)}"
            for side, payload in zip(("left", "right"), self.payload, strict=True)
            for name, value in payload.items()
        }
        name = stage_specs.make_unique_name(_JOIN, columns)
        return {name: " ".join([self.join.join_type, *self.comparison_sql]), **columns}

    def _sql_of(self, value: Value) -> str:
        """Return a column's expression as SQL, or its name if it is an attribute."""
        assert isinstance(value, Expression), "payload columns are expressions of the plan"
        return value.name if value.kind == _ATTRIBUTE else self.facts.sql(value)

    def result_value(self, column: Column) -> Value:
        """Return the expression of an output column of the join over the rows that slots return; null if the query does
        not read it.
        """
        names = {**self.output_names[0], **self.output_names[1]}
        if column.id not in names:
            return null_like(column.expression)
        return cast_back(leaf_column(names[column.id]), column)
