"""The keeper of a store's copies, by what the store holds. Knows both kinds. Does not know how a copy is kept."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from riffle_spark.state.copies.folder import Folder, claim
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.bring import CopyKeeper
from riffle_spark.state.restore.keeping import Keeper, whole_is_unknown
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["keeper_of", "restored"]

_EVERY_EPOCH = 1 << 30
"""There is no copy yet that could be beyond its entry."""


def keeper_of(
    schema: StoreSchema, folder: Folder, reader: Reader, epoch: int, whole: Callable[[int], Entry] = whole_is_unknown
) -> Keeper:
    """Return what keeps the copies of a store in a member's folder. ``whole`` gets an entry that came cut."""

    def of_columns(columns: PlainColumns) -> Keeper:
        return StackKeeper(folder, columns, reader, epoch, whole)

    return schema.either(of_columns, lambda variables: CopyKeeper(folder, variables, reader, epoch, whole))


def restored(schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, folder: Path) -> dict[int, pa.Table]:
    """Return the whole state of each shard that was ever touched, as a snapshot's table, by number and in its order.

    Copies are made below ``folder``, which is empty. Raises what bringing copies raises.
    """
    return keeper_of(schema, claim(folder, "reader", ()), reader, _EVERY_EPOCH).tables(entries)
