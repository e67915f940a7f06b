"""Convert the rows and the schema that a test passes to Arrow."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.unknown_names import check_known

Row = Mapping[str, object]
"""The values of a row by column."""


def input_schema(schema: object) -> pa.Schema:
    """Return a schema from pyarrow or DDL text as an Arrow schema. Raises ``ConfigError`` for anything else."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return schema_of_ddl(schema)
    raise ConfigError(
        f"A {type(schema).__name__} is not a schema.",
        remedy='Pass a pyarrow.Schema, or DDL text such as "user string, visits long".',
        where="input",
        id="RIFFLE-0475",
    )


def input_table(rows: pa.Table | Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Return rows as a table with these columns. A column that a dictionary omits is null.

    Raises ``ConfigError`` for unknown columns, for a table that lacks a column, and for a value of a dictionary that
    does not fit its column. The column types of a table are not checked.
    """
    if isinstance(rows, pa.Table):
        check_known("column", rows.column_names, schema.names, source="the fed rows", where="the table")
        missing = [name for name in schema.names if name not in rows.column_names]
        if missing:
            raise ConfigError(
                f"Column {missing[0]!r} is missing.",
                remedy="Pass a table with all columns of the input.",
                where="the table",
                id="RIFFLE-0476",
            )
        return rows if rows.column_names == schema.names else rows.select(schema.names)
    dictionaries = list(rows)
    for number, row in enumerate(dictionaries):
        check_known("column", row, schema.names, source="the fed rows", where=f"row {number}")
    columns = [_input_column([row.get(field.name) for row in dictionaries], field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _input_column(values: list[object], field: pa.Field) -> pa.Array:
    """Return the values as an Arrow array of the field's type. Raises ``ConfigError`` for a value that does not fit."""
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        name = field.name
        column_type = field.type
        reason = str(error).rstrip(".")
        raise ConfigError(
            f"A value does not fit column {name!r} ({column_type}): {reason}.",
            remedy="Correct the value in the fed rows, or the type in the input schema.",
            where="the fed rows",
            id="RIFFLE-1751",
        ) from error
