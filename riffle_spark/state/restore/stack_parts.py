"""What becomes part of a stack: sealed deltas, snapshots that were fetched, parts that were merged, and what comes
beside the batches, piece by piece. Knows files and formats. Does not know which copies are wanted.

Merging makes stacks quicker to read and frees disk; it changes nothing that a copy holds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile

from riffle_spark.errors import CorruptStateError, OutOfDate, RiffleError
from riffle_spark.state.copies.disk import DamagedCopy, damaged, disk_refused
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles, merged_rows, place_of
from riffle_spark.state.copies.run import Run
from riffle_spark.state.copies.stack import Stack, StackedPart, Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.due_times import NEVER_MS, first_ms_of
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Entry, Head, Link
from riffle_spark.state.objects.encryption import PLAIN, Keys, Place, key_of
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.fetched_ranges import FetchedRange, are_kept
from riffle_spark.state.restore.prefetch import Budget, prefetched
from riffle_spark.state.restore.reader import Reader, WantedSnapshot, kept_parts, span_bytes
from riffle_spark.state.schemas.history import FIRST
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["UNKNOWN_MS", "OpenStack", "StackFollower", "StackParts", "timer_of"]

_GAP_BYTES = 8 << 20
"""Beside the batches a delta is got in one get unless more than this lies between two parts."""
UNKNOWN_MS = -NEVER_MS
"""The timer of a copy of which nobody knows what is gone."""

_PARTS_MOST = 9
_MERGED_SHARE = 0.5
_MERGED_BYTES_MIN = 8 * 1024
_MERGED_BYTES_AT_ONCE = 16 << 20


@dataclass(frozen=True, slots=True)
class OpenStack:
    """One key-group's copy, each of its parts found whole: ``runs`` holds the newest rows first. ``timer_ms`` is what
    the log has at its head.
    """

    stack: Stack
    runs: tuple[Run, ...]
    timer_ms: int | None


def timer_of(entry: Entry, head: Head) -> int | None:
    """Return the timer that the log has at a copy's head, if that is the entry's: at others, nobody knows it."""
    return entry.timer_ms if head == entry.head else UNKNOWN_MS


class StackParts:
    """The parts of one store's stacks in a member's folder, as one task sees them: each file is looked at once."""

    def __init__(self, folder: Folder, schema: StoreSchema, stacks: Stacks, keys: Keys | None = None) -> None:
        self._folder = folder
        self._schema = schema
        self._stacks = stacks
        self._keys = keys
        self._files = PartFiles(folder.path, keys)

    def sealed(self, links: Collection[Link]) -> dict[Link, StackedPart]:
        """Return those links' parts that this member sealed itself and still has, whole."""
        folder, heads = self._folder.sealed.name, {link.head for link in links}
        known = {head: (f"{folder}/{head.version}-{head.attempt}", head.epoch) for head in heads}
        parts = {}
        for link in links:
            name, epoch = known[link.head]
            parts[link] = StackedPart(name, link.start, link.length, link.checksum, link.rows, epoch)
        return {link: part for link, part in parts.items() if self._files.is_whole(part)}

    def runs(self, key_group: int, parts: Sequence[StackedPart], timer_ms: int | None) -> tuple[Run, ...]:
        """Return the rows of a key-group's parts, the newest first. What was due before the timer is gone: it is what
        the log has at the stack's head, or ``UNKNOWN_MS``. Raises ``DamagedCopy``.
        """
        runs = tuple(run for part in reversed(parts) for run in self._files.runs(part, self._schema, key_group))
        if self._schema.due is None:
            return runs
        return tuple(replace(run, first_ms=first_ms_of(timer_ms)) for run in runs)

    def let_go(self) -> None:
        """Let go of files that were removed."""
        self._files.let_go()

    def look_again(self) -> None:
        """Look at all files anew when they are needed next."""
        self._files = PartFiles(self._folder.path, self._keys)

    def found_whole(self, parts: Iterable[StackedPart]) -> None:
        """Note parts that were found whole when they were fetched, just now. Raises ``LocalDiskError``."""
        for part in parts:
            self._files.found_whole(part)

    def base(self, fetched: WantedSnapshot, came: Iterable[FetchedRange]) -> StackedPart:
        """Return a snapshot that was fetched as the lowest part of a stack. One whose rows cannot be read where they
        lie is unpacked, once. ``came`` is asked for what came of it to its end only where the file is not whole.

        Raises ``CorruptStateError`` naming the object if its bytes are not those that were sealed, and
        ``LocalDiskError`` if the disk does not have what came.
        """
        snapshot, name = fetched.snapshot, paths.snapshot(fetched.store, fetched.key_group, fetched.snapshot.id)
        of_snapshot = snapshot.length, snapshot.checksum, snapshot.rows, snapshot.head.epoch
        part = StackedPart(self._stacks.name_of(fetched.path), 0, *of_snapshot)
        try:
            if came == [FetchedRange(0, snapshot.length, snapshot.checksum)]:
                self._files.found_whole(part)
            data = self._files.data(part)
        except DamagedCopy as error:
            raise self._blame(fetched, part, came, error) from error
        if self._keys is not None and key_of(data) != PLAIN:
            return part  # nothing was ever encrypted that cannot be read as it is
        table = part_codec.opened(data, name)
        if part_codec.HASH in table.column_names:
            return part
        table = self._schema.sealed(self._schema.without_later_names(table, part.epoch))
        fetched.path.unlink()
        data = part_codec.encode(table, self._schema.due)
        return self._written(fetched.key_group, data, table.num_rows, part.epoch)

    def _blame(
        self, fetched: WantedSnapshot, part: StackedPart, came: Iterable[FetchedRange], error: DamagedCopy
    ) -> RiffleError:
        """Return whose error it is that a snapshot's file, which goes, is not whole: the object's if it is not when it
        is read once more, and yet has what came.
        """
        refused = disk_refused(f"a snapshot that was just fetched: {error.problem}", fetched.path)
        if isinstance(error.__cause__, OSError):
            return refused
        try:
            is_of_disk = self._files.check(part) or not are_kept(fetched.path, came)
        finally:
            fetched.path.unlink(missing_ok=True)
        name = paths.snapshot(fetched.store, fetched.key_group, fetched.snapshot.id)
        return refused if is_of_disk else part_codec.altered(name)

    def _sealed(self, data: bytes, place: Place) -> bytes:
        """Return a part's bytes, encrypted for this place if there are keys."""
        return data if self._keys is None else self._keys.sealing()(data, place)

    def discard(self, parts: Iterable[StackedPart]) -> None:
        """Remove the files of parts that became no stack's."""
        for part in parts:
            (self._folder.path / part.file).unlink(missing_ok=True)

    def _written(self, key_group: int, data: bytes, rows: int, epoch: int) -> StackedPart:
        """Write a part's bytes, not yet encrypted, as a file that only this key-group has."""
        path = self._stacks.new_file(key_group)
        name = self._stacks.name_of(path)
        data = self._sealed(data, place_of(name, self._schema.store, key_group))
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        of_data = len(data), part_codec.checksum(data), rows
        return StackedPart(name, 0, *of_data, epoch, self._schema.history.newest)

    def merge_some(self, opened: Mapping[int, OpenStack]) -> None:
        """Merge stacks that have grown high, of bounded bytes at once, but one in any case. Raises ``DamagedCopy``.

        Where one has, those go with it that are half as high: stacks share files, which go when the last lets them go.
        """
        if all(_merged_from(one.stack.parts, _MERGED_SHARE) is None for one in opened.values()):
            return
        left = _MERGED_BYTES_AT_ONCE
        for key_group, one in opened.items():
            if left > 0:
                left -= self.merge_if_high(key_group, one.stack, one.timer_ms, _MERGED_SHARE / 2)

    def merge_if_high(self, key_group: int, stack: Stack, timer_ms: int | None, share: float = _MERGED_SHARE) -> int:
        """Merge a stack, or the top of it, if what lies on the lowest part is more than this share of it, twice that in
        rows, or of too many parts; return how many bytes went into that. ``timer_ms`` as of ``runs``.
        """
        at = _merged_from(stack.parts, share)
        if at is None:
            return 0
        self._merge(key_group, stack.parts[at:], timer_ms, bottom=at == 0)
        return sum(part.length for part in stack.parts[at:])

    def _merge(
        self, key_group: int, parts: Sequence[StackedPart], timer_ms: int | None, *, bottom: bool
    ) -> tuple[bytes, int]:
        """Replace parts by one merged part if they are still there. Return its bytes, not encrypted, and its rows."""
        self._files.doubt(parts)
        table = merged_rows(self.runs(key_group, parts, timer_ms), self._schema, bottom=bottom)
        data = part_codec.encode(table, self._schema.due)
        part = self._written(key_group, data, table.num_rows, max((part.epoch for part in parts), default=FIRST))
        if self._stacks.replace_parts(key_group, parts, part) is None:
            self.discard([part])
        else:
            self._files.forget(parts)
        return data, table.num_rows

    def whole(self, key_group: int, stack: Stack, timer_ms: int | None, snapshot_id: str) -> tuple[bytes, int]:
        """Return all that a stack holds as the bytes of this snapshot, and its rows. What had to be merged stays
        merged. ``timer_ms`` as of ``runs``.

        Raises ``DamagedCopy``.
        """
        self._files.doubt(stack.parts)
        place = paths.snapshot_place(self._schema.store, key_group, snapshot_id)
        if len(stack.parts) == 1:
            data = self._files.as_snapshot(stack.parts[0], self._schema.store, key_group)
            if data is not None:
                return self._sealed(bytes(data), place), stack.parts[0].rows
        merged, rows = self._merge(key_group, stack.parts, timer_ms, bottom=True)
        return self._sealed(merged, place), rows


def _merged_from(parts: Sequence[StackedPart], share: float) -> int | None:
    """Return from which part on a stack is to be merged: from the bottom where what lies above has grown, and else, of
    too many, those at the top that are of like size; ``None`` if it is fine.

    What is packed takes more when it was merged. So rows count too, which bound what is unpacked in memory as well.
    """
    above = sum(part.length for part in parts[1:])
    if above > _MERGED_BYTES_MIN and (above > share * parts[0].length or _rows(parts[1:]) > 2 * share * parts[0].rows):
        return 0
    if len(parts) <= _PARTS_MOST:
        return None
    at, size = len(parts) - 2, parts[-1].length + parts[-2].length
    while at > 1 and parts[at - 1].length <= 2 * size:
        at -= 1
        size += parts[at].length
    return at if _rows(parts[at:]) <= share * parts[0].rows else 0


def _rows(parts: Iterable[StackedPart]) -> int:
    return sum(part.rows for part in parts)


class StackFollower:
    """Brings one store's copies after the log: what a link or a snapshot names becomes part of a stack."""

    def __init__(
        self, schema: StoreSchema, folder: Folder, reader: Reader, incoming: IncomingSnapshots, planner: CopyPlanner,
        budget: Budget,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._reader = reader
        self._incoming = incoming
        self._planner = planner
        self._budget = budget
        self._stacks = planner.stacks(schema.store)
        self._parts = StackParts(folder, schema, self._stacks, reader.keys)

    def advance(self, those: Sequence[CopyProgress]) -> int:
        """Add the links that these copies lack, as far as the budget goes; return how many."""
        with self._folder.deltas_kept():
            return self._advanced(those)

    def _advanced(self, those: Sequence[CopyProgress]) -> int:
        owed = {link: one for one in those for link in one.links}
        coming = self._at_hand(owed)
        runs = iter(self._reader.runs(owed.keys() - coming.keys(), _GAP_BYTES))
        with closing(prefetched(self._reader.fetched, self._granted(runs), span_bytes)) as getting:
            for run, data in getting:
                coming |= self._kept(run, data, owed)
        return sum(self._add(one, coming) for one in those)

    def _at_hand(self, owed: Mapping[Link, CopyProgress]) -> dict[Link, StackedPart]:
        """Return the parts of deltas that this member sealed itself and still has."""
        found = self._parts.sealed(owed)
        if not found or not self._budget.allows():
            return {}
        self._reader.totals.local_parts += len(found)
        return found

    def _granted(self, runs: Iterator[list[Link]]) -> Iterator[list[Link]]:
        for run in runs:
            if not self._budget.grant(span_bytes(run)):
                return
            yield run

    def _kept(
        self, run: list[Link], getting: Future[dict[Link, memoryview | CorruptStateError]],
        owed: Mapping[Link, CopyProgress],
    ) -> dict[Link, StackedPart]:  # fmt: skip
        try:
            found: Mapping[Link, memoryview | Exception] = getting.result()
            kept = kept_parts(self._folder, {k: data for k, data in found.items() if isinstance(data, memoryview)})
            self._parts.found_whole(kept.values())
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            found, kept = dict.fromkeys(run, trouble), {}
        for link, data in found.items():
            if isinstance(data, Exception):
                owed[link].fail(data)
        return kept

    def _add(self, one: CopyProgress, coming: Mapping[Link, StackedPart]) -> int:
        """Put the next links of a copy on its stack, as far as they have come; return how many."""
        links = list(takewhile(coming.__contains__, one.links))
        if not links:
            return 0
        try:
            stack = self._switched(one, links, coming)
            self._parts.merge_if_high(one.address[1], stack, timer_of(one.entry, stack.head))
        except OutOfDate as trouble:
            self._planner.look_again(one, trouble)
        except DamagedCopy as trouble:
            self._planner.give_up(one, trouble)
        except Exception as trouble:  # noqa: BLE001 - as above
            one.fail(trouble)
        else:
            one.at, one.links = links[-1].head, one.links[len(links) :]
            one.fetched += sum(link.length for link in links)
            return len(links)
        return 0

    def _switched(self, one: CopyProgress, links: Sequence[Link], coming: Mapping[Link, StackedPart]) -> Stack:
        key_group = one.address[1]
        before = self._stacks.read(key_group)
        if before is None:
            raise OutOfDate(
                "the copy went while it followed", remedy="nothing: the next piece restores it", id="RIFFLE-0465"
            )
        if before.head == one.at:
            stack = before.with_parts(links[-1].head, [coming[link] for link in links])
            if self._stacks.replace(key_group, before, stack):
                return stack
        raise OutOfDate(
            "another process moved the copy", remedy="nothing: the next piece looks again", id="RIFFLE-0466"
        )

    def begin(self, one: CopyProgress) -> bool:
        """Switch in a stack at the entry's base unless another process did; tell which. Raises what it finds."""
        key_group, snapshot = one.address[1], one.entry.snapshot
        parts: tuple[StackedPart, ...] = ()
        if snapshot is not None:
            wanted = WantedSnapshot(*one.address, snapshot, self._stacks.new_file(key_group, snapshot.id))
            came = self._incoming.move(one.address, snapshot, wanted.path)
            try:
                parts = (self._parts.base(wanted, self._came(wanted, came)),)
            except Exception:
                wanted.path.unlink(missing_ok=True)
                raise
        if self._stacks.replace(key_group, self._stacks.read(key_group), Stack(one.entry.base, parts)):
            return True
        self._parts.discard(parts)
        return False

    def _came(self, wanted: WantedSnapshot, in_this_piece: Sequence[FetchedRange]) -> Iterator[FetchedRange]:
        """Yield what came of a snapshot in this piece. What came before is compared with what comes now: nobody knows
        any more what it was. Raises ``DamagedCopy`` if that is something else.
        """
        yield from in_this_piece
        before = in_this_piece[0].start if in_this_piece else wanted.snapshot.length
        if before:
            again = self._reader.beginning((wanted.store, wanted.key_group), wanted.snapshot, before)
            if not are_kept(wanted.path, [again]):
                raise damaged("what had come of a snapshot before is not what the store has", wanted.path)
