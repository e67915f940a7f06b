"""Follow the log with many copies, piece by piece, within a budget.

Theory of operation:

1. Copies on their chains advance together, object by object in the log's order. So one ranged GET of a delta serves all
   copies of a member.
2. Then copies are restored, in the order given. A snapshot grows as a file, over several pieces if needed. When it is
   complete, the copy's head is the snapshot's, and the copy lacks links like any other.

GETs run ahead of the work on their results. An error fails only its own copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.prefetch import Budget, run_ahead
from riffle_spark.state.restore.reader import Reader, next_range_bytes
from riffle_spark.state.restore.stack_follower import StackFollower
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.schemas.store_schema import StoreSchema

_CREATED_AT_ONCE = 64
_CREATED_BYTES = 8 << 20
"""Small copies are created together, because the folder is listed before: other processes may have created some."""
_EVERY_EPOCH = 1 << 30
"""The epoch of a reader in an empty folder, where no copy can be beyond its entry."""


class _Range(NamedTuple):
    """A range of a copy's snapshot to fetch."""

    copy: CopyProgress
    start: int
    length: int


class Follower:
    """Advances copies of a member to their entries' heads.

    ``read_whole`` reads the whole entry if an order has a cut entry. ``has_room`` returns whether the disk has room for
    one more new copy.
    """

    def __init__(
        self,
        folder: Folder,
        objects: ObjectStore,
        schemas: Mapping[str, StoreSchema],
        epoch: int,
        read_whole: Callable[[Address], Entry],
        budget: Budget,
        has_room: Callable[[], bool],
        keys: Keys | None = None,
    ) -> None:
        """Open the stacks of these stores in ``folder``.

        ``epoch`` is that of the driver that ordered the task. ``budget`` limits the bytes and the time of the task.
        ``keys`` decrypt parts.
        """
        self._budget = budget
        self._has_room = has_room
        self._reader = Reader(objects, keys)
        self._incoming = IncomingSnapshots(folder.path)
        self._planner = CopyPlanner(folder, self._incoming, epoch, read_whole)
        self._stores = {
            store: StackFollower(schema, folder, self._reader, self._incoming, self._planner, budget)
            for store, schema in schemas.items()
        }
        self.restores = 0
        self.folds = 0

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of snapshots fetched from the store."""
        return self._reader.totals.snapshot_bytes

    @property
    def delta_bytes(self) -> int:
        """Bytes of deltas fetched from the store."""
        return self._reader.totals.fetched_bytes - self.snapshot_bytes

    def follow(self, entries: Mapping[Address, Entry]) -> list[CopyProgress]:
        """Advance the copies, and return their progress in the order given. Errors are stored per copy."""
        copies = [self._planner.start_copy(address, entry) for address, entry in entries.items()]
        for copy in copies:
            store = copy.address[0]
            if store not in self._stores:
                # Cause: The driver and the executors run different versions of riffle_spark.
                copy.fail(
                    ConfigError(
                        "The order has no schema for this store.",
                        remedy="Install the same version of riffle_spark on the driver and every executor.",
                        where=store,
                        id="RIFFLE-0460",
                    )
                )
        restores = [copy for copy in copies if copy.restore]
        self._advance([copy for copy in copies if not copy.restore])
        self._restore(restores)
        self._advance([copy for copy in restores if not copy.restore])
        for copy in copies:
            if not copy.restore and copy.error is None:
                self._incoming.remove(copy.address)
        return copies

    def _advance(self, copies: Sequence[CopyProgress]) -> None:
        """Add the missing links to the copies that have no error."""
        for store, follower in self._stores.items():
            self.folds += follower.advance([copy for copy in copies if copy.address[0] == store and copy.error is None])

    def _restore(self, copies: Sequence[CopyProgress]) -> None:
        """Fetch the snapshots of copies in ranges, and create the copies with complete snapshots."""
        complete: list[CopyProgress] = []
        fetching = run_ahead(self._fetch_range, self._ranges(copies), lambda range_: range_.length)
        with closing(fetching):
            for range_, data in fetching:
                if range_.copy.error is None:
                    try:
                        complete += self._append_range(range_, data.result())
                    except Exception as error:  # noqa: BLE001 - reported to the driver, which orders the copy again
                        range_.copy.fail(error)
                complete_bytes = sum(copy.fetched for copy in complete)
                if len(complete) >= _CREATED_AT_ONCE or complete_bytes >= _CREATED_BYTES:
                    self._create_all(complete)
                    complete = []
        self._create_all(complete)

    def _ranges(self, copies: Sequence[CopyProgress]) -> Iterator[_Range]:
        """Yield the missing ranges of each snapshot, as far as disk and budget allow."""
        for copy in copies:
            if copy.error is not None:
                continue
            start = copy.fetched
            size = copy.entry.snapshot.length if copy.entry.snapshot else 0
            if not self._has_room() or (start == size and not self._budget.start_item()):
                return
            if start == size:
                yield _Range(copy, start, 0)
            while start < size and copy.error is None:
                granted = self._budget.grant(next_range_bytes(size - start), part=True)
                if not granted:
                    return
                yield _Range(copy, start, granted)
                start += granted

    def _fetch_range(self, range_: _Range) -> bytes:
        """Return the bytes of a range of a snapshot; none for an empty range."""
        snapshot = range_.copy.entry.snapshot
        if snapshot is None or not range_.length:
            return b""
        return self._reader.fetch_snapshot_range(range_.copy.address, snapshot, range_.start, range_.length)

    def _append_range(self, range_: _Range, data: bytes) -> list[CopyProgress]:
        """Append a fetched range to the snapshot's file.

        Return the copy in a list if its snapshot is now complete, else an empty list.
        """
        copy = range_.copy
        snapshot = copy.entry.snapshot
        if snapshot is not None and len(data) != range_.length:
            name = paths.snapshot_name(*copy.address, snapshot.id)
            # Cause: A person or a tool replaced the object.
            raise CorruptStateError(
                "The object is shorter than the log lists.",
                remedy="Restore it from a backup, or roll back to a batch that does not need it (riffle rollback).",
                where=name,
                id="RIFFLE-0461",
            )
        if snapshot is not None and data:
            self._incoming.append_bytes(copy.address, snapshot, range_.start, data)
            copy.fetched += len(data)
        return [copy] if snapshot is None or copy.fetched == snapshot.length else []

    def _create_all(self, copies: Sequence[CopyProgress]) -> None:
        """Create new copies at the start of their chains, except copies that another process has created."""
        for store in {copy.address[0] for copy in copies}:
            self._planner.stacks(store).refresh()  # a slot may have restored some since
        for copy in copies:
            try:
                self._create(copy)
            except Exception as error:  # noqa: BLE001 - as above
                copy.fail(error)

    def _create(self, copy: CopyProgress) -> None:
        """Create a new copy from its complete snapshot, unless its plan has changed."""
        self._planner.plan(copy)
        if copy.restore:
            self.restores += self._stores[copy.address[0]].create(copy)
            copy.head = copy.entry.base
            copy.restore = False


def restore_tables(
    schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, folder: Path
) -> dict[int, pa.Table]:
    """Return the whole state of each shard that has state, with a snapshot's columns and order.

    Creates copies below the empty ``folder``. Raises the errors of ``StackKeeper.advance``.
    """
    return StackKeeper(claim_folder(folder, "reader", ()), schema, reader, _EVERY_EPOCH).read_tables(entries)
