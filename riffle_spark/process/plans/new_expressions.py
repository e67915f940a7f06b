"""New expressions as values. ``TreeBuilder`` builds them in the JVM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.plan_values import Expression

__all__ = [
    "NewExpression",
    "Value",
    "assemble_struct",
    "cast_back",
    "choose",
    "end_value",
    "field_of",
    "is_null",
    "leaf_column",
    "literal",
    "normalised",
    "null_like",
    "struct",
    "with_columns",
    "without_collation",
]

BuiltKind: TypeAlias = Literal[
    "and", "cast", "changed", "column", "field", "if", "is_null", "literal", "normalised", "null", "plain", "struct"
]


@dataclass(frozen=True, slots=True)
class NewExpression:
    """A new expression with other expressions as parts. ``value`` is a name, names, an index or a literal."""

    kind: BuiltKind
    parts: "tuple[Value, ...]" = ()
    value: object = None


Value: TypeAlias = Expression | NewExpression
Position: TypeAlias = tuple[int, ...]
"""The position of a field in a nested type: an index for each level."""


def leaf_column(name: str) -> Value:
    """Return a column of the leaf."""
    return NewExpression("column", (), name)


def field_of(struct: Value, index: int) -> Value:
    """Return a field of a struct."""
    return NewExpression("field", (struct,), index)


def is_null(value: Value) -> Value:
    """Return whether an expression is null."""
    return NewExpression("is_null", (value,))


def literal(value: bool | int | str) -> Value:
    """Return a literal."""
    return NewExpression("literal", (), value)


def null_like(value: Value) -> Value:
    """Return a null with the type of another expression."""
    return NewExpression("null", (value,))


def choose(condition: Value, value: Value, otherwise: Value) -> Value:
    """Return ``value`` if a condition is true, else ``otherwise``."""
    return NewExpression("if", (condition, value, otherwise))


def struct(fields: Sequence[tuple[str, Value]]) -> Value:
    """Return a struct of fields. Names may repeat, as in Spark."""
    return NewExpression("struct", tuple(value for _, value in fields), tuple(name for name, _ in fields))


def normalised(value: Value) -> Value:
    """Return an expression in which equal floating-point numbers have equal bits, as Spark normalises keys."""
    return NewExpression("normalised", (value,))


def without_collation(column: Column, value: Value) -> Value:
    """Return a value without collations, because strings of Python workers have none."""
    return NewExpression("plain", (value,)) if column.has_collation else value


def end_value(time: Column) -> Value:
    """Return the value of a column that is compared with the watermark: an event time, or the end of a window."""
    return field_of(time.expression, 1) if time.is_struct else time.expression


def with_columns(expression: Expression, columns: Mapping[int, Value]) -> Value:
    """Return an expression with values in place of columns. ``columns`` maps column ids to values."""
    if expression.kind == "AttributeReference":
        return columns.get(expression.id, expression)
    children = [with_columns(child, columns) for child in expression.children]
    if all(new is old for new, old in zip(children, expression.children, strict=True)):
        return expression
    return NewExpression("changed", (expression, *children))


def cast_back(value: Value, column: Column) -> Value:
    """Return a value from Python workers in the type of a column, if they lose its collation or its units."""
    return NewExpression("cast", (value, column.expression)) if column.has_collation or column.has_interval else value


def assemble_struct(values: Mapping[Position, Value], nulls: Mapping[Position, Value], column: Column) -> Value:
    """Return a column's value from the values of its fields.

    By position, ``values`` has the fields that are not structs, and ``nulls`` the flags that a struct is null.
    """
    return _assemble(column.type, (), values, nulls, column)


def _assemble(
    data_type: object,
    path: Position,
    values: Mapping[Position, Value],
    nulls: Mapping[Position, Value],
    column: Column,
) -> Value:
    if path in values:
        if not (column.has_collation or column.has_interval):
            return values[path]
        original: Value = column.expression
        for index in path:
            original = field_of(original, index)
        return NewExpression("cast", (values[path], original))
    assert isinstance(data_type, Mapping), "only structs have fields"
    fields = [
        (str(field["name"]), _assemble(field["type"], (*path, index), values, nulls, column))
        for index, field in enumerate(data_type["fields"])
    ]
    assembled = struct(fields)
    return choose(nulls[path], null_like(assembled), assembled) if path in nulls else assembled
