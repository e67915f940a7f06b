"""How far the copies of one member have come, and what they lack. Knows where copies are. Does not know budgets."""

from collections.abc import Callable
from dataclasses import dataclass

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies.copy import CopyInUse, DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.log.manifest import Address, Entry, Head, Link
from riffle_spark.state.restore.copy_plan import plan_copy, plan_of_entry
from riffle_spark.state.restore.incoming import IncomingSnapshots
from riffle_spark.state.restore.keeping import head_of

__all__ = ["CopyPlanner", "CopyProgress"]


@dataclass(slots=True)
class CopyProgress:
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


class CopyPlanner:
    """Looks where copies of one member are, and plans what they lack. ``whole`` gets an entry that came cut."""

    def __init__(
        self, folder: Folder, incoming: IncomingSnapshots, epoch: int, whole: Callable[[Address], Entry]
    ) -> None:
        self._folder = folder
        self._incoming = incoming
        self._epoch = epoch
        self._whole = whole

    def looked(self, address: Address, entry: Entry) -> CopyProgress:
        """Return where a copy is, with what it lacks or what was wrong with looking."""
        one = CopyProgress(address, entry)
        try:
            self.plan(one)
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            one.error = str(trouble)
        return one

    def plan(self, one: CopyProgress) -> None:
        """Look where the copy is; set what it lacks: nothing, some links, or everything.

        A copy of a key-group that is empty goes, one that is beyond its entry stays. Raises what reading the log
        raises.
        """
        one.at = head_of(self._folder, *one.address)
        one.restore, one.links = False, ()
        plan = plan_copy(one.at, one.entry, self._epoch, lambda: self._whole(one.address))
        one.entry, one.restore, one.links = plan.entry, plan.action == "restore", plan.links
        if plan.action == "beyond":
            return
        if plan.action == "drop":
            self._folder.drop(*one.address)
            one.at = None
            return
        one.total = sum(link.length for link in one.links)
        if one.restore and one.entry.snapshot is not None:
            one.total += one.entry.snapshot.length
            one.fetched = self._incoming.begun(one.address, one.entry.snapshot)

    def look_again(self, one: CopyProgress, trouble: OutOfDate) -> None:
        """Another process moved the copy: good if it is where it should be or further on, else for the next piece."""
        one.at = head_of(self._folder, *one.address)
        plan = plan_of_entry(one.at, one.entry, self._epoch)
        if plan.action == "beyond" or (plan.action == "fold" and not plan.links):
            one.links = ()
        else:
            one.error = str(trouble)

    def give_up(self, one: CopyProgress, trouble: DamagedCopy) -> None:
        """Remove a copy that turned out damaged: the next piece restores it."""
        one.error = str(trouble)
        if not isinstance(trouble, CopyInUse):
            self._folder.drop(*one.address)
            one.at = None
