"""Whole shards read from the objects alone, as a member restores them. Knows copies. Does not know who asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from riffle_spark.state.copies.folder import claim
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.bring import CopyKeeper
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["restored"]

_EVERY_EPOCH: Final = 1 << 30
"""There is no copy yet that could be beyond its entry."""


def restored(schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, folder: Path) -> dict[int, pa.Table]:
    """Return the whole state of each shard that was ever touched, as a snapshot's table, by number and in its order.

    Copies are made below ``folder``, which is empty. Raises what ``CopyKeeper.bring`` raises.
    """
    copies, _ = CopyKeeper(claim(folder, "reader", ()), schema, reader, epoch=_EVERY_EPOCH).bring(entries)
    tables = {}
    for key_group, copy in sorted(copies.items()):
        with copy:
            _, pairs, longs = copy.scan()
        tables[key_group] = schema.table(pairs, longs)
    return tables
