"""Which parts make up one key-group's copy, and the small file that says so. Does not know what is in a part.

    <0042>.<number>-<copy>.stack       a list of parts; the one of the greatest number counts
    <0042>.<unique>.part               a part that this member merged for this key-group
    <0042>.<unique>.<snapshot id>.part a snapshot of this key-group

Theory of operation. A copy is a stack of parts, the oldest at the bottom; a row further up hides those of its key
below. Parts lie in files that never change, and neither does a list of them: a longer or shorter one is a new file with
the next number, written before the one before goes. So whoever reads finds one or the other, and nobody waits; a list
that is torn, by a crash or in the midst of being written, is passed over. Nothing is synced, and nothing is renamed:
to replace a file makes file systems write it out at once, 4 ms each. A part that no list has may be one that another
process is about to put on a list: it stays while anybody is in the folder (``abandoned`` removes it).

Of two processes that replace one list, one does. It holds a lock on the old one, for which nobody waits, until the new
one is written and the old one gone; and the new one's name follows from the old one's, so it can be taken once.
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
"""Inode, bytes, and when content and inode changed last (ns): whatever writes to a file changes one of them."""
_KEPT_MOST = 65_536
_TRIES = 3
_FORMAT = 2
"""The seed of a list's checksum: a list of another format is none."""
_FILE = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/){1,3}[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
LIST = ".stack"
STACKS = "stacks"
"""The folder of lists and of parts that are one key-group's alone."""
PART = ".part"
_OURS = re.compile(r"([0-9]{4,5})\.([0-9]{10,18})(-[0-9a-f]+\.stack)\Z")


class StackedPart(NamedTuple):
    """A part: its file below the member's folder, the range in it, the checksum (XXH3-64) of these bytes, its rows, the
    epoch of the newest of them, and the id of the declaration by which this member wrote it anew, if it did.
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
    """The parts that lead to ``head``, the oldest first."""

    head: Head = EMPTY_HEAD
    parts: tuple[StackedPart, ...] = ()

    def extended(self, head: Head, parts: Iterable[StackedPart]) -> "Stack":
        """Return the stack with more parts on top."""
        return Stack(head, (*self.parts, *parts))

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.length for part in self.parts)

    def to_bytes(self, address: Address) -> bytes:
        """Return the stack as a file holds it: a checksum, a line feed, one line of JSON that names the key-group."""
        rows = [[*part[:3], f"{part.checksum:016x}", *part[4:]] for part in self.parts]
        body = json.dumps([*address, *self.head, rows], separators=(",", ":")).encode()
        return b"%s\n%s" % (_checksum(body), body)

    @staticmethod
    def from_bytes(data: bytes, address: Address) -> "Stack | None":
        """Return the stack that ``to_bytes`` gave, ``None`` for anything else."""
        said, _, body = data.partition(b"\n")
        if said != _checksum(body):
            return None
        try:
            store, key_group, version, attempt, rows = json.loads(body)
            parts = tuple(StackedPart(name, at, length, int(sum_, 16), *rest) for name, at, length, sum_, *rest in rows)
            head = Head(version, attempt)
            is_ours = (store, key_group) == address and is_possible(head) and all(map(_is_possible, parts))
            return Stack(head, parts) if is_ours else None
        except UNREADABLE:
            return None


class Stacks:
    """The stacks of one ``store`` in one member's folder, as one task sees them: they are listed once, and again where
    a list turns out to be gone. One that another process begins meanwhile is seen by those who look again.

    Lists that were read are kept in this process.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self._prefix = f"{STACKS}/{store}/"
        self._path = f"{folder}/{self._prefix}"
        self._names: dict[int, list[str]] | None = None

    def look_again(self) -> None:
        """List the stacks anew when one is needed next."""
        self._names = None

    def key_groups(self) -> list[int]:
        """Return the key-groups that have a stack, sorted."""
        return sorted(self._listed())

    def newest(self, key_group: int) -> str:
        """Return the name of a key-group's newest list."""
        return self._listed()[key_group][-1]

    def _listed(self) -> dict[int, list[str]]:
        """Return the names of lists by key-group, the newest last."""
        if self._names is None:
            self._names = {}
            with suppress(FileNotFoundError, NotADirectoryError):
                for name in sorted(os.listdir(self._path)):  # noqa: PTH208 - names alone
                    if named := _OURS.match(name):
                        self._names.setdefault(int(named[1]), []).append(name)
        return self._names

    def has(self, key_group: int) -> bool:
        """Tell whether a key-group has a stack, whatever it is worth; its newest list is looked for on the disk."""
        names = self._listed().get(key_group)
        if names and not os.path.exists(self._path + names[-1]):  # noqa: PTH110 - half the time
            self.look_again()  # another process has put a new one in its place, or none
        return key_group in self._listed()

    def read(self, key_group: int) -> Stack | None:
        """Return a key-group's stack, ``None`` if there is none that can be read."""
        for _ in range(_TRIES):
            for name in reversed(self._listed().get(key_group, ())):
                stack = self._read(key_group, name)
                if stack is not None:
                    return stack
            if not self.has(key_group):
                break
        return None

    def _read(self, key_group: int, name: str) -> Stack | None:
        path = self._path + name
        kept = _kept.get(path)
        if kept is not None:
            return kept
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - half the time of Path.read_bytes
                stack = Stack.from_bytes(file.read(), (self.store, key_group))
        except OSError:
            return None
        if stack is not None:
            _keep(path, stack)
        return stack

    def switch(self, key_group: int, before: Stack | None, stack: Stack) -> bool:
        """Make ``stack`` the key-group's, and remove the files that it alone had and has no more.

        Return ``False``, with nothing done, if the stack is not ``before`` any more: another process was quicker.
        Raises ``OSError`` if the disk refuses; what was to be the key-group's alone then goes.
        """
        if not self._is_still(key_group, before):
            return False
        names = self._listed().get(key_group, [])
        name = _next(names[-1]) if names else f"{key_group:04d}.{0:010d}-{uuid.uuid4().hex[:8]}{LIST}"
        is_switched = False
        try:
            with self._held(names) as is_mine:
                is_switched = is_mine and self._put(name, stack.to_bytes((self.store, key_group)))
                if is_switched:
                    _keep(self._path + name, stack)
                    self._listed()[key_group] = [name]
                    self._remove(names)
        except OSError:
            if not is_switched:
                with suppress(OSError):
                    self._remove(self._own(stack, before))
            raise
        if not is_switched:
            self.look_again()
        elif before is not None:
            self._remove(self._own(before, stack))
        return is_switched

    @contextmanager
    def _held(self, names: Sequence[str]) -> Iterator[bool]:
        """Hold a key-group's lists against others who would replace them; yield whether all are there and were free.

        One that hangs meanwhile keeps them from it: they go on with what they have, as ever.
        """
        held: list[int] = []
        is_mine = False
        try:
            with suppress(FileNotFoundError, BlockingIOError):
                for name in names:
                    held.append(os.open(self._path + name, os.O_RDONLY))
                    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_mine = all(os.fstat(one).st_nlink for one in held)
            yield is_mine
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _put(self, name: str, data: bytes) -> bool:
        """Write a list; return whether its name was free."""
        try:
            _write(self._path + name, data)
        except FileExistsError:
            return False
        except FileNotFoundError:
            make_private(Path(self._path))
            return self._put(name, data)
        except OSError:
            with suppress(OSError):
                self._remove([name])
            raise
        return True

    def _own(self, stack: Stack, but: Stack | None = None) -> list[str]:
        """Return the names of a stack's files that are the key-group's alone, without those that another one has."""
        files = {part.file for part in stack.parts}
        if but is not None:
            files -= {part.file for part in but.parts}
        return [file[len(self._prefix) :] for file in files if file.startswith(self._prefix)]

    def _is_still(self, key_group: int, before: Stack | None) -> bool:
        if self.read(key_group) != before:
            return False
        return before is None or (self.has(key_group) and self.read(key_group) == before)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            _kept.pop(self._path + name, None)
            with suppress(FileNotFoundError):
                os.unlink(self._path + name)  # noqa: PTH108 - half the time of Path.unlink

    def replaced(self, key_group: int, some: Sequence[StackedPart], merged: StackedPart) -> Stack | None:
        """Put one part in the place of those next to each other that were merged to it, and return the stack.

        Where they are not there any more nothing is done.
        """
        for _ in range(_TRIES):
            now = self.read(key_group)
            at = _place_of(some, now.parts) if now is not None else None
            if now is None or at is None:
                break
            stack = Stack(now.head, (*now.parts[:at], merged, *now.parts[at + len(some) :]))
            if self.switch(key_group, now, stack):
                return stack
        return None

    def drop(self, key_group: int) -> None:
        """Remove a key-group's stack, if there is one, with the files that it alone had."""
        for _ in range(_TRIES):
            self.has(key_group)  # another process may have put another one in its place
            names = self._listed().get(key_group, [])
            with self._held(names) as is_mine:
                if is_mine:
                    self._drop(key_group, names)
                    return
            self.look_again()
        self._drop(key_group, self._listed().get(key_group, []))  # whoever hangs with a list keeps nobody from this

    def _drop(self, key_group: int, names: Sequence[str]) -> None:
        read = [self._read(key_group, name) for name in names]
        self._listed().pop(key_group, None)
        self._remove(names)
        for stack in read:
            if stack is not None:
                self._remove(self._own(stack))

    def fresh(self, key_group: int, snapshot_id: str = "") -> Path:
        """Return a new path for a file that only this key-group has: a snapshot, or a merged part if there is no id."""
        of_snapshot = f".{snapshot_id}" if snapshot_id else ""
        path = Path(f"{self._path}{key_group:04d}.{uuid.uuid4().hex}{of_snapshot}{PART}")
        make_private(path.parent)
        return path

    def name_of(self, path: Path) -> str:
        """Return a file's name as stacks have it."""
        return self._prefix + path.name


def _checksum(body: bytes) -> bytes:
    return b"%016x" % xxhash.xxh3_64_intdigest(body, _FORMAT)


def _is_possible(part: StackedPart) -> bool:
    """Tell whether a part lies in a file below the member's folder, somewhere."""
    _, start, length, _, *others = part
    return _FILE.match(part.file) is not None and start >= 0 <= length and all(type(one) is int for one in others)


def _next(name: str) -> str:
    """Return the name of the list that takes a list's place."""
    found = _OURS.match(name)
    assert found is not None, "names are of lists"
    return f"{found[1]}.{int(found[2]) + 1:010d}{found[3]}"


def _place_of(some: Sequence[StackedPart], parts: Sequence[StackedPart]) -> int | None:
    places = (at for at in range(len(parts) - len(some) + 1) if tuple(parts[at : at + len(some)]) == tuple(some))
    return next(places, None)


_kept: dict[str, Stack] = {}


def _keep(path: str, stack: Stack) -> None:
    if len(_kept) >= _KEPT_MOST:
        _kept.clear()
    _kept[path] = stack


def signature_of(path: str) -> Signature | None:
    """Return what tells a file from one that was changed, ``None`` if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the time of Path.stat
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)
