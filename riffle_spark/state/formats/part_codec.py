"""Encode and decode the parts of deltas and snapshots: Arrow IPC streams.

A part is a self-contained stream with key columns, state columns and, in a delta, ``__deleted``. The record or list
that names a part holds its checksum (XXH3-64). The schema's metadata holds the format version:

| format | rows |
| --- | --- |
| 1 | unsorted, compressed with zstd |
| 2 | sorted by ``__hash``, not compressed, so that they are read in place |
| 3 | rows of variables, sorted by ``__hash`` within each variable; changes of a batch are compressed with LZ4 |

A *block* holds the rows of several parts of format 2 or 3 one after the other (``blocks``). It is never stored in a
root.
"""

import struct
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from riffle_spark.columns import Offsets
from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, RefusedError, raise_if_memory
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.arrow_messages import check_sizes, may_unpack
from riffle_spark.state.formats.arrow_schemas import check_names, check_storable, inner_types
from riffle_spark.state.formats.arrow_values import check_buffers
from riffle_spark.state.formats.due_times import DUE_COLUMN, DUE_ORDER, DUE_SPAN, add_due_order, add_due_orders

_UNSORTED = b"1"
_BY_HASH = b"2"
_BY_VARIABLE = b"3"
_FORMATS = (_UNSORTED, _BY_HASH, _BY_VARIABLE)
_BLOCK = b"block"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
HASH = "__hash"
"""The column of the keys' 64-bit hashes."""
DELETED = "__deleted"
"""The column of deltas that is true if the key's state was deleted."""
VARIABLE = "__variable"
"""The column with the name of each row's variable, in stores of variables."""
ENCRYPTED = (b"RFE1", b"RFE2")
"""The first bytes of an encrypted part, by the version of its frame. No Arrow stream starts with them."""
IN_PLAIN = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow stream, and so of each part that is not encrypted."""
_VERSION_KEY = b"riffle.format"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""Waking threads takes longer than unpacking a part's few columns, and other slots use the cores."""
_PLAIN = pa.ipc.IpcWriteOptions(compression=None)
_COMPRESS_FROM_BYTES = 32 * 1024
"""Smaller parts are not compressed with zstd: opening a compressor ten times costs more than the saved bytes."""
_PACK_FROM_BYTES = 8 * 1024
"""The same for LZ4. It takes a fifth of the time of zstd."""
_HEADERS_MAX = 1 / 8
"""The rows of a delta are stored as one block if the headers of its parts would be more than this share of them."""
_STORED_BLOCK_BYTES_MAX = 64 << 20
"""A reader of one key-group gets the whole block, so a larger delta is stored in parts."""
_RATIO_MAX = 0.9
"""A part stays uncompressed if compression does not reduce it to this share. Then it can be read in place."""


Data: TypeAlias = bytes | memoryview | pa.Buffer
Checksum = xxhash.xxh3_64
"""``checksum`` of bytes in pieces: ``update`` and then ``intdigest``."""


def checksum(data: Data) -> int:
    """Return the XXH3-64 of the bytes."""
    return xxhash.xxh3_64_intdigest(data)


def encode(table: pa.Table, due: str | None = None, *, packed: bool = False) -> bytes:
    """Return the bytes of one part. If its rows have hashes, they are sorted and the format is 2, or 3 for variables.

    ``due`` names the due column, if there is any. ``packed`` compresses variables. It is for the changes of a batch,
    which fit into memory and compress well. Merged parts may not fit, so they are read in place.
    """
    if HASH in table.column_names and VARIABLE in table.column_names:
        data = _compress(table, _PACKED, _BY_VARIABLE, _PACK_FROM_BYTES if packed else None)
    elif HASH in table.column_names:
        data = bytes(_write_stream(table if due is None else add_due_order(table, due, DELETED), _PLAIN, _BY_HASH))
    else:
        data = _compress(table, _COMPRESSED, _UNSORTED, _COMPRESS_FROM_BYTES)
    if any(map(_may_take_no_bytes, table.schema.types)):
        _check_readable(data)
    return data


def encode_slices(table: pa.Table, starts: Offsets, due: str | None = None) -> tuple[list[bytes], bytes]:
    """Return the bytes of each part of a delta, as ``encode`` returns them for its rows, and those of a block with all
    rows. Return no parts if the block should be stored instead of them: they are small, so each would mostly be header.

    The rows of part ``i`` are ``starts[i]`` up to ``starts[i + 1]``. All parts are encoded at once, because an Arrow
    writer for each takes longer than the rows.
    """
    ranges = list(zip(starts[:-1].tolist(), np.diff(starts).tolist(), strict=True))
    rows = table
    spans: list[tuple[int, int] | None] = [None] * len(ranges)
    if due is not None:
        rows, spans = add_due_orders(table, due, DELETED, starts)
    batches = rows.to_batches()
    block = encode_block(rows, starts, packed=True)
    may_take_no_bytes = any(map(_may_take_no_bytes, table.schema.types))
    if _is_better_as_block(batches, len(ranges), block) and (not may_take_no_bytes or _is_readable(block)):
        return [], block
    if VARIABLE in table.column_names or may_take_no_bytes or len(batches) != 1:
        return [encode(table.slice(*part), due, packed=True) for part in ranges], block
    headers: dict[tuple[int, int] | None, bytes] = {}
    parts = list[bytes]()
    for (start, count), span in zip(ranges, spans, strict=True):
        if not count:
            parts.append(encode(table.slice(start, 0), due))
            continue
        if span not in headers:
            headers[span] = _plain_header(rows.schema, span)
        parts.append(b"".join((headers[span], batches[0].slice(start, count).serialize(), _END_OF_STREAM)))
    return parts, block


def _is_better_as_block(batches: list[pa.RecordBatch], parts: int, block: bytes) -> bool:
    """Return whether the headers of ``parts`` parts would be large relative to the rows in ``batches``."""
    if not batches:
        return True
    header_bytes = 2 * batches[0].schema.serialize().size  # the header of the rows has about as many
    return bool(len(block) <= min(parts * header_bytes / _HEADERS_MAX, _STORED_BLOCK_BYTES_MAX))


def _plain_header(schema: pa.Schema, due_span: tuple[int, int] | None) -> bytes:
    """Return the first message of a part of format 2: its schema, with its least and greatest due time (ms)."""
    metadata = {_VERSION_KEY: _BY_HASH, **_due_metadata(schema)}
    if due_span is not None:
        metadata[DUE_SPAN] = b"%d,%d" % due_span
    return bytes(schema.with_metadata(metadata).serialize())


def encode_block(table: pa.Table, starts: Offsets, due: str | None = None, *, packed: bool = False) -> bytes:
    """Return the bytes of a block of rows that have hashes.

    ``starts`` are as in ``encode_slices``, ``packed`` is as in ``encode``. ``due`` names the due column if the rows
    have no due order yet.
    """
    if due is not None:
        table = add_due_orders(table, due, DELETED, starts)[0]
    if VARIABLE in table.column_names:
        return _compress(table, _PACKED, _BLOCK, _PACK_FROM_BYTES if packed else None)
    return bytes(_write_stream(table, _PLAIN, _BLOCK))


def _is_readable(data: bytes) -> bool:
    """Return whether a reader accepts the size of these bytes."""
    try:
        check_sizes(memoryview(data))
    except ValueError:
        return False
    return True


def _check_readable(data: bytes) -> None:
    """Raise ``ConfigError`` for a part of a size that a reader would refuse."""
    try:
        check_sizes(memoryview(data))
    except ValueError as error:
        # Cause: Arrays whose values take no bytes have more elements than a reader accepts.
        raise ConfigError(
            f"The changes of a key-group could not be read again: {error}",
            remedy="Keep shorter arrays of void elements or of structs without fields.",
            id="RIFFLE-0396",
        ) from error


@lru_cache(maxsize=1024)
def _may_take_no_bytes(kind: pa.DataType) -> bool:
    """Return whether values of a type, or their elements, may take no bytes. Readers limit their number."""
    inner = inner_types(kind)
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not inner) or any(map(_may_take_no_bytes, inner))


def _compress(table: pa.Table, options: pa.ipc.IpcWriteOptions, version: bytes, from_bytes: int | None) -> bytes:
    """Return the bytes of a part, compressed if the table has ``from_bytes`` bytes, if that saves enough and if readers
    accept the ratio.
    """
    if from_bytes is not None and table.nbytes >= from_bytes:
        compressed = _write_stream(table, options, version)
        if compressed.size < _RATIO_MAX * table.nbytes and may_unpack(compressed.size, table.nbytes):
            return bytes(compressed)
    return bytes(_write_stream(table, _PLAIN, version))


def _write_stream(table: pa.Table, options: pa.ipc.IpcWriteOptions, version: bytes) -> pa.Buffer:
    """Return a table as an Arrow IPC stream with the format version in its metadata."""
    schema = table.schema.with_metadata({_VERSION_KEY: version, **_due_metadata(table.schema)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def _due_metadata(schema: pa.Schema) -> dict[bytes, bytes]:
    """Return the metadata about due times in a schema."""
    return {key: text for key, text in (schema.metadata or {}).items() if key in (DUE_COLUMN, DUE_SPAN)}


def decode(data: Data, expected: int, where: str, decrypt: Callable[[Data], Data] | None = None) -> pa.Table:
    """Return the table of one part without hashes and due order, if its checksum is ``expected``.

    ``decrypt`` decrypts the bytes. Raises ``CorruptStateError`` naming ``where`` if the bytes were altered or have an
    unknown format.
    """
    if checksum(data) != expected:
        raise altered_error(where)
    table = open_part(decrypt(data) if decrypt else data, where)
    added = [name for name in (HASH, DUE_ORDER) if name in table.column_names]
    if any(table.column_names.count(name) > 1 for name in added):
        raise altered_error(where)
    return table.drop_columns(added).replace_schema_metadata(None)


def altered_error(where: str) -> CorruptStateError:
    """Return the error for an object whose bytes do not have the checksum in the log."""
    return CorruptStateError(
        "The bytes are truncated or altered: their checksum differs from the log's.",
        remedy="Restore the object from a backup, or roll back to a version without it (riffle rollback).",
        where=where,
        id="RIFFLE-0397",
    )


def open_block(data: Data, where: str) -> pa.Table:
    """Return the table of a block with verified checksum, as ``open_part`` returns that of a part."""
    return open_part(data, where, (_BLOCK,))


def open_part(data: Data, where: str, formats: Collection[bytes] = _FORMATS) -> pa.Table:
    """Return the table of a part with verified checksum, over the same bytes, with its metadata.

    ``formats`` are the accepted formats.

    Raises ``CorruptStateError`` naming ``where`` if the bytes have an unknown format, ``RefusedError`` if they are
    encrypted, ``MemoryError`` if there is no memory for the rows.
    """
    if bytes(memoryview(data)[: len(ENCRYPTED[0])]) in ENCRYPTED:
        # Cause: The setting was removed, or this process reads other settings than the query.
        raise RefusedError(
            "A part of the state is encrypted, but `encryption_keys` is not set.",
            remedy="Set it to the source of the keys. To stop encrypting new parts, list `plain` last.",
            where=where,
            id="RIFFLE-0398",
        )
    try:
        check_sizes(memoryview(data))
        reader = pa.ipc.open_stream(data, options=_READ)
        version = (reader.schema.metadata or {}).get(_VERSION_KEY)
        if version in formats:
            check_names(reader.schema)
            table = reader.read_all()
            check_buffers(table)  # a checksum does not prove that riffle wrote the bytes
            if VARIABLE in table.column_names:
                table.column(VARIABLE).validate(full=True)  # names of variables are text
            return table
    except (pa.ArrowException, OSError, struct.error, *UNREADABLE) as error:
        raise_if_memory(error)
        # Cause: The checksum matches, so the bytes were written in this form. They were not damaged later.
        raise CorruptStateError(
            f"The bytes of a part are not a valid Arrow stream: {error}",
            remedy="Restore the object from a backup, or roll back to a version without it (riffle rollback).",
            where=where,
            id="RIFFLE-0399",
        ) from error
    # Cause: A newer version of riffle-spark wrote the part.
    raise CorruptStateError(
        f"The part has format {version!r}, but this version reads only {', '.join(map(repr, formats))}.",
        remedy="Run the version of riffle-spark that wrote it, or a newer one.",
        where=where,
        id="RIFFLE-0400",
    )


def fit_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with exactly the columns of ``schema``. Raises ``CorruptStateError`` if a value does not fit."""
    if set(schema.names) <= set(table.column_names):
        selected = table.select(schema.names).replace_schema_metadata(None)
        if selected.schema.equals(schema):
            return selected
    return pa.table([_fit_column(table, field) for field in schema], schema=schema)


def _fit_column(table: pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return the column of this field, nulls if the table lacks it.

    Raises ``CorruptStateError`` if its type does not fit.
    """
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    column = table.column(field.name)
    if column.type == field.type:
        return column
    try:
        if not pa.types.is_dictionary(field.type):
            check_storable(column.type)  # one dictionary value of some KiB in a million rows would take gigabytes
        return cast_column(column, field.type)
    except (ConfigError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        # Cause: The state was written by a job that declared another type for this column.
        raise CorruptStateError(
            f"Column {field.name!r} was written as {column.type} and does not fit {field.type}: {error}",
            remedy="Declare the column as it is stored.",
            id="RIFFLE-0401",
        ) from error
