"""One piece of upkeep on a member: copies that follow the log, copies that go, snapshots that are due. Knows a time and
a number of bytes to stay within. Does not know why a copy is wanted.
"""

import os
import time
from collections.abc import Callable
from functools import cache, partial

from riffle_spark.errors import OutOfDate
from riffle_spark.messages.upkeep_orders import SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.state.copies.disk import DamagedCopy, read_disk_use
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import scrub
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry, Head, Snapshot
from riffle_spark.state.objects.store import ObjectStore, sent_since
from riffle_spark.state.restore.copy_progress import IncomingSnapshots, read_head
from riffle_spark.state.restore.follow import Follower
from riffle_spark.state.restore.prefetch import Budget
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.worker.member_folders import drop_unreadable, entry_at, folder_of, keys_of, store_of
from riffle_spark.worker.memory_use import memory_use

__all__ = ["run_upkeep", "take_snapshot"]


def run_upkeep(
    order: UpkeepOrder, executor: str, random_bytes: Callable[[int], bytes] = os.urandom,
    seconds: Callable[[], float] = time.monotonic,
) -> UpkeepReceipt:  # fmt: skip
    """Do one piece of upkeep in this executor's folder. Nothing is raised: what fails is told in ``errors``, and leaves
    the rest be.

    ``random_bytes`` names snapshots, ``seconds`` is a monotonic clock. Does nothing if the folder is not the one that
    is meant, if it was taken over, or while another piece is at work in it.
    """
    started = seconds()
    piece = _Piece(order, executor, random_bytes, Budget(order.seconds, order.fetch_bytes, seconds))
    try:
        objects = store_of(order.home)
        before = dict(objects.requests)
        piece.run()
        piece.facts["requests"] = sent_since(before, objects.requests)
    except Exception as trouble:  # noqa: BLE001 - upkeep: the driver is told and orders it again
        piece.errors.append(str(trouble))
    return piece.receipt(seconds() - started)


class _Piece:
    """One piece on its way to a receipt."""

    def __init__(self, order: UpkeepOrder, executor: str, random_bytes: Callable[[int], bytes], budget: Budget) -> None:
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
        self._entries = {(one.store, one.key_group): one.entry for one in order.follows}
        self._entries.update({(one.store, one.key_group): one.entry for one in order.snapshots})
        self._full = False

    def run(self) -> None:
        """Do what is most urgent first, as far as the budget goes."""
        folder = folder_of(self._order.home, self._executor)
        self.facts["member"] = folder.member
        if self._order.member not in {"", folder.member}:
            raise OutOfDate(f"the order is for member {self._order.member}, this is {folder.member}", id="RIFFLE-0487")
        with folder.used(), folder.locked_for_upkeep():
            self.facts["ran"] = True
            if self._order.wipe:
                folder.wipe()
            self._drop(folder)
            dropped = drop_unreadable(folder, keys_of(self._order.home))
            self._follow(folder)
            self._gone += [address for address in dropped if address not in self._copies]
            self._snapshot(folder)
            folder.remove_unused_deltas()
            if self._budget.allows():
                self._scrub(folder)
            self.facts.update(disk=read_disk_use(folder.path), memory=memory_use())

    def _drop(self, folder: Folder) -> None:
        incoming, stacks = IncomingSnapshots(folder.path), cache(folder.stacks)
        for at, drop in enumerate(self._order.drops):
            address = (drop.store, drop.key_group)
            if not self._budget.allows():
                self.facts["drops_left"] = len(self._order.drops) - at
                return
            try:
                found = read_head(folder, stacks(drop.store), drop.key_group)
                if found is not None and drop.head not in {None, found}:
                    self._copies[address] = found
                    continue
                folder.drop(*address, stacks(drop.store))
                incoming.remove(address)
                self._copies.pop(address, None)  # a drop that came late may have found it further on than it was sought
                self._gone.append(address)
            except Exception as trouble:  # noqa: BLE001 - one that fails leaves the others be
                self._fail(address, trouble)

    def _follow(self, folder: Folder) -> None:
        order = self._order
        schemas = {store: schema_of_text(store, text) for store, text in order.schemas.items()}
        follower = Follower(
            folder, store_of(order.home), schemas, order.epoch, lambda address: self._whole(*address), self._budget,
            lambda: self._has_room(folder), keys_of(order.home),
        )  # fmt: skip
        unfinished: list[tuple[str, int, int, int]] = []
        failed: list[Address] = []
        followed = follower.follow({(f.store, f.key_group): f.entry for f in order.follows})
        held = cache(folder.key_groups)
        for one in followed:
            if one.head is not None:
                self._copies[one.address] = one.head
            elif one.address[1] not in held(one.address[0]):
                self._gone.append(one.address)
            if not one.finished:
                unfinished.append((*one.address, one.fetched, one.total))
            if one.error is not None or (one.restore and self._full):
                failed.append(one.address)
            if one.error is not None:
                self._fail(one.address, one.error)
        self.facts.update(
            unfinished=tuple(unfinished), failed=tuple(failed), restores=follower.restores, folds=follower.folds,
            snapshot_bytes=follower.snapshot_bytes, delta_bytes=follower.delta_bytes,
        )  # fmt: skip

    def _has_room(self, folder: Folder) -> bool:
        """Tell whether the disk has room for one more copy; say once if it has not."""
        share = read_disk_use(folder.path).used_share
        if share > self._order.disk_limit and not self._full:
            self._full = True
            self.errors.append(
                f"the disk of {folder.path} is {share:.0%} full, no copy is begun beyond {self._order.disk_limit:.0%}\n"
                "  What to do: free space, give `local_dir` a larger disk, or raise `local_disk_limit`"
            )
        return not self._full

    def _snapshot(self, folder: Folder) -> None:
        order, left = self._order, len(self._order.snapshots)
        failed: list[Address] = []
        keepers = cache(partial(self._keeper, folder))
        for due in order.snapshots:
            if not self._budget.allows():
                break
            left -= 1
            try:
                self._taken.append((due.store, due.key_group, self._take(due, keepers(due.store))))
            except Exception as trouble:  # noqa: BLE001 - one that fails leaves the others be
                failed.append((due.store, due.key_group))
                self._fail(failed[-1], trouble)
        self.facts.update(snapshots_left=left, failed_snapshots=tuple(failed))

    def _scrub(self, folder: Folder) -> None:
        for address in scrub(folder):
            self._copies.pop(address, None)
            self._gone.append(address)
            self._damaged.append(address)

    def _keeper(self, folder: Folder, store: str) -> StackKeeper:
        order, schema = self._order, schema_of_text(store, self._order.schemas[store])
        reader = Reader(store_of(order.home), folder, keys_of(order.home))
        return StackKeeper(folder, schema, reader, order.epoch, partial(self._whole, store))

    def _take(self, due: SnapshotOrder, keeper: StackKeeper) -> Snapshot:
        attempt = f"{self._order.epoch}-{self._random_bytes(16).hex()}"
        return take_snapshot(due, keeper, store_of(self._order.home), attempt)

    def _whole(self, store: str, key_group: int) -> Entry:
        address = store, key_group
        return entry_at(self._order.home, self._order.sequence, address, self._entries[address].head)

    def _fail(self, address: Address, trouble: object) -> None:
        self.errors.append(f"{address[0]}, key-group {address[1]}: {trouble}")

    def receipt(self, seconds: float) -> UpkeepReceipt:
        """Return what the driver is told."""
        return UpkeepReceipt(
            self._executor, copies=tuple((*address, *head) for address, head in self._copies.items()),
            missing=tuple(self._gone), damaged=tuple(self._damaged), snapshots=tuple(self._taken), seconds=seconds,
            errors=tuple(self.errors), **self.facts,  # type: ignore[arg-type]
        )  # fmt: skip


def take_snapshot(order: SnapshotOrder, keeper: StackKeeper, objects: ObjectStore, attempt: str) -> Snapshot:
    """Put a snapshot of one key-group, whose copy ``keeper`` keeps, as ``attempt`` and return it.

    A copy that is damaged, or not there, is restored first. Raises what the store and the disk raise.
    """
    try:
        taken = keeper.snapshot(order.key_group, order.entry, attempt)
    except DamagedCopy:
        keeper.drop([order.key_group])
        taken = keeper.snapshot(order.key_group, order.entry, attempt)
    snapshot_id = paths.snapshot_id(taken.head.version, attempt)
    objects.put_if_absent(paths.snapshot(order.store, order.key_group, snapshot_id), taken.data)
    return Snapshot(snapshot_id, taken.head, len(taken.data), part_codec.checksum(taken.data), taken.rows)
