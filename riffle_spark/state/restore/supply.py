"""What copies lack, read ahead of the work on them. Knows parts, snapshots and their order. Does not know copies.

Theory of operation. A cold restore is bound by two things in turn, the store and the filling of copies, so one must
not wait for the other: while a copy is filled, the next ones' bytes are on their way, several gets at a time and large
snapshots in ranges, and what has come is decoded. Bytes ahead are bounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.restore.prefetch import prefetched
from riffle_spark.state.restore.reader import Reader, next_range
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["Lacking", "Supply", "Wanted", "rows_of"]

RANGE_BYTES = 8 << 20
_BYTES_AHEAD = 64 << 20
_AT_ONCE = 12


class Wanted(NamedTuple):
    """The snapshot of a key-group."""

    key_group: int
    snapshot: Snapshot


class Lacking(NamedTuple):
    """What some copies of one store lack: links, and snapshots."""

    links: tuple[Link, ...]
    snapshots: tuple[Wanted, ...]


class _Links(NamedTuple):
    links: tuple[Link, ...]

    @property
    def size(self) -> int:
        return sum(link.length for link in self.links)


class _Range(NamedTuple):
    address: Address
    snapshot: Snapshot
    start: int
    size: int

    @property
    def is_whole(self) -> bool:
        return self.size == self.snapshot.length

    @property
    def is_last(self) -> bool:
        return self.start + self.size == self.snapshot.length

    @property
    def name(self) -> str:
        return paths.snapshot(*self.address, self.snapshot.id)


class Supply:
    """Reads for groups of copies, one group after the other: first a group's links, then each of its snapshots.

    What is asked for must be asked for in this order. Raises what ``Reader`` raises.
    """

    def __init__(self, reader: Reader, schema: VariableColumns, groups: Sequence[Lacking]) -> None:
        self._reader = reader
        self._schema = schema
        self._groups = iter(groups)
        self._in_turn = not any(group.snapshots for group in groups)
        self._coming = prefetched(self._read, self._items(groups), lambda item: item.size, _BYTES_AHEAD, _AT_ONCE)

    def links(self) -> Mapping[Link, CopyRows]:
        """Return the rows of the next group's links."""
        if self._in_turn:  # a batch's few parts: a thread would cost more than it saves
            return rows_of(self._schema, self._reader.links(next(self._groups).links))
        _, coming = next(self._coming)
        found = coming.result()
        assert isinstance(found, dict), "links come first in their group"
        return found

    def snapshot(self) -> CopyRows:
        """Return the rows of the group's next snapshot."""
        parts: list[bytes] = []
        for item, coming in self._coming:
            found = coming.result()
            if isinstance(found, CopyRows):
                return found
            assert isinstance(item, _Range), "snapshots come after links"
            assert isinstance(found, bytes), "a part of a snapshot"
            parts.append(found)
            if item.is_last:
                return self._rows(item, b"".join(parts))
        raise AssertionError("no more snapshots than were asked for")

    def close(self) -> None:
        """Give up what has not begun."""
        self._coming.close()

    def _items(self, groups: Sequence[Lacking]) -> Iterator[_Links | _Range]:
        for group in groups:
            yield _Links(group.links)
            for key_group, snapshot in group.snapshots:
                start = 0
                while start < snapshot.length:
                    size = next_range(snapshot.length - start, RANGE_BYTES)
                    yield _Range((self._schema.store, key_group), snapshot, start, size)
                    start += size

    def _read(self, item: _Links | _Range) -> dict[Link, CopyRows] | CopyRows | bytes:
        if isinstance(item, _Links):
            return rows_of(self._schema, self._reader.links(item.links))
        data = self._reader.snapshot_range(item.address, item.snapshot, item.start, item.size)
        return self._rows(item, data) if item.is_whole else data

    def _rows(self, item: _Range, data: bytes) -> CopyRows:
        return self._schema.encode(part_codec.decode(data, item.snapshot.checksum, item.name))


def rows_of(schema: VariableColumns, tables: Mapping[Link, pa.Table]) -> dict[Link, CopyRows]:
    """Encode all parts at once, then cut: the cost of a key-group is a slice of a list."""
    if not tables:
        return {}
    fitting = {link: schema.fit(table) for link, table in tables.items()}
    rows = schema.encode(pa.concat_tables(fitting.values()))
    cut: dict[Link, CopyRows] = {}
    start = 0
    for link, table in fitting.items():
        cut[link] = rows.slice(start, start + table.num_rows)
        start += table.num_rows
    return cut
