"""Parts that were written with earlier columns, as parts of today's. Knows Arrow schemas. Does not know which changes
are allowed.

What a schema may become is decided where a query starts; here a column that a part lacks is null, one that is not
declared any more is left out, and one of a narrower type is widened.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from riffle_spark.errors import CorruptStateError

__all__ = ["fitted", "layout_of"]


def fitted(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns. Raises ``CorruptStateError`` if a value does not fit."""
    if table.schema.equals(wanted):
        return table
    return pa.table([_column(table, field) for field in wanted], schema=wanted)


def _column(table: pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    column = table.column(field.name)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise CorruptStateError(
            f"column {field.name!r} was written as {column.type} and does not fit {field.type}: {error}",
            remedy="declare the column as it is stored",
        ) from error


def layout_of(*schemas: pa.Schema) -> bytes:
    """Return a name for how rows of these columns lie in a local copy: a digest of names and types, in order."""
    text = "|".join(f"{field.name}: {field.type}" for schema in schemas for field in schema)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest().encode()
