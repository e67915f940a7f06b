"""What Arrow's bytes would become, looked up before any is read. Knows the headers of messages (Arrow's ``Message.fbs``
and ``Schema.fbs``): FlatBuffers, in which a table tells by a list of offsets where its fields lie. Does not know what
columns mean.

A packed buffer begins with its length. Whatever is told by an offset can be told of any number of times, and Arrow
makes it anew each time: a name of some KiB in a schema of some thousand fields takes gigabytes. What Arrow writes tells
of everything once.
"""

import struct
from collections.abc import Iterator
from typing import Final

__all__ = ["check_schema", "check_sizes", "may_unpack"]

_UNPACKED_SMALL: Final = 16 << 20
_TIMES_OF_LZ4: Final = 255
"""A part may become 16 MiB in any case, or this many times its own bytes: the highest ratio of LZ4."""
_READ_BY_ZSTD: Final = 1 << 30
_WRITTEN_BY_ZSTD: Final = 64 << 20
"""Bytes that a part packed by zstd may become when it is read and when it is written: earlier versions wrote more."""
_TIMES_OF_ZSTD: Final = 1 << 15
"""The highest ratio of zstd: 128 KiB of equal bytes in 4."""
_ROWS_SMALL: Final = 1 << 20
_ROWS_A_BYTE: Final = 8
"""Rows that a part may tell of, in any case, or for each byte of its columns: those of nulls take none."""
_SCHEMA_SMALL: Final = 8 << 10
"""A schema of so many bytes becomes some MiB at most, whatever it tells of twice."""
_FIELD_BYTES, _PAIR_BYTES = 16, 8
"""What a field and a pair of metadata take at least, beside their texts."""
_MESSAGE, _SHORT, _NUMBER, _BACK = map(struct.Struct, ("<Ii", "<H", "<I", "<i"))
_LONG, _COUNT, _BUFFER, _TABLE = map(struct.Struct, ("<q", "<Q", "<qq", "<HHHHHHH"))
_NONE: Final = (0,) * 7
_GOES_ON, _VERSION_5 = 0xFFFFFFFF, 4
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_WITH_TEXT: Final = (10, 14)
"""Types whose second field is as long as it says: the zone of timestamps, the numbers of a union's types."""
_ZSTD = 1


def check_sizes(data: memoryview) -> None:
    """Raise ``ValueError`` or ``struct.error`` if a stream would take more memory than its bytes allow for, or is
    written in a way that Arrow has given up, of which what it would take cannot be told. Nothing is unpacked for it.
    """
    size = data.nbytes
    most = max(_UNPACKED_SMALL, _TIMES_OF_LZ4 * size)
    unpacked = rows = 0
    for message, table, body in _batches(data):
        length, nodes, buffers, compression, _ = _fields(message, table)
        rows += _longest(message, length, nodes)
        if compression and buffers:
            most = _most_by_zstd(size) if _is_zstd(message, compression) else most
            unpacked += _packed_lengths(message, buffers, body, most)
        if rows > max(_ROWS_SMALL, _ROWS_A_BYTE * (size + unpacked)) or unpacked > most:
            raise ValueError(f"{size} bytes of {rows} rows that would be {unpacked} bytes when they are unpacked")


def may_unpack(size: int, unpacked: int) -> bool:
    """Tell whether a reader accepts a part that was packed to ``size`` bytes. ``unpacked`` is an estimate, so it counts
    twice.
    """
    return 2 * unpacked <= _most_by_zstd(size, _WRITTEN_BY_ZSTD)


def _most_by_zstd(size: int, bound: int = _READ_BY_ZSTD) -> int:
    return max(_UNPACKED_SMALL, _TIMES_OF_LZ4 * size, min(bound, _TIMES_OF_ZSTD * size))


def check_schema(data: memoryview) -> None:
    """Raise as ``check_sizes`` for a message that is a schema, or for all of a stream."""
    for _ in _batches(data):
        pass


def _is_zstd(message: memoryview, compression: int) -> bool:
    codec = _fields(message, _told(message, compression))[0]
    return bool(codec) and message[codec] == _ZSTD


def _longest(message: memoryview, length: int, nodes: int) -> int:
    """Return how many rows a batch has, or elements its longest column, whichever is more: less than none are many."""
    found: tuple[int, ...] = _COUNT.unpack_from(message, length) if length else (0,)
    if nodes:
        vector = nodes + _NUMBER.unpack_from(message, nodes)[0]
        columns = _NUMBER.unpack_from(message, vector)[0]
        found += struct.unpack_from(f"<{2 * columns}Q", message, vector + _NUMBER.size)[::2]  # beside each, its nulls
    return max(found)


def _batches(data: memoryview) -> Iterator[tuple[memoryview, int, memoryview]]:
    """Yield of each record batch, and of each dictionary's values, its message, where its table begins in that, and all
    that follows the message: its body first. Schemas are checked on the way.
    """
    at, end = 0, data.nbytes
    while at + _MESSAGE.size <= end:
        goes_on, length = _MESSAGE.unpack_from(data, at)
        if goes_on == 0 or (goes_on == _GOES_ON and length <= 0):
            return
        start = at + _MESSAGE.size
        after = start + length
        message = data[start : after + _MESSAGE.size]
        version, kind, header, body, metadata = _fields(message, _NUMBER.unpack_from(message)[0])
        size = _LONG.unpack_from(message, body)[0] if body else 0
        is_of_5 = version and _SHORT.unpack_from(message, version)[0] == _VERSION_5
        if goes_on != _GOES_ON or not is_of_5 or metadata or size < 0:
            raise ValueError("a message as Arrow writes none now")
        at = after + size
        if kind and header:
            table = header + _NUMBER.unpack_from(message, header)[0]
            if message[kind] == _DICTIONARY and (values := _fields(message, table)[1]):
                table = values + _NUMBER.unpack_from(message, values)[0]
            if message[kind] in (_DICTIONARY, _BATCH):
                yield message, table, data[after:]
            elif message[kind] == _SCHEMA and length > _SCHEMA_SMALL:
                _check_told_once(message, table)


def _fields(message: memoryview, table: int) -> tuple[int, int, int, int, int]:
    """Return where the first five fields of a table lie, 0 for one that it has not."""
    size, _, one, two, three, four, five = _TABLE.unpack_from(message, table - _BACK.unpack_from(message, table)[0])
    return (
        table + one if one and size > 4 else 0, table + two if two and size > 6 else 0,
        table + three if three and size > 8 else 0, table + four if four and size > 10 else 0,
        table + five if five and size > 12 else 0,
    )  # fmt: skip


def _packed_lengths(message: memoryview, at: int, body: memoryview, most: int) -> int:
    """Return how many bytes packed buffers would be, of which the list is told of ``at`` this place."""
    vector = at + _NUMBER.unpack_from(message, at)[0]
    total = 0
    for number in range(_NUMBER.unpack_from(message, vector)[0]):
        start, length = _BUFFER.unpack_from(message, vector + _NUMBER.size + number * _BUFFER.size)
        if length:
            told = _LONG.unpack_from(body, start)[0]
            total += length if told < 0 else told
        if total > most:
            break
    return total


def _told(message: memoryview, at: int) -> int:
    """Return where that begins of which an offset tells that lies here."""
    return int(at + _NUMBER.unpack_from(message, at)[0])


def _check_told_once(message: memoryview, schema: int) -> None:
    """Raise ``ValueError`` if a schema's fields, names and metadata take more bytes than stand there."""
    left, fields = message.nbytes, list[int]()
    _, inner, metadata, *_ = _all_fields(message, schema)
    while True:
        left -= _FIELD_BYTES * _length(message, inner) + _PAIR_BYTES * _length(message, metadata)
        for pair in _elements(message, metadata) if left >= 0 else ():
            left -= sum(_length(message, text) for text in _all_fields(message, pair)[:2])
        if left < 0:
            raise ValueError(f"{message.nbytes} bytes of columns that tell of some of them more than once")
        fields += _elements(message, inner)
        if not fields:
            return
        name, _, kind, details, _, inner, metadata = _all_fields(message, fields.pop())
        left -= _length(message, name)
        if kind and details and message[kind] in _WITH_TEXT:
            left -= _length(message, _all_fields(message, _told(message, details))[1])


def _all_fields(message: memoryview, table: int) -> list[int]:
    """Return where the first seven fields of a table lie, as ``_fields`` does; also of one that ends its message."""
    at = table - _BACK.unpack_from(message, table)[0]
    count = min(_SHORT.unpack_from(message, at)[0] // _SHORT.size - 2, len(_NONE))
    told = struct.unpack_from(f"<{count}H", message, at + 2 * _SHORT.size) + _NONE[count:]
    return [table + one if one else 0 for one in told]


def _elements(message: memoryview, at: int) -> Iterator[int]:
    """Yield where the tables of a list begin, whose offset lies here."""
    vector = _told(message, at) if at else 0
    for place in range(vector + _NUMBER.size, vector + _NUMBER.size * (1 + _length(message, at)), _NUMBER.size):
        yield _told(message, place)


def _length(message: memoryview, at: int) -> int:
    """Return how long the text or list is whose offset lies here; 0 where there is none."""
    return int(_NUMBER.unpack_from(message, _told(message, at))[0]) if at else 0
