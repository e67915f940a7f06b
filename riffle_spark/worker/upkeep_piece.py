"""One piece of upkeep on a member: copies that follow the log, copies that go, snapshots that are due. Knows a time and
a number of bytes to stay within. Does not know why a copy is wanted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from riffle_spark.errors import OutOfDate
from riffle_spark.messages.slot_orders import Home
from riffle_spark.state.copies.disk import used_share
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.log.manifest import Address, Entry, Head, Snapshot
from riffle_spark.state.objects.store import sent_since
from riffle_spark.state.restore.bring import head_of
from riffle_spark.state.restore.follow import Follower
from riffle_spark.state.restore.incoming import IncomingSnapshots
from riffle_spark.state.restore.prefetch import Budget
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.worker.member_folders import folder_of, manifest_at, store_of
from riffle_spark.worker.snapshot import SnapshotOrder, take_snapshot

__all__ = ["Drop", "Follow", "UpkeepOrder", "UpkeepReceipt", "given_up", "run_upkeep"]


@dataclass(frozen=True, slots=True)
class Follow:
    """One copy to bring to its entry's head: it folds what it lacks, or is fetched whole.

    The entry is cut at the head where the driver takes the copy to be, or whole. A copy that turns out to be elsewhere
    takes what the log's record says.
    """

    store: str
    key_group: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Drop:
    """One copy to remove, if it still is where it was seen: ``head`` is ``None`` for any."""

    store: str
    key_group: int
    head: Head | None


@dataclass(frozen=True)
class UpkeepOrder:
    """What one executor is to do in one piece, most urgent first: drops, follows, snapshots.

    ``member`` is the folder that is meant (empty: whichever the executor has). The piece begins nothing new after
    ``seconds``, fetches at most ``fetch_bytes`` (``None``: any number) and goes on with a half-fetched snapshot where
    the piece before stopped. No copy is begun while the disk is fuller than ``disk_limit``. ``sequence`` is the record
    that the entries are of. ``wipe`` removes all copies and files of the member before anything else. A piece that
    has not ended ``timeout_seconds`` after its ``seconds`` is given up.
    """

    home: Home
    member: str
    epoch: int
    sequence: int
    schemas: Mapping[str, StoreSchema]
    drops: tuple[Drop, ...] = ()
    follows: tuple[Follow, ...] = ()
    snapshots: tuple[SnapshotOrder, ...] = ()
    seconds: float = 1.0
    fetch_bytes: int | None = None
    disk_limit: float = 1.0
    wipe: bool = False
    timeout_seconds: float = 60.0

    @property
    def asks(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.drops or self.follows or self.snapshots or self.wipe)


@dataclass(frozen=True, slots=True)
class UpkeepReceipt:
    """What one piece did. ``copies`` are (store, key-group, version, attempt) of copies that are now at that head,
    ``gone`` those that are not there (any more), ``unfinished`` (store, key-group, bytes fetched, bytes to fetch) of
    those it did not come to the end of or did not come to; ``taken`` are snapshots put. ``failed`` are those of the
    unfinished that something is wrong with or that may not be begun, ``failed_snapshots`` those that could not be
    taken; of drops and snapshots it did not come to the last ``drops_left`` and ``snapshots_left``. ``ran``: it came to
    its work; else ``errors`` say what kept it from its folder, or it is ``overdue``: it did
    not end in its time, and what became of it is not known.
    """

    executor: str
    member: str = ""
    copies: tuple[tuple[str, int, int, str], ...] = ()
    gone: tuple[tuple[str, int], ...] = ()
    unfinished: tuple[tuple[str, int, int, int], ...] = ()
    taken: tuple[tuple[str, int, Snapshot], ...] = ()
    failed: tuple[tuple[str, int], ...] = ()
    failed_snapshots: tuple[tuple[str, int], ...] = ()
    ran: bool = True
    overdue: bool = False
    drops_left: int = 0
    snapshots_left: int = 0
    snapshot_bytes: int = 0
    delta_bytes: int = 0
    restores: int = 0
    folds: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    errors: tuple[str, ...] = ()


def given_up(executor: str, seconds: float) -> UpkeepReceipt:
    """Return what stands for the receipt of a piece that had not ended after so many seconds."""
    trouble = (
        f"a piece of upkeep had not ended after {seconds:g} s and was given up\n"
        "  What to do: look at that executor's disk and processes; if they are merely slow, raise `upkeep_timeout`"
    )
    return UpkeepReceipt(executor, errors=(trouble,), ran=False, overdue=True)


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
        self._taken: list[tuple[str, int, Snapshot]] = []
        self._full = False

    def run(self) -> None:
        """Do what is most urgent first, as far as the budget goes."""
        folder = folder_of(self._order.home, self._executor)
        self.facts["member"] = folder.member
        if self._order.member not in {"", folder.member}:
            raise OutOfDate(f"the order is for member {self._order.member}, this is {folder.member}")
        with folder.used(), folder.alone():
            self.facts["ran"] = True
            if self._order.wipe:
                folder.wipe()
            self._drop(folder)
            self._follow(folder)
            self._snapshot(folder)

    def _drop(self, folder: Folder) -> None:
        incoming = IncomingSnapshots(folder.path)
        for at, drop in enumerate(self._order.drops):
            address = (drop.store, drop.key_group)
            if not self._budget.allows():
                self.facts["drops_left"] = len(self._order.drops) - at
                return
            try:
                found = head_of(folder, *address)
                if found is not None and drop.head not in {None, found}:
                    self._copies[address] = found
                    continue
                folder.drop(*address)
                incoming.forget(address)
                self._gone.append(address)
            except Exception as trouble:  # noqa: BLE001 - one that fails leaves the others be
                self._fail(address, trouble)

    def _follow(self, folder: Folder) -> None:
        order = self._order
        follower = Follower(
            folder, store_of(order.home), order.schemas, order.epoch,
            lambda address: manifest_at(order.home, order.sequence).entry(*address), self._budget,
            lambda: self._has_room(folder),
        )  # fmt: skip
        unfinished: list[tuple[str, int, int, int]] = []
        failed: list[Address] = []
        for one in follower.follow({(f.store, f.key_group): f.entry for f in order.follows}):
            if one.at is not None:
                self._copies[one.address] = one.at
            elif folder.current(*one.address) is None:
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
        share = used_share(folder.path)
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
        for due in order.snapshots:
            if not self._budget.allows():
                break
            left -= 1
            store, attempt = due.schema.store, f"{due.epoch}-{self._random_bytes(16).hex()}"
            try:
                taken = take_snapshot(due, folder, store_of(order.home), attempt, self._whole(store))
                self._taken.append((store, due.key_group, taken))
            except Exception as trouble:  # noqa: BLE001 - one that fails leaves the others be
                failed.append((store, due.key_group))
                self._fail(failed[-1], trouble)
        self.facts.update(snapshots_left=left, failed_snapshots=tuple(failed))

    def _whole(self, store: str) -> Callable[[int], Entry]:
        return lambda key_group: manifest_at(self._order.home, self._order.sequence).entry(store, key_group)

    def _fail(self, address: Address, trouble: object) -> None:
        self.errors.append(f"{address[0]}, key-group {address[1]}: {trouble}")

    def receipt(self, seconds: float) -> UpkeepReceipt:
        """Return what the driver is told."""
        return UpkeepReceipt(
            self._executor, copies=tuple((*address, *head) for address, head in self._copies.items()),
            gone=tuple(self._gone), taken=tuple(self._taken), seconds=seconds, errors=tuple(self.errors),
            **self.facts,  # type: ignore[arg-type]
        )  # fmt: skip
