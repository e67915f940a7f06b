"""Check how much memory an Arrow stream would take, before Arrow reads it.

It parses the headers of messages (Arrow's ``Message.fbs`` and ``Schema.fbs``). They are FlatBuffers, in which a table
lists the offsets of its fields. Two things make small streams large:

- A compressed buffer starts with its uncompressed length, which may be any number.
- Several fields may have the same offset, and Arrow copies the value each time. A name of some KiB in a schema of some
  thousand fields takes gigabytes. Arrow itself writes every value once.
"""

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

_UNPACKED_ALWAYS: Final = 16 << 20
"""The unpacked size in bytes that every part may have."""
_LZ4_RATIO_MAX: Final = 255
_ZSTD_READ_MAX: Final = 1 << 30
_ZSTD_WRITTEN_MAX: Final = 64 << 20
"""The unpacked size in bytes that a zstd part may have when it is read, and when it is written. Earlier versions
wrote larger parts."""
_ZSTD_RATIO_MAX: Final = 1 << 15
"""128 KiB of equal bytes take 4 bytes."""
_ROWS_ALWAYS: Final = 1 << 20
_ROWS_PER_BYTE: Final = 8
"""The limit of a part's rows: ``_ROWS_ALWAYS``, or this number per byte of its columns. Rows of nulls take no bytes."""
_UNCHECKED_SCHEMA_BYTES: Final = 8 << 10
"""A schema of this size takes some MiB of memory at most, even if it repeats offsets."""
_FIELD_BYTES: Final = 16
_PAIR_BYTES: Final = 8
"""The least size of a field and of a pair of metadata, without their texts."""
_MESSAGE, _SHORT, _NUMBER, _BACK = map(struct.Struct, ("<Ii", "<H", "<I", "<i"))
_LONG, _COUNT, _BUFFER, _TABLE = map(struct.Struct, ("<q", "<Q", "<qq", "<HHHHHHH"))
_NONE: Final = (0,) * 7
_CONTINUATION: Final = 0xFFFFFFFF
_VERSION_5: Final = 4
_SCHEMA: Final = 1
_DICTIONARY: Final = 2
_BATCH: Final = 3
_TYPES_WITH_TEXT: Final = (10, 14)
"""Types whose second field has any length: the zone of timestamps, the type ids of a union."""
_ZSTD = 1


def check_sizes(data: memoryview) -> None:
    """Raise ``ValueError`` or ``struct.error`` if a stream would take more memory than its size allows.

    Streams in a deprecated format of Arrow are refused too, because their memory cannot be computed. Nothing is
    unpacked.
    """
    size = data.nbytes
    limit = max(_UNPACKED_ALWAYS, _LZ4_RATIO_MAX * size)
    unpacked = rows = 0
    for message, table, body in _iterate_batches(data):
        length, nodes, buffers, compression, _ = _field_positions(message, table)
        rows += _count_rows(message, length, nodes)
        if compression and buffers:
            limit = _zstd_limit(size) if _is_zstd(message, compression) else limit
            unpacked += _unpacked_bytes(message, buffers, body, limit)
        if rows > max(_ROWS_ALWAYS, _ROWS_PER_BYTE * (size + unpacked)) or unpacked > limit:
            raise ValueError(f"{size} bytes would unpack to {rows} rows and {unpacked} bytes")


def may_unpack(size: int, unpacked: int) -> bool:
    """Return whether readers accept a part of ``size`` compressed bytes. The estimate ``unpacked`` is doubled."""
    return 2 * unpacked <= _zstd_limit(size, _ZSTD_WRITTEN_MAX)


def _zstd_limit(size: int, bound: int = _ZSTD_READ_MAX) -> int:
    """Return how many unpacked bytes readers accept for ``size`` bytes compressed with zstd. ``bound`` caps it."""
    return max(_UNPACKED_ALWAYS, _LZ4_RATIO_MAX * size, min(bound, _ZSTD_RATIO_MAX * size))


def check_schema(data: memoryview) -> None:
    """Check the schemas of a message or stream. Raises as ``check_sizes`` does."""
    deque(_iterate_batches(data), maxlen=0)


def _is_zstd(message: memoryview, compression: int) -> bool:
    codec = _field_positions(message, _follow_offset(message, compression))[0]
    return bool(codec) and message[codec] == _ZSTD


def _count_rows(message: memoryview, length: int, nodes: int) -> int:
    """Return the number of rows of a batch, or of elements of its longest column if that is larger.

    Negative numbers count as huge.
    """
    counts: tuple[int, ...] = _COUNT.unpack_from(message, length) if length else (0,)
    if nodes:
        vector = nodes + _NUMBER.unpack_from(message, nodes)[0]
        columns = _NUMBER.unpack_from(message, vector)[0]
        counts += struct.unpack_from(f"<{2 * columns}Q", message, vector + _NUMBER.size)[
            ::2
        ]  # the others are null counts
    return max(counts)


def _iterate_batches(data: memoryview) -> Iterator[tuple[memoryview, int, memoryview]]:
    """Yield (message, start of its table, the bytes after the message) of each record batch and dictionary.

    The bytes after the message start with its body. Raises ``ValueError`` for a schema that takes too much memory.
    """
    position = 0
    while position + _MESSAGE.size <= data.nbytes:
        mark, length = _MESSAGE.unpack_from(data, position)
        if mark == 0 or (mark == _CONTINUATION and length <= 0):
            return
        start = position + _MESSAGE.size
        after = start + length
        message = data[start : after + _MESSAGE.size]
        version, kind, header, body, metadata = _field_positions(message, _NUMBER.unpack_from(message)[0])
        size = _LONG.unpack_from(message, body)[0] if body else 0
        is_of_5 = version and _SHORT.unpack_from(message, version)[0] == _VERSION_5
        if mark != _CONTINUATION or not is_of_5 or metadata or size < 0:
            raise ValueError("a message in a deprecated format")
        position = after + size
        if kind and header:
            table = header + _NUMBER.unpack_from(message, header)[0]
            if message[kind] == _DICTIONARY and (values := _field_positions(message, table)[1]):
                table = values + _NUMBER.unpack_from(message, values)[0]
            if message[kind] in (_DICTIONARY, _BATCH):
                yield message, table, data[after:]
            elif message[kind] == _SCHEMA and length > _UNCHECKED_SCHEMA_BYTES:
                _check_repeated_offsets(message, table)


def _field_positions(message: memoryview, table: int) -> tuple[int, int, int, int, int]:
    """Return the positions of the first five fields of a FlatBuffers table, 0 for absent fields."""
    size, _, *offsets = _TABLE.unpack_from(message, table - _BACK.unpack_from(message, table)[0])
    first, second, third, fourth, fifth = (
        table + offset if offset and size > 4 + 2 * number else 0 for number, offset in enumerate(offsets)
    )
    return first, second, third, fourth, fifth


def _unpacked_bytes(message: memoryview, field: int, body: memoryview, limit: int) -> int:
    """Return the unpacked size of the buffers that a field lists. Stop counting above the limit."""
    vector = field + _NUMBER.unpack_from(message, field)[0]
    total = 0
    for number in range(_NUMBER.unpack_from(message, vector)[0]):
        start, length = _BUFFER.unpack_from(message, vector + _NUMBER.size + number * _BUFFER.size)
        if length:
            unpacked = _LONG.unpack_from(body, start)[0]
            total += length if unpacked < 0 else unpacked
        if total > limit:
            break
    return total


def _follow_offset(message: memoryview, field: int) -> int:
    """Return the position that the offset in a field points to."""
    return int(field + _NUMBER.unpack_from(message, field)[0])


def _check_repeated_offsets(message: memoryview, schema: int) -> None:
    """Raise ``ValueError`` if a schema's fields, names and metadata add up to more bytes than the message has."""
    budget = message.nbytes
    fields: list[int] = []
    _, inner, metadata, *_ = _all_field_positions(message, schema)
    while True:
        budget -= _FIELD_BYTES * _read_length(message, inner) + _PAIR_BYTES * _read_length(message, metadata)
        for pair in _iterate_tables(message, metadata) if budget >= 0 else ():
            budget -= sum(_read_length(message, text) for text in _all_field_positions(message, pair)[:2])
        if budget < 0:
            raise ValueError(f"a schema of {message.nbytes} bytes repeats offsets")
        fields += _iterate_tables(message, inner)
        if not fields:
            return
        name, _, kind, details, _, inner, metadata = _all_field_positions(message, fields.pop())
        budget -= _read_length(message, name)
        if kind and details and message[kind] in _TYPES_WITH_TEXT:
            budget -= _read_length(message, _all_field_positions(message, _follow_offset(message, details))[1])


def _all_field_positions(message: memoryview, table: int) -> list[int]:
    """Return the positions of the first seven fields of a FlatBuffers table, 0 for absent fields.

    The table may end its message.
    """
    vtable = table - _BACK.unpack_from(message, table)[0]
    count = min(_SHORT.unpack_from(message, vtable)[0] // _SHORT.size - 2, len(_NONE))
    offsets = struct.unpack_from(f"<{count}H", message, vtable + 2 * _SHORT.size) + _NONE[count:]
    return [table + offset if offset else 0 for offset in offsets]


def _iterate_tables(message: memoryview, field: int) -> Iterator[int]:
    """Yield the positions of the tables in the list that a field holds."""
    vector = _follow_offset(message, field) if field else 0
    for place in range(vector + _NUMBER.size, vector + _NUMBER.size * (1 + _read_length(message, field)), _NUMBER.size):
        yield _follow_offset(message, place)


def _read_length(message: memoryview, field: int) -> int:
    """Return the length of the text or list that a field holds, 0 if the field is absent."""
    return int(_NUMBER.unpack_from(message, _follow_offset(message, field))[0]) if field else 0
