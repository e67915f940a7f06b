"""Bytes of delta parts and snapshots: Arrow IPC streams. Knows the formats. Does not know names or stores.

A part is one self-contained stream: key columns, state columns and, in a delta, ``__deleted``; schema metadata
carries the format version. Its checksum (XXH3-64 of the bytes) is kept by whoever lists it. Parts with ``__hash`` have
format 2: their rows are sorted by it, and nothing is compressed, so that they are read where they lie. So are those of
variables, of format 3, within each variable; what a batch changed of these is packed, and unpacked when it is opened.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import xxhash

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, RefusedError, raise_if_memory
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.arrow_messages import check_sizes, may_unpack
from riffle_spark.state.formats.arrow_schemas import check_names, check_storable, inner_types
from riffle_spark.state.formats.arrow_values import check_buffers
from riffle_spark.state.formats.due_times import DUE_COLUMN, DUE_ORDER, DUE_SPAN, with_order

__all__ = [
    "DELETED", "ENCRYPTED", "HASH", "IN_PLAIN", "VARIABLE", "Checksum", "Data", "altered", "checksum", "decode",
    "encode", "fitted", "open_part",
]  # fmt: skip

_UNSORTED, _BY_HASH, _BY_VARIABLE = b"1", b"2", b"3"
_FORMATS = _UNSORTED, _BY_HASH, _BY_VARIABLE
HASH = "__hash"
"""The column of the keys' 64-bit hashes."""
DELETED = "__deleted"
"""The delta column that is true where a key's state was removed."""
VARIABLE = "__variable"
"""The column that names the variable that each row is of, in stores of variables."""
ENCRYPTED = b"RFE1", b"RFE2"
"""The first bytes of an encrypted part, by the version of its frame. No Arrow stream begins with them."""
IN_PLAIN = b"\xff\xff\xff\xff"
"""What every Arrow stream begins with, and so each part that is not encrypted."""
_VERSION_KEY = b"riffle.format"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""To wake threads takes longer than to unpack a part's few columns, and other slots have the cores."""
_PLAIN = pa.ipc.IpcWriteOptions(compression=None)
_COMPRESS_FROM_BYTES = 32 * 1024
"""Smaller parts are not compressed: opening a compressor ten times costs more than the bytes it saves."""
_PACK_FROM_BYTES = 8 * 1024
"""The same for LZ4, which takes a fifth of the time."""
_WORTH_IT = 0.9
"""What compressing does not bring below this share is kept plain: then it can be read where it lies."""


Data: TypeAlias = bytes | memoryview | pa.Buffer
Checksum = xxhash.xxh3_64
"""``checksum`` of bytes that come piece by piece: ``update`` and then ``intdigest``."""


def checksum(data: Data) -> int:
    """Return the XXH3-64 of the bytes."""
    return xxhash.xxh3_64_intdigest(data)


def encode(table: pa.Table, due: str | None = None, *, packed: bool = False) -> bytes:
    """Return the bytes of one part: in format 2, or 3 of variables, if its rows have hashes, by which they are sorted
    then. ``due`` names the column that says when rows are due, if there is one.

    ``packed`` variables are not read where they lie: that is for what a batch changed, which fits into memory, for
    elements repeat their key and count on. What is merged of such parts may not fit.
    """
    if HASH in table.column_names and VARIABLE in table.column_names:
        data = _smaller(table, _PACKED, _BY_VARIABLE, _PACK_FROM_BYTES if packed else None)
    elif HASH in table.column_names:
        data = bytes(_stream(table if due is None else with_order(table, due, DELETED), _PLAIN, _BY_HASH))
    else:
        data = _smaller(table, _COMPRESSED, _UNSORTED, _COMPRESS_FROM_BYTES)
    if any(map(_takes_no_bytes, table.schema.types)):
        _check_readable(data)
    return data


def _check_readable(data: bytes) -> None:
    """Raise ``ConfigError`` for a part that a reader would refuse for its size."""
    try:
        check_sizes(memoryview(data))
    except ValueError as trouble:
        raise ConfigError(
            f"a key-group's changes cannot be read again: {trouble}",
            remedy="keep shorter arrays of elements without a type (void) or without a field",
            id="RIFFLE-0396",
        ) from trouble


@lru_cache(maxsize=1024)
def _takes_no_bytes(kind: pa.DataType) -> bool:
    """Tell whether values or elements of a type may take no bytes. A reader limits how many of them a part has."""
    inner = inner_types(kind)
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not inner) or any(map(_takes_no_bytes, inner))


def _smaller(table: pa.Table, options: pa.ipc.IpcWriteOptions, version: bytes, from_bytes: int | None) -> bytes:
    """Return the bytes of a part. Compress it if the table has ``from_bytes`` or more, if that is worth it, and if a
    reader accepts the ratio.
    """
    if from_bytes is not None and table.nbytes >= from_bytes:
        compressed = _stream(table, options, version)
        if compressed.size < _WORTH_IT * table.nbytes and may_unpack(compressed.size, table.nbytes):
            return bytes(compressed)
    return bytes(_stream(table, _PLAIN, version))


def _stream(table: pa.Table, options: pa.ipc.IpcWriteOptions, version: bytes) -> pa.Buffer:
    of_due = {key: text for key, text in (table.schema.metadata or {}).items() if key in (DUE_COLUMN, DUE_SPAN)}
    schema = table.schema.with_metadata({_VERSION_KEY: version, **of_due})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def decode(data: Data, expected: int, where: str, decrypt: Callable[[Data], Data] | None = None) -> pa.Table:
    """Return the table of one part, without hashes and order, after its checksum was found to be ``expected``.
    ``decrypt`` is asked for what it was before it was encrypted.

    Raises ``CorruptStateError`` naming ``where`` if the bytes are not what was sealed, or of another format.
    """
    if checksum(data) != expected:
        raise altered(where)
    table = open_part(decrypt(data) if decrypt else data, where)
    added = [name for name in (HASH, DUE_ORDER) if name in table.column_names]
    if any(table.column_names.count(name) > 1 for name in added):
        raise altered(where)
    return table.drop_columns(added).replace_schema_metadata(None)


def altered(where: str) -> CorruptStateError:
    """Return the error of an object whose bytes are not those that the log lists."""
    return CorruptStateError(
        "the bytes are truncated or altered: their checksum differs from the log's",
        remedy="restore the object from a backup, or roll back to a version without it (riffle rollback)",
        where=where,
        id="RIFFLE-0397",
    )


def open_part(data: Data, where: str) -> pa.Table:
    """Return the table of one part whose checksum was found to be right, as it lies there, with its metadata.

    Raises ``CorruptStateError`` naming ``where`` if the bytes are of another format, ``RefusedError`` if encrypted,
    ``MemoryError`` if there is no room for its rows.
    """
    if bytes(memoryview(data)[: len(ENCRYPTED[0])]) in ENCRYPTED:
        raise RefusedError(
            "a part of the state is encrypted, and `encryption_keys` is not set",
            remedy="set it to where the keys are; to do without them, list `plain` as the last one",
            where=where,
            id="RIFFLE-0398",
        )
    try:
        check_sizes(memoryview(data))
        reader = pa.ipc.open_stream(data, options=_READ)
        found = (reader.schema.metadata or {}).get(_VERSION_KEY)
        if found in _FORMATS:
            check_names(reader.schema)
            table = reader.read_all()
            check_buffers(table)  # a checksum does not say who made the bytes
            if VARIABLE in table.column_names:
                table.column(VARIABLE).validate(full=True)  # names of variables are text
            return table
    except (pa.ArrowException, OSError, struct.error, *UNREADABLE) as trouble:
        raise_if_memory(trouble)
        raise CorruptStateError(
            f"the bytes are not an Arrow stream: {trouble}",
            remedy="restore the object from a backup, or roll back to a version without it (riffle rollback)",
            where=where,
            id="RIFFLE-0399",
        ) from trouble
    raise CorruptStateError(
        f"the part has format {found!r}, this version reads {', '.join(map(repr, _FORMATS))}",
        remedy="run the version of riffle-spark that wrote it, or a newer one",
        where=where,
        id="RIFFLE-0400",
    )


def fitted(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns. Raises ``CorruptStateError`` if a value does not fit."""
    if set(wanted.names) <= set(table.column_names):
        some = table.select(wanted.names).replace_schema_metadata(None)
        if some.schema.equals(wanted):
            return some
    return pa.table([_column(table, field) for field in wanted], schema=wanted)


def _column(table: pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    column = table.column(field.name)
    if column.type == field.type:
        return column
    try:
        if not pa.types.is_dictionary(field.type):
            check_storable(column.type)  # a dictionary's one value of some KiB, in each of a million rows, is gigabytes
        return cast_column(column, field.type)
    except (ConfigError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise CorruptStateError(
            f"column {field.name!r} was written as {column.type} and does not fit {field.type}: {error}",
            remedy="declare the column as it is stored",
            id="RIFFLE-0401",
        ) from error
