"""Pack the result of a slot into few rows, each with an array of output rows.

Spark stores the result row by row. It estimates the size of stored rows, and serialises each row if it keeps two
copies. Both take longer than to compute the rows, so Spark gets chunks of ``CHUNK_ROWS`` output rows.

Spark holds a stored row in one array of bytes, of at most 2 GiB. So a result that may be large has chunks of one row.

The results of several stores form one table. Each chunk belongs to one store. The columns of other stores are null.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.messages.slot_orders import ATTEMPT, LETTER, RECEIPT, without_letters

CHUNK_ROWS = 1024
CHUNK_BYTES = 32 << 20
"""If the strings, lists and maps of a result may take more bytes, its chunks have one row."""
_VALUE_BYTES = 40
"""Spark adds at most these bytes to a value in a list or map: 8 for its position, 32 for its length and padding."""


def rows_column(place: int) -> str:
    """Return the name of the array column with the output rows of a store. ``place`` is its index in the result."""
    return f"__riffle_output_{place}"


def letters_column(place: int) -> str:
    """Return the name of the array column with the dead letters of a store. ``place`` is its index in the result."""
    return f"{LETTER}_{place}"


def chunked_schema(results: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema of the chunks, given the schema of each store's result (``result_schema``)."""
    fields = [results[0].field(ATTEMPT), results[0].field(RECEIPT)]
    for place, result in enumerate(results):
        rows = without_letters(pa.schema([field for field in result if field.name not in (ATTEMPT, RECEIPT)]))
        fields.append(pa.field(rows_column(place), pa.list_(pa.struct(list(rows)))))
        if LETTER in result.names:
            fields.append(pa.field(letters_column(place), pa.list_(result.field(LETTER).type)))
    return pa.schema(fields)


def chunk_results(results: Iterable[pa.Table], schemas: Sequence[pa.Schema]) -> pa.Table:
    """Return a slot's results for several stores in chunks. The receipt of each store is in a row of its own.

    ``schemas`` has the schema of each result. The chunks are copies of the rows. A caller that passes an iterator, and
    holds no reference to a result, needs the memory for two copies of one store only.
    """
    schema = chunked_schema(schemas)
    parts: list[pa.Table] = []
    for place, result in enumerate(results):
        parts += _parts(result, place, schema)
    return pa.concat_tables(parts)


def _parts(result: pa.Table, place: int, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the chunks of a store's result, then the row with the receipt. ``place`` is the index of the store."""
    count = result.num_rows - 1
    attempt = result.column(ATTEMPT)[count]
    rows = result.slice(0, count).drop_columns([ATTEMPT, RECEIPT])
    is_large = sum(_variable_bytes(chunk) for column in rows.columns for chunk in column.chunks) > CHUNK_BYTES
    rows = rows if is_large else rows.combine_chunks()
    chunk_rows = 1 if is_large else CHUNK_ROWS
    letters: list[pa.Array] = []
    if LETTER in rows.column_names:
        column = rows.column(LETTER)
        letters = list(_split(column.drop_null().chunks, chunk_rows, schema.field(letters_column(place)).type))
        rows = rows.filter(pc.is_null(column)) if letters else rows
        rows = rows.drop_columns([LETTER])
    kind = schema.field(rows_column(place)).type
    structs = (
        pa.Array.from_buffers(kind.value_type, batch.num_rows, [None], children=batch.columns)
        for batch in rows.to_batches()
    )
    for chunk in _split(structs, chunk_rows, kind):
        yield _part(rows_column(place), chunk, attempt, schema)
    for chunk in letters:
        yield _part(letters_column(place), chunk, attempt, schema)
    yield _part(RECEIPT, result.column(RECEIPT).slice(count), attempt, schema)


def _part(name: str, values: pa.Array | pa.ChunkedArray, attempt: pa.Scalar, schema: pa.Schema) -> pa.Table:
    """Return rows of an attempt with the values of column ``name``. All other columns are null."""
    columns = {ATTEMPT: pa.repeat(attempt, len(values)), name: values}
    return pa.table(
        [columns[f.name] if f.name in columns else pa.nulls(len(values), f.type) for f in schema], schema=schema
    )


def _split(structs: Iterable[pa.Array], rows: int, kind: pa.ListType) -> Iterator[pa.Array]:
    """Yield each non-empty array of structs as an array of lists with at most ``rows`` structs."""
    for values in structs:
        if len(values):
            offsets = np.append(np.arange(0, len(values), rows, dtype=np.int32), np.int32(len(values)))
            yield pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)


def _variable_bytes(array: pa.Array) -> int:
    """Return an upper bound of the bytes that the strings, lists and maps of an array take in Spark."""
    kind = array.type
    if types.is_struct(kind):
        return sum(_variable_bytes(array.field(index)) for index in range(kind.num_fields))
    if types.is_nested(kind) and len(array):
        start, end = (array.offsets[place].as_py() for place in (0, -1))
        children = [array.keys, array.items] if types.is_map(kind) else [array.values]
        places: int = sum(_count_values(child.type) for child in children) * (end - start)
        return places * _VALUE_BYTES + sum(_variable_bytes(child.slice(start, end - start)) for child in children)
    is_bytes = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
    return int(array.nbytes) if is_bytes or types.is_large_binary(kind) else 0


def _count_values(kind: pa.DataType) -> int:
    """Return the number of values in a value of a type: one, and for a struct also those of its fields."""
    if not types.is_struct(kind):
        return 1
    return 1 + sum(_count_values(kind.field(index).type) for index in range(kind.num_fields))
