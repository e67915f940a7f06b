"""Bringing local copies to exactly the heads a driver names. Knows copies, parts and folders. Does not know batches
or users.

So a slot gets the copies that it computes from, and a member those that it takes snapshots of. What each lacks
`copy_plan` decides: links are folded in order, and what has to be restored is filled in a new folder and switched in. A
copy that is beyond what the driver named means that the caller is out of date. Copies that follow the log beside the
batches are brought after it by `follow`, piece by piece.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies.copy import Copy, CopyInUse, DamagedCopy
from riffle_spark.state.copies.folder import Folder, claim
from riffle_spark.state.copies.snapshot_copy import begun, open_copy, settle
from riffle_spark.state.copies.snapshot_file import FILE
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head, Link, Snapshot
from riffle_spark.state.restore.copy_plan import plan_copy
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.supply import Lacking, Supply, Wanted
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["Brought", "CopyKeeper", "begin_caches", "head_of", "restored"]

_GROUP_BYTES = 64 << 20
_BASE_BYTES = 4 << 20
"""A larger snapshot stays a file beside its copy, and is loaded later, some of it with every batch."""
_SETTLED_BYTES = 8 << 20
_EVERY_EPOCH = 1 << 30
"""There is no copy yet that could be beyond its entry."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What bringing copies took: copies restored, deltas folded, seconds."""

    restores: int
    folds: int
    seconds: float


@dataclass(slots=True)
class _Work:
    """One copy to advance: from ``base``, through ``links``; filled from the entry's snapshot where ``restore``."""

    key_group: int
    copy: Copy
    entry: Entry
    base: Head
    links: tuple[Link, ...]
    restore: bool


def _not_cut(key_group: int) -> Entry:
    """Stand for a way to get whole entries where none can be cut."""
    raise AssertionError(f"the entry of key-group {key_group} is cut and nobody told how to get the whole one")


class CopyKeeper:
    """Keeps the copies of one store in one member's folder.

    ``whole`` gets an entry that came cut. ``newest``: nobody has committed after the entries, so that a copy beyond
    them is of a line that was given up.
    """

    def __init__(
        self, folder: Folder, schema: StoreSchema, reader: Reader, epoch: int,
        whole: Callable[[int], Entry] = _not_cut, *, newest: bool = False,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._epoch = epoch
        self._whole = whole
        self._newest = newest

    def bring(self, entries: Mapping[int, Entry]) -> tuple[dict[int, Copy], Brought]:
        """Return an open copy at exactly the entry's head for each key-group that was ever touched.

        A copy that turns out damaged is dropped and restored. The caller closes them. Raises ``OutOfDate`` if a copy
        is beyond its entry, ``CorruptStateError`` if an object is damaged or missing, ``UnavailableError`` if the
        store refuses, ``LocalDiskError`` if the local disk does.
        """
        started = time.perf_counter()
        try:
            opened, work = self._brought(entries)
        except DamagedCopy:
            self.forget(entries)
            opened, work = self._brought(entries)
        settle((opened[kg] for kg in opened.keys() - {w.key_group for w in work if w.restore}), _SETTLED_BYTES)
        restores = sum(w.restore for w in work)
        folds = sum(len(w.links) for w in work)
        return opened, Brought(restores, folds, time.perf_counter() - started)

    def _brought(self, entries: Mapping[int, Entry]) -> tuple[dict[int, Copy], list[_Work]]:
        opened: dict[int, Copy] = {}
        work: list[_Work] = []
        try:
            work += filter(None, (self._plan(kg, entry, opened) for kg, entry in sorted(entries.items())))
            groups = list(_groups(work))
            lacking = [self._lacking(group) for group in groups]
            with closing(Supply(self._reader, self._schema, lacking)) as supply:
                for group in groups:
                    self._advance(group, supply, opened)
        except BaseException:
            for copy in opened.values():
                copy.close()
            for fresh in (item.copy.folder for item in work if item.restore):
                self._folder.discard(self._schema.store, fresh)
            raise
        return opened, work

    def bring_or_beyond(self, key_group: int, entry: Entry) -> Copy:
        """Return an open copy at the entry's head, or where it is if that is beyond: a copy holds committed effects
        only.
        """
        try:
            return self.bring({key_group: entry})[0][key_group]
        except OutOfDate:
            return open_copy(self._folder.link(self._schema.store, key_group).resolve(), self._schema)

    def forget(self, key_groups: Iterable[int]) -> None:
        """Drop the copies of these key-groups: the next ``bring`` restores them from the store."""
        for key_group in key_groups:
            self._folder.drop(self._schema.store, key_group)

    def _plan(self, key_group: int, entry: Entry, opened: dict[int, Copy]) -> _Work | None:
        copy, head = self._open(key_group)
        if copy is not None:
            opened[key_group] = copy
        plan = plan_copy(head, entry, self._epoch, lambda: self._whole(key_group), newest=self._newest)
        if copy is not None and plan.action == "fold":
            return _Work(key_group, copy, plan.entry, plan.base, plan.links, restore=False) if plan.links else None
        if copy is not None:
            opened.pop(key_group).close()
        if head is not None and plan.action == "beyond":
            raise self._out_of_date(head, plan.entry.head, key_group)
        if plan.action == "drop":
            self._folder.drop(self._schema.store, key_group)
            return None
        opened[key_group] = fresh = self._new_copy(key_group)
        return _Work(key_group, fresh, plan.entry, plan.base, plan.links, restore=True)

    def _new_copy(self, key_group: int) -> Copy:
        return Copy(self._folder.fresh(self._schema.store, key_group), new=True, layout=self._schema.copy_layout)

    def _open(self, key_group: int) -> tuple[Copy | None, Head | None]:
        current = self._folder.current(self._schema.store, key_group)
        if current is None:
            return None, None
        try:
            copy = open_copy(current, self._schema)
        except DamagedCopy:
            return None, None
        try:
            return copy, copy.head()
        except DamagedCopy:
            return copy, None

    def _out_of_date(self, found: Head, wanted: Head, key_group: int) -> OutOfDate:
        return OutOfDate(
            f"the copy is at version {found.version} of epoch {found.epoch}, the batch starts from {wanted.version}",
            where=f"{self._schema.store}, key-group {key_group}",
        )

    def _lacking(self, group: Sequence[_Work]) -> Lacking:
        links = tuple(link for work in group for link in work.links)
        snapshots = [(work, work.entry.snapshot) for work in group if work.restore]
        wanted = (self._wanted(work, snapshot) for work, snapshot in snapshots if snapshot is not None)
        return Lacking(links, tuple(wanted))

    def _wanted(self, work: _Work, snapshot: Snapshot) -> Wanted:
        is_base = snapshot.length >= _BASE_BYTES and self._schema.file_columns is not None
        return Wanted(work.key_group, snapshot, work.copy.folder / FILE if is_base else None)

    def _advance(self, group: list[_Work], supply: Supply, opened: dict[int, Copy]) -> None:
        rows = supply.links()
        for work in group:
            if work.restore and work.entry.snapshot:
                found = supply.snapshot()
                if found is None:
                    opened[work.key_group] = work.copy = begun(work.copy, work.base, self._schema)
                else:
                    work.copy.load(work.base, found)
        for work in group:
            work.copy.fold_all([work.base, *(link.head for link in work.links)], [rows[link] for link in work.links])
            if work.restore:
                self._switch(work, opened)

    def _switch(self, work: _Work, opened: dict[int, Copy]) -> None:
        self._folder.switch(self._schema.store, work.key_group, work.copy.folder)
        assert opened[work.key_group] is work.copy


def head_of(folder: Folder, store: str, key_group: int) -> Head | None:
    """Return where a member's copy is, ``None`` if there is none. One that is damaged or of another boot is removed,
    unless another one has been switched in meanwhile. Raises ``CopyInUse`` if this process has it open.
    """
    current = folder.current(store, key_group)
    if current is None:
        return None
    try:
        with Copy(current) as copy:
            head = copy.head()
    except CopyInUse:
        raise
    except DamagedCopy:
        head = None
    if head is None and folder.current(store, key_group) == current:
        folder.drop(store, key_group)
    return head


def _groups(work: Iterable[_Work]) -> Iterable[list[_Work]]:
    """Cut the work into groups of bounded bytes, so that a restore of everything does not hold everything."""
    group: list[_Work] = []
    size = 0
    for item in work:
        weight = sum(link.length for link in item.links)
        if item.restore and item.entry.snapshot:
            weight += item.entry.snapshot.length
        if group and size + weight > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += weight
    if group:
        yield group


def restored(schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, folder: Path) -> dict[int, pa.Table]:
    """Return the whole state of each shard that was ever touched, as a snapshot's table, by number and in its order.

    Copies are made below ``folder``, which is empty. Raises what ``CopyKeeper.bring`` raises.
    """
    copies, _ = CopyKeeper(claim(folder, "reader", ()), schema, reader, epoch=_EVERY_EPOCH).bring(entries)
    tables = {}
    for key_group, copy in sorted(copies.items()):
        with copy:
            _, pairs, longs = copy.scan()
        tables[key_group] = schema.table(pairs, longs)
    return tables


def begin_caches(folder: Folder, schema: StoreSchema, entries: Mapping[int, Entry]) -> None:
    """Make every copy one that can be brought to its entry's head from what lies in the folder.

    Nothing of a cache can be fetched: a copy that is neither at the head nor, with the last link's file at hand, before
    it is begun again, empty, at the head.
    """
    for key_group, entry in entries.items():
        if entry.head == EMPTY_HEAD:
            folder.drop(schema.store, key_group)
            continue
        head, link = _head(folder, schema, key_group), entry.chain[-1]
        at_hand = folder.sealed_file(link.head.version, link.head.attempt).exists()
        if head == entry.head or (head == entry.base and at_hand):
            continue
        begins_with_it = entry.base == EMPTY_HEAD and at_hand
        _begin(folder, schema, key_group, EMPTY_HEAD if begins_with_it else entry.head)


def _head(folder: Folder, schema: StoreSchema, key_group: int) -> Head | None:
    current = folder.current(schema.store, key_group)
    if current is None:
        return None
    try:
        with open_copy(current, schema) as copy:
            return copy.head()
    except CopyInUse:
        raise
    except DamagedCopy:
        return None


def _begin(folder: Folder, schema: StoreSchema, key_group: int, head: Head) -> None:
    fresh = folder.fresh(schema.store, key_group)
    with Copy(fresh, new=True, layout=schema.copy_layout) as copy:
        if head != EMPTY_HEAD:
            copy.load(head, CopyRows([], [], []))
    folder.switch(schema.store, key_group, fresh)
