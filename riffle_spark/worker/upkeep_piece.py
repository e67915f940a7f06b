"""Run one piece of upkeep on a member: remove copies, let copies follow the log, merge deltas, and take snapshots.

A piece has a budget of seconds and bytes.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

from riffle_spark.errors import OutOfDate
from riffle_spark.messages.upkeep_orders import MergeOrder, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.state.copies.disk import DamagedCopy, read_disk_use
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import close_removed_files, scrub_stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry, Head, Replacement, Snapshot
from riffle_spark.state.log.record_commits import check_folder_has_log
from riffle_spark.state.objects.store import ObjectStore, sent_since
from riffle_spark.state.restore.copy_progress import IncomingSnapshots, read_head
from riffle_spark.state.restore.delta_merger import DeltaMerger
from riffle_spark.state.restore.follow import Follower
from riffle_spark.state.restore.prefetch import Budget
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.worker.member_folders import drop_unreadable, entry_at, folder_of, keys_of, store_of
from riffle_spark.worker.memory_use import memory_use

_MERGED_BYTES = 4 << 20
"""A merged delta gets no further key-group once its parts have this many bytes. This bounds the time and the memory of
a merge, unless one key-group has more bytes."""


def run_upkeep(
    order: UpkeepOrder,
    executor: str,
    random_bytes: Callable[[int], bytes] = os.urandom,
    seconds: Callable[[], float] = time.monotonic,
) -> UpkeepReceipt:
    """Run one piece of upkeep in this executor's folder; failures are returned in ``errors`` and do not stop the rest.

    ``random_bytes`` names snapshots, ``seconds`` is a monotonic clock. Does nothing if the order is for another folder,
    if the folder was taken over, or while another piece runs in it.
    """
    started = seconds()
    piece = _Piece(order, executor, random_bytes, Budget(order.seconds, order.fetch_bytes, seconds))
    try:
        objects = store_of(order.home)
        requests_before = dict(objects.requests)
        piece.run()
        piece.facts["requests"] = sent_since(requests_before, objects.requests)
    except Exception as error:  # noqa: BLE001 - the driver gets the error and orders the work again
        piece.errors.append(str(error))
    return piece.receipt(seconds() - started)


class _Piece:
    """One piece of upkeep, which collects the fields of its receipt."""

    def __init__(self, order: UpkeepOrder, executor: str, random_bytes: Callable[[int], bytes], budget: Budget) -> None:
        """Create a piece of upkeep. ``random_bytes`` names snapshots, ``budget`` limits time and fetched bytes."""
        self.errors: list[str] = []
        self.facts: dict[str, object] = {"ran": False}
        self._order = order
        self._executor = executor
        self._random_bytes = random_bytes
        self._budget = budget
        self._copies: dict[Address, Head] = {}
        self._gone: list[Address] = []
        self._damaged: list[Address] = []
        self._taken: list[tuple[str, int, Snapshot]] = []
        self._entries = {(follow.store, follow.key_group): follow.entry for follow in order.follows}
        self._entries.update({(snapshot.store, snapshot.key_group): snapshot.entry for snapshot in order.snapshots})
        self._entries.update({(due.store, due.key_group): due.entry for due in order.merges})
        self._is_disk_full = False

    def run(self) -> None:
        """Run the most urgent work first, within the budget."""
        folder = folder_of(self._order.home, self._executor)
        self.facts["member"] = folder.member
        if self._order.member not in {"", folder.member}:
            # Cause: The executor claimed another folder after the driver planned this work.
            raise OutOfDate(
                f"The order is for member {self._order.member}, but this executor has member {folder.member}.",
                remedy="Do nothing. The driver orders the work again.",
                id="RIFFLE-0487",
            )
        with folder.hold(), folder.lock_for_upkeep():
            self.facts["ran"] = True
            if self._order.wipe:
                folder.wipe()
            self._drop(folder)
            dropped = drop_unreadable(folder, keys_of(self._order.home))
            if self._entries:
                check_folder_has_log(self._order.home.root, self._order.sequence)
            self._follow(folder)
            self._gone += [address for address in dropped if address not in self._copies]
            self._merge(folder)
            self._snapshot(folder)
            folder.remove_unused_deltas()
            close_removed_files(folder.path)
            if self._budget.start_item():
                self._scrub(folder)
            self.facts.update(disk=read_disk_use(folder.path), memory=memory_use())

    def _drop(self, folder: Folder) -> None:
        """Remove the ordered copies, as far as the budget allows. A copy with another head than ordered stays."""
        incoming = IncomingSnapshots(folder.path)
        stacks = cache(folder.stacks)
        for index, drop in enumerate(self._order.drops):
            address = (drop.store, drop.key_group)
            if not self._budget.start_item():
                self.facts["drops_left"] = len(self._order.drops) - index
                return
            try:
                head = read_head(folder, stacks(drop.store), drop.key_group)
                if head is not None and drop.head not in {None, head}:
                    self._copies[address] = head
                    continue
                folder.drop(*address, stacks(drop.store))
                incoming.remove(address)
                self._copies.pop(address, None)  # an earlier drop of this piece may have found a newer head
                self._gone.append(address)
            except Exception as error:  # noqa: BLE001 - the other drops still run
                self._fail(address, error)

    def _follow(self, folder: Folder) -> None:
        """Bring copies to the heads of their entries, and record the outcome per copy in the receipt."""
        order = self._order
        schemas = {store: schema_of_text(store, text) for store, text in order.schemas.items()}
        follower = Follower(
            folder,
            store_of(order.home),
            schemas,
            order.epoch,
            lambda address: self._full_entry(*address),
            self._budget,
            lambda: self._has_room(folder),
            keys_of(order.home),
        )
        unfinished: list[tuple[str, int, int, int]] = []
        failed: list[Address] = []
        followed = follower.follow({(f.store, f.key_group): f.entry for f in order.follows})
        key_groups_of = cache(folder.key_groups)
        for followed_copy in followed:
            if followed_copy.head is not None:
                self._copies[followed_copy.address] = followed_copy.head
            elif followed_copy.address[1] not in key_groups_of(followed_copy.address[0]):
                self._gone.append(followed_copy.address)
            if not followed_copy.is_finished:
                unfinished.append((*followed_copy.address, followed_copy.fetched, followed_copy.total))
            if followed_copy.error is not None or (followed_copy.restore and self._is_disk_full):
                failed.append(followed_copy.address)
            if followed_copy.error is not None:
                self._fail(followed_copy.address, followed_copy.error)
        self.facts.update(
            unfinished=tuple(unfinished),
            failed=tuple(failed),
            restores=follower.restores,
            folds=follower.folds,
            snapshot_bytes=follower.snapshot_bytes,
            delta_bytes=follower.delta_bytes,
        )

    def _has_room(self, folder: Folder) -> bool:
        """Return whether the disk has room for another copy. Reports a full disk once."""
        share = read_disk_use(folder.path).used_share
        if share > self._order.disk_limit and not self._is_disk_full:
            self._is_disk_full = True
            self.errors.append(
                f"[RIFFLE-0820] The disk of {folder.path} is {share:.0%} full. New copies stop at "
                f"{self._order.disk_limit:.0%}.\n"
                "  What to do: Free space, give `local_dir` a larger disk, or raise `local_disk_limit`."
            )
        return not self._is_disk_full

    def _snapshot(self, folder: Folder) -> None:
        """Take the ordered snapshots within the budget, and record which failed or are left."""
        remaining = len(self._order.snapshots)
        failed: list[Address] = []
        keepers = cache(partial(self._keeper, folder))
        for due in self._order.snapshots:
            if not self._budget.start_item():
                break
            remaining -= 1
            attempt = f"{self._order.epoch}-{self._random_bytes(16).hex()}"
            try:
                snapshot = take_snapshot(due, keepers(due.store), store_of(self._order.home), attempt)
                self._taken.append((due.store, due.key_group, snapshot))
            except Exception as error:  # noqa: BLE001 - the other snapshots are still taken
                failed.append((due.store, due.key_group))
                self._fail(failed[-1], error)
        self.facts.update(snapshots_left=remaining, failed_snapshots=tuple(failed))

    def _merge(self, folder: Folder) -> None:
        """Merge the ordered links within the budget, and record which failed or are left."""
        remaining = len(self._order.merges)
        merged: list[tuple[str, int, Replacement]] = []
        failed: list[Address] = []
        fetched_bytes = 0
        for dues in _split_merges(self._order.merges):
            if not self._budget.start_item():
                break
            remaining -= len(dues)
            store = dues[0].store
            reader = Reader(store_of(self._order.home), keys_of(self._order.home))
            try:
                replacements = self._merge_together(folder, dues, reader)
                merged += [(store, key_group, replacement) for key_group, replacement in replacements.items()]
            except Exception as error:  # noqa: BLE001 - the other merges still run
                failed += [(store, due.key_group) for due in dues]
                self._fail(failed[-1], error)
            fetched_bytes += reader.totals.fetched_bytes
        self.facts.update(
            merges=tuple(merged), merges_left=remaining, failed_merges=tuple(failed), merge_bytes=fetched_bytes
        )

    def _merge_together(self, folder: Folder, dues: Sequence[MergeOrder], reader: Reader) -> Mapping[int, Replacement]:
        """Put a merged delta of these key-groups of one store. Return the replacements of their links."""
        order = self._order
        store = dues[0].store
        keeper = self._keeper(folder, store)
        merger = DeltaMerger(folder, schema_of_text(store, order.schemas[store]), reader, order.epoch, keeper)
        attempt = f"{order.epoch}-{self._random_bytes(16).hex()}"
        merged = merger.merge({due.key_group: due.entry for due in dues}, attempt, dues[0].level)
        merged.put(store_of(order.home), folder)
        return merged.replacements

    def _scrub(self, folder: Folder) -> None:
        """Check copies for damage, remove damaged ones, and record which were removed."""
        for address in scrub_stacks(folder):
            self._copies.pop(address, None)
            self._gone.append(address)
            self._damaged.append(address)

    def _keeper(self, folder: Folder, store: str) -> StackKeeper:
        order = self._order
        schema = schema_of_text(store, order.schemas[store])
        reader = Reader(store_of(order.home), keys_of(order.home))
        return StackKeeper(folder, schema, reader, order.epoch, partial(self._full_entry, store))

    def _full_entry(self, store: str, key_group: int) -> Entry:
        """Return the complete entry of a key-group, read from the record of the order."""
        address = (store, key_group)
        return entry_at(self._order.home, self._order.sequence, address, self._entries[address].head)

    def _fail(self, address: Address, error: object) -> None:
        """Record an error of the work on one key-group."""
        self.errors.append(f"{address[0]}, key-group {address[1]}: {error}")

    def receipt(self, seconds: float) -> UpkeepReceipt:
        """Return the receipt of the piece. ``seconds`` is the time that it took."""
        return UpkeepReceipt(
            self._executor,
            copies=tuple((*address, *head) for address, head in self._copies.items()),
            missing=tuple(self._gone),
            damaged=tuple(self._damaged),
            snapshots=tuple(self._taken),
            seconds=seconds,
            errors=tuple(self.errors),
            **self.facts,  # type: ignore[arg-type]
        )


def _split_merges(merges: Sequence[MergeOrder]) -> Iterator[list[MergeOrder]]:
    """Yield successive orders of one store and level, with about ``_MERGED_BYTES`` of parts."""
    together: list[MergeOrder] = []
    size = 0
    for due in merges:
        is_same = bool(together) and (together[0].store, together[0].level) == (due.store, due.level)
        if together and (not is_same or size >= _MERGED_BYTES):
            yield together
            together = []
            size = 0
        together.append(due)
        size += due.entry.chain_bytes
    if together:
        yield together


def take_snapshot(order: SnapshotOrder, keeper: StackKeeper, objects: ObjectStore, attempt: str) -> Snapshot:
    """Put a snapshot of a key-group from the copy of ``keeper``, and return it.

    ``attempt`` makes its name unique. A damaged or missing copy is restored first.
    """
    try:
        snapshot = keeper.make_snapshot(order.key_group, order.entry, attempt)
    except DamagedCopy:
        keeper.drop([order.key_group])
        snapshot = keeper.make_snapshot(order.key_group, order.entry, attempt)
    snapshot_id = paths.snapshot_id(snapshot.head.version, attempt)
    objects.put_if_absent(paths.snapshot_name(order.store, order.key_group, snapshot_id), snapshot.data)
    return Snapshot(snapshot_id, snapshot.head, len(snapshot.data), part_codec.checksum(snapshot.data), snapshot.rows)
