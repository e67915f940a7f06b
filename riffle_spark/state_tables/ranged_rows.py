"""Read the rows of a few keys in a large snapshot with ranged GETs, instead of the whole object.

Theory of operation.

1. The snapshot is a file of zeros in memory, of which the system allocates only the pages that are written. The start
   of the object, with the positions of all buffers, is fetched into it. Arrow opens it without reading the buffers.
2. Rows are sorted by hash, and hashes are evenly distributed. So the place of a hash is known up to some hundred rows.
   A window of rows around it is fetched: hashes, null bits, values and offsets of all columns. It is widened until it
   has the hash.
3. Then, level by level, what the offsets of the rows point to is fetched. Often that is one level: texts.

So a key of fixed width takes two rounds of requests, and one with a text three. The requests of a round, also those of
several keys, run at once.

The object's checksum cannot be verified, so all offsets are checked before Arrow uses them.
"""

import mmap
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from riffle_spark.columns import fixed_width, is_text_or_bytes
from riffle_spark.keyhash import Words
from riffle_spark.state.formats.arrow_messages import check_sizes
from riffle_spark.state.formats.arrow_schemas import check_names
from riffle_spark.state.formats.arrow_values import check_buffers
from riffle_spark.state.formats.part_codec import HASH, IN_PLAIN, altered_error
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Snapshot
from riffle_spark.state.restore.reader import Reader, in_parallel

RANGED_FROM_BYTES: Final = 4 << 20
"""Smaller snapshots are fetched whole: one request takes less time than several one after the other."""
_START_BYTES: Final = 64 << 10
_JOIN_GAP_BYTES: Final = 64 << 10
_WINDOW_ROWS_MIN: Final = 64
_WIDER: Final = 8
_HASHES: Final = 2**64
_Width: TypeAlias = "np.dtype[np.int32] | np.dtype[np.int64]"
_INT32: Final[_Width] = np.dtype(np.int32)
_INT64: Final[_Width] = np.dtype(np.int64)
"""The widths of offsets."""

_Range: TypeAlias = tuple[int, int]
"""The start and end of bytes in the object."""
_Later: TypeAlias = "Callable[[], list[_Later]]"


class _Unsuitable(Exception):
    """The snapshot has a layout whose rows cannot be read by ranges."""


def fetch_rows_of_hashes(reader: Reader, address: Address, snapshot: Snapshot, hashes: Words) -> pa.Table | None:
    """Return the rows of a snapshot that have one of a few hashes, ``None`` if it must be read as a whole.

    That is so for encrypted and compressed snapshots, and for those of earlier formats. Raises ``CorruptStateError`` if
    the object is missing or has wrong offsets.
    """
    sparse = _SparseSnapshot(reader, address, snapshot)
    table = sparse.open()
    if table is None:
        return None
    try:
        spans = sparse.find_hashes(table, np.unique(hashes))
        pieces = sparse.read_rows(table, [(start, end) for start, end in spans if start < end])
    except _Unsuitable:
        return None
    rows = pa.concat_tables([table.slice(0, 0), *pieces]).combine_chunks()
    check_buffers(rows)
    return rows


class _SparseSnapshot:
    """A snapshot of which only some ranges were fetched."""

    def __init__(self, reader: Reader, address: Address, snapshot: Snapshot) -> None:
        """Reserve as many bytes of memory as the snapshot has. Nothing is fetched."""
        self._reader = reader
        self._address = address
        self._snapshot = snapshot
        self._memory = mmap.mmap(-1, snapshot.length)
        self._buffer = pa.py_buffer(self._memory)
        self._ranges: list[_Range] = []
        self._needed_ranges: list[_Range] = []

    def open(self) -> pa.Table | None:
        """Return the snapshot's table, whose values are not fetched yet. ``None`` if it must be read as a whole."""
        self._fetch([(0, min(_START_BYTES, self._snapshot.length))])
        if bytes(self._memory[: len(IN_PLAIN)]) != IN_PLAIN:
            return None
        try:
            check_sizes(memoryview(self._memory))
            stream = pa.ipc.open_stream(self._buffer)
            check_names(stream.schema)
            table = stream.read_all()
        except (pa.ArrowException, ValueError, LookupError, OSError, TypeError):
            return None
        is_whole = table.num_rows == self._snapshot.rows and table.column_names[:1] == [HASH]
        in_place = self._lies_within(table.column(0).chunk(0).buffers()[1]) if is_whole and table.num_rows else False
        return table if in_place and all(column.num_chunks == 1 for column in table.columns) else None

    def _lies_within(self, buffer: pa.Buffer) -> bool:
        """Return whether a buffer is a part of the snapshot's bytes, and was not unpacked."""
        return bool(0 <= buffer.address - self._buffer.address < self._snapshot.length)

    def find_hashes(self, table: pa.Table, hashes: Words) -> list[_Range]:
        """Return the first row with each hash, and the row after the last one."""
        count = table.num_rows
        margin = _WINDOW_ROWS_MIN + 4 * int(count**0.5)
        spans: dict[int, _Range | None] = dict.fromkeys(hashes.tolist())
        while None in spans.values():
            places = {hash_: hash_ * count // _HASHES for hash_, span in spans.items() if span is None}
            windows = {hash_: (max(0, place - margin), min(count, place + margin)) for hash_, place in places.items()}
            self._fetch_level(table, list(windows.values()))
            for hash_, window in windows.items():
                spans[hash_] = _find_in_window(table, hash_, *window)
            margin *= _WIDER
        return [span for span in spans.values() if span is not None]

    def read_rows(self, table: pa.Table, spans: Sequence[_Range]) -> list[pa.Table]:
        """Return the rows of each span, with their values."""
        later = self._fetch_level(table, spans)
        while later:
            later = [inner for step in later for inner in step()]
            self._fetch_needed()
        return [table.slice(start, end - start).take(pa.array(np.arange(end - start))) for start, end in spans]

    def _fetch_level(self, table: pa.Table, spans: Sequence[_Range]) -> list[_Later]:
        """Fetch null bits, values and offsets of some rows. Return functions that add what the offsets point to."""
        arrays = [column.chunk(0) for column in table.columns]
        later = [step for start, end in spans for array in arrays for step in self._need(array, start, end)]
        self._fetch_needed()
        return later

    def _need(self, array: pa.Array, start: int, end: int) -> list[_Later]:
        """Add the ranges that hold some values of an array. Return functions that add what their offsets point to."""
        kind = array.type
        buffers = array.buffers()
        if array.offset:
            raise _Unsuitable
        if types.is_null(kind) or start == end:
            return []
        if buffers[0] is not None:
            self._need_bytes(buffers[0], start // 8, (end + 7) // 8)
        if types.is_struct(kind):
            children = [array.field(place) for place in range(len(kind))]
            return [step for child in children for step in self._need(child, start, end)]
        if types.is_map(kind):
            return self._need_offsets(buffers[1], _INT32, start, end, [array.keys, array.items])
        if types.is_list(kind) or types.is_large_list(kind):
            width = _INT32 if types.is_list(kind) else _INT64
            return self._need_offsets(buffers[1], width, start, end, [array.values])
        if is_text_or_bytes(kind):
            width = _INT64 if types.is_large_string(kind) or types.is_large_binary(kind) else _INT32
            return self._need_offsets(buffers[1], width, start, end, [buffers[2]])
        if types.is_boolean(kind):
            self._need_bytes(buffers[1], start // 8, (end + 7) // 8)
        elif types.is_primitive(kind) or types.is_decimal(kind):
            self._need_bytes(buffers[1], start * fixed_width(kind), end * fixed_width(kind))
        else:
            raise _Unsuitable
        return []

    def _need_offsets(
        self,
        offsets: pa.Buffer,
        width: _Width,
        start: int,
        end: int,
        targets: Sequence["pa.Array | pa.Buffer | None"],
    ) -> list[_Later]:
        """Add the range of some offsets. Return a function that adds what they point to in ``targets``."""
        self._need_bytes(offsets, start * width.itemsize, (end + 1) * width.itemsize)

        def follow() -> list[_Later]:
            values = np.frombuffer(offsets, width)[start : end + 1].astype(np.int64)
            first = int(values[0])
            last = int(values[-1])
            later: list[_Later] = []
            for target in targets:
                size = 0 if target is None else target.size if isinstance(target, pa.Buffer) else len(target)
                if first < 0 or last > size or bool(np.any(np.diff(values) < 0)):
                    raise altered_error(paths.snapshot_name(*self._address, self._snapshot.id))
                if isinstance(target, pa.Buffer):
                    self._need_bytes(target, first, last)
                elif target is not None:
                    later += self._need(target, first, last)
            return later

        return [follow]

    def _need_bytes(self, buffer: pa.Buffer, start: int, end: int) -> None:
        """Add a range of a buffer. If all texts are empty, their buffer is not in the snapshot."""
        if start == end:
            return
        first = buffer.address - self._buffer.address
        if not 0 <= first <= first + buffer.size <= self._snapshot.length:
            raise _Unsuitable
        self._needed_ranges.append((first + start, first + min(end, buffer.size)))

    def _fetch_needed(self) -> None:
        """Fetch the ranges that were added."""
        ranges = self._needed_ranges
        self._needed_ranges = []
        self._fetch(ranges)

    def _fetch(self, ranges: Sequence[_Range]) -> None:
        """Fetch ranges that were not fetched yet. Ranges with small gaps are joined."""
        missing = [span for span in ranges if not any(a <= span[0] and span[1] <= b for a, b in self._ranges)]
        joined_ranges: list[_Range] = []
        for start, end in sorted(missing):
            if joined_ranges and start - joined_ranges[-1][1] <= _JOIN_GAP_BYTES:
                joined_ranges[-1] = (joined_ranges[-1][0], max(end, joined_ranges[-1][1]))
            else:
                joined_ranges.append((start, end))
        for (start, end), data in zip(joined_ranges, in_parallel(self._get, joined_ranges), strict=True):
            if len(data) != end - start:
                raise altered_error(paths.snapshot_name(*self._address, self._snapshot.id))
            self._memory[start:end] = data
        self._ranges += joined_ranges

    def _get(self, span: _Range) -> bytes:
        return self._reader.fetch_snapshot_range(self._address, self._snapshot, span[0], span[1] - span[0])


def _find_in_window(table: pa.Table, hash_: int, low: int, high: int) -> _Range | None:
    """Return the rows with a hash, of which ``low`` to ``high`` were fetched. ``None`` if there may be others."""
    count = table.num_rows
    window = np.frombuffer(table.column(0).chunk(0).buffers()[1], np.uint64, count)[low:high]
    start = low + int(np.searchsorted(window, np.uint64(hash_), side="left"))
    end = low + int(np.searchsorted(window, np.uint64(hash_), side="right"))
    return (start, end) if (low == 0 or start > low) and (high == count or end < high) else None
