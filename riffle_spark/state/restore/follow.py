"""Bringing many copies after the log, piece by piece. Knows copies, parts and a budget. Does not know why a copy is
wanted.

Theory of operation. Copies that are on their chains come first and fold together, object by object in the log's order,
so that one ranged get of a delta serves all of a member's copies. Then come, in the order given, those that have to
be restored: a snapshot grows as a file, over several pieces if need be, is loaded into a new copy and switched in
where it stands, at the snapshot's head; from there on it is a copy like any other that folds what it lacks. Gets run
ahead of folding and loading. What fails fails its own copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError, OutOfDate
from riffle_spark.state.copies.copy import Copy, CopyInUse, DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.snapshot_copy import open_copy
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Head, Link
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.bring import head_of
from riffle_spark.state.restore.copy_plan import plan_copy, plan_of_entry
from riffle_spark.state.restore.incoming import IncomingSnapshots
from riffle_spark.state.restore.prefetch import Budget, prefetched
from riffle_spark.state.restore.reader import Reader, next_range, span_bytes
from riffle_spark.state.restore.supply import rows_of
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["CopyPlanner", "CopyProgress", "Follower"]

RANGE_BYTES = 8 << 20
"""A snapshot is got in ranges of so many bytes, and a delta in one get unless more than this lies between two parts."""
_BYTES_AHEAD = 32 << 20
_AT_ONCE = 8


class _Range(NamedTuple):
    of: "CopyProgress"
    start: int
    length: int


class Follower:
    """Brings copies of one member to their entries' heads. ``whole`` gets an entry that came cut; ``may_begin`` tells
    whether the disk has room for one more new copy.
    """

    def __init__(
        self, folder: Folder, objects: ObjectStore, schemas: Mapping[str, StoreSchema], epoch: int,
        whole: Callable[[Address], Entry], budget: Budget, may_begin: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._folder = folder
        self._schemas = schemas
        self._budget = budget
        self._may_begin = may_begin
        self._reader = Reader(objects, folder)
        self._incoming = IncomingSnapshots(folder.path)
        self._planner = CopyPlanner(folder, self._incoming, epoch, whole)
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

    def follow(self, wanted: Mapping[Address, Entry]) -> "list[CopyProgress]":
        """Return how far each copy came, in the order given. Nothing is raised: errors are told copy by copy."""
        all_of_them = [self._planner.looked(address, entry) for address, entry in wanted.items()]
        restores = [one for one in all_of_them if one.restore]
        self._fold([one for one in all_of_them if not one.restore])
        self._restore(restores)
        self._fold([one for one in restores if not one.restore])
        for one in all_of_them:
            if not one.restore and one.error is None:
                self._incoming.forget(one.address)
        return all_of_them

    def _fold(self, those: "Sequence[CopyProgress]") -> None:
        owed = {link: one for one in those if one.error is None for link in one.links}
        runs = iter(self._reader.runs(owed, RANGE_BYTES))
        reading = prefetched(self._reader.read, self._granted(runs), span_bytes, _BYTES_AHEAD, _AT_ONCE)
        with closing(reading):
            for run, tables in reading:
                self._fold_run(run, tables, owed)

    def _granted(self, runs: Iterator[list[Link]]) -> Iterator[list[Link]]:
        for run in runs:
            allowed = self._budget.allows() if self._reader.is_local(run) else self._budget.grant(span_bytes(run))
            if not allowed:
                return
            yield run

    def _fold_run(
        self, run: list[Link], reading: Future[dict[Link, pa.Table | CorruptStateError]],
        owed: "Mapping[Link, CopyProgress]",
    ) -> None:  # fmt: skip
        try:
            found = reading.result()
        except Exception as trouble:  # noqa: BLE001 - as above
            found = dict.fromkeys(run, trouble)
        by_store: dict[str, dict[Link, pa.Table]] = {}
        for link, table in found.items():
            if isinstance(table, Exception):
                owed[link].error = owed[link].error or str(table)
            else:
                by_store.setdefault(owed[link].address[0], {})[link] = table
        for store, tables in by_store.items():
            try:
                encoded = rows_of(self._schema(store), tables)
            except Exception as trouble:  # noqa: BLE001 - as above
                encoded = {}
                for link in tables:
                    owed[link].error = owed[link].error or str(trouble)
            for link, rows in encoded.items():
                self._fold_link(owed[link], link, rows)

    def _schema(self, store: str) -> StoreSchema:
        if store not in self._schemas:
            raise ConfigError("the order does not tell the columns of this store", where=store)
        return self._schemas[store]

    def _fold_link(self, one: "CopyProgress", link: Link, rows: CopyRows) -> None:
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
            one.error = str(trouble)
        else:
            one.at, one.links, one.fetched = link.head, one.links[1:], one.fetched + link.length
            self.folds += 1

    def _opened(self, one: "CopyProgress") -> Copy:
        current = self._folder.current(*one.address)
        if current is None:
            raise OutOfDate("the copy went while it followed", remedy="nothing: the next piece restores it")
        return open_copy(current, self._schema(one.address[0]))

    def _restore(self, those: "Sequence[CopyProgress]") -> None:
        getting = prefetched(self._get, self._ranges(those), lambda piece: piece.length, _BYTES_AHEAD, _AT_ONCE)
        with closing(getting):
            for piece, data in getting:
                if piece.of.error is None:
                    try:
                        self._take(piece, data.result())
                    except Exception as trouble:  # noqa: BLE001 - as above
                        piece.of.error = str(trouble)

    def _ranges(self, those: "Sequence[CopyProgress]") -> Iterator[_Range]:
        """Yield what is still to be got of each snapshot, as far as disk and budget allow."""
        for one in those:
            at, size = one.fetched, one.entry.snapshot.length if one.entry.snapshot else 0
            if not self._may_begin() or (at == size and not self._budget.allows()):
                return
            if at == size:
                yield _Range(one, at, 0)
            while at < size and one.error is None:
                granted = self._budget.grant(next_range(size - at, RANGE_BYTES), part=True)
                if not granted:
                    return
                yield _Range(one, at, granted)
                at += granted

    def _get(self, piece: _Range) -> bytes | CopyRows:
        """Return the bytes of a range; of one that is the whole snapshot its rows: no file need hold it."""
        one, snapshot = piece.of, piece.of.entry.snapshot
        if snapshot is None or not piece.length:
            return b""
        data = self._reader.snapshot_range(one.address, snapshot, piece.start, piece.length)
        if piece.length < snapshot.length:
            return data
        name = paths.snapshot(*one.address, snapshot.id)
        return self._schema(one.address[0]).encode(part_codec.decode(data, snapshot.checksum, name))

    def _take(self, piece: _Range, data: bytes | CopyRows) -> None:
        """Add what came to the snapshot's file; fill the copy once that is whole."""
        one, snapshot = piece.of, piece.of.entry.snapshot
        if snapshot is None or isinstance(data, CopyRows):
            self._fill(one, data if isinstance(data, CopyRows) else None)
            one.fetched += piece.length
            return
        if len(data) != piece.length:
            name = paths.snapshot(*one.address, snapshot.id)
            raise CorruptStateError("the object is shorter than the log says", where=name)
        if data:
            self._incoming.add(one.address, snapshot, data)
            one.fetched += len(data)
        if one.fetched == snapshot.length:
            self._fill(one, self._schema(one.address[0]).encode(self._incoming.table(one.address, snapshot)))

    def _fill(self, one: "CopyProgress", rows: CopyRows | None) -> None:
        """Switch a new copy in that stands where the chain begins, unless another process was quicker."""
        self._planner.plan(one)
        if not one.restore:
            return
        fresh = self._folder.fresh(*one.address)
        try:
            with Copy(fresh, new=True, layout=self._schema(one.address[0]).copy_layout) as copy:
                if rows is not None:
                    copy.load(one.entry.base, rows)
            self._folder.switch(*one.address, fresh)
        except BaseException:
            self._folder.discard(one.address[0], fresh)
            raise
        one.at, one.restore = one.entry.base, False
        self.restores += 1


@dataclass(slots=True)
class CopyProgress:
    """How far one copy came: where it is (``None``: there is none), what it lacks, bytes fetched of bytes to fetch."""

    address: Address
    entry: Entry
    at: Head | None = None
    links: tuple[Link, ...] = ()
    restore: bool = False
    fetched: int = 0
    total: int = 0
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the copy is where it should be, or further on."""
        return not self.links and not self.restore and self.error is None


class CopyPlanner:
    """Looks where copies of one member are, and plans what they lack. ``whole`` gets an entry that came cut."""

    def __init__(
        self, folder: Folder, incoming: IncomingSnapshots, epoch: int, whole: Callable[[Address], Entry]
    ) -> None:
        self._folder = folder
        self._incoming = incoming
        self._epoch = epoch
        self._whole = whole

    def looked(self, address: Address, entry: Entry) -> CopyProgress:
        """Return where a copy is, with what it lacks or what was wrong with looking."""
        one = CopyProgress(address, entry)
        try:
            self.plan(one)
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            one.error = str(trouble)
        return one

    def plan(self, one: CopyProgress) -> None:
        """Look where the copy is; set what it lacks: nothing, some links, or everything.

        A copy of a key-group that is empty goes, one that is beyond its entry stays. Raises what reading the log
        raises.
        """
        one.at = head_of(self._folder, *one.address)
        one.restore, one.links = False, ()
        plan = plan_copy(one.at, one.entry, self._epoch, lambda: self._whole(one.address))
        one.entry, one.restore, one.links = plan.entry, plan.action == "restore", plan.links
        if plan.action == "beyond":
            return
        if plan.action == "drop":
            self._folder.drop(*one.address)
            one.at = None
            return
        one.total = sum(link.length for link in one.links)
        if one.restore and one.entry.snapshot is not None:
            one.total += one.entry.snapshot.length
            one.fetched = self._incoming.begun(one.address, one.entry.snapshot)

    def look_again(self, one: CopyProgress, trouble: OutOfDate) -> None:
        """Another process moved the copy: good if it is where it should be or further on, else for the next piece."""
        one.at = head_of(self._folder, *one.address)
        plan = plan_of_entry(one.at, one.entry, self._epoch)
        if plan.action == "beyond" or (plan.action == "fold" and not plan.links):
            one.links = ()
        else:
            one.error = str(trouble)

    def give_up(self, one: CopyProgress, trouble: DamagedCopy) -> None:
        """Remove a copy that turned out damaged: the next piece restores it."""
        one.error = str(trouble)
        if not isinstance(trouble, CopyInUse):
            self._folder.drop(*one.address)
            one.at = None
