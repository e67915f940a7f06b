"""How far the copies of one member have come, and what they lack; snapshots on their way. Knows where copies are. Does
not know budgets.

    incoming/<store>/<0042>.<snapshot id>

Theory of operation. Bytes are only ever added at a file's end, so whatever is there when a process dies is a beginning
of the snapshot and the next one goes on from it. Nothing is believed before all of it has the checksum that the log
lists: the file was not synced, and the disk may be anything. Where it has another one, what came in this piece tells
whether the disk or the store is to blame.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from riffle_spark.errors import OutOfDate
from riffle_spark.private_folders import make_private
from riffle_spark.state.copies.disk import DamagedCopy, disk_refused, incoming_files
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack, Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log.manifest import Address, Entry, Head, Link, Snapshot
from riffle_spark.state.restore.copy_plan import plan_copy, plan_of_entry
from riffle_spark.state.restore.fetched_ranges import FetchedRange

__all__ = ["CopyPlanner", "CopyProgress", "IncomingSnapshots", "head_of"]

_LOOKS = 8
"""A stack that another process changes is looked at so often before it is taken for whole."""


class IncomingSnapshots:
    """The half-fetched snapshots of one member, for one piece of upkeep at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "incoming"
        self._files = {(*file.address, file.snapshot_id) for file in incoming_files(self._path)}
        self._came: dict[tuple[str, int, str], list[FetchedRange]] = {}

    def begun(self, address: Address, snapshot: Snapshot) -> int:
        """Return how many bytes of the snapshot are there. What came of another one of the key-group goes."""
        self.forget(address, but=snapshot.id)
        if (*address, snapshot.id) not in self._files:
            return 0
        size = self._file(address, snapshot.id).stat().st_size
        if size <= snapshot.length:
            return size
        self.forget(address)
        return 0

    def add(self, address: Address, snapshot: Snapshot, start: int, data: bytes) -> None:
        """Add the next bytes, from ``start`` on. Raises ``LocalDiskError`` if the disk does not take them."""
        file = self._file(address, snapshot.id)
        self._files.add((*address, snapshot.id))
        came = self._came.setdefault((*address, snapshot.id), [])
        came.append(FetchedRange(start, len(data), part_codec.checksum(data)))
        try:
            make_private(file.parent)
            with file.open("ab") as opened:
                opened.write(data)
        except OSError as error:
            raise disk_refused(f"a snapshot cannot be kept: {error}", file) from error

    def move(self, address: Address, snapshot: Snapshot, path: Path) -> list[FetchedRange]:
        """Move a snapshot that has come whole, unchecked, to where a copy takes it from; return what of it came in this
        piece.
        """
        self._file(address, snapshot.id).replace(path)
        self._files.discard((*address, snapshot.id))
        return self._came.pop((*address, snapshot.id), [])

    def forget(self, address: Address, but: str = "") -> None:
        """Remove what has come of a key-group's snapshots, except of the one named."""
        for store, key_group, snapshot_id in [file for file in self._files if file[:2] == address and file[2] != but]:
            self._file(address, snapshot_id).unlink(missing_ok=True)
            self._files.discard((store, key_group, snapshot_id))
            self._came.pop((store, key_group, snapshot_id), None)

    def _file(self, address: Address, snapshot_id: str) -> Path:
        store, key_group = address
        return self._path / store / f"{key_group:04d}.{snapshot_id}"


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

    def fail(self, trouble: Exception) -> None:
        """Note what went wrong; what did first counts."""
        self.error = self.error or str(trouble)


class CopyPlanner:
    """Looks where copies of one member are, and plans what they lack. ``whole`` gets an entry that came cut.

    For one task: what it looks at and what follows its plans sees the same ``stacks``.
    """

    def __init__(
        self, folder: Folder, incoming: IncomingSnapshots, epoch: int, whole: Callable[[Address], Entry]
    ) -> None:
        self._folder = folder
        self._incoming = incoming
        self._epoch = epoch
        self._whole = whole
        self._stacks: dict[str, Stacks] = {}

    def stacks(self, store: str) -> Stacks:
        """Return the stacks of a store, the same each time."""
        if store not in self._stacks:
            self._stacks[store] = self._folder.stacks(store)
        return self._stacks[store]

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
        one.at = self._head(one)
        one.restore, one.links = False, ()
        plan = plan_copy(one.at, one.entry, self._epoch, lambda: self._whole(one.address))
        one.entry, one.restore, one.links = plan.entry, plan.action == "restore", plan.links
        if plan.action == "beyond":
            return
        if plan.action == "drop":
            self._drop(one)
            return
        one.total = sum(link.length for link in one.links)
        if one.restore and one.entry.snapshot is not None:
            one.total += one.entry.snapshot.length
            one.fetched = self._incoming.begun(one.address, one.entry.snapshot)

    def look_again(self, one: CopyProgress, trouble: OutOfDate) -> None:
        """Another process moved the copy: good if it is where it should be or further on, else for the next piece."""
        one.at = self._head(one)
        plan = plan_of_entry(one.at, one.entry, self._epoch)
        if plan.action == "beyond" or (plan.action == "fold" and not plan.links):
            one.links = ()
        else:
            one.error = str(trouble)

    def give_up(self, one: CopyProgress, trouble: DamagedCopy) -> None:
        """Remove a copy that turned out damaged: the next piece restores it."""
        one.error = str(trouble)
        self._drop(one)

    def _head(self, one: CopyProgress) -> Head | None:
        store, key_group = one.address
        return head_of(self._folder, self.stacks(store), key_group)

    def _drop(self, one: CopyProgress) -> None:
        self._folder.drop(*one.address, self.stacks(one.address[0]))
        one.at = None


def head_of(folder: Folder, stacks: Stacks, key_group: int) -> Head | None:
    """Return where a member's copy is, ``None`` if there is none; ``stacks`` are its store's. One that is not whole is
    dropped, unless it is another one by now: a process that merges takes files away.
    """
    if not stacks.has(key_group):
        return None
    stack = stacks.read(key_group)
    for _ in range(_LOOKS):
        if stack is not None and _is_there(folder.path, stack):
            return stack.head
        before, stack = stack, stacks.read(key_group) if stacks.has(key_group) else None
        if stack == before:
            folder.drop(stacks.store, key_group, stacks)
            return None
    return stack.head if stack is not None else None


def _is_there(folder: Path, stack: Stack) -> bool:
    """Tell whether a stack's files are as long as they have to be: what is in them is checked before it is read."""
    ends: dict[str, int] = {}
    for part in stack.parts:
        ends[part.file] = max(ends.get(part.file, 0), part.start + part.length)
    try:
        return all((folder / file).stat().st_size >= end for file, end in ends.items())
    except OSError:
        return False
