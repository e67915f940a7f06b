"""Copies of stores that are not durable. Knows folders and heads. Does not know what such a store is for."""

from __future__ import annotations

from collections.abc import Mapping

from riffle_spark.state.copies.copy import Copy, CopyInUse, DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.snapshot_copy import open_copy
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["settle"]


def settle(folder: Folder, schema: StoreSchema, entries: Mapping[int, Entry]) -> None:
    """Make every copy one that can be brought to its entry's head from what lies in the folder.

    Nothing of a cache can be fetched: a copy that is neither at the head nor, with the last link's file at hand, before
    it is begun again, empty, at the head.
    """
    for key_group, entry in entries.items():
        if entry.head == EMPTY_HEAD:
            folder.drop(schema.store, key_group)
            continue
        head, link = _head(folder, schema, key_group), entry.chain[-1]
        at_hand = folder.sealed_file(link.head.version, link.head.attempt).exists()
        if head == entry.head or (head == entry.base and at_hand):
            continue
        begins_with_it = entry.base == EMPTY_HEAD and at_hand
        _begin(folder, schema, key_group, EMPTY_HEAD if begins_with_it else entry.head)


def _head(folder: Folder, schema: StoreSchema, key_group: int) -> Head | None:
    current = folder.current(schema.store, key_group)
    if current is None:
        return None
    try:
        with open_copy(current, schema) as copy:
            return copy.head()
    except CopyInUse:
        raise
    except DamagedCopy:
        return None


def _begin(folder: Folder, schema: StoreSchema, key_group: int, head: Head) -> None:
    fresh = folder.fresh(schema.store, key_group)
    with Copy(fresh, new=True, layout=schema.layout) as copy:
        if head != EMPTY_HEAD:
            copy.load(head, CopyRows([], [], []))
    folder.switch(schema.store, key_group, fresh)
