"""Call what a user gave, and fit a table that it returned to the schema that was declared. Knows Arrow types. Does not
know keys or state.
"""

import traceback
from collections.abc import Callable

import pyarrow as pa

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.types.missing_modules import failure_remedy
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.arrow_schemas import widens

__all__ = ["called", "conform", "name_of"]


def called(function: Callable[..., object], arguments: tuple[object, ...], where: str) -> object:
    """Return what a user's function returns; ``UserFunctionError`` that shows where it failed."""
    try:
        return function(*arguments)
    except Exception as error:
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        told = "".join(traceback.format_exception(type(error), error, inner)).rstrip()
        raise UserFunctionError(
            f"{name_of(function)} raised {type(error).__name__}:\n{told}",
            remedy=failure_remedy(error, "function"),
            where=where,
            id="RIFFLE-0198",
        ) from error


def name_of(function: Callable[..., object]) -> str:
    """Return what a function is called."""
    return getattr(function, "__qualname__", repr(function))


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
            id="RIFFLE-0199",
        )
    if sorted(table.column_names) != sorted(schema.names) or not all(
        widens(table.schema.field(field.name).type, field.type) for field in schema
    ):
        raise UserFunctionError(
            f"The {what} has not the declared columns\n{_compared(schema, table.schema)}",
            remedy="Return the declared columns, or declare what is returned; cast where types differ.",
            where=where,
            id="RIFFLE-0200",
        )
    return pa.table([_column(table.column(field.name), field, what, where) for field in schema], schema=schema)


def _column(column: pa.ChunkedArray, field: pa.Field, what: str, where: str) -> pa.ChunkedArray:
    if column.null_count and not field.nullable:
        raise UserFunctionError(
            f"The {what} has nulls in column {field.name!r}, which is declared not null",
            remedy="Fill them, or declare the column nullable.",
            where=where,
            id="RIFFLE-0201",
        )
    try:
        return cast_column(column, field.type)
    except pa.ArrowInvalid as error:
        raise UserFunctionError(
            f"The {what} has values in column {field.name!r} that {field.type} cannot hold: {error}",
            remedy=f"Round or cast the column to {field.type} in the function.",
            where=where,
            id="RIFFLE-0202",
        ) from error


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
