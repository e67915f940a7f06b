"""Block files: the rows of several key-groups in one local file.

    rows     an Arrow IPC stream (``part_codec.encode_block``), encrypted if parts are
    index    five 64-bit integers for each key-group, ascending: key-group, first row, end, and of a sealed delta the
             start and the checksum of the key-group's part in the object
    footer   the length of the index, the XXH3-64 of everything before it, and a magic

A block is opened and verified once for all key-groups. Blocks are local files only: an object of a root has one part
for each key-group. So a format of blocks may change with any version, because copies are rebuilt.
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

__all__ = ["BlockIndex", "BlockRange", "checksum_of_block", "encode_block_file", "read_index"]

_MAGIC: Final = b"RFBLOCK1"
_LENGTH: Final = struct.Struct("<Q")
_FOOTER: Final = struct.Struct("<Q8s")
_COLUMNS: Final = 5


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
    those of the parts in the object of a sealed delta.
    """
    index = np.zeros((len(key_groups), _COLUMNS), np.int64)
    index[:, 0] = key_groups
    index[:, 1] = starts[:-1]
    index[:, 2] = starts[1:]
    if part_starts is not None and part_checksums is not None:
        index[:, 3] = part_starts
        index[:, 4] = part_checksums.view(np.int64)
    body = b"".join((rows, index.tobytes(), _LENGTH.pack(index.nbytes)))
    return body + _FOOTER.pack(part_codec.checksum(body), _MAGIC)


def checksum_of_block(data: pa.Buffer) -> tuple[int, int]:
    """Return the checksum in the footer of a block file, and the checksum that its bytes have.

    Raises ``ValueError`` if it has no footer.
    """
    view = memoryview(data)
    if len(view) < _FOOTER.size:
        raise ValueError("a block file without a footer")
    checksum, magic = _FOOTER.unpack_from(view, len(view) - _FOOTER.size)
    if magic != _MAGIC:
        raise ValueError("a block file without a footer")
    return checksum, part_codec.checksum(view[: -_FOOTER.size])


def read_index(data: pa.Buffer) -> tuple[pa.Buffer, BlockIndex]:
    """Return the bytes of the rows of a verified block file, and its index. Raises ``ValueError`` for other bytes."""
    end = data.size - _FOOTER.size - _LENGTH.size
    (size,) = _LENGTH.unpack_from(memoryview(data), end) if end > 0 else (0,)
    row_bytes = _COLUMNS * 8
    if not 0 < size <= end or size % row_bytes:
        raise ValueError(f"a block file with an index of {size} bytes")
    table = np.frombuffer(data.slice(end - size, size), np.int64).reshape(-1, _COLUMNS)
    key_groups = table[:, 0]
    edges = table[:, 1:3]
    is_consecutive = edges[0, 0] == 0 and np.array_equal(edges[1:, 0], edges[:-1, 1])
    if not is_consecutive or np.any(edges[:, 1] < edges[:, 0]) or np.any(np.diff(key_groups) <= 0):
        raise ValueError("a block file with an invalid index")
    return data.slice(0, end - size), BlockIndex(table, data.size)
