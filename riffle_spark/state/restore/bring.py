"""Bringing copies of variables to exactly the heads a driver names. Knows copies, parts and folders. Does not know
batches or users.

What each copy lacks `copy_plan` decides: links are folded in order, and what has to be restored is filled in a new
folder and switched in. A copy that is beyond what the driver named means that the caller is out of date. Copies that
follow the log beside the batches are brought after it by `follow`, piece by piece.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.errors import CorruptStateError, OutOfDate
from riffle_spark.state.copies.copy import Copy, CopyInUse, DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head, Link
from riffle_spark.state.restore.keeping import Brought, KeeperPlans, TakenRows, cache_begins_at, whole_is_unknown
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.supply import Lacking, Supply, Wanted
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["CopyKeeper"]

_GROUP_BYTES = 64 << 20


@dataclass(slots=True)
class _Work:
    """One copy to advance: from ``base``, through ``links``; filled from the entry's snapshot where ``restore``."""

    key_group: int
    copy: Copy
    entry: Entry
    base: Head
    links: tuple[Link, ...]
    restore: bool


class CopyKeeper:
    """Keeps the copies of one store in one member's folder.

    ``whole`` gets an entry that came cut. ``newest``: nobody has committed after the entries, so that a copy beyond
    them is of a line that was given up.
    """

    def __init__(
        self, folder: Folder, schema: VariableColumns, reader: Reader, epoch: int,
        whole: Callable[[int], Entry] = whole_is_unknown, *, newest: bool = False,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._plans = KeeperPlans(schema.store, epoch, whole, newest)

    def bring(self, entries: Mapping[int, Entry]) -> tuple[dict[int, Copy], Brought]:
        """Return an open copy at exactly the entry's head for each key-group that was ever touched.

        A copy that turns out damaged is dropped and restored. The caller closes them. Raises ``OutOfDate`` if a copy
        is beyond its entry, ``CorruptStateError`` if an object is damaged or missing, ``UnavailableError`` if the
        store refuses, ``LocalDiskError`` if the local disk does.
        """
        try:
            opened, work = self._brought(entries)
        except DamagedCopy:
            self.forget(entries)
            opened, work = self._brought(entries)
        restores = sum(w.restore for w in work)
        folds = sum(len(w.links) for w in work)
        return opened, Brought(restores, folds)

    def _brought(self, entries: Mapping[int, Entry]) -> tuple[dict[int, Copy], list[_Work]]:
        opened: dict[int, Copy] = {}
        work: list[_Work] = []
        try:
            work += filter(None, (self._plan(kg, entry, opened) for kg, entry in sorted(entries.items())))
            groups = list(_groups(work))
            lacking = [self._lacking(group) for group in groups]
            with closing(Supply(self._reader, self._schema, lacking)) as supply:
                for group in groups:
                    self._advance(group, supply)
        except BaseException:
            for copy in opened.values():
                copy.close()
            for fresh in (item.copy.folder for item in work if item.restore):
                self._folder.discard(self._schema.store, fresh)
            raise
        return opened, work

    def forget(self, key_groups: Iterable[int]) -> None:
        """Drop the copies of these key-groups: the next ``bring`` restores them from the store."""
        for key_group in key_groups:
            self._folder.drop(self._schema.store, key_group)

    def _plan(self, key_group: int, entry: Entry, opened: dict[int, Copy]) -> _Work | None:
        copy, head = self._open(key_group)
        if copy is not None:
            opened[key_group] = copy
        plan = self._plans.plan(key_group, head, entry)
        if copy is not None and plan.action == "fold":
            return _Work(key_group, copy, plan.entry, plan.base, plan.links, restore=False) if plan.links else None
        if copy is not None:
            opened.pop(key_group).close()
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
            copy = Copy.of_layout(current, self._schema.copy_layout)
        except DamagedCopy:
            return None, None
        try:
            return copy, copy.head()
        except DamagedCopy:
            return copy, None

    def _lacking(self, group: Sequence[_Work]) -> Lacking:
        links = tuple(link for work in group for link in work.links)
        snapshots = [(work, work.entry.snapshot) for work in group if work.restore]
        wanted = (Wanted(work.key_group, snapshot) for work, snapshot in snapshots if snapshot is not None)
        return Lacking(links, tuple(wanted))

    def _advance(self, group: list[_Work], supply: Supply) -> None:
        rows = supply.links()
        for work in group:
            if work.restore and work.entry.snapshot:
                work.copy.load(work.base, supply.snapshot())
        for work in group:
            work.copy.fold_all([work.base, *(link.head for link in work.links)], [rows[link] for link in work.links])
            if work.restore:
                self._folder.switch(self._schema.store, work.key_group, work.copy.folder)

    def snapshot(self, key_group: int, entry: Entry) -> TakenRows:
        """See ``Keeper``."""
        try:
            copy = self.bring({key_group: entry})[0][key_group]
        except OutOfDate:
            path = self._folder.link(self._schema.store, key_group).resolve()
            copy = Copy.of_layout(path, self._schema.copy_layout)
        with copy:
            head, pairs, longs = copy.scan()
        try:
            table = self._schema.table(pairs, longs)
        except CorruptStateError as error:
            raise DamagedCopy(error.problem, remedy=error.remedy, where=self._schema.store) from error
        return TakenRows(head, part_codec.encode(table), table.num_rows)

    def tables(self, entries: Mapping[int, Entry]) -> dict[int, pa.Table]:
        """See ``Keeper``."""
        tables = {}
        for key_group, copy in sorted(self.bring(entries)[0].items()):
            with copy:
                _, pairs, longs = copy.scan()
            tables[key_group] = self._schema.table(pairs, longs)
        return tables

    def begin_caches(self, entries: Mapping[int, Entry]) -> None:
        """See ``Keeper``."""
        for key_group, entry in entries.items():
            if entry.head == EMPTY_HEAD:
                self._folder.drop(self._schema.store, key_group)
                continue
            head, link = self._head(key_group), entry.chain[-1]
            at_hand = self._folder.sealed_file(link.head.version, link.head.attempt).exists()
            begin = cache_begins_at(head, entry, at_hand=at_hand)
            if begin is not None:
                self._begin(key_group, begin)

    def _head(self, key_group: int) -> Head | None:
        current = self._folder.current(self._schema.store, key_group)
        if current is None:
            return None
        try:
            with Copy.of_layout(current, self._schema.copy_layout) as copy:
                return copy.head()
        except CopyInUse:
            raise
        except DamagedCopy:
            return None

    def _begin(self, key_group: int, head: Head) -> None:
        fresh = self._folder.fresh(self._schema.store, key_group)
        with Copy(fresh, new=True, layout=self._schema.copy_layout) as copy:
            if head != EMPTY_HEAD:
                copy.load(head, CopyRows([], [], []))
        self._folder.switch(self._schema.store, key_group, fresh)


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
