"""Blocks: the rows of several key-groups together.

    rows     an Arrow IPC stream (``part_codec.encode_block``), encrypted if parts are
    index    two 32-bit integers for each key-group, ascending: key-group, and the end of its rows
    footer   the length of the index, the XXH3-64 of everything before it, and a magic

A block is opened and verified once for all key-groups. A delta or merged delta with small parts is stored as a block,
in its object and in local files. The local file of any other delta is a block too, in the first format of the index. It
has five 64-bit integers for each key-group: the key-group, its first row, its end, and the start and checksum of its
part in the object.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import Offsets
from riffle_spark.state.formats import part_codec

_WITH_PARTS: Final = b"RFBLOCK1"
_MAGIC: Final = b"RFBLOCK2"
_LENGTH: Final = struct.Struct("<Q")
_FOOTER: Final = struct.Struct("<Q8s")
_COLUMNS: Final = 5
_ROWS_END: Final = 1 << 32
"""Indexes hold 32-bit integers."""


class BlockRange(NamedTuple):
    """A key-group's rows in a block: from ``start`` up to ``end``.

    ``length`` is its share of the file's bytes, so that the lengths of all key-groups add up to the file.
    """

    key_group: int
    start: int
    end: int
    length: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.start


@dataclass(frozen=True)
class BlockIndex:
    """The index of a block file: a row of five integers for each key-group, and the length of the file in bytes."""

    table: npt.NDArray[np.int64]
    file_bytes: int

    @cached_property
    def starts(self) -> Offsets:
        """The first row of each key-group, and the end of the last one."""
        return np.append(self.table[:, 1], self.table[-1:, 2])

    @cached_property
    def ranges(self) -> Mapping[int, BlockRange]:
        """The rows of each key-group."""
        return {item.key_group: item for item in self._by_place}

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """The number of each key-group in the block, from 0."""
        return {key_group: number for number, key_group in enumerate(self.table[:, 0].tolist())}

    @cached_property
    def by_part(self) -> Mapping[tuple[int, int], BlockRange]:
        """The rows of each part of the sealed object, by its start and checksum."""
        keys = zip(self.table[:, 3].tolist(), self.table[:, 4].view(np.uint64).tolist(), strict=True)
        return dict(zip(keys, self._by_place, strict=True))

    @cached_property
    def _by_place(self) -> list[BlockRange]:
        """The rows of each key-group, in the order of the file."""
        edges = self.starts * self.file_bytes // max(int(self.table[-1, 2]), 1)
        columns = (*self.table[:, :3].T.tolist(), np.diff(edges).tolist())
        return [BlockRange(*item) for item in zip(*columns, strict=True)]


def encode_block_file(
    rows: bytes,
    key_groups: npt.NDArray[np.int32],
    starts: Offsets,
    part_starts: Offsets | None = None,
    part_checksums: npt.NDArray[np.uint64] | None = None,
) -> bytes:
    """Return a block file. ``rows`` are the bytes of the block, encrypted if parts are.

    The rows of ``key_groups[i]`` are ``starts[i]`` up to ``starts[i + 1]``. ``part_starts`` and ``part_checksums`` are
    those of the parts in the object of a sealed delta that is stored in parts.
    """
    index: npt.NDArray[np.int64] | npt.NDArray[np.uint32]
    if part_starts is None or part_checksums is None:
        assert starts[-1] < _ROWS_END, "a block holds what fits into the memory of a slot"
        index = np.column_stack((key_groups, starts[1:])).astype("<u4")
        magic = _MAGIC
    else:
        columns = (key_groups, starts[:-1], starts[1:], part_starts, part_checksums.view(np.int64))
        index = np.column_stack(columns).astype("<i8")
        magic = _WITH_PARTS
    body = b"".join((rows, index.tobytes(), _LENGTH.pack(index.nbytes)))
    return body + _FOOTER.pack(part_codec.checksum(body), magic)


def checksum_of_block(data: part_codec.Data) -> tuple[int, int]:
    """Return the checksum in the footer of a block file, and the checksum that its bytes have.

    Raises ``ValueError`` if it has no footer.
    """
    view = memoryview(data)
    if len(view) < _FOOTER.size:
        raise ValueError("a block file without a footer")
    checksum, magic = _FOOTER.unpack_from(view, len(view) - _FOOTER.size)
    if magic not in (_MAGIC, _WITH_PARTS):
        raise ValueError("a block file without a footer")
    return checksum, part_codec.checksum(view[: -_FOOTER.size])


def read_index(data: pa.Buffer) -> tuple[pa.Buffer, BlockIndex]:
    """Return the bytes of the rows of a verified block file, and its index. Raises ``ValueError`` for other bytes."""
    end = data.size - _FOOTER.size - _LENGTH.size
    (size,) = _LENGTH.unpack_from(memoryview(data), end) if end > 0 else (0,)
    has_parts = bytes(memoryview(data)[-len(_MAGIC) :]) == _WITH_PARTS
    row_bytes = _COLUMNS * 8 if has_parts else 2 * 4
    if not 0 < size <= end or size % row_bytes:
        raise ValueError(f"a block file with an index of {size} bytes")
    stored = data.slice(end - size, size)
    table = (
        np.frombuffer(stored, "<i8").reshape(-1, _COLUMNS)
        if has_parts
        else _widen(np.frombuffer(stored, "<u4").reshape(-1, 2))
    )
    key_groups = table[:, 0]
    edges = table[:, 1:3]
    is_consecutive = edges[0, 0] == 0 and np.array_equal(edges[1:, 0], edges[:-1, 1])
    if not is_consecutive or np.any(edges[:, 1] < edges[:, 0]) or np.any(np.diff(key_groups) <= 0):
        raise ValueError("a block file with an invalid index")
    return data.slice(0, end - size), BlockIndex(table, data.size)


def _widen(pairs: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the rows of an index with five columns, of key-groups and the ends of their rows."""
    table = np.zeros((len(pairs), _COLUMNS), np.int64)
    table[:, 0] = pairs[:, 0]
    table[:, 2] = pairs[:, 1]
    table[1:, 1] = pairs[:-1, 1]
    return table
