"""The progress of a member's copies, and snapshots that are being fetched.

    incoming/<store>/<0042>.<snapshot id>

Theory of operation. Bytes are only appended to an incoming file. So after a crash it has the start of the snapshot, and
the next piece of upkeep continues there. The file was not synced, so it counts only when all of it has the
checksum that the log lists. If it has another checksum, the ranges that arrived in this piece show whether the disk or
the store altered it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from riffle_spark.errors import OutOfDate
from riffle_spark.private_folders import make_private
from riffle_spark.state.copies.disk import DamagedCopy, disk_refused_error, list_incoming_files
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log.manifest import Address, Entry, Head, Link, Snapshot
from riffle_spark.state.restore.copy_plan import plan_by_entry, plan_copy
from riffle_spark.state.restore.fetched_ranges import FetchedRange

_TRIES = 8
"""The number of reads of a stack that other processes keep changing. After them it counts as intact."""


class IncomingSnapshots:
    """The partly fetched snapshots of a member, for one piece of upkeep at a time."""

    def __init__(self, folder: Path) -> None:
        """List the partly fetched snapshots in the member's ``folder``."""
        self._path = folder / "incoming"
        self._files = {(*file.address, file.snapshot_id) for file in list_incoming_files(self._path)}
        self._ranges: dict[tuple[str, int, str], list[FetchedRange]] = {}

    def fetched_bytes(self, address: Address, snapshot: Snapshot) -> int:
        """Return how many bytes of the snapshot were fetched before.

        Delete other partly fetched snapshots of the key-group.
        """
        self.remove(address, but=snapshot.id)
        if (*address, snapshot.id) not in self._files:
            return 0
        size = self._path_of(address, snapshot.id).stat().st_size
        if size <= snapshot.length:
            return size
        self.remove(address)
        return 0

    def append_bytes(self, address: Address, snapshot: Snapshot, start: int, data: bytes) -> None:
        """Append fetched bytes, which start at ``start`` of the snapshot.

        Raises ``LocalDiskError`` if the disk refuses.
        """
        file = self._path_of(address, snapshot.id)
        self._files.add((*address, snapshot.id))
        ranges = self._ranges.setdefault((*address, snapshot.id), [])
        ranges.append(FetchedRange(start, len(data), part_codec.checksum(data)))
        try:
            make_private(file.parent)
            with file.open("ab") as appended:
                appended.write(data)
        except OSError as error:
            raise disk_refused_error(f"Cannot store a snapshot: {error}", file) from error

    def move(self, address: Address, snapshot: Snapshot, path: Path) -> list[FetchedRange]:
        """Move a completely fetched, unchecked snapshot to ``path``.

        Return the ranges that arrived in this piece of upkeep.
        """
        self._path_of(address, snapshot.id).replace(path)
        self._files.discard((*address, snapshot.id))
        return self._ranges.pop((*address, snapshot.id), [])

    def remove(self, address: Address, but: str = "") -> None:
        """Delete the partly fetched snapshots of a key-group, except the one with the id ``but``."""
        for store, key_group, snapshot_id in [file for file in self._files if file[:2] == address and file[2] != but]:
            self._path_of(address, snapshot_id).unlink(missing_ok=True)
            self._files.discard((store, key_group, snapshot_id))
            self._ranges.pop((store, key_group, snapshot_id), None)

    def _path_of(self, address: Address, snapshot_id: str) -> Path:
        """Return the path of a partly fetched snapshot."""
        store, key_group = address
        return self._path / store / f"{key_group:04d}.{snapshot_id}"


@dataclass(slots=True)
class CopyProgress:
    """A copy's head (``None``: there is no copy), the links it lacks, and bytes fetched of bytes to fetch."""

    address: Address
    entry: Entry
    head: Head | None = None
    links: tuple[Link, ...] = ()
    restore: bool = False
    fetched: int = 0
    total: int = 0
    error: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the copy is at its entry's head or beyond, without an error."""
        return not self.links and not self.restore and self.error is None

    def fail(self, error: Exception) -> None:
        """Record an error of the copy, unless it has one."""
        self.error = self.error or str(error)


class CopyPlanner:
    """Plans the copies of a member, for one task. ``read_whole`` reads the whole entry if an order has a cut entry."""

    def __init__(
        self, folder: Folder, incoming: IncomingSnapshots, epoch: int, read_whole: Callable[[Address], Entry]
    ) -> None:
        """Prepare to plan the copies in ``folder``. ``epoch`` is that of the driver that ordered the task."""
        self._folder = folder
        self._incoming = incoming
        self._epoch = epoch
        self._read_whole = read_whole
        self._stacks: dict[str, Stacks] = {}

    def stacks(self, store: str) -> Stacks:
        """Return the stacks of a store, the same object each time."""
        if store not in self._stacks:
            self._stacks[store] = self._folder.stacks(store)
        return self._stacks[store]

    def start_copy(self, address: Address, entry: Entry) -> CopyProgress:
        """Return the progress of a copy, with its plan, or with the error of planning it."""
        copy = CopyProgress(address, entry)
        try:
            self.plan(copy)
        except Exception as error:  # noqa: BLE001 - reported to the driver, which orders the copy again
            copy.error = str(error)
        return copy

    def plan(self, copy: CopyProgress) -> None:
        """Read the copy's head, and set in ``copy`` the links that it lacks. Delete the copy of an empty key-group.

        Raises the errors of ``read_whole``.
        """
        copy.head = self._read_head(copy)
        plan = plan_copy(copy.head, copy.entry, self._epoch, lambda: self._read_whole(copy.address))
        copy.entry = plan.entry
        copy.restore = plan.action == "restore"
        copy.links = plan.links
        if plan.action == "beyond":
            return
        if plan.action == "drop":
            self._drop(copy)
            return
        copy.total = sum(link.length for link in copy.links)
        if copy.restore and copy.entry.snapshot is not None:
            copy.total += copy.entry.snapshot.length
            copy.fetched = self._incoming.fetched_bytes(copy.address, copy.entry.snapshot)

    def accept_if_advanced(self, copy: CopyProgress, error: OutOfDate) -> None:
        """Accept the copy if another process advanced it to its entry's head or beyond.

        Otherwise record ``error`` in ``copy``.
        """
        copy.head = self._read_head(copy)
        plan = plan_by_entry(copy.head, copy.entry, self._epoch)
        if plan.action == "beyond" or (plan.action == "fold" and not plan.links):
            copy.links = ()
        else:
            copy.error = str(error)

    def drop_damaged(self, copy: CopyProgress, error: DamagedCopy) -> None:
        """Delete a damaged copy, and record the error. The next piece of upkeep restores it."""
        copy.error = str(error)
        self._drop(copy)

    def _read_head(self, copy: CopyProgress) -> Head | None:
        """Return the head of the copy on the disk, or ``None``."""
        store, key_group = copy.address
        return read_head(self._folder, self.stacks(store), key_group)

    def _drop(self, copy: CopyProgress) -> None:
        """Delete the copy on the disk."""
        self._folder.drop(*copy.address, self.stacks(copy.address[0]))
        copy.head = None


def read_head(folder: Folder, stacks: Stacks, key_group: int) -> Head | None:
    """Return the head of a member's copy, ``None`` if there is no copy.

    A stack with missing files is dropped, unless another process changes it at the same time. A merge removes files.
    """
    if not stacks.has(key_group):
        return None
    stack = stacks.read(key_group)
    for _ in range(_TRIES):
        if stack is not None and _has_files(folder.path, stack):
            return stack.head
        previous = stack
        stack = stacks.read(key_group) if stacks.has(key_group) else None
        if stack == previous:
            folder.drop(stacks.store, key_group, stacks)
            return None
    return stack.head if stack is not None else None


def _has_files(folder: Path, stack: Stack) -> bool:
    """Return whether a stack's files are long enough. Their content is checked before it is read."""
    ends: dict[str, int] = {}
    for part in stack.parts:
        ends[part.file] = max(ends.get(part.file, 0), part.start + part.length)
    try:
        return all((folder / file).stat().st_size >= end for file, end in ends.items())
    except OSError:
        return False
