"""The parts of stacks: sealed deltas, fetched snapshots, merged parts, and parts that upkeep adds piece by piece.

Merging makes stacks faster to read and frees disk. It does not change the state of a copy.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile

import pyarrow as pa

from riffle_spark.errors import CorruptStateError, OutOfDate, RiffleError
from riffle_spark.state.copies.disk import (
    DamagedCopy,
    damaged_copy_error,
    disk_refused_error,
    sealed_block_name,
)
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles, encryption_place, merge_rows
from riffle_spark.state.copies.part_runs import merge_into_block
from riffle_spark.state.copies.run import Run, RunsOfKeyGroup
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block, encode_block_file, read_index
from riffle_spark.state.formats.due_times import NEVER_MS, first_ms_of
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Entry, Head, Link
from riffle_spark.state.objects.encryption import PLAIN, Keys, Place, key_id_of
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.fetched_ranges import FetchedRange, are_stored
from riffle_spark.state.restore.prefetch import Budget, run_ahead
from riffle_spark.state.restore.reader import Reader, SnapshotFile, span_bytes, write_parts
from riffle_spark.state.schemas.history import FIRST
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["UNKNOWN_MS", "OpenStack", "StackFollower", "StackParts", "timer_at_head"]

_GAP_BYTES = 8 << 20
"""Upkeep gets a delta with one GET unless two parts are further apart."""
UNKNOWN_MS = -NEVER_MS
"""The timer of a copy at another head than its entry's, so that its expired rows are unknown."""

_PARTS_MAX = 9
_MERGED_SHARE = 0.5
_MERGED_BYTES_MIN = 8 * 1024
_MERGED_BYTES_AT_ONCE = 16 << 20
_OWN_FILE_BYTES = 256 << 10
"""Merged parts from this size on get a file of their own. Smaller ones of several key-groups are merged into one block,
so that these key-groups are searched together."""
_BLOCK_BYTES = 4 << 20
"""The approximate size of a block of merged parts. It is deleted when no key-group uses it, so it must not be large."""


@dataclass(frozen=True, slots=True)
class OpenStack:
    """The intact copy of a key-group. ``runs`` holds the newest rows first, ``timer_ms`` is the entry's at its head."""

    stack: Stack
    runs: tuple[Run, ...]
    timer_ms: int | None


def timer_at_head(entry: Entry, head: Head) -> int | None:
    """Return the due time of the earliest timer at a copy's head: the entry's if the heads are equal, else
    ``UNKNOWN_MS``.
    """
    return entry.timer_ms if head == entry.head else UNKNOWN_MS


class StackParts:
    """The parts of a store's stacks in a member's folder. A task checks each file once."""

    def __init__(self, folder: Folder, schema: StoreSchema, stacks: Stacks, keys: Keys | None = None) -> None:
        self._folder = folder
        self._schema = schema
        self._stacks = stacks
        self._keys = keys
        self._files = PartFiles(folder.path, keys)

    def find_sealed_parts(self, links: Collection[Link]) -> dict[Link, StackedPart]:
        """Return the local parts of the links that this member sealed itself, if their files are intact."""
        folder = self._folder.sealed.name
        heads = {link.head for link in links}
        blocks = {head: self._files.read_block_index(f"{folder}/{sealed_block_name(*head)}") for head in heads}
        parts: dict[Link, StackedPart] = {}
        for link in links:
            block = blocks[link.head]
            if block is None:
                part = StackedPart(
                    f"{folder}/{link.head.version}-{link.head.attempt}", *link[1:], epoch=link.head.epoch
                )
                if self._files.is_intact(part):
                    parts[link] = part
                continue
            index, checksum = block
            place = index.by_part.get((link.start, link.checksum))
            if place is not None and place.rows == link.rows:
                name = f"{folder}/{sealed_block_name(*link.head)}"
                parts[link] = StackedPart(name, 0, place.length, checksum, link.rows, link.head.epoch)
        return parts

    def read_runs(self, key_group: int, parts: Sequence[StackedPart], timer_ms: int | None) -> tuple[Run, ...]:
        """Return the rows of a key-group's parts as runs, newest first. Raises ``DamagedCopy``.

        ``timer_ms`` is the entry's at the stack's head, or ``UNKNOWN_MS``. Rows that were due before it are expired.
        """
        runs = tuple(run for part in reversed(parts) for run in self._files.read_runs(part, self._schema, key_group))
        if self._schema.due is None:
            return runs
        return tuple(replace(run, first_ms=first_ms_of(timer_ms)) for run in runs)

    def close_removed(self) -> None:
        """Close files that were deleted, so that the disk frees their blocks."""
        self._files.close_removed()

    def forget_verification(self) -> None:
        """Make every file be verified again at its next use."""
        self._files = PartFiles(self._folder.path, self._keys)

    def mark_verified(self, parts: Iterable[StackedPart]) -> None:
        """Record that these parts were checked while they were fetched. Raises ``LocalDiskError`` if a file is gone."""
        for part in parts:
            self._files.mark_verified(part)

    def make_base(self, fetched: SnapshotFile, ranges: Iterable[FetchedRange]) -> StackedPart:
        """Return a fetched snapshot as the lowest part of a stack, after checking it. A snapshot in an old format is
        converted.

        ``ranges`` are the ranges as they arrived, read only as far as needed. Raises ``CorruptStateError`` if the
        object was altered after it was sealed, and ``LocalDiskError`` if the disk altered the fetched bytes.
        """
        snapshot = fetched.snapshot
        file_name = self._stacks.relative_name(fetched.path)
        part = StackedPart(file_name, 0, snapshot.length, snapshot.checksum, snapshot.rows, snapshot.head.epoch)
        try:
            if ranges == [FetchedRange(0, snapshot.length, snapshot.checksum)]:
                self._files.mark_verified(part)
            data = self._files.data(part)
        except DamagedCopy as error:
            raise self._cause_of_damage(fetched, part, ranges, error) from error
        if self._keys is not None and key_id_of(data) != PLAIN:
            return part  # encrypted parts always have the current format
        name = paths.snapshot_name(fetched.store, fetched.key_group, snapshot.id)
        table = part_codec.open_part(data, name)
        if part_codec.HASH in table.column_names:
            return part
        table = self._schema.sealed(self._schema.without_later_names(table, part.epoch))
        fetched.path.unlink()
        data = part_codec.encode(table, self._schema.due)
        return self._write_part(fetched.key_group, data, table.num_rows, part.epoch)

    def _cause_of_damage(
        self, fetched: SnapshotFile, part: StackedPart, ranges: Iterable[FetchedRange], error: DamagedCopy
    ) -> RiffleError:
        """Delete a damaged snapshot's file, and return the error for its cause: the object, if the file has the fetched
        bytes, else the disk.
        """
        disk_error = disk_refused_error(f"A snapshot was altered after it was fetched: {error.problem}", fetched.path)
        if isinstance(error.__cause__, OSError):
            return disk_error
        try:
            is_disk = self._files.verify(part) or not are_stored(fetched.path, ranges)
        finally:
            fetched.path.unlink(missing_ok=True)
        name = paths.snapshot_name(fetched.store, fetched.key_group, fetched.snapshot.id)
        return disk_error if is_disk else part_codec.altered_error(name)

    def _encrypt(self, data: bytes, place: Place) -> bytes:
        """Return a part's bytes for a place, encrypted if there are keys."""
        return data if self._keys is None else self._keys.new_encryption()(data, place)

    def discard(self, parts: Iterable[StackedPart]) -> None:
        """Delete the files of parts that are in no stack."""
        for part in parts:
            (self._folder.path / part.file).unlink(missing_ok=True)

    def _write_part(self, key_group: int, data: bytes, rows: int, epoch: int) -> StackedPart:
        """Write a part's plain bytes into a new file of this key-group, encrypted if there are keys.

        Return the part.
        """
        path = self._stacks.new_file(key_group)
        name = self._stacks.relative_name(path)
        data = self._encrypt(data, encryption_place(name, self._schema.store, key_group))
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        checksum = part_codec.checksum(data)
        return StackedPart(name, 0, len(data), checksum, rows, epoch, self._schema.history.newest)

    def merge_some(self, opened: Mapping[int, OpenStack]) -> None:
        """Merge stacks with many or large parts, up to a limit of bytes, but at least one. Raises ``DamagedCopy``.

        If any stack has reached the size for a merge, stacks of half that size are merged too: stacks share files, and
        a file is removed with its last stack.
        """
        if all(_merge_start(copy.stack.parts, _MERGED_SHARE) is None for copy in opened.values()):
            return
        bytes_left = _MERGED_BYTES_AT_ONCE
        small: dict[bool, list[tuple[int, OpenStack, Sequence[StackedPart]]]] = {True: [], False: []}
        for key_group, copy in sorted(opened.items()):
            start = _merge_start(copy.stack.parts, _MERGED_SHARE / 2)
            if start is None or bytes_left <= 0:
                continue
            parts = copy.stack.parts[start:]
            size = sum(part.length for part in parts)
            bytes_left -= size
            if size < _OWN_FILE_BYTES:
                small[start == 0].append((key_group, copy, parts))
            else:
                self._merge(key_group, parts, copy.timer_ms, bottom=start == 0)
        for bottom, merges in small.items():
            for some in _split_by_size(merges):
                self._merge_together(some, bottom=bottom)

    def _merge_together(self, merges: Sequence[tuple[int, OpenStack, Sequence[StackedPart]]], *, bottom: bool) -> None:
        """Replace parts of several key-groups by parts in one block.

        ``merges`` are key-groups with their copies and the parts to merge.
        """
        if len(merges) == 1:
            key_group, copy, parts = merges[0]
            self._merge(key_group, parts, copy.timer_ms, bottom=bottom)
            return
        distinct = {(part.file, part.start): part for _, _, parts in merges for part in parts}
        self._files.forget_verification(distinct.values())
        groups = [
            RunsOfKeyGroup(key_group, self.read_runs(key_group, parts, copy.timer_ms))
            for key_group, copy, parts in merges
        ]
        rows, key_groups, starts = merge_into_block(groups, self._schema, bottom=bottom)
        newest = max((copy.stack.head for _, copy, _ in merges), key=lambda head: (head.epoch, head.version))
        path = self._folder.new_block_path(*newest)
        name = f"{path.parent.name}/{path.name}"
        data = encode_block_file(
            self._encrypt(rows, paths.block_place(self._schema.store, path.name)), key_groups, starts
        )
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        _, index = read_index(pa.py_buffer(data))
        checksum, _ = checksum_of_block(pa.py_buffer(data))
        epoch = max(part.epoch for _, _, parts in merges for part in parts)
        replacements: dict[int, tuple[Sequence[StackedPart], StackedPart]] = {}
        for key_group, _, parts in merges:
            place = index.ranges[key_group]
            merged = StackedPart(name, 0, place.length, checksum, place.rows, epoch, self._schema.history.newest)
            replacements[key_group] = parts, merged
        replaced = self._stacks.replace_parts_of_many(replacements)
        for key_group in replaced:
            self._files.release_rows(replacements[key_group][0])
        if not replaced:
            path.unlink(missing_ok=True)

    def merge_if_large(self, key_group: int, stack: Stack, timer_ms: int | None, share: float = _MERGED_SHARE) -> int:
        """Merge a stack or its top, if the parts above the lowest part have grown too large. Return the bytes of merged
        parts.

        They have grown if they have more than ``share`` of the lowest part's bytes, or twice that share of its rows. If
        there are too many parts, only the top is merged. ``timer_ms`` is that of ``read_runs``.
        """
        start = _merge_start(stack.parts, share)
        if start is None:
            return 0
        self._merge(key_group, stack.parts[start:], timer_ms, bottom=start == 0)
        return sum(part.length for part in stack.parts[start:])

    def _merge(
        self, key_group: int, parts: Sequence[StackedPart], timer_ms: int | None, *, bottom: bool
    ) -> tuple[bytes, int]:
        """Replace parts by one merged part, if they are still in the stack. Return its plain bytes and its rows."""
        self._files.forget_verification(parts)
        table = merge_rows(self.read_runs(key_group, parts, timer_ms), self._schema, bottom=bottom)
        data = part_codec.encode(table, self._schema.due)
        part = self._write_part(key_group, data, table.num_rows, max((part.epoch for part in parts), default=FIRST))
        if self._stacks.replace_parts(key_group, parts, part) is None:
            self.discard([part])
        else:
            self._files.release_rows(parts)
        return data, table.num_rows

    def encode_snapshot(
        self, key_group: int, stack: Stack, timer_ms: int | None, snapshot_id: str
    ) -> tuple[bytes, int]:
        """Return the state of a stack as the bytes of the snapshot with this id, and its number of rows. The stack is
        merged for it, if necessary.

        ``timer_ms`` is that of ``read_runs``. Raises ``DamagedCopy``.
        """
        self._files.forget_verification(stack.parts)
        place = paths.snapshot_place(self._schema.store, key_group, snapshot_id)
        if len(stack.parts) == 1:
            data = self._files.read_as_snapshot(stack.parts[0], self._schema.store, key_group)
            if data is not None:
                return self._encrypt(bytes(data), place), stack.parts[0].rows
        merged, rows = self._merge(key_group, stack.parts, timer_ms, bottom=True)
        return self._encrypt(merged, place), rows


def _split_by_size(
    merges: Sequence[tuple[int, OpenStack, Sequence[StackedPart]]],
) -> Iterator[Sequence[tuple[int, OpenStack, Sequence[StackedPart]]]]:
    """Yield consecutive merges whose parts have about ``_BLOCK_BYTES`` together."""
    first = 0
    size = 0
    for place, (_, _, parts) in enumerate(merges):
        size += sum(part.length for part in parts)
        if size >= _BLOCK_BYTES:
            yield merges[first : place + 1]
            first = place + 1
            size = 0
    if first < len(merges):
        yield merges[first:]


def _merge_start(parts: Sequence[StackedPart], share: float) -> int | None:
    """Return the index of the first part to merge, ``None`` if no merge is needed.

    If the parts above the lowest have grown, that is 0. If there are too many parts, it is the start of those at the
    top that have similar sizes. Compressed parts take more bytes once merged, so rows count too. They also bound the
    memory of a merge.
    """
    upper_bytes = sum(part.length for part in parts[1:])
    if upper_bytes > _MERGED_BYTES_MIN and (
        upper_bytes > share * parts[0].length or _count_rows(parts[1:]) > 2 * share * parts[0].rows
    ):
        return 0
    if len(parts) <= _PARTS_MAX:
        return None
    start = len(parts) - 2
    size = parts[-1].length + parts[-2].length
    while start > 1 and parts[start - 1].length <= 2 * size:
        start -= 1
        size += parts[start].length
    return start if _count_rows(parts[start:]) <= share * parts[0].rows else 0


def _count_rows(parts: Iterable[StackedPart]) -> int:
    """Return the number of rows of all parts."""
    return sum(part.rows for part in parts)


class StackFollower:
    """Adds fetched links and snapshots to a store's stacks, for upkeep."""

    def __init__(
        self,
        schema: StoreSchema,
        folder: Folder,
        reader: Reader,
        incoming: IncomingSnapshots,
        planner: CopyPlanner,
        budget: Budget,
    ) -> None:
        """Open the store's stacks of ``planner``. ``budget`` limits the bytes and the time of the task."""
        self._folder = folder
        self._reader = reader
        self._incoming = incoming
        self._planner = planner
        self._budget = budget
        self._stacks = planner.stacks(schema.store)
        self._parts = StackParts(folder, schema, self._stacks, reader.keys)

    def advance(self, copies: Sequence[CopyProgress]) -> int:
        """Add the links that these copies lack, within the budget. Return how many were added."""
        with self._folder.protect_deltas():
            copies_by_link = {link: copy for copy in copies for link in copy.links}
            parts = self._sealed_parts(copies_by_link)
            runs = iter(self._reader.group_into_runs(copies_by_link.keys() - parts.keys(), _GAP_BYTES))
            with closing(run_ahead(self._reader.fetch_run, self._take_granted(runs), span_bytes)) as fetching:
                for run, data in fetching:
                    parts |= self._write(run, data, copies_by_link)
            return self._add(copies, parts)

    def _sealed_parts(self, links: Mapping[Link, CopyProgress]) -> dict[Link, StackedPart]:
        """Return the intact parts of deltas that this member sealed itself."""
        parts = self._parts.find_sealed_parts(links)
        if not parts or not self._budget.start_item():
            return {}
        self._reader.totals.local_parts += len(parts)
        return parts

    def _take_granted(self, runs: Iterator[list[Link]]) -> Iterator[list[Link]]:
        """Yield runs of links as long as the budget grants their bytes."""
        for run in runs:
            if not self._budget.grant(span_bytes(run)):
                return
            yield run

    def _write(
        self,
        run: list[Link],
        fetching: Future[dict[Link, memoryview | CorruptStateError]],
        copies_by_link: Mapping[Link, CopyProgress],
    ) -> dict[Link, StackedPart]:
        """Write the fetched parts of a run into a file, and return them.

        Errors are recorded in the copies that need the parts.
        """
        fetched: Mapping[Link, memoryview | Exception]
        try:
            fetched = fetching.result()
            data_by_link = {link: data for link, data in fetched.items() if isinstance(data, memoryview)}
            parts = write_parts(self._folder, data_by_link)
            self._parts.mark_verified(parts.values())
        except Exception as error:  # noqa: BLE001 - reported to the driver, which orders the copy again
            fetched = dict.fromkeys(run, error)
            parts = {}
        for link, data in fetched.items():
            if isinstance(data, Exception):
                copies_by_link[link].fail(data)
        return parts

    def _add(self, copies: Sequence[CopyProgress], parts: Mapping[Link, StackedPart]) -> int:
        """Add the next links of copies to their stacks with one write, as far as their parts are present.

        Return how many were added. Errors are recorded in the copies.
        """
        links = {copy.address[1]: list(takewhile(parts.__contains__, copy.links)) for copy in copies}
        replacements: dict[int, tuple[Stack | None, Stack]] = {}
        self._stacks.refresh()  # slots may have advanced some while the links were fetched
        for copy in copies:
            key_group = copy.address[1]
            former = self._stacks.read(key_group)
            if links[key_group] and former is not None and former.head == copy.head:
                added = [parts[link] for link in links[key_group]]
                replacements[key_group] = former, former.with_parts(links[key_group][-1].head, added)
        try:
            replaced = self._stacks.replace_many(replacements)
        except OSError as error:
            for copy in copies:
                copy.fail(error)
            return 0
        return sum(
            self._note_added(copy, links[key_group], replacements[key_group][1] if key_group in replaced else None)
            for copy in copies
            if links[key_group := copy.address[1]]
        )

    def _note_added(self, copy: CopyProgress, links: Sequence[Link], stack: Stack | None) -> int:
        """Record in ``copy`` that these links were added, and merge its new ``stack`` if it is large.

        Without a stack another process has removed or advanced the copy. Return how many links were added.
        """
        if stack is None:
            error = OutOfDate(
                "Another process advanced or removed the copy.",
                remedy="Do nothing. The next piece of upkeep plans it again.",
                id="RIFFLE-0466",
            )
            self._planner.accept_if_advanced(copy, error)
            return 0
        try:
            self._parts.merge_if_large(copy.address[1], stack, timer_at_head(copy.entry, stack.head))
        except DamagedCopy as error:
            self._planner.drop_damaged(copy, error)
        except Exception as error:  # noqa: BLE001 - reported to the driver, which orders the copy again
            copy.fail(error)
        else:
            copy.head = links[-1].head
            copy.links = copy.links[len(links) :]
            copy.fetched += sum(link.length for link in links)
            return len(links)
        return 0

    def create(self, copy: CopyProgress) -> bool:
        """Create a copy at the entry's base, from the fetched snapshot.

        Return ``False`` if another process created it.
        """
        key_group = copy.address[1]
        snapshot = copy.entry.snapshot
        parts: tuple[StackedPart, ...] = ()
        if snapshot is not None:
            file = SnapshotFile(*copy.address, snapshot, self._stacks.new_file(key_group, snapshot.id))
            ranges = self._incoming.move(copy.address, snapshot, file.path)
            try:
                parts = (self._parts.make_base(file, self._all_ranges(file, ranges)),)
            except Exception:
                file.path.unlink(missing_ok=True)
                raise
        if self._stacks.replace(key_group, self._stacks.read(key_group), Stack(copy.entry.base, parts)):
            return True
        self._parts.discard(parts)
        return False

    def _all_ranges(self, file: SnapshotFile, own_ranges: Sequence[FetchedRange]) -> Iterator[FetchedRange]:
        """Yield the ranges that arrived in this piece.

        The checksums of earlier pieces are lost, so the start of the snapshot is fetched again. Raises ``DamagedCopy``
        if the file has another start.
        """
        yield from own_ranges
        start_bytes = own_ranges[0].start if own_ranges else file.snapshot.length
        if start_bytes:
            start = self._reader.checksum_snapshot_start((file.store, file.key_group), file.snapshot, start_bytes)
            if not are_stored(file.path, [start]):
                raise damaged_copy_error("The start of a snapshot's file is not what the store has.", file.path)
