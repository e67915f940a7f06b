"""Bringing copies of columns to exactly the heads a driver names: each becomes a stack of files that are at hand or
fetched. Does not know batches or users.

What a copy lacks `copy_plan` decides, as for every copy. A link's part is at hand where this member sealed the delta
itself, else it is fetched. Nothing is unpacked: a copy advances by a longer list of files. Every part is checked before
it is read; a copy that has one which is not as it was sealed is dropped and brought anew, from the store where files do
not help.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.run import Run, merged
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Link
from riffle_spark.state.restore.copy_plan import CopyPlan
from riffle_spark.state.restore.fetch import WantedSnapshot, fetched_links, fetched_snapshots, runs_of
from riffle_spark.state.restore.keeping import Brought, KeeperPlans, TakenRows, cache_begins_at, whole_is_unknown
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_parts import StackParts
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = ["OpenStack", "StackKeeper"]

_TRIES = 3


@dataclass(frozen=True, slots=True)
class OpenStack:
    """One key-group's copy, each of its parts found whole: ``runs`` holds the newest rows first."""

    stack: Stack
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """One stack to advance."""

    key_group: int
    before: Stack | None
    plan: CopyPlan


class StackKeeper:
    """Keeps the copies of one store of columns in one member's folder. Arguments as those of ``CopyKeeper``."""

    def __init__(
        self, folder: Folder, schema: PlainColumns, reader: Reader, epoch: int,
        whole: Callable[[int], Entry] = whole_is_unknown, *, newest: bool = False,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._plans = KeeperPlans(schema.store, epoch, whole, newest)
        self._stacks = folder.stacks(schema.store)
        self._parts = StackParts(folder, schema, self._stacks)

    def bring(self, entries: Mapping[int, Entry]) -> tuple[dict[int, OpenStack], Brought]:
        """Return a copy at exactly the entry's head for each key-group that was ever touched; raises as
        ``CopyKeeper.bring``.
        """
        with self._folder.advancing():
            opened, brought = self._brought(entries)
        self._parts.let_go()
        return opened, brought

    def _brought(self, entries: Mapping[int, Entry]) -> tuple[dict[int, OpenStack], Brought]:
        """Bring copies, and once more those that turn out broken: by damage, or as another process merges meanwhile,
        which may come several times.
        """
        opened: dict[int, OpenStack] = {}
        broken: dict[int, DamagedCopy] = {}
        restores, folds, left = 0, 0, dict(entries)
        for _ in range(_TRIES):
            stacks, more_restores, more_folds = self._advanced(left)
            restores, folds = restores + more_restores, folds + more_folds
            found, broken = self._opened(stacks)
            opened |= found
            if not broken:
                return opened, Brought(restores, folds)
            self._parts.look_again()
            self._stacks.look_again()
            for key_group in broken:
                if self._stacks.read(key_group) == stacks[key_group]:  # else another process has replaced it meanwhile
                    self._stacks.drop(key_group)
            left = {key_group: entries[key_group] for key_group in broken}
        raise next(iter(broken.values()))

    def merge(self, opened: Mapping[int, OpenStack]) -> None:
        """Merge those stacks that have grown high. Raises ``DamagedCopy``, and ``OSError`` if the disk refuses.

        Some time has passed since they were brought, so files are looked at anew: what is merged gets a checksum of its
        own, under which damage would be truth.
        """
        self._parts.look_again()
        self._parts.merge_some({key_group: one.stack for key_group, one in opened.items()})

    def _advanced(self, entries: Mapping[int, Entry]) -> tuple[dict[int, Stack], int, int]:
        """Return the stacks at the entries' heads, and how many were restored and how many links were added."""
        stacks: dict[int, Stack] = {}
        work = []
        for key_group, entry in sorted(entries.items()):
            before = self._stacks.read(key_group)
            head = before.head if before is not None else None
            one = _Work(key_group, before, self._plans.plan(key_group, head, entry))
            if one.plan.action == "drop":
                self._folder.drop(self._schema.store, key_group, self._stacks)
            elif one.before is not None and one.plan.action == "fold" and not one.plan.links:
                stacks[key_group] = one.before
            else:
                if one.before is None and self._folder.current(self._schema.store, key_group) is not None:
                    self._folder.drop(self._schema.store, key_group, self._stacks)  # what an earlier version kept
                work.append(one)
        parts = self._parts_of([link for one in work for link in one.plan.links])
        bases = self._bases([one for one in work if one.plan.action == "restore"])
        if bases:
            self._stacks.look_again()  # upkeep may have been quicker
        for one in work:
            bottom = one.before if one.plan.action == "fold" else Stack(one.plan.base, bases.get(one.key_group, ()))
            assert bottom is not None, "links are added to a copy that is there"
            stack = bottom.extended(one.plan.entry.head, (parts[link] for link in one.plan.links))
            if not self._stacks.switch(one.key_group, one.before, stack):
                self._parts.discard(bases.get(one.key_group, ()))
            stacks[one.key_group] = stack
        restores = sum(one.plan.action == "restore" for one in work)
        return stacks, restores, sum(len(one.plan.links) for one in work)

    def _parts_of(self, links: Sequence[Link]) -> dict[Link, StackedPart]:
        """Return a part in a file here of each link: one that this member sealed, or that is fetched now."""
        parts = self._parts.sealed(links)
        self._reader.totals.local_parts += len(parts)
        missing = [link for link in links if link not in parts]
        if missing:
            fetched = fetched_links(self._reader, self._folder, runs_of(self._reader, missing))
            self._parts.found_whole(fetched.values())
            parts |= fetched
        return parts

    def _bases(self, work: Iterable[_Work]) -> dict[int, tuple[StackedPart, ...]]:
        store = self._schema.store
        wanted = [
            WantedSnapshot(store, one.key_group, one.plan.entry.snapshot, self._stacks.fresh(one.key_group))
            for one in work if one.plan.entry.snapshot is not None
        ]  # fmt: skip
        try:
            whole = fetched_snapshots(self._reader, wanted)
            return {one.key_group: (self._parts.base(one, is_whole=one.path in whole),) for one in wanted}
        except BaseException:
            for one in wanted:
                one.path.unlink(missing_ok=True)
            raise

    def _opened(self, stacks: Mapping[int, Stack]) -> tuple[dict[int, OpenStack], dict[int, DamagedCopy]]:
        """Return the stacks with their runs, and what is wrong with those that have a part which is not as it was."""
        opened: dict[int, OpenStack] = {}
        broken: dict[int, DamagedCopy] = {}
        for key_group, stack in stacks.items():
            try:
                opened[key_group] = OpenStack(stack, self._parts.runs(stack.parts))
            except DamagedCopy as error:
                broken[key_group] = error
        return opened, broken

    def forget(self, key_groups: Iterable[int]) -> None:
        """See ``Keeper``."""
        for key_group in key_groups:
            self._stacks.drop(key_group)

    def snapshot(self, key_group: int, entry: Entry) -> TakenRows:
        """See ``Keeper``. Time passes from one snapshot to the next: stacks and files are looked at anew."""
        self._parts.look_again()
        if not self._stacks.has(key_group):
            self._stacks.look_again()
        try:
            stack = self.bring({key_group: entry})[0][key_group].stack
        except OutOfDate:
            found = self._stacks.read(key_group)
            if found is None:
                raise
            stack = found
        stack = self._stacks.read(key_group) or stack  # merged meanwhile
        return TakenRows(stack.head, *self._parts.whole(key_group, stack))

    def tables(self, entries: Mapping[int, Entry]) -> dict[int, pa.Table]:
        """See ``Keeper``."""
        names, rows, wanted = self._schema.key.names, self._schema.row_schema, self._schema.part_schema()
        return {
            key_group: merged(one.runs, names, rows, bottom=True).select(wanted.names).cast(wanted)
            for key_group, one in self.bring(entries)[0].items()
        }

    def begin_caches(self, entries: Mapping[int, Entry]) -> None:
        """See ``Keeper``."""
        for key_group, entry in entries.items():
            if entry.head == EMPTY_HEAD:
                self._stacks.drop(key_group)
                continue
            before, link = self._stacks.read(key_group), entry.chain[-1]
            at_hand = link in self._parts.sealed([link])
            begin = cache_begins_at(before.head if before else None, entry, at_hand=at_hand)
            if begin is not None:
                self._stacks.switch(key_group, before, Stack(begin))
