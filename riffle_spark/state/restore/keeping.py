"""What keepers of copies have in common: what they are asked and what they tell. Does not know how a copy is kept."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from riffle_spark.errors import OutOfDate
from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head
from riffle_spark.state.restore.copy_plan import CopyPlan, plan_copy

__all__ = ["Brought", "Keeper", "KeeperPlans", "TakenRows", "cache_begins_at", "whole_is_unknown"]


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


@dataclass(frozen=True, slots=True)
class KeeperPlans:
    """How one store's copies are planned for a driver. Arguments as those of ``CopyKeeper``."""

    store: str
    epoch: int
    whole: Callable[[int], Entry]
    newest: bool

    def plan(self, key_group: int, head: Head | None, entry: Entry) -> CopyPlan:
        """Return what the copy at ``head`` lacks. Raises ``OutOfDate`` if it is beyond what a batch starts from."""
        plan = plan_copy(head, entry, self.epoch, lambda: self.whole(key_group), newest=self.newest)
        if plan.action == "beyond":
            assert head is not None, "nothing is beyond an entry where there is nothing"
            raise OutOfDate(
                f"the copy is at version {head.version} of epoch {head.epoch}, the batch starts from "
                f"{plan.entry.head.version}",
                where=f"{self.store}, key-group {key_group}",
            )
        return plan


def whole_is_unknown(key_group: int) -> Entry:
    """Stand for a way to get whole entries where none can be cut."""
    raise AssertionError(f"the entry of key-group {key_group} is cut and nobody told how to get the whole one")


def cache_begins_at(head: Head | None, entry: Entry, *, at_hand: bool) -> Head | None:
    """Return where an empty copy of a cache is to begin, ``None`` if the one at ``head`` can be brought. ``at_hand``:
    the newest delta lies here.
    """
    if head == entry.head or (at_hand and head == entry.base):
        return None
    return EMPTY_HEAD if at_hand and entry.base == EMPTY_HEAD else entry.head
