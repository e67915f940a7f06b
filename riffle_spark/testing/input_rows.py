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

    Raises ``ConfigError`` for unknown columns, and for a table that lacks a column. The column types of a table are not
    checked.
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
    return pa.Table.from_pylist(dictionaries, schema=schema)
