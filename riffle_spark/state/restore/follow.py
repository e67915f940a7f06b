"""Bringing many copies after the log, piece by piece. Knows a budget and ranges of snapshots. Does not know why a copy
is wanted, or what becomes of the bytes.

Theory of operation. Copies that are on their chains come first and advance together, object by object in the log's
order, so that one ranged get of a delta serves all of a member's copies. Then come, in the order given, those that have
to be restored: a snapshot grows as a file, over several pieces if need be, and when it is whole the copy is one that
stands at the snapshot's head; from there on it is a copy like any other that lacks links. Gets run ahead of the work on
what they brought. What fails fails its own copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.copies.folder import Folder, claim
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.prefetch import Budget, prefetched
from riffle_spark.state.restore.reader import Reader, next_range
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.restore.stack_parts import StackFollower
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["Follower", "restored"]

_BEGUN_AT_ONCE = 64
_BEGUN_BYTES = 8 << 20
"""Small copies are begun together: a folder of many is listed before, as others may have begun some."""
_EVERY_EPOCH = 1 << 30
"""There is no copy yet that could be beyond its entry."""


class _Range(NamedTuple):
    of: CopyProgress
    start: int
    length: int


class Follower:
    """Brings copies of one member to their entries' heads. ``whole`` gets an entry that came cut; ``may_begin`` tells
    whether the disk has room for one more new copy.
    """

    def __init__(
        self, folder: Folder, objects: ObjectStore, schemas: Mapping[str, StoreSchema], epoch: int,
        whole: Callable[[Address], Entry], budget: Budget, may_begin: Callable[[], bool], keys: Keys | None = None,
    ) -> None:  # fmt: skip
        self._budget = budget
        self._may_begin = may_begin
        self._reader = Reader(objects, folder, keys)
        self._incoming = IncomingSnapshots(folder.path)
        self._planner = CopyPlanner(folder, self._incoming, epoch, whole)
        shared = folder, self._reader, self._incoming, self._planner, budget
        self._stores = {store: StackFollower(schema, *shared) for store, schema in schemas.items()}
        self.restores = 0
        self.folds = 0

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of snapshots that came from the store."""
        return self._reader.totals.snapshot_bytes

    @property
    def delta_bytes(self) -> int:
        """Bytes of deltas that came from the store."""
        return self._reader.totals.fetched_bytes - self.snapshot_bytes

    def follow(self, wanted: Mapping[Address, Entry]) -> list[CopyProgress]:
        """Return how far each copy came, in the order given. Nothing is raised: errors are told copy by copy."""
        all_of_them = [self._planner.looked(address, entry) for address, entry in wanted.items()]
        for one in all_of_them:
            if one.address[0] not in self._stores:
                one.fail(
                    ConfigError(
                        "the order does not tell the columns of this store", where=one.address[0], id="RIFFLE-0460"
                    )
                )
        restores = [one for one in all_of_them if one.restore]
        self._advance([one for one in all_of_them if not one.restore])
        self._restore(restores)
        self._advance([one for one in restores if not one.restore])
        for one in all_of_them:
            if not one.restore and one.error is None:
                self._incoming.forget(one.address)
        return all_of_them

    def _advance(self, those: Sequence[CopyProgress]) -> None:
        for store, follower in self._stores.items():
            self.folds += follower.advance([one for one in those if one.address[0] == store and one.error is None])

    def _restore(self, those: Sequence[CopyProgress]) -> None:
        whole: list[CopyProgress] = []
        getting = prefetched(self._get, self._ranges(those), lambda piece: piece.length)
        with closing(getting):
            for piece, data in getting:
                if piece.of.error is None:
                    try:
                        whole += self._taken(piece, data.result())
                    except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
                        piece.of.fail(trouble)
                if len(whole) >= _BEGUN_AT_ONCE or sum(one.fetched for one in whole) >= _BEGUN_BYTES:
                    self._begin_all(whole)
                    whole = []
        self._begin_all(whole)

    def _ranges(self, those: Sequence[CopyProgress]) -> Iterator[_Range]:
        """Yield what is still to be got of each snapshot, as far as disk and budget allow."""
        for one in those:
            if one.error is not None:
                continue
            at, size = one.fetched, one.entry.snapshot.length if one.entry.snapshot else 0
            if not self._may_begin() or (at == size and not self._budget.allows()):
                return
            if at == size:
                yield _Range(one, at, 0)
            while at < size and one.error is None:
                granted = self._budget.grant(next_range(size - at), part=True)
                if not granted:
                    return
                yield _Range(one, at, granted)
                at += granted

    def _get(self, piece: _Range) -> bytes:
        one, snapshot = piece.of, piece.of.entry.snapshot
        if snapshot is None or not piece.length:
            return b""
        return self._reader.snapshot_range(one.address, snapshot, piece.start, piece.length)

    def _taken(self, piece: _Range, data: bytes) -> list[CopyProgress]:
        """Add what came to the snapshot's file; return the copy if that is whole with it."""
        one, snapshot = piece.of, piece.of.entry.snapshot
        if snapshot is not None and len(data) != piece.length:
            name = paths.snapshot(*one.address, snapshot.id)
            raise CorruptStateError("the object is shorter than the log says", where=name, id="RIFFLE-0461")
        if snapshot is not None and data:
            self._incoming.add(one.address, snapshot, piece.start, data)
            one.fetched += len(data)
        return [one] if snapshot is None or one.fetched == snapshot.length else []

    def _begin_all(self, those: Sequence[CopyProgress]) -> None:
        """Have new copies stand where their chains begin, but for those where another process was quicker."""
        for store in {one.address[0] for one in those}:
            self._planner.stacks(store).refresh()  # a slot may have restored some while bytes were on their way
        for one in those:
            try:
                self._begin(one)
            except Exception as trouble:  # noqa: BLE001 - as above
                one.fail(trouble)

    def _begin(self, one: CopyProgress) -> None:
        self._planner.plan(one)
        if one.restore:
            self.restores += self._stores[one.address[0]].begin(one)
            one.at, one.restore = one.entry.base, False


def restored(schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, folder: Path) -> dict[int, pa.Table]:
    """Return the whole state of each shard that was ever touched, as a snapshot's table, by number and in its order.

    Copies are made below ``folder``, which is empty. Raises what bringing copies raises.
    """
    return StackKeeper(claim(folder, "reader", ()), schema, reader, _EVERY_EPOCH).tables(entries)
