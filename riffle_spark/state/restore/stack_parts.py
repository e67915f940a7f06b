"""What becomes part of a stack: sealed deltas, snapshots that were fetched, parts that were merged. Knows files and
formats. Does not know heads or chains.

Merging makes stacks quicker to read and frees disk; it changes nothing that a copy holds.
"""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.copies.run import Run, merged
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.restore.fetch import WantedSnapshot
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = ["StackParts"]

_PARTS_MOST = 9
_MERGED_SHARE = 0.6
_MERGED_BYTES_MIN = 16 * 1024
_MERGED_BYTES_AT_ONCE = 16 << 20


class StackParts:
    """The parts of one store's stacks in a member's folder, as one task sees them: each file is looked at once."""

    def __init__(self, folder: Folder, schema: PlainColumns) -> None:
        self._folder = folder
        self._schema = schema
        self._stacks = folder.stacks(schema.store)
        self._files = PartFiles(folder.path)

    def sealed(self, links: Collection[Link]) -> dict[Link, StackedPart]:
        """Return those links' parts that this member sealed itself and still has, whole."""
        names = {head: f"{self._folder.sealed.name}/{head.version}-{head.attempt}" for head in {k.head for k in links}}
        parts = {k: StackedPart(names[k.head], k.start, k.length, k.checksum, k.rows) for k in links}
        return {link: part for link, part in parts.items() if self._files.is_whole(part)}

    def runs(self, parts: Sequence[StackedPart]) -> tuple[Run, ...]:
        """Return the rows of a stack's parts, the newest first. Raises ``DamagedCopy``."""
        return tuple(run for part in reversed(parts) for run in self._files.runs(part, self._schema))

    def let_go(self) -> None:
        """Let go of files that were removed."""
        self._files.let_go()

    def look_again(self) -> None:
        """Look at all files anew when they are needed next."""
        self._files = PartFiles(self._folder.path)

    def base(self, fetched: WantedSnapshot) -> StackedPart:
        """Return a snapshot that was fetched as the lowest part of a stack. One whose rows cannot be read where they
        lie is unpacked, once.

        Raises ``CorruptStateError`` naming the object if its bytes are not those that were sealed.
        """
        snapshot, name = fetched.snapshot, paths.snapshot(fetched.store, fetched.key_group, fetched.snapshot.id)
        part = StackedPart(self._stacks.name_of(fetched.path), 0, snapshot.length, snapshot.checksum, snapshot.rows)
        try:
            data = self._files.data(part)
        except DamagedCopy as error:
            fetched.path.unlink(missing_ok=True)
            raise part_codec.altered(name) from error
        if part_codec.is_by_hash(data, name):
            return part
        table = self._schema.sealed(part_codec.opened(data, name))
        fetched.path.unlink()
        return self._written(fetched.key_group, table)

    def _written(self, key_group: int, table: pa.Table) -> StackedPart:
        path, data = self._stacks.fresh(key_group), part_codec.encode(table)
        path.write_bytes(data)
        return StackedPart(self._stacks.name_of(path), 0, len(data), part_codec.checksum(data), table.num_rows)

    def merge_some(self, stacks: Mapping[int, Stack]) -> None:
        """Merge stacks that have grown high, of bounded bytes at once, but one in any case. Raises ``DamagedCopy``."""
        left = _MERGED_BYTES_AT_ONCE
        for key_group, stack in stacks.items():
            if left > 0:
                left -= self.merge_if_high(key_group, stack)

    def merge_if_high(self, key_group: int, stack: Stack) -> int:
        """Merge a stack, or the top of it, if it has grown high; return how many bytes went into that."""
        at = _merged_from(stack.parts)
        if at is None:
            return 0
        self._merge(key_group, stack.parts[at:], bottom=at == 0)
        return sum(part.length for part in stack.parts[at:])

    def _merge(self, key_group: int, parts: Sequence[StackedPart], *, bottom: bool) -> None:
        table = merged(self.runs(parts), self._schema.key.names, self._schema.row_schema, bottom=bottom)
        part = self._written(key_group, table)
        if self._stacks.replaced(key_group, parts, part) is None:
            (self._folder.path / part.file).unlink(missing_ok=True)

    def whole(self, key_group: int, stack: Stack) -> tuple[bytes, int]:
        """Return all that a stack holds as a snapshot's bytes, and its rows. What had to be merged stays merged.

        Raises ``DamagedCopy``.
        """
        if len(stack.parts) == 1 and not self._files.has_deleted(stack.parts[0]):
            return bytes(self._files.data(stack.parts[0])), stack.parts[0].rows
        table = merged(self.runs(stack.parts), self._schema.key.names, self._schema.row_schema, bottom=True)
        part = self._written(key_group, table)
        data = bytes(self._files.data(part))
        if self._stacks.replaced(key_group, stack.parts, part) is None:
            (self._folder.path / part.file).unlink(missing_ok=True)
        return data, part.rows


def _merged_from(parts: Sequence[StackedPart]) -> int | None:
    """Return from which part on a stack is to be merged: from the bottom where what lies above has grown, and else, of
    too many, those at the top that are of like size; ``None`` if it is fine.
    """
    above = sum(part.length for part in parts[1:])
    if above > max(_MERGED_BYTES_MIN, _MERGED_SHARE * parts[0].length if parts else 0):
        return 0
    if len(parts) <= _PARTS_MOST:
        return None
    at, size = len(parts) - 2, parts[-1].length + parts[-2].length
    while at > 1 and parts[at - 1].length <= 2 * size:
        at -= 1
        size += parts[at].length
    return at
