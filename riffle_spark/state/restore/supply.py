"""What copies of variables lack, read ahead of the work on them: for a slot at once, or beside the batches, piece by
piece. Knows parts, snapshots and their order. Does not know which copies are wanted.

Theory of operation. A cold restore is bound by two things in turn, the store and the filling of copies, so one must
not wait for the other: while a copy is filled, the next ones' bytes are on their way, several gets at a time and large
snapshots in ranges, and what has come is decoded. Bytes ahead are bounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import CorruptStateError, OutOfDate
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Link, Snapshot
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.prefetch import Budget, prefetched
from riffle_spark.state.restore.reader import Reader, ranges, span_bytes
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["Lacking", "Supply", "VariablesFollower", "Wanted", "rows_of"]

_BYTES_AHEAD = 64 << 20
_AT_ONCE = 12
_GAP_BYTES = 8 << 20
"""Beside the batches a delta is got in one get unless more than this lies between two parts."""


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
                for start, size in ranges(snapshot.length):
                    yield _Range((self._schema.store, key_group), snapshot, start, size)

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


class VariablesFollower:
    """Brings one store's copies after the log: links are folded, a snapshot is loaded."""

    def __init__(
        self, schema: VariableColumns, folder: Folder, reader: Reader, incoming: IncomingSnapshots,
        planner: CopyPlanner, budget: Budget,
    ) -> None:  # fmt: skip
        self._schema = schema
        self._folder = folder
        self._reader = reader
        self._incoming = incoming
        self._planner = planner
        self._budget = budget
        self._folds = 0

    def advance(self, those: Sequence[CopyProgress]) -> int:
        """Fold the links that these copies lack, as far as the budget goes; return how many."""
        before = self._folds
        owed = {link: one for one in those for link in one.links}
        runs = iter(self._reader.runs(owed, _GAP_BYTES))
        reading = prefetched(self._reader.read, self._granted(runs), span_bytes, _BYTES_AHEAD, _AT_ONCE)
        with closing(reading):
            for run, tables in reading:
                self._fold_run(run, tables, owed)
        return self._folds - before

    def _granted(self, runs: Iterator[list[Link]]) -> Iterator[list[Link]]:
        for run in runs:
            allowed = self._budget.allows() if self._reader.is_local(run) else self._budget.grant(span_bytes(run))
            if not allowed:
                return
            yield run

    def _fold_run(
        self, run: list[Link], reading: Future[dict[Link, pa.Table | CorruptStateError]],
        owed: Mapping[Link, CopyProgress],
    ) -> None:  # fmt: skip
        try:
            found = reading.result()
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            found = dict.fromkeys(run, trouble)
        tables: dict[Link, pa.Table] = {}
        for link, table in found.items():
            if isinstance(table, Exception):
                owed[link].fail(table)
            else:
                tables[link] = table
        try:
            encoded = rows_of(self._schema, tables)
        except Exception as trouble:  # noqa: BLE001 - as above
            encoded = {}
            for link in tables:
                owed[link].fail(trouble)
        for link, rows in encoded.items():
            self._fold(owed[link], link, rows)

    def _fold(self, one: CopyProgress, link: Link, rows: CopyRows) -> None:
        if one.error is not None or one.links[:1] != (link,):
            return
        try:
            with self._opened(one) as copy:
                copy.fold(one.at or EMPTY_HEAD, link.head, rows, later=[later.head for later in one.links[1:]])
        except OutOfDate as trouble:
            self._planner.look_again(one, trouble)
        except DamagedCopy as trouble:
            self._planner.give_up(one, trouble)
        except Exception as trouble:  # noqa: BLE001 - as above
            one.fail(trouble)
        else:
            one.at, one.links, one.fetched = link.head, one.links[1:], one.fetched + link.length
            self._folds += 1

    def _opened(self, one: CopyProgress) -> Copy:
        current = self._folder.current(*one.address)
        if current is None:
            raise OutOfDate("the copy went while it followed", remedy="nothing: the next piece restores it")
        return Copy.of_layout(current, self._schema.copy_layout)

    def begin(self, one: CopyProgress) -> None:
        """Switch a new copy in that stands at the entry's base. Raises what it finds."""
        snapshot = one.entry.snapshot
        fresh = self._folder.fresh(*one.address)
        try:
            with Copy(fresh, new=True, layout=self._schema.copy_layout) as copy:
                if snapshot is not None:
                    copy.load(one.entry.base, self._schema.encode(self._incoming.table(one.address, snapshot)))
            self._folder.switch(*one.address, fresh)
        except BaseException:
            self._folder.discard(one.address[0], fresh)
            raise
