"""Taking due snapshots on a member. Knows copies and parts. Does not know when a snapshot is due, or whether it gets
listed.
"""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.messages.upkeep_orders import SnapshotOrder
from riffle_spark.state.copies.copy import DamagedCopy
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Head, Snapshot
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.bring import CopyKeeper
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["take_snapshot"]


def take_snapshot(
    order: SnapshotOrder, schema: StoreSchema, keeper: CopyKeeper, objects: ObjectStore, attempt: str
) -> Snapshot:
    """Put a snapshot of one key-group, whose copy ``keeper`` keeps, as ``attempt`` and return it.

    A copy that is damaged, or not there, is restored first. Raises what the store and the disk raise.
    """
    try:
        head, table = _scanned(order, schema, keeper)
    except DamagedCopy:
        keeper.forget([order.key_group])
        head, table = _scanned(order, schema, keeper)
    data = part_codec.encode(table)
    snapshot_id = paths.snapshot_id(head.version, attempt)
    objects.put_if_absent(paths.snapshot(order.store, order.key_group, snapshot_id), data)
    return Snapshot(snapshot_id, head, len(data), part_codec.checksum(data), table.num_rows)


def _scanned(order: SnapshotOrder, schema: StoreSchema, keeper: CopyKeeper) -> tuple[Head, pa.Table]:
    with keeper.bring_or_beyond(order.key_group, order.entry) as copy:
        head, pairs, longs = copy.scan()
    try:
        return head, schema.table(pairs, longs)
    except CorruptStateError as error:
        raise DamagedCopy(error.problem, remedy=error.remedy, where=order.store) from error
