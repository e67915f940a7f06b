"""New expressions as values. ``TreeBuilder`` builds them in the JVM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.plan_values import Expression

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
    """Return the expression of the leaf's column of this name."""
    return NewExpression("column", (), name)


def field_of(struct: Value, index: int) -> Value:
    """Return the expression of the field with this index of a struct."""
    return NewExpression("field", (struct,), index)


def is_null(value: Value) -> Value:
    """Return the expression that is true if the value of ``value`` is null."""
    return NewExpression("is_null", (value,))


def literal(value: bool | int | str) -> Value:
    """Return the expression of a constant."""
    return NewExpression("literal", (), value)


def null_like(value: Value) -> Value:
    """Return the expression of a null that has the type of ``value``."""
    return NewExpression("null", (value,))


def if_else(condition: Value, value: Value, otherwise: Value) -> Value:
    """Return the expression of ``value`` if ``condition`` is true, else of ``otherwise``."""
    return NewExpression("if", (condition, value, otherwise))


def struct(fields: Sequence[tuple[str, Value]]) -> Value:
    """Return the expression of a struct with these (name, value) fields. Names may repeat, as in Spark."""
    return NewExpression("struct", tuple(value for _, value in fields), tuple(name for name, _ in fields))


def normalise_floats(value: Value) -> Value:
    """Return the expression of ``value`` with equal bits for equal floating-point numbers, as Spark normalises keys."""
    return NewExpression("normalised", (value,))


def remove_collation(column: Column, value: Value) -> Value:
    """Return the expression of ``value``, computed from ``column``, without the column's collations.

    Strings of Python workers have none.
    """
    return NewExpression("plain", (value,)) if column.has_collation else value


def event_time_value(time: Column) -> Value:
    """Return the expression that is compared with the watermark: the event time, or the end of a window."""
    return field_of(time.expression, 1) if time.is_struct else time.expression


def replace_columns(expression: Expression, columns: Mapping[int, Value]) -> Value:
    """Return the expression with values in place of its columns. ``columns`` maps column ids to values."""
    if expression.kind == "AttributeReference":
        return columns.get(expression.id, expression)
    children = [replace_columns(child, columns) for child in expression.children]
    if all(new is old for new, old in zip(children, expression.children, strict=True)):
        return expression
    return NewExpression("changed", (expression, *children))


def cast_back(value: Value, column: Column) -> Value:
    """Return the expression of a value from Python workers in the type of ``column``, if workers lose its collation,
    its interval units or the precision of its times.
    """
    return NewExpression("cast", (value, column.expression)) if column.has_collation or column.has_units else value


def assemble_struct(values: Mapping[Position, Value], nulls: Mapping[Position, Value], column: Column) -> Value:
    """Return the expression of a column's value, assembled from the values of its fields.

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
    """Return the expression of the part of ``column`` at this position. ``data_type`` is the JSON of its type."""
    if path in values:
        if not (column.has_collation or column.has_units):
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
    return if_else(nulls[path], null_like(assembled), assembled) if path in nulls else assembled
