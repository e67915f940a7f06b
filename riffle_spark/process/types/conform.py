"""Fit a table that a user returned to the schema that was declared. Knows Arrow types. Does not know keys or state."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from riffle_spark.errors import UserFunctionError

__all__ = ["conform", "widens"]


def conform(table: object, schema: pa.Schema, what: str, where: str) -> pa.Table:
    """Return the table with exactly the schema's columns, in its order.

    Columns are matched by name and widened where that cannot fail on any value; timestamps may change their unit if
    they lose nothing. Anything else raises ``UserFunctionError`` that shows both schemas, column by column.
    """
    if not isinstance(table, pa.Table):
        raise UserFunctionError(
            f"The {what} is a {type(table).__module__}.{type(table).__qualname__}, not a pyarrow.Table",
            remedy="Return Arrow tables; where there is nothing to return, schema.empty_table().",
            where=where,
        )
    if sorted(table.column_names) != sorted(schema.names) or not all(
        widens(table.schema.field(field.name).type, field.type) for field in schema
    ):
        raise UserFunctionError(
            f"The {what} has not the declared columns\n{_compared(schema, table.schema)}",
            remedy="Return the declared columns, or declare what is returned; cast where types differ.",
            where=where,
        )
    return pa.table([_column(table.column(field.name), field, what, where) for field in schema], schema=schema)


def _column(column: pa.ChunkedArray, field: pa.Field, what: str, where: str) -> pa.ChunkedArray:
    if column.null_count and not field.nullable:
        raise UserFunctionError(
            f"The {what} has nulls in column {field.name!r}, which is declared not null",
            remedy="Fill them, or declare the column nullable.",
            where=where,
        )
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise UserFunctionError(
            f"The {what} has values in column {field.name!r} that {field.type} cannot hold: {error}",
            remedy=f"Round or cast the column to {field.type} in the function.",
            where=where,
        ) from error


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Tell whether every value of one type is a value of the other."""
    if source == target or types.is_null(source):
        return True
    if types.is_dictionary(source):
        return widens(source.value_type, target)
    if types.is_timestamp(source) and types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if types.is_decimal(source) and types.is_decimal(target):
        digits = [type.precision - type.scale for type in (source, target)]
        return bool(source.scale <= target.scale and digits[0] <= digits[1])
    if types.is_nested(source):
        return _nested_widens(source, target)
    return _number_widens(source, target) or _same_bytes(source, target)


def _number_widens(source: pa.DataType, target: pa.DataType) -> bool:
    if types.is_integer(source) and types.is_integer(target):
        spare = types.is_unsigned_integer(source) and types.is_signed_integer(target)
        loses_sign = types.is_signed_integer(source) and types.is_unsigned_integer(target)
        return not loses_sign and bool(source.bit_width + spare <= target.bit_width)
    if types.is_integer(source) and types.is_floating(target):
        return bool(2 * source.bit_width <= target.bit_width)
    return bool(types.is_floating(source) and types.is_floating(target) and source.bit_width <= target.bit_width)


def _same_bytes(source: pa.DataType, target: pa.DataType) -> bool:
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    octets = (types.is_binary, types.is_large_binary, types.is_binary_view)
    return any(
        any(is_one(source) for is_one in kind) and any(is_one(target) for is_one in kind) for kind in (texts, octets)
    )


def _nested_widens(source: pa.DataType, target: pa.DataType) -> bool:
    lists = (types.is_list, types.is_large_list)
    if any(is_one(source) for is_one in lists) and any(is_one(target) for is_one in lists):
        return widens(source.value_type, target.value_type)
    if types.is_struct(source) and types.is_struct(target):
        same_names = [field.name for field in source] == [field.name for field in target]
        return same_names and all(widens(one.type, other.type) for one, other in zip(source, target, strict=True))
    both_maps = types.is_map(source) and types.is_map(target)
    return both_maps and source.key_type == target.key_type and widens(source.item_type, target.item_type)


def _compared(declared: pa.Schema, returned: pa.Schema) -> str:
    """Show two schemas side by side, a line a column."""
    names = [*declared.names, *(name for name in dict.fromkeys(returned.names) if name not in declared.names)]
    lines = [("column", "declared", "returned", "")]
    for name in names:
        one, other = _types_of(declared, name), _types_of(returned, name)
        lines.append(
            (name, " and ".join(map(str, one)) or "-", " and ".join(map(str, other)) or "-", _verdict(one, other))
        )
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join(
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip()
        for line in lines
    )


def _types_of(schema: pa.Schema, name: str) -> list[pa.DataType]:
    return [field.type for field in schema if field.name == name]


def _verdict(declared: list[pa.DataType], returned: list[pa.DataType]) -> str:
    if not returned:
        return "<- missing"
    if not declared:
        return "<- not declared"
    if len(returned) > 1:
        return "<- more than once"
    return "" if widens(returned[0], declared[0]) else f"<- cannot become {declared[0]}"
