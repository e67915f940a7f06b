"""Taking due snapshots on a member. Knows copies and parts. Does not know when a snapshot is due, or whether it gets
listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.state.copies.copy import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Entry, Head, Snapshot
from riffle_spark.state.objects.store import ObjectStore, sent_since
from riffle_spark.state.restore.bring import CopyKeeper, not_cut
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.worker.member_folders import folder_of, store_of

__all__ = ["SnapshotOrder", "SnapshotReceipt", "take_snapshot", "take_snapshots"]


@dataclass(frozen=True)
class SnapshotOrder:
    """One key-group of one store to snapshot, at its entry's head or, if its copy is already further on, there."""

    home: Home
    schema: StoreSchema
    key_group: int
    entry: Entry
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotReceipt:
    """What one member took: (store, key-group, snapshot), the requests it made, and what failed, if
    anything.
    """

    taken: list[tuple[str, int, Snapshot]] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)
    error: str | None = None


def take_snapshots(
    orders: Sequence[SnapshotOrder], executor: str, random_bytes: Callable[[int], bytes] = os.urandom
) -> SnapshotReceipt:
    """Take the snapshots ordered from this executor. One that fails, however it does, leaves the others be."""
    if not orders:
        return SnapshotReceipt()
    home = orders[0].home
    taken: list[tuple[str, int, Snapshot]] = []
    errors: list[str] = []
    sent: dict[str, int] = {}
    try:
        objects = store_of(home)
        before = dict(objects.requests)
        folder = folder_of(home, executor)
        with folder.used():
            for order in orders:
                attempt = f"{order.epoch}-{random_bytes(16).hex()}"
                try:
                    taken.append((order.schema.store, order.key_group, take_snapshot(order, folder, objects, attempt)))
                except Exception as trouble:  # noqa: BLE001 - upkeep: the driver is told and orders it again
                    errors.append(f"{order.schema.store}, key-group {order.key_group}: {trouble}")
        sent = sent_since(before, objects.requests)
    except Exception as trouble:  # noqa: BLE001 - as above
        errors.append(str(trouble))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    error = errors[0] + more if errors else None
    return SnapshotReceipt(taken, sent, error)


def take_snapshot(
    order: SnapshotOrder, folder: Folder, objects: ObjectStore, attempt: str,
    whole: Callable[[int], Entry] = not_cut,
) -> Snapshot:  # fmt: skip
    """Put a snapshot of one key-group as ``attempt`` and return it. ``whole`` gets an entry that came cut.

    A copy that is damaged, or not there, is restored first. Raises what the store and the disk raise.
    """
    keeper = CopyKeeper(folder, order.schema, Reader(objects, folder), order.epoch, whole)
    try:
        head, table = _scanned(order, keeper)
    except DamagedCopy:
        keeper.forget([order.key_group])
        head, table = _scanned(order, keeper)
    data = part_codec.encode(table)
    snapshot_id = paths.snapshot_id(head.version, attempt)
    objects.put_if_absent(paths.snapshot(order.schema.store, order.key_group, snapshot_id), data)
    return Snapshot(snapshot_id, head, len(data), part_codec.checksum(data), table.num_rows)


def _scanned(order: SnapshotOrder, keeper: CopyKeeper) -> tuple[Head, pa.Table]:
    with keeper.bring_or_beyond(order.key_group, order.entry) as copy:
        head, pairs, longs = copy.scan()
    try:
        return head, order.schema.table(pairs, longs)
    except CorruptStateError as error:
        raise DamagedCopy(error.problem, remedy=error.remedy, where=order.schema.store) from error
