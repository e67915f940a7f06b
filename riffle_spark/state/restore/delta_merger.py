"""Merge successive links of many key-groups into one object, a merged delta.

Theory of operation.

1. The merged part of a key-group has the newest row of each key that its links changed, and the rows that delete keys.
   So a copy at any head before the last link may apply it. Nothing below the links is needed.
2. The parts of the links are local files if this member sealed or merged them. Others are fetched.
3. All key-groups are merged at once, as columns. The object is a block or has a part for each of them, as a delta, and
   this member keeps the same rows as a local block.
4. The result counts only once a record lists it. Until then the links stay.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_runs import merge_key_groups
from riffle_spark.state.copies.run import RunsOfKeyGroup
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import blocks, part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Block, Entry, Head, Link, MergedDelta, Replacement, link_in_block
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.copy_plan import plan_by_entry
from riffle_spark.state.restore.reader import Reader, fetch_links, group_into_bounded_runs
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.restore.stack_parts import StackParts, timer_at_head
from riffle_spark.state.schemas.store_schema import StoreSchema


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged delta: the bytes of its object, the replacement of each key-group, and a block file of the same rows."""

    id: str
    data: bytes
    replacements: Mapping[int, Replacement]
    block: bytes

    def put(self, objects: ObjectStore, folder: Folder) -> None:
        """Put the object, and keep the block in ``folder`` if the disk accepts it.

        The name contains random bytes. So if the object exists, an earlier try of this put wrote it.
        """
        objects.put_if_absent(paths.merged_delta_name(self.id), self.data)
        version, _, attempt = self.id.partition("-")
        folder.write_sealed_file(int(version), attempt, self.block, is_block=True)


class DeltaMerger:
    """Merges links of one store in a member's folder, for a driver of ``epoch``."""

    def __init__(self, folder: Folder, schema: StoreSchema, reader: Reader, epoch: int, keeper: StackKeeper) -> None:
        """Open the store's parts in ``folder``.

        ``reader`` fetches parts that are not there, and ``keeper`` advances the store's copies in the folder.
        """
        self._folder = folder
        self._schema = schema
        self._reader = reader
        self._epoch = epoch
        self._keeper = keeper
        self._stacks = folder.stacks(schema.store)
        self._parts = StackParts(folder, schema, self._stacks, reader.keys)

    def merge(self, entries: Mapping[int, Entry], attempt: str, level: int) -> Merged:
        """Return all links of each cut entry, merged.

        The entries lead to the heads of the log. This member's copies on their chains are advanced to these heads, so
        that they never need the merged delta. ``attempt`` makes the object's name unique. Raises ``CorruptStateError``
        if an object is damaged or missing, ``UnavailableError`` if the store fails, and ``OSError`` or
        ``LocalDiskError`` if the disk does.
        """
        self._advance_copies(entries)
        with self._folder.protect_deltas():
            try:
                groups = self._read(entries, with_local=True)
            except DamagedCopy:
                groups = self._read(entries, with_local=False)
            table, starts = merge_key_groups(groups, self._schema, bottom=False)
        version = max(entry.head.version for entry in entries.values())
        merged_id = paths.snapshot_id(version, attempt)
        datas, block = part_codec.encode_slices(table, starts, self._schema.due)
        key_groups = [group.key_group for group in groups]
        if self._reader.keys is not None:
            encrypt = self._reader.keys.new_encryption()
            store = self._schema.store
            if datas:
                places = [paths.merged_delta_place(store, key_group, merged_id) for key_group in key_groups]
                datas = [encrypt(data, place) for data, place in zip(datas, places, strict=True)]
            block = encrypt(block, paths.block_place(store, paths.sealed_block_name(max(version, 0), attempt)))
        heads = [entries[key_group].head for key_group in key_groups]
        rows = np.diff(starts).tolist()
        if datas:
            data = b"".join(datas)
            links = _make_links(heads, datas, rows, MergedDelta(merged_id, level, len(data)))
            block = blocks.encode_block_file(
                block,
                np.array(key_groups, np.int32),
                starts,
                np.array([link.start for link in links], np.int64),
                np.array([link.checksum for link in links], np.uint64),
            )
        else:
            data = block = blocks.encode_block_file(block, np.array(key_groups, np.int32), starts)
            merged = MergedDelta(merged_id, level, len(data))
            checksum, _ = blocks.checksum_of_block(data)
            stored = Block(len(data), int(starts[-1]))
            links = [
                link_in_block(head, key_group, checksum, count, stored, merged)
                for head, key_group, count in zip(heads, key_groups, rows, strict=True)
            ]
        replacements = {
            key_group: Replacement(entries[key_group].base, link)
            for key_group, link in zip(key_groups, links, strict=True)
        }
        return Merged(merged_id, data, replacements, block)

    def _advance_copies(self, entries: Mapping[int, Entry]) -> None:
        """Bring this member's copies on the chains of the entries to their heads."""
        behind: dict[int, Entry] = {}
        self._stacks.refresh()
        for key_group, entry in entries.items():
            stack = self._stacks.read(key_group)
            plan = plan_by_entry(None if stack is None else stack.head, entry, self._epoch)
            if plan.action == "fold" and plan.links:
                behind[key_group] = entry
        if behind:
            with suppress(DamagedCopy, OutOfDate):  # a slot restores the copy when it needs it, or has advanced it
                self._keeper.advance(behind)

    def _read(self, entries: Mapping[int, Entry], *, with_local: bool) -> list[RunsOfKeyGroup]:
        """Return the rows of all links of each key-group, by ascending key-group."""
        links = [link for entry in entries.values() for link in entry.chain]
        parts: dict[Link, StackedPart] = self._parts.find_sealed_parts(links) if with_local else {}
        missing = [link for link in links if link not in parts]
        if missing:
            fetched = fetch_links(self._reader, self._folder, group_into_bounded_runs(self._reader, missing))
            self._parts.mark_verified(fetched.values())
            parts |= fetched
        return self._parts.read_again(
            {
                key_group: ([parts[link] for link in entry.chain], timer_at_head(entry, entry.head))
                for key_group, entry in sorted(entries.items())
            }
        )


def _make_links(heads: Sequence[Head], datas: Sequence[bytes], rows: Sequence[int], merged: MergedDelta) -> list[Link]:
    """Return the links of the parts of a merged delta, which follow each other in the object."""
    links: list[Link] = []
    start = 0
    for head, data, count in zip(heads, datas, rows, strict=True):
        links.append(Link(head, start, len(data), part_codec.checksum(data), count, merged))
        start += len(data)
    return links
