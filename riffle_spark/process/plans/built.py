"""Expressions to be built in the JVM, as values: of the expressions that a plan has, and of the columns of a leaf."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.plan_values import Expression

__all__ = [
    "Built",
    "Value",
    "cast_back",
    "choose",
    "end_value",
    "field_of",
    "is_null",
    "leaf_column",
    "literal",
    "normalised",
    "null_like",
    "put_together",
    "struct",
    "with_columns",
    "without_collation",
]

BuiltKind: TypeAlias = Literal[
    "and", "cast", "changed", "column", "field", "if", "is_null", "literal", "normalised", "null", "plain", "struct"
]


@dataclass(frozen=True, slots=True)
class Built:
    """An expression to be built of others. ``value`` is what it has beside them: a name, an index or a literal."""

    kind: BuiltKind
    parts: "tuple[Value, ...]" = ()
    value: object = None


Value: TypeAlias = Expression | Built
Position: TypeAlias = tuple[int, ...]
"""The position of a field in a type: an index for each struct around it."""


def leaf_column(name: str) -> Value:
    """Return a column of the leaf below."""
    return Built("column", (), name)


def field_of(whole: Value, index: int) -> Value:
    """Return a field of a struct."""
    return Built("field", (whole,), index)


def is_null(tested: Value) -> Value:
    """Return whether an expression is null."""
    return Built("is_null", (tested,))


def literal(value: bool | int | str) -> Value:
    """Return a literal."""
    return Built("literal", (), value)


def null_like(other: Value) -> Value:
    """Return a null of the type that another expression has."""
    return Built("null", (other,))


def choose(condition: Value, then: Value, otherwise: Value) -> Value:
    """Return one expression if a condition is true, else another one."""
    return Built("if", (condition, then, otherwise))


def struct(fields: Sequence[tuple[str, Value]]) -> Value:
    """Return a struct of these fields. Several may have the same name, as in Spark."""
    return Built("struct", tuple(value for _, value in fields), tuple(name for name, _ in fields))


def normalised(value: Value) -> Value:
    """Return an expression whose equal floating-point numbers have equal bits, as Spark groups by them."""
    return Built("normalised", (value,))


def without_collation(column: Column, value: Value) -> Value:
    """Return a value of a column's type as Python workers take it: their strings have no collation."""
    return Built("plain", (value,)) if column.has_collation else value


def end_value(time: Column) -> Value:
    """Return what of an event time is compared with the watermark: of a window it is the end."""
    return field_of(time.expression, 1) if time.is_struct else time.expression


def with_columns(expression: Expression, columns: Mapping[int, Value]) -> Value:
    """Return an expression with other values in the place of its columns, by their ids."""
    if expression.kind == "AttributeReference":
        return columns.get(expression.id, expression)
    children = [with_columns(child, columns) for child in expression.children]
    if all(made is child for made, child in zip(children, expression.children, strict=True)):
        return expression
    return Built("changed", (expression, *children))


def cast_back(value: Value, column: Column) -> Value:
    """Return a value that Python workers returned in the type of a column, if they lose a part of that type."""
    return Built("cast", (value, column.expression)) if column.has_collation or column.has_interval else value


def put_together(
    value: Mapping[tuple[int, ...], Value], nulls: Mapping[tuple[int, ...], Value], column: Column
) -> Value:
    """Return a column's value of those of its fields. Both mappings have the positions of fields as keys: ``value`` the
    values of those that are no structs, and ``nulls`` whether a struct is null.
    """
    return _put_together(column.type, (), value, nulls, column)


def _put_together(
    data_type: object,
    path: Position,
    values: Mapping[Position, Value],
    nulls: Mapping[Position, Value],
    column: Column,
) -> Value:
    if path in values:
        if not (column.has_collation or column.has_interval):
            return values[path]
        like: Value = column.expression
        for index in path:
            like = field_of(like, index)
        return Built("cast", (values[path], like))
    assert isinstance(data_type, Mapping), "only structs have fields"
    made = struct(
        [
            (str(each["name"]), _put_together(each["type"], (*path, index), values, nulls, column))
            for index, each in enumerate(data_type["fields"])
        ]
    )
    return choose(nulls[path], null_like(made), made) if path in nulls else made
