"""Advance copies to exactly the heads in a driver's order.

`copy_plan` finds the links that a copy lacks. The part of a link is in a local file if this member sealed the delta.
Other parts are fetched. A copy advances by adding parts to its list, and no part is unpacked. Every part is checked
before it is read. A copy with a damaged part is dropped and restored, from the object store if local files are missing
or damaged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import CorruptStateError, OutOfDate, RiffleError
from riffle_spark.state.copies.disk import DamagedCopy, disk_refused_error
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import read_all_rows
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head, Link
from riffle_spark.state.restore.copy_plan import CopyPlan, plan_copy
from riffle_spark.state.restore.fetched_ranges import FetchedRange
from riffle_spark.state.restore.reader import (
    Reader,
    SnapshotFile,
    fetch_links,
    fetch_snapshots,
    group_into_bounded_runs,
)
from riffle_spark.state.restore.stack_parts import OpenStack, StackParts, timer_at_head
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["OpenStack", "StackKeeper"]

_TRIES = 3


class AdvanceCounts(NamedTuple):
    """The counts of one ``StackKeeper.advance``.

    ``restores`` counts copies that were fetched as a whole, ``catch_ups`` copies that fetched only deltas, and ``hits``
    copies that fetched nothing. ``folds`` counts added deltas.
    """

    restores: int = 0
    folds: int = 0
    hits: int = 0
    catch_ups: int = 0


class SnapshotData(NamedTuple):
    """The whole state of a copy at a head, as a snapshot's bytes, and the number of rows."""

    head: Head
    data: bytes
    rows: int


def refuse_cut_entry(key_group: int) -> Entry:
    """Raise ``AssertionError``. Callers whose entries are never cut pass this as ``read_whole``."""
    raise AssertionError(f"the entry of key-group {key_group} is cut, and read_whole is not set")


@dataclass(frozen=True, slots=True)
class _Advance:
    """A copy to advance: its present stack, if any, and its plan."""

    key_group: int
    stack: Stack | None
    plan: CopyPlan


class StackKeeper:
    """Keeps the copies of one store in a member's folder at the heads that a driver of ``epoch`` orders.

    ``read_whole`` reads the whole entry of a key-group whose entry in the order is cut. If ``newest``, the entries are
    the newest of the log. Then a copy beyond its entry has an abandoned attempt or batches that were rolled back, so it
    is restored.
    """

    def __init__(
        self,
        folder: Folder,
        schema: StoreSchema,
        reader: Reader,
        epoch: int,
        read_whole: Callable[[int], Entry] = refuse_cut_entry,
        *,
        newest: bool = False,
    ) -> None:
        """Open the store's stacks in ``folder``. ``reader`` fetches missing parts from the object store."""
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._epoch = epoch
        self._read_whole = read_whole
        self._newest = newest
        self._stacks = folder.stacks(schema.store)
        self._parts = StackParts(folder, schema, self._stacks, reader.keys)
        self._unlisted: list[StackedPart] = []
        """Fetched snapshots that no stack on the disk uses. They are deleted once they are open."""

    def advance(self, entries: Mapping[int, Entry]) -> tuple[dict[int, OpenStack], AdvanceCounts]:
        """Advance the copy of each key-group with state to its entry's head. Return the open copies, and counts.

        A damaged copy is dropped and restored. Raises ``OutOfDate`` if a copy is beyond its entry,
        ``CorruptStateError`` if an object is damaged or missing, ``UnavailableError`` if the store fails, and
        ``OSError`` if the local disk fails.
        """
        try:
            with self._folder.protect_deltas():
                opened, counts = self._advance_with_retries(entries)
        finally:
            self._parts.discard(self._unlisted)
            self._unlisted.clear()
        return opened, counts

    def _advance_with_retries(self, entries: Mapping[int, Entry]) -> tuple[dict[int, OpenStack], AdvanceCounts]:
        """Advance copies. Repeat this for copies that are damaged, or that another process merges at the same time.

        Raises ``LocalDiskError`` if copies are damaged each time, because then the disk damages restored files.
        """
        opened: dict[int, OpenStack] = {}
        damaged: dict[int, DamagedCopy] = {}
        damaged_files: set[str] = set()
        counts = AdvanceCounts()
        remaining = dict(entries)
        for _ in range(_TRIES):
            stacks, new_counts = self._advance_once(remaining)
            counts = AdvanceCounts(*map(sum, zip(counts, new_counts, strict=True)))
            newly_opened, damaged = self._open(stacks, entries)
            opened |= newly_opened
            if not damaged:
                return opened, counts
            self._parts.forget_verification()
            self._stacks.refresh()
            damaged_files.update(error.where for error in damaged.values())
            # A stack without these files was written by another process. A stack that an earlier try dropped may exist
            # again, if another process holds the lock.
            self._stacks.drop(*(key_group for key_group in damaged if self._uses_any_of(damaged_files, key_group)))
            remaining = {key_group: entries[key_group] for key_group in damaged}
        error = next(iter(damaged.values()))
        if isinstance(error.__cause__, RiffleError):
            raise error.__cause__
        raise disk_refused_error(
            f"A copy was damaged again after it was restored: {error.problem}", Path(error.where)
        ) from error

    def _uses_any_of(self, files: Set[str], key_group: int) -> bool:
        """Return whether the stack of a key-group has a part in one of these files."""
        stack = self._stacks.read(key_group)
        return stack is not None and any(str(self._folder.path / part.file) in files for part in stack.parts)

    def merge(self, opened: Mapping[int, OpenStack]) -> None:
        """Merge stacks with many or large parts. Raises ``DamagedCopy``, and ``OSError`` if the disk refuses.

        The files are checked again, because they may have been damaged since, and the merged part gets a new checksum.
        """
        self._parts.forget_verification()
        with self._folder.protect_deltas():
            self._parts.merge_some(opened)

    def _advance_once(self, entries: Mapping[int, Entry]) -> tuple[dict[int, Stack], AdvanceCounts]:
        """Advance the copies once. Return the stacks at the entries' heads, and counts."""
        stacks: dict[int, Stack] = {}
        advances = []
        for key_group, entry in sorted(entries.items()):
            stack = self._stacks.read(key_group)
            plan = self._plan(key_group, stack.head if stack is not None else None, entry)
            if plan.action == "drop":
                if stack is not None:
                    self._stacks.drop(key_group)
            elif stack is not None and plan.action == "fold" and not plan.links:
                stacks[key_group] = stack
            else:
                advances.append(_Advance(key_group, stack, plan))
        links = [link for advance in advances for link in advance.plan.links]
        parts, fetched_links = self._parts_of(links)
        bases = self._fetch_bases([advance for advance in advances if advance.plan.action == "restore"])
        if bases:
            self._stacks.refresh()  # upkeep may have restored some at the same time
        stacks |= self._replace(advances, bases, parts)
        folded = [advance.plan.links for advance in advances if advance.plan.action == "fold"]
        catch_ups = sum(not fetched_links.isdisjoint(added_links) for added_links in folded)
        restores = sum(
            advance.stack is None or advance.key_group in bases or not fetched_links.isdisjoint(advance.plan.links)
            for advance in advances
            if advance.plan.action == "restore"
        )
        return stacks, AdvanceCounts(restores, len(links), len(stacks) - restores - catch_ups, catch_ups)

    def _plan(self, key_group: int, head: Head | None, entry: Entry) -> CopyPlan:
        """Return the plan for the copy at ``head``. Raises ``OutOfDate`` if the copy is newer than the entry."""
        plan = plan_copy(head, entry, self._epoch, lambda: self._read_whole(key_group), newest=self._newest)
        if plan.action == "beyond":
            assert head is not None, "an absent copy is not beyond its entry"
            start_version = plan.entry.head.version
            # Cause: A later attempt, or a newer driver, has advanced the copy.
            raise OutOfDate(
                f"The copy is at version {head.version} of epoch {head.epoch}, but the batch starts from version "
                f"{start_version}.",
                remedy="Do nothing. The batch runs again.",
                where=f"{self._schema.store}, key-group {key_group}",
                id="RIFFLE-0463",
            )
        return plan

    def _replace(
        self,
        advances: Sequence[_Advance],
        bases: Mapping[int, Sequence[StackedPart]],
        parts: Mapping[Link, StackedPart],
    ) -> dict[int, Stack]:
        """Replace the copies by stacks of their bases and of the links' parts. Return these stacks by key-group.

        A copy is not replaced if another process has replaced it, other than by a merge, or if another process holds
        the lock. The stack is returned nevertheless.
        """
        stacks: dict[int, Stack] = {}
        remaining = {advance.key_group: advance for advance in advances}
        formers = {advance.key_group: advance.stack for advance in advances}
        for _ in range(_TRIES):
            for key_group, advance in remaining.items():
                is_fold = advance.plan.action == "fold"
                bottom = formers[key_group] if is_fold else Stack(advance.plan.base, tuple(bases.get(key_group, ())))
                assert bottom is not None, "links are added to an existing copy"
                added = [parts[link] for link in advance.plan.links]
                stacks[key_group] = bottom.with_parts(advance.plan.entry.head, added)
            replaced = self._stacks.replace_many({kg: (formers[kg], stacks[kg]) for kg in remaining})
            for key_group in remaining.keys() - replaced:
                former = formers[key_group]
                current = self._stacks.read(key_group)
                if former is None or current is None or current.head != former.head or current == former:
                    replaced.add(key_group)
                    self._unlisted += bases.get(key_group, ())
                formers[key_group] = current
            remaining = {kg: advance for kg, advance in remaining.items() if kg not in replaced}
            if not remaining:
                return stacks
        for key_group in remaining:
            self._unlisted += bases.get(key_group, ())
        return stacks

    def _parts_of(self, links: Sequence[Link]) -> tuple[dict[Link, StackedPart], set[Link]]:
        """Return a local part for each link, and the links that were fetched. This member sealed the others."""
        parts = self._parts.find_sealed_parts(links)
        self._reader.totals.local_parts += len(parts)
        missing = [link for link in links if link not in parts]
        if missing:
            fetched = fetch_links(self._reader, self._folder, group_into_bounded_runs(self._reader, missing))
            self._parts.mark_verified(fetched.values())
            parts |= fetched
        return parts, set(missing)

    def _fetch_bases(self, advances: Iterable[_Advance]) -> dict[int, tuple[StackedPart, ...]]:
        """Fetch the snapshots of the copies to restore.

        Return each snapshot as the lowest part of a stack. A copy without a snapshot has none.
        """
        store = self._schema.store
        files = [
            SnapshotFile(store, advance.key_group, snapshot, self._stacks.new_file(advance.key_group, snapshot.id))
            for advance in advances
            if (snapshot := advance.plan.entry.snapshot) is not None
        ]
        try:
            ranges = fetch_snapshots(self._reader, files)
            return {file.key_group: (self._make_base(file, ranges[file.path]),) for file in files}
        except BaseException:
            for file in files:
                file.path.unlink(missing_ok=True)
            raise

    def _make_base(self, file: SnapshotFile, ranges: Sequence[FetchedRange]) -> StackedPart:
        """Return a fetched snapshot as the lowest part of a stack.

        Damaged bytes are fetched once more into another file, because they may have been damaged in transit. Raises the
        errors of ``StackParts.make_base`` and of ``Reader``.
        """
        try:
            return self._parts.make_base(file, ranges)
        except CorruptStateError:
            new_file = file._replace(path=self._stacks.new_file(file.key_group, file.snapshot.id))
        try:
            return self._parts.make_base(new_file, fetch_snapshots(self._reader, [new_file])[new_file.path])
        except BaseException:
            new_file.path.unlink(missing_ok=True)
            raise

    def _open(
        self, stacks: Mapping[int, Stack], entries: Mapping[int, Entry]
    ) -> tuple[dict[int, OpenStack], dict[int, DamagedCopy]]:
        """Open the stacks. Return the intact ones with their runs, and the errors of the damaged ones."""
        opened: dict[int, OpenStack] = {}
        damaged: dict[int, DamagedCopy] = {}
        for key_group, stack in stacks.items():
            timer_ms = entries[key_group].timer_ms
            try:
                opened[key_group] = OpenStack(stack, self._parts.read_runs(key_group, stack.parts, timer_ms), timer_ms)
            except DamagedCopy as error:
                damaged[key_group] = error
        return opened, damaged

    def drop(self, key_groups: Iterable[int]) -> None:
        """Drop the copies of these key-groups, so that they are restored from the store."""
        self._stacks.drop(*key_groups)

    def make_snapshot(self, key_group: int, entry: Entry, attempt: str) -> SnapshotData:
        """Return the state of a copy as a snapshot, at the entry's head or at a later head of the copy.

        A copy only has committed batches. The bytes are encrypted as the snapshot of this attempt. Raises
        ``DamagedCopy``, ``OutOfDate`` if a newer driver has advanced the copy, and the errors of ``advance``.
        """
        self._parts.forget_verification()  # files may have been damaged since the last snapshot
        if not self._stacks.has(key_group):
            self._stacks.refresh()
        try:
            stack = self.advance({key_group: entry})[0][key_group].stack
        except OutOfDate:
            beyond = self._stacks.read(key_group)
            if beyond is None:
                raise
            stack = beyond
        stack = self._stacks.read(key_group) or stack  # another process may have merged it
        if stack.head.epoch > self._epoch:
            raise OutOfDate(
                "A newer driver has advanced the copy, and its schema is unknown here.",
                remedy="Do nothing. The newer driver takes the snapshot.",
                id="RIFFLE-0464",
            )
        snapshot_id = paths.snapshot_id(stack.head.version, attempt)
        return SnapshotData(
            stack.head, *self._parts.encode_snapshot(key_group, stack, timer_at_head(entry, stack.head), snapshot_id)
        )

    def read_tables(self, entries: Mapping[int, Entry]) -> dict[int, pa.Table]:
        """Return the whole state of each key-group with state, with the columns of ``part_schema``.

        Raises the errors of ``advance``.
        """
        return {
            key_group: read_all_rows(copy.runs, self._schema) for key_group, copy in self.advance(entries)[0].items()
        }

    def prepare_caches(self, entries: Mapping[int, Entry]) -> set[int]:
        """Prepare the copies of a cache, which is a store without objects. Return the key-groups whose copy is lost.

        A copy is lost unless it is at the entry's head, or lacks only the last link and has its file. A lost copy is
        replaced by an empty one at the head.
        """
        lost: set[int] = set()
        for key_group, entry in entries.items():
            if entry.head == EMPTY_HEAD:
                self._stacks.drop(key_group)
                continue
            link = entry.chain[-1]
            is_local = link in self._parts.find_sealed_parts([link])
            for _ in range(_TRIES):
                stack = self._stacks.read(key_group)
                start = empty_cache_head(stack.head if stack else None, entry, is_local=is_local)
                if start is None or self._stacks.replace(key_group, stack, Stack(start)):
                    break
            else:
                lost.add(key_group)  # another process holds the lock
            # An abandoned run may have created this empty copy at the head. Then it lacks the rows of the last link.
            was_started = start is None and stack == Stack(entry.head) and link.rows > 0
            if start == entry.head or was_started:
                lost.add(key_group)
        return lost


def empty_cache_head(head: Head | None, entry: Entry, *, is_local: bool) -> Head | None:
    """Return the head at which an empty copy of a cache must start.

    Return ``None`` if the copy at ``head`` can reach the entry's head. ``is_local`` is whether the newest delta is in a
    local file.
    """
    if head == entry.head or (is_local and head == entry.base):
        return None
    return EMPTY_HEAD if is_local and entry.base == EMPTY_HEAD else entry.head
