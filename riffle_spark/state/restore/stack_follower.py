"""Adds fetched links and snapshots to the stacks of a store, for upkeep."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from itertools import takewhile

from riffle_spark.errors import CorruptStateError, OutOfDate
from riffle_spark.state.copies.disk import DamagedCopy, damaged_copy_error
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.fetched_ranges import FetchedRange, are_stored
from riffle_spark.state.restore.prefetch import Budget, run_ahead
from riffle_spark.state.restore.reader import Reader, SnapshotFile, span_bytes, write_parts
from riffle_spark.state.restore.stack_parts import StackParts, timer_at_head
from riffle_spark.state.schemas.store_schema import StoreSchema

_GAP_BYTES = 8 << 20
"""Upkeep fetches a delta with one GET, unless two parts are further apart than this."""


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
        """Yield runs of links while the budget grants their bytes."""
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
