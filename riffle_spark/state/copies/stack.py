"""The parts of each key-group's local copy, and the small files that list them.

    <0042>.<number>-<copy>.stack       a list of parts; the list with the highest number is current
    <0042>.<unique>.part               a part that this member merged for this key-group
    <0042>.<unique>.<snapshot id>.part a snapshot of this key-group

Theory of operation. A copy is a stack of parts, oldest first. A row hides the rows of its key in older parts.

1. Part files and lists never change. A longer or shorter list is a new file with the next number. It is written before
   the old list is deleted, so a reader finds one or the other without waiting. A torn list fails its checksum and is
   ignored.
2. Nothing is synced or renamed. Replacing a file makes file systems write it out at once, which takes 4 ms.
3. Another process may be about to list a part that no list names. It is deleted only while no process uses
   the folder (``abandoned``).
4. If two processes replace the same list, only one succeeds. It holds a non-blocking lock on the old list until the
   new list is written and the old list deleted. The new name follows from the old name, so it can be created only once.
"""

import errno
import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from riffle_spark.errors import UNREADABLE
from riffle_spark.private_folders import make_private
from riffle_spark.state.log.entry_rows import is_possible
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Head
from riffle_spark.state.schemas.history import FIRST

__all__ = ["LIST", "PART", "STACKS", "Signature", "Stack", "StackedPart", "Stacks", "signature_of"]

Signature = tuple[int, int, int, int]
"""A file's inode, size, and last changes of content and inode (ns). Every write to a file changes at least one."""
_CACHED_LISTS_MAX = 65_536
_TRIES = 3
_FORMAT = 2
"""The seed of a list's checksum, so that a list of another format is ignored."""
_FILE = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/){1,3}[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
LIST = ".stack"
STACKS = "stacks"
"""The folder of the lists and of the parts that belong to one key-group."""
PART = ".part"
_LIST_NAME = re.compile(r"([0-9]{4,5})\.([0-9]{10,18})(-[0-9a-f]+\.stack)\Z")


class StackedPart(NamedTuple):
    """A part of a stack: a byte range of a file below the member's folder.

    ``checksum`` is the XXH3-64 of the bytes and ``epoch`` that of the newest row. ``declaration`` is the id of the
    store's declaration under which this member rewrote the part, if it did.
    """

    file: str
    start: int
    length: int
    checksum: int
    rows: int
    epoch: int
    declaration: int = FIRST


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of a copy at ``head``, oldest first."""

    head: Head = EMPTY_HEAD
    parts: tuple[StackedPart, ...] = ()

    def with_parts(self, head: Head, parts: Iterable[StackedPart]) -> "Stack":
        """Return the stack with more parts on top."""
        return Stack(head, (*self.parts, *parts))

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.length for part in self.parts)

    def to_bytes(self, address: Address) -> bytes:
        """Return the bytes of the list file: a checksum, a line feed, and one line of JSON that names the key-group."""
        rows = [[*part[:3], f"{part.checksum:016x}", *part[4:]] for part in self.parts]
        body = json.dumps([*address, *self.head, rows], separators=(",", ":")).encode()
        return b"%s\n%s" % (_checksum(body), body)

    @staticmethod
    def from_bytes(data: bytes, address: Address) -> "Stack | None":
        """Return the stack that ``to_bytes`` wrote for this key-group, or ``None`` for any other bytes."""
        checksum, _, body = data.partition(b"\n")
        if checksum != _checksum(body):
            return None
        try:
            store, key_group, version, attempt, rows = json.loads(body)
            parts = tuple(
                StackedPart(file, start, length, int(digits, 16), *rest) for file, start, length, digits, *rest in rows
            )
            head = Head(version, attempt)
            is_valid = (store, key_group) == address and is_possible(head) and all(map(_is_possible, parts))
            return Stack(head, parts) if is_valid else None
        except UNREADABLE:
            return None


class Stacks:
    """The stacks of one ``store`` in one member's folder, as one task sees them.

    The folder is listed once, and again if a list has disappeared. ``refresh`` makes stacks visible that another
    process has started since. Lists that were read are cached in this process.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self._prefix = f"{STACKS}/{store}/"
        self._path = f"{folder}/{self._prefix}"
        self._names: dict[int, list[str]] | None = None

    def refresh(self) -> None:
        """List the folder again when a stack is needed next."""
        self._names = None

    def key_groups(self) -> list[int]:
        """Return the key-groups that have a stack, sorted."""
        return sorted(self._list_folder())

    def newest_list(self, key_group: int) -> str:
        """Return the file name of a key-group's newest list."""
        return self._list_folder()[key_group][-1]

    def _list_folder(self) -> dict[int, list[str]]:
        """Return the names of the list files (``.stack``) on the disk by key-group, newest last."""
        if self._names is None:
            self._names = {}
            with suppress(FileNotFoundError, NotADirectoryError):
                for name in sorted(os.listdir(self._path)):  # noqa: PTH208 - only names are needed
                    if match := _LIST_NAME.match(name):
                        self._names.setdefault(int(match[1]), []).append(name)
        return self._names

    def has(self, key_group: int) -> bool:
        """Return whether a key-group has a list on the disk, even if it cannot be read."""
        names = self._list_folder().get(key_group)
        if names and not os.path.exists(self._path + names[-1]):  # noqa: PTH110 - half the time
            self.refresh()  # another process has replaced or dropped it
        return key_group in self._list_folder()

    def read(self, key_group: int) -> Stack | None:
        """Return a key-group's stack, or ``None`` if it has no readable list."""
        for _ in range(_TRIES):
            for name in reversed(self._list_folder().get(key_group, ())):
                stack = self._read_list(key_group, name)
                if stack is not None:
                    return stack
            if not self.has(key_group):
                break
        return None

    def _read_list(self, key_group: int, name: str) -> Stack | None:
        """Return the stack in a list file, from the cache if possible; ``None`` if it cannot be read."""
        path = self._path + name
        cached = _cached_stacks.get(path)
        if cached is not None:
            return cached
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - half the time of Path.read_bytes
                stack = Stack.from_bytes(file.read(), (self.store, key_group))
        except OSError:
            return None
        if stack is not None:
            _cache_stack(path, stack)
        return stack

    def replace(self, key_group: int, expected: Stack | None, stack: Stack) -> bool:
        """Replace the stack of a key-group if it still is ``expected``. Delete the files that only the old stack used.

        Return ``False`` and change nothing if another process has replaced it first. Raises ``OSError`` if the disk
        refuses; the files that only the new stack would have used are then deleted.
        """
        if not self._is_current(key_group, expected):
            return False
        names = self._list_folder().get(key_group, [])
        name = _next_name(names[-1]) if names else f"{key_group:04d}.{0:010d}-{uuid.uuid4().hex[:8]}{LIST}"
        is_replaced = False
        try:
            with self._lock_lists(names) as is_locked:
                is_replaced = is_locked and self._create_list(name, stack.to_bytes((self.store, key_group)))
                if is_replaced:
                    _cache_stack(self._path + name, stack)
                    self._list_folder()[key_group] = [name]
                    self._remove_files(names)
        except OSError:
            if not is_replaced:
                with suppress(OSError):
                    self._remove_files(self._own_files(stack, expected))
            raise
        if not is_replaced:
            self.refresh()
        elif expected is not None:
            self._remove_files(self._own_files(expected, stack))
        return is_replaced

    @contextmanager
    def _lock_lists(self, names: Sequence[str]) -> Iterator[bool]:
        """Lock a key-group's lists against replacement during the block, without waiting.

        Yield whether all exist and were unlocked.
        """
        descriptors: list[int] = []
        is_locked = False
        try:
            with suppress(FileNotFoundError, BlockingIOError):
                for name in names:
                    descriptors.append(os.open(self._path + name, os.O_RDONLY))
                    fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = all(os.fstat(descriptor).st_nlink for descriptor in descriptors)
            yield is_locked
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _create_list(self, name: str, data: bytes) -> bool:
        """Write a list file. Return ``False`` if a file of this name exists."""
        try:
            _write_file(self._path + name, data)
        except FileExistsError:
            return False
        except FileNotFoundError:
            make_private(Path(self._path))
            return self._create_list(name, data)
        except OSError:
            with suppress(OSError):
                self._remove_files([name])
            raise
        return True

    def _own_files(self, stack: Stack, other: Stack | None = None) -> list[str]:
        """Return the names of the files that only this key-group's stack uses, without those that ``other``
        uses, too.
        """
        files = {part.file for part in stack.parts}
        if other is not None:
            files -= {part.file for part in other.parts}
        return [file[len(self._prefix) :] for file in files if file.startswith(self._prefix)]

    def _is_current(self, key_group: int, stack: Stack | None) -> bool:
        """Return whether a key-group's stack on the disk is ``stack``."""
        if self.read(key_group) != stack:
            return False
        return stack is None or (self.has(key_group) and self.read(key_group) == stack)

    def _remove_files(self, names: Iterable[str]) -> None:
        """Delete files below the store's folder, if they exist."""
        for name in names:
            _cached_stacks.pop(self._path + name, None)
            with suppress(FileNotFoundError):
                os.unlink(self._path + name)  # noqa: PTH108 - half the time of Path.unlink

    def replace_parts(self, key_group: int, parts: Sequence[StackedPart], merged: StackedPart) -> Stack | None:
        """Replace adjacent parts by their merged part, and return the new stack.

        Return ``None`` and change nothing if the stack no longer holds these parts.
        """
        for _ in range(_TRIES):
            current = self.read(key_group)
            start = _find_adjacent(parts, current.parts) if current is not None else None
            if current is None or start is None:
                break
            stack = Stack(current.head, (*current.parts[:start], merged, *current.parts[start + len(parts) :]))
            if self.replace(key_group, current, stack):
                return stack
        return None

    def drop(self, key_group: int) -> None:
        """Delete a key-group's stack, if it exists, with the files that only it used."""
        for _ in range(_TRIES):
            self.has(key_group)  # lists the folder again if another process has replaced the list
            names = self._list_folder().get(key_group, [])
            with self._lock_lists(names) as is_locked:
                if is_locked:
                    self._drop_lists(key_group, names)
                    return
            self.refresh()
        self._drop_lists(key_group, self._list_folder().get(key_group, []))  # the process that holds the lock may hang

    def _drop_lists(self, key_group: int, names: Sequence[str]) -> None:
        """Delete these lists of a key-group, with the files that only it used."""
        stacks = [self._read_list(key_group, name) for name in names]
        self._list_folder().pop(key_group, None)
        self._remove_files(names)
        for stack in stacks:
            if stack is not None:
                self._remove_files(self._own_files(stack))

    def new_file(self, key_group: int, snapshot_id: str = "") -> Path:
        """Return a new path for a file of this key-group alone: a snapshot, or a merged part if there is no id."""
        infix = f".{snapshot_id}" if snapshot_id else ""
        path = Path(f"{self._path}{key_group:04d}.{uuid.uuid4().hex}{infix}{PART}")
        make_private(path.parent)
        return path

    def relative_name(self, path: Path) -> str:
        """Return the name of a file below the member's folder, as ``StackedPart.file`` holds it."""
        return self._prefix + path.name


def _checksum(body: bytes) -> bytes:
    """Return the checksum of a list file's body as hexadecimal digits."""
    return b"%016x" % xxhash.xxh3_64_intdigest(body, _FORMAT)


def _is_possible(part: StackedPart) -> bool:
    """Return whether a part that was read from disk has a safe file name, a possible range and whole numbers."""
    numbers = (part.rows, part.epoch, part.declaration)
    return (
        _FILE.match(part.file) is not None
        and part.start >= 0 <= part.length
        and all(type(number) is int for number in numbers)
    )


def _next_name(name: str) -> str:
    """Return the name of the list that replaces a list."""
    match = _LIST_NAME.match(name)
    assert match is not None
    return f"{match[1]}.{int(match[2]) + 1:010d}{match[3]}"


def _find_adjacent(adjacent: Sequence[StackedPart], parts: Sequence[StackedPart]) -> int | None:
    """Return the index of the first of the parts ``adjacent`` within ``parts``, or ``None`` if they are not there side
    by side.
    """
    count = len(adjacent)
    starts = (i for i in range(len(parts) - count + 1) if tuple(parts[i : i + count]) == tuple(adjacent))
    return next(starts, None)


_cached_stacks: dict[str, Stack] = {}


def _cache_stack(path: str, stack: Stack) -> None:
    """Cache the stack of a list file. The cache is emptied if it is full."""
    if len(_cached_stacks) >= _CACHED_LISTS_MAX:
        _cached_stacks.clear()
    _cached_stacks[path] = stack


def signature_of(path: str) -> Signature | None:
    """Return a signature that changes with every write to a file, or ``None`` if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of Path.stat
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _write_file(path: str, data: bytes) -> None:
    """Write a new file. Raises ``FileExistsError`` if it exists, and ``OSError`` if the disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)
