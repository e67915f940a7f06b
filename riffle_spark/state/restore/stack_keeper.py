"""Bringing copies to exactly the heads a driver names: each becomes a stack of files that are at hand or
fetched. Does not know batches or users.

What a copy lacks `copy_plan` decides, as for every copy. A link's part is at hand where this member sealed the delta
itself, else it is fetched. Nothing is unpacked: a copy advances by a longer list of files. Every part is checked before
it is read; a copy that has one which is not as it was sealed is dropped and brought anew, from the store where files do
not help.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import OutOfDate, RiffleError
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import whole_rows
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head, Link
from riffle_spark.state.restore.copy_plan import CopyPlan, plan_copy
from riffle_spark.state.restore.reader import Reader, WantedSnapshot, fetched_links, fetched_snapshots, runs_of
from riffle_spark.state.restore.stack_parts import OpenStack, StackParts, timer_of
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["OpenStack", "StackKeeper"]

_TRIES = 3


class Brought(NamedTuple):
    """What bringing copies took: copies restored, deltas added."""

    restores: int
    folds: int


class TakenRows(NamedTuple):
    """All that a copy holds at a head, as a snapshot's bytes, and how many rows these are."""

    head: Head
    data: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class _Plans:
    """How one store's copies are planned for a driver. Arguments as those of ``StackKeeper``."""

    store: str
    epoch: int
    whole: Callable[[int], Entry]
    newest: bool

    def plan(self, key_group: int, head: Head | None, entry: Entry) -> CopyPlan:
        """Return what the copy at ``head`` lacks. Raises ``OutOfDate`` if it is beyond what a batch starts from."""
        plan = plan_copy(head, entry, self.epoch, lambda: self.whole(key_group), newest=self.newest)
        if plan.action == "beyond":
            assert head is not None, "nothing is beyond an entry where there is nothing"
            raise OutOfDate(
                f"the copy is at version {head.version} of epoch {head.epoch}, the batch starts from "
                f"{plan.entry.head.version}",
                where=f"{self.store}, key-group {key_group}",
                id="RIFFLE-0463",
            )
        return plan


def whole_is_unknown(key_group: int) -> Entry:
    """Stand for a way to get whole entries where none can be cut."""
    raise AssertionError(f"the entry of key-group {key_group} is cut and nobody told how to get the whole one")


@dataclass(frozen=True, slots=True)
class _Work:
    """One stack to advance."""

    key_group: int
    before: Stack | None
    plan: CopyPlan


class StackKeeper:
    """Keeps the copies of one store in one member's folder.

    ``whole`` gets an entry that came cut. ``newest``: nobody has committed after the entries, so that a copy beyond
    them is of a line that was given up.
    """

    def __init__(
        self, folder: Folder, schema: StoreSchema, reader: Reader, epoch: int,
        whole: Callable[[int], Entry] = whole_is_unknown, *, newest: bool = False,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._plans = _Plans(schema.store, epoch, whole, newest)
        self._stacks = folder.stacks(schema.store)
        self._parts = StackParts(folder, schema, self._stacks, reader.keys)

    def bring(self, entries: Mapping[int, Entry]) -> tuple[dict[int, OpenStack], Brought]:
        """Return a copy at exactly the entry's head for each key-group that was ever touched.

        A copy that turns out damaged is dropped and restored. Raises ``OutOfDate`` if a copy is beyond its entry,
        ``CorruptStateError`` if an object is damaged or missing, ``UnavailableError`` if the store refuses, ``OSError``
        if the local disk does.
        """
        with self._folder.deltas_kept():
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
            found, broken = self._opened(stacks, entries)
            opened |= found
            if not broken:
                return opened, Brought(restores, folds)
            self._parts.look_again()
            self._stacks.refresh()
            for key_group in broken:
                if self._stacks.read(key_group) == stacks[key_group]:  # else another process has replaced it meanwhile
                    self._stacks.drop(key_group)
            left = {key_group: entries[key_group] for key_group in broken}
        raise _cause(next(iter(broken.values())))

    def merge(self, opened: Mapping[int, OpenStack]) -> None:
        """Merge those stacks that have grown high. Raises ``DamagedCopy``, and ``OSError`` if the disk refuses.

        Some time has passed since they were brought, so files are looked at anew: what is merged gets a checksum of its
        own, under which damage would be truth.
        """
        self._parts.look_again()
        self._parts.merge_some(opened)

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
                work.append(one)
        parts = self._parts_of([link for one in work for link in one.plan.links])
        bases = self._bases([one for one in work if one.plan.action == "restore"])
        if bases:
            self._stacks.refresh()  # upkeep may have been quicker
        for one in work:
            added = [parts[link] for link in one.plan.links]
            stacks[one.key_group] = self._switched(one, bases.get(one.key_group, ()), added)
        restores = sum(one.plan.action == "restore" for one in work)
        return stacks, restores, sum(len(one.plan.links) for one in work)

    def _switched(self, one: _Work, base: Sequence[StackedPart], added: Sequence[StackedPart]) -> Stack:
        """Return a stack at the entry's head, and make it the copy; where another process has put another list there
        meanwhile, which is no merge of it, that one stays.
        """
        before = one.before
        for _ in range(_TRIES):
            bottom = before if one.plan.action == "fold" else Stack(one.plan.base, tuple(base))
            assert bottom is not None, "links are added to a copy that is there"
            stack = bottom.with_parts(one.plan.entry.head, added)
            if self._stacks.replace(one.key_group, before, stack):
                return stack
            now = self._stacks.read(one.key_group)
            if before is None or now is None or now.head != before.head:
                break
            before = now
        self._parts.discard(base)
        return stack

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
            WantedSnapshot(store, one.key_group, snapshot, self._stacks.new_file(one.key_group, snapshot.id))
            for one in work if (snapshot := one.plan.entry.snapshot) is not None
        ]  # fmt: skip
        try:
            came = fetched_snapshots(self._reader, wanted)
            return {one.key_group: (self._parts.base(one, came[one.path]),) for one in wanted}
        except BaseException:
            for one in wanted:
                one.path.unlink(missing_ok=True)
            raise

    def _opened(
        self, stacks: Mapping[int, Stack], entries: Mapping[int, Entry]
    ) -> tuple[dict[int, OpenStack], dict[int, DamagedCopy]]:
        """Return the stacks with their runs, and what is wrong with those that have a part which is not as it was."""
        opened: dict[int, OpenStack] = {}
        broken: dict[int, DamagedCopy] = {}
        for key_group, stack in stacks.items():
            try:
                timer_ms = entries[key_group].timer_ms
                opened[key_group] = OpenStack(stack, self._parts.runs(key_group, stack.parts, timer_ms), timer_ms)
            except DamagedCopy as error:
                broken[key_group] = error
        return opened, broken

    def forget(self, key_groups: Iterable[int]) -> None:
        """Drop the copies of these key-groups: they are brought anew from the store."""
        for key_group in key_groups:
            self._stacks.drop(key_group)

    def snapshot(self, key_group: int, entry: Entry, attempt: str) -> TakenRows:
        """Return all that a copy holds at the entry's head, or where it is if that is beyond: a copy holds committed
        effects only. The bytes are encrypted as the snapshot of this attempt.

        Raises ``DamagedCopy``, ``OutOfDate`` if that is a newer driver's, and what bringing it raises.

        Time passes from one snapshot to the next: stacks and files are looked at anew.
        """
        self._parts.look_again()
        if not self._stacks.has(key_group):
            self._stacks.refresh()
        try:
            stack = self.bring({key_group: entry})[0][key_group].stack
        except OutOfDate:
            found = self._stacks.read(key_group)
            if found is None:
                raise
            stack = found
        stack = self._stacks.read(key_group) or stack  # merged meanwhile
        if stack.head.epoch > self._plans.epoch:
            raise OutOfDate("a newer driver has moved the copy: what that declares is not known here", id="RIFFLE-0464")
        snapshot_id = paths.snapshot_id(stack.head.version, attempt)
        return TakenRows(stack.head, *self._parts.whole(key_group, stack, timer_of(entry, stack.head), snapshot_id))

    def tables(self, entries: Mapping[int, Entry]) -> dict[int, pa.Table]:
        """Return the whole state of each key-group that was ever touched, with the columns of ``part_schema``. Raises
        what bringing it raises.
        """
        return {key_group: whole_rows(one.runs, self._schema) for key_group, one in self.bring(entries)[0].items()}

    def begin_caches(self, entries: Mapping[int, Entry]) -> set[int]:
        """Make every copy one that can be brought to its entry's head from what lies in the folder; return those that
        were lost.

        Nothing of a cache can be fetched: a copy that is neither at the head nor, with the last link's file at hand,
        before it is lost, and begun again, empty, at the head.
        """
        lost: set[int] = set()
        for key_group, entry in entries.items():
            if entry.head == EMPTY_HEAD:
                self._stacks.drop(key_group)
                continue
            link = entry.chain[-1]
            at_hand = link in self._parts.sealed([link])
            for _ in range(_TRIES):
                before = self._stacks.read(key_group)
                begin = cache_begins_at(before.head if before else None, entry, at_hand=at_hand)
                if begin is None or self._stacks.replace(key_group, before, Stack(begin)):
                    break
            # A run that was given up may have begun it: the last link's rows are in no part of it.
            is_begun = begin is None and before == Stack(entry.head) and link.rows > 0
            lost |= {key_group} if begin == entry.head or is_begun else set()
        return lost


def _cause(error: DamagedCopy) -> RiffleError:
    """Return what is to be told of a copy that was brought anew from the store in vain."""
    return error.__cause__ if isinstance(error.__cause__, RiffleError) else error


def cache_begins_at(head: Head | None, entry: Entry, *, at_hand: bool) -> Head | None:
    """Return where an empty copy of a cache is to begin, ``None`` if the one at ``head`` can be brought. ``at_hand``:
    the newest delta lies here.
    """
    if head == entry.head or (at_hand and head == entry.base):
        return None
    return EMPTY_HEAD if at_hand and entry.base == EMPTY_HEAD else entry.head
