"""Call user functions, and fit the tables that they return to the declared schema."""

import traceback
from collections.abc import Callable

import pyarrow as pa

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.types.fields import NotText
from riffle_spark.process.types.missing_modules import failure_hint
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.arrow_schemas import widens


def call_user_function(function: Callable[..., object], arguments: tuple[object, ...], where: str) -> object:
    """Call a user's function. Raises ``UserFunctionError`` with its traceback if it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        # Cause: The function's own code raised the error. Nothing of the batch was committed.
        raise UserFunctionError(
            f"{function_name(function)} raised {type(error).__name__}:\n{text}",
            remedy=f"Correct the function, its input or what it imports. {failure_hint(error)}",
            where=where,
            id="RIFFLE-0198",
        ) from error


def user_error(subject: str, error: Exception, step: str, where: str) -> UserFunctionError:
    """Return the ``UserFunctionError`` for an error of the user's code or of a conversion for it.

    ``subject`` is the user's code, such as ``processor``. ``step`` names the call.
    """
    if isinstance(error, NotText):
        # Cause: A value cannot be converted to Python or pandas, for example a string that is not UTF-8.
        return UserFunctionError(
            f"Cannot convert the input of the {subject}: {error}",
            remedy="Pass make_valid_utf8(column) or the column cast to binary to the function. The batch failed, and "
            "nothing was committed.",
            where=where,
            id="RIFFLE-0192",
        )
    if isinstance(error, Misfit):
        text = str(error)
    else:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    # Cause: The user's own code raised the error. Nothing of the batch was committed.
    return UserFunctionError(
        f"The {subject} raised {type(error).__name__}, {step}:\n{text}",
        remedy=f"Correct the {subject}, its input or what it imports. {failure_hint(error)}",
        where=where,
        id="RIFFLE-0193",
    )


def function_name(function: Callable[..., object]) -> str:
    """Return the name of a user's function for errors."""
    return getattr(function, "__qualname__", repr(function))


def conform_table(table: object, schema: pa.Schema, role: str, where: str) -> pa.Table:
    """Return a table that a user's function returned with exactly the schema's columns, in its order. ``role`` names
    the table in errors.

    Columns are matched by name and widened if that cannot fail for any value. Timestamps may change their unit if no
    value loses precision. Raises ``UserFunctionError`` for anything else.
    """
    if not isinstance(table, pa.Table):
        raise UserFunctionError(
            f"The {role} is a {type(table).__module__}.{type(table).__qualname__}, not a pyarrow.Table.",
            remedy="Return Arrow tables. If there is nothing to return, use schema.empty_table().",
            where=where,
            id="RIFFLE-0199",
        )
    if schema.names and table.schema.equals(schema, check_metadata=True) and all(field.nullable for field in schema):
        return table
    if sorted(table.column_names) != sorted(schema.names) or not all(
        widens(table.schema.field(field.name).type, field.type) for field in schema
    ):
        raise UserFunctionError(
            f"The {role} does not have the declared columns\n"
            f"  declared: {_describe_columns(schema)}\n  returned: {_describe_columns(table.schema)}",
            remedy="Return the declared columns, or declare what is returned. Cast columns whose types differ.",
            where=where,
            id="RIFFLE-0200",
        )
    return pa.table([_conform_column(table.column(field.name), field, role, where) for field in schema], schema=schema)


def _conform_column(column: pa.ChunkedArray, field: pa.Field, role: str, where: str) -> pa.ChunkedArray:
    """Return a column in the type of its field.

    Raises ``UserFunctionError`` for nulls in a NOT NULL column, and for values that do not fit.
    """
    if column.null_count and not field.nullable:
        raise UserFunctionError(
            f"Column {field.name!r} of the {role} has nulls, but is declared not null.",
            remedy="Fill them, or declare the column nullable.",
            where=where,
            id="RIFFLE-0201",
        )
    try:
        return cast_column(column, field.type)
    except pa.ArrowInvalid as error:
        # Cause: A value is too large for the declared type, or would lose digits in it.
        raise UserFunctionError(
            f"Column {field.name!r} of the {role} has values that {field.type} cannot hold: {error}",
            remedy=f"Round or cast the column to {field.type} in the function.",
            where=where,
            id="RIFFLE-0202",
        ) from error


def _describe_columns(schema: pa.Schema) -> str:
    """Return the names and types of the columns as text for errors."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"
