"""Where a copy is and what it lacks. Knows heads, entries and local copies. Does not know stores or bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copy import CopyInUse, DamagedCopy
from riffle_spark.state.fold import head_of, is_beyond
from riffle_spark.state.folder import Folder
from riffle_spark.state.incoming import Incoming
from riffle_spark.state.manifest import EMPTY_HEAD, Address, Entry, Head, Link

__all__ = ["Following", "Planner"]


@dataclass(slots=True)
class Following:
    """How far one copy came: where it is (``None``: there is none), what it lacks, bytes fetched of bytes to fetch."""

    address: Address
    entry: Entry
    at: Head | None = None
    links: tuple[Link, ...] = ()
    restore: bool = False
    fetched: int = 0
    total: int = 0
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the copy is where it should be, or further on."""
        return not self.links and not self.restore and self.error is None


class Planner:
    """Tells what copies of one member lack. ``whole`` gets an entry that came cut."""

    def __init__(self, folder: Folder, incoming: Incoming, epoch: int, whole: Callable[[Address], Entry]) -> None:
        self._folder = folder
        self._incoming = incoming
        self._epoch = epoch
        self._whole = whole

    def looked(self, address: Address, entry: Entry) -> Following:
        """Return where a copy is, with what it lacks or what was wrong with looking."""
        one = Following(address, entry)
        try:
            self.plan(one)
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            one.error = str(trouble)
        return one

    def plan(self, one: Following) -> None:
        """Look where the copy is; set what it lacks: nothing, some links, or everything.

        A copy of a key-group that is empty goes. Raises what reading the log raises.
        """
        one.at = head_of(self._folder, *one.address)
        one.restore, one.links = False, ()
        links = None if one.at is None else one.entry.after(one.at)
        if links is None and self._is_beyond(one):
            return
        if links is None and one.entry.cut is not None:
            one.entry = self._whole(one.address)
            links = None if one.at is None else one.entry.after(one.at)
        if links is None and one.entry.head == EMPTY_HEAD:
            self._folder.drop(*one.address)
            one.at = None
            return
        one.restore, one.links = links is None, one.entry.chain if links is None else links
        one.total = sum(link.length for link in one.links)
        if one.restore and one.entry.snapshot is not None:
            one.total += one.entry.snapshot.length
            one.fetched = self._incoming.begun(one.address, one.entry.snapshot)

    def look_again(self, one: Following, trouble: OutOfDate) -> None:
        """Another process moved the copy: good if it is where it should be or further on, else for the next piece."""
        one.at = head_of(self._folder, *one.address)
        if one.at is not None and (one.entry.after(one.at) == () or self._is_beyond(one)):
            one.links = ()
        else:
            one.error = str(trouble)

    def give_up(self, one: Following, trouble: DamagedCopy) -> None:
        """Remove a copy that turned out damaged: the next piece restores it."""
        one.error = str(trouble)
        if not isinstance(trouble, CopyInUse):
            self._folder.drop(*one.address)
            one.at = None

    def _is_beyond(self, one: Following) -> bool:
        return one.at is not None and is_beyond(one.at, one.entry.head, self._epoch)
