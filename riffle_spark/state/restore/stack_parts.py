"""The parts of stacks: sealed deltas, fetched snapshots and merged parts.

Merging makes stacks faster to read and frees disk. It does not change the state of a copy.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from riffle_spark.errors import RiffleError
from riffle_spark.state.copies.disk import (
    DamagedCopy,
    disk_refused_error,
)
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles, merge_rows
from riffle_spark.state.copies.part_runs import merge_into_block
from riffle_spark.state.copies.places import encryption_place
from riffle_spark.state.copies.run import Run, RunsOfKeyGroup
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block, encode_block_file, read_index
from riffle_spark.state.formats.due_times import NEVER_MS, first_ms_of
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Entry, Head, Link
from riffle_spark.state.objects.encryption import PLAIN, Keys, Place, key_id_of
from riffle_spark.state.restore.fetched_ranges import FetchedRange, are_stored
from riffle_spark.state.restore.reader import SnapshotFile
from riffle_spark.state.schemas.history import FIRST
from riffle_spark.state.schemas.store_schema import StoreSchema

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
        """Return the local parts of the links whose deltas this member sealed or merged itself, if their files are
        intact.
        """
        folder = self._folder.sealed.name
        sources = {link.source for link in links}
        names = {source: f"{folder}/{paths.sealed_block_name(*source)}" for source in sources}
        blocks = {source: self._files.read_block_index(name) for source, name in names.items()}
        parts: dict[Link, StackedPart] = {}
        for link in links:
            source = link.source
            block = blocks[source]
            if block is None and link.block is None:
                name = f"{folder}/{source.version}-{source.attempt}"
                part = StackedPart(name, link.start, link.length, link.checksum, link.rows, link.head.epoch)
                if self._files.is_intact(part):
                    parts[link] = part
            if block is None:
                continue
            index, checksum = block
            if link.block is None:
                place = index.by_part.get((link.start, link.checksum))
            else:
                place = index.ranges.get(link.start) if checksum == link.checksum else None
            if place is not None and place.rows == link.rows:
                parts[link] = StackedPart(names[source], 0, place.length, checksum, link.rows, link.head.epoch)
        return parts

    def read_runs(self, key_group: int, parts: Sequence[StackedPart], timer_ms: int | None) -> tuple[Run, ...]:
        """Return the rows of a key-group's parts as runs, newest first. Raises ``DamagedCopy``.

        ``timer_ms`` is the entry's at the stack's head, or ``UNKNOWN_MS``. Rows that were due before it are expired.
        """
        runs = tuple(run for part in reversed(parts) for run in self._files.read_runs(part, self._schema, key_group))
        if self._schema.due is None:
            return runs
        return tuple(replace(run, first_ms=first_ms_of(timer_ms)) for run in runs)

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

        If any stack has reached the size or the number of parts for a merge, stacks of half that size or number are
        merged too: stacks share files, and a file is removed with its last stack.
        """
        if all(_merge_start(copy.stack.parts, _MERGED_SHARE, _PARTS_MAX) is None for copy in opened.values()):
            return
        bytes_left = _MERGED_BYTES_AT_ONCE
        small: dict[bool, list[tuple[int, OpenStack, Sequence[StackedPart]]]] = {True: [], False: []}
        for key_group, copy in sorted(opened.items()):
            start = _merge_start(copy.stack.parts, _MERGED_SHARE / 2, max(1, _PARTS_MAX // 2))
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
        groups = self.read_again({key_group: (parts, copy.timer_ms) for key_group, copy, parts in merges})
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

    def read_again(self, stacks: Mapping[int, tuple[Sequence[StackedPart], int | None]]) -> list[RunsOfKeyGroup]:
        """Return the rows of the parts of each key-group, after verifying the parts again. Raises ``DamagedCopy``.

        The times are the ``timer_ms`` of ``read_runs``.
        """
        distinct = {(part.file, part.start): part for parts, _ in stacks.values() for part in parts}
        self._files.forget_verification(distinct.values())
        return [
            RunsOfKeyGroup(key_group, self.read_runs(key_group, parts, timer_ms))
            for key_group, (parts, timer_ms) in stacks.items()
        ]

    def merge_if_large(self, key_group: int, stack: Stack, timer_ms: int | None, share: float = _MERGED_SHARE) -> int:
        """Merge a stack or its top, if the parts above the lowest part have grown too large. Return the bytes of merged
        parts.

        They have grown if they have more than ``share`` of the lowest part's bytes, or twice that share of its rows. If
        there are too many parts, only the top is merged. ``timer_ms`` is that of ``read_runs``.
        """
        start = _merge_start(stack.parts, share, _PARTS_MAX)
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


def _merge_start(parts: Sequence[StackedPart], share: float, parts_max: int) -> int | None:
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
    if len(parts) <= parts_max:
        return None
    start = len(parts) - 2
    size = parts[-1].length + parts[-2].length
    while start > 1 and parts[start - 1].length <= 2 * size:
        start -= 1
        size += parts[start].length
    return start if _count_rows(parts[start:]) <= share * parts[0].rows else 0


def _count_rows(parts: Iterable[StackedPart]) -> int:
    return sum(part.rows for part in parts)
