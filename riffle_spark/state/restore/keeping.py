"""What keepers of copies have in common: what they are asked and what they tell. Does not know how a copy is kept."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from riffle_spark.errors import OutOfDate
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head

__all__ = ["Brought", "Keeper", "TakenRows", "cache_begins_at", "out_of_date", "whole_is_unknown"]


class Brought(NamedTuple):
    """What bringing copies took: copies restored, deltas added."""

    restores: int
    folds: int


class TakenRows(NamedTuple):
    """All that a copy holds at a head, as a snapshot's bytes, and how many rows these are."""

    head: Head
    data: bytes
    rows: int


class Keeper(Protocol):
    """Keeps the copies of one store in one member's folder, of whatever kind they are."""

    def forget(self, key_groups: Iterable[int]) -> None:
        """Drop the copies of these key-groups: they are brought anew from the store."""
        ...

    def snapshot(self, key_group: int, entry: Entry) -> TakenRows:
        """Return all that a copy holds at the entry's head, or where it is if that is beyond: a copy holds committed
        effects only. Raises ``DamagedCopy``, and what bringing it raises.
        """
        ...

    def tables(self, entries: Mapping[int, Entry]) -> dict[int, pa.Table]:
        """Return the whole state of each key-group that was ever touched, as a snapshot's table. Raises what bringing
        it raises.
        """
        ...

    def begin_caches(self, entries: Mapping[int, Entry]) -> None:
        """Make every copy one that can be brought to its entry's head from what lies in the folder.

        Nothing of a cache can be fetched: a copy that is neither at the head nor, with the last link's file at hand,
        before it is begun again, empty, at the head.
        """
        ...


def whole_is_unknown(key_group: int) -> Entry:
    """Stand for a way to get whole entries where none can be cut."""
    raise AssertionError(f"the entry of key-group {key_group} is cut and nobody told how to get the whole one")


def out_of_date(found: Head, wanted: Head, store: str, key_group: int) -> OutOfDate:
    """Return the error of a copy that is beyond what a batch starts from."""
    return OutOfDate(
        f"the copy is at version {found.version} of epoch {found.epoch}, the batch starts from {wanted.version}",
        where=f"{store}, key-group {key_group}",
    )


def cache_begins_at(head: Head | None, entry: Entry, *, at_hand: bool) -> Head | None:
    """Return where an empty copy of a cache is to begin, ``None`` if the one at ``head`` can be brought. ``at_hand``:
    the newest delta lies here.
    """
    if head == entry.head or (at_hand and head == entry.base):
        return None
    return EMPTY_HEAD if at_hand and entry.base == EMPTY_HEAD else entry.head
