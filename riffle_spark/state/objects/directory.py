"""Objects as files below a directory (``file://``).

Theory of operation.

1. A put writes the bytes to a new file in ``.unfinished``, syncs it, and links it to the object's name. So an object
   appears whole or not at all. The link fails if the name is taken, which makes the put conditional.
2. The object and the directories above it are synced before the put returns.
3. Names with a leading dot are never objects, so files that a crash left in ``.unfinished`` are not listed. The next
   process that writes removes them after a day.
4. A replacement is written in the same way, and renamed to the object's name while an exclusive lock (``flock``) on
   ``.lock`` is held. So of two processes that read the same bytes only one replaces them. The lock file is never
   removed, because a process may wait for it.
5. If a mode is set, a file gets it before its name. A directory gets it too, and every user who may read it may enter.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from riffle_spark.errors import RefusedError, UnavailableError
from riffle_spark.private_folders import open_regular
from riffle_spark.state.objects.store import (
    PIECE_BYTES,
    ObjectStore,
    RequestCounts,
    TaggedObject,
    check_name,
    check_prefix,
    check_range,
    content_tag,
    tag_content,
)

_UNFINISHED = ".unfinished"
_LOCK = ".lock"
_LEFTOVER_SECONDS = 24 * 3600
_LINK_TRIES = 16
_FSCK_FOLDER = "lost+found"
"""The folder that fsck keeps at the top of a mounted disk. Only root may read it."""
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_REFUSALS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EXDEV,
        errno.EMLINK,
        errno.EOPNOTSUPP,
        errno.ENAMETOOLONG,
    }
)
"""Errors that the user must fix. After any other error the store counts as unavailable."""
_WRITE_REMEDY = (
    "Set `root`, or the folder of a command such as riffle export, to a directory that this user may write to, on a "
    "file system with hard links."
)
_READ_REMEDY = (
    "Set `root`, or the folder of a command such as riffle state load, to a directory that this user may read, or "
    "grant the user the right to read it."
)


class DirectoryStore:
    """A store below ``root``. The first put creates the directory. Conditional puts also hold between processes.

    ``mode`` is the mode of files. ``None``: the umask decides.
    """

    def __init__(self, root: Path, mode: int | None = None) -> None:
        self.root = root
        self._mode = mode
        self.requests = RequestCounts()
        self._swept = False

    def __reduce__(self) -> "tuple[type[DirectoryStore], tuple[Path, int | None]]":
        return DirectoryStore, (self.root, self._mode)

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.root)!r})"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if its name is free. Return whether this call wrote it."""
        target = self.root / check_name(name)
        self.requests.add("put")
        with self._converted_errors(_WRITE_REMEDY):
            written = not target.is_file() and self._link(data, target)
            self._sync_above(target)  # also for an existing object: it may not be durable yet
            return written

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return a range of the object, or ``None`` if it does not exist."""
        source = self.root / check_name(name)
        check_range(start, length)
        self.requests.add("get")
        with self._converted_errors():
            try:
                with os.fdopen(open_regular(source), "rb") as file:
                    size = os.fstat(file.fileno()).st_size  # Python allocates as many bytes as are requested
                    file.seek(start)
                    return file.read(-1 if length is None else min(length, size))
            except _ABSENT:
                return None

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """Return the object with its tag, without its bytes if it still has ``tag``; ``None`` if it does not exist."""
        return tag_content(self.get(name), tag)

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """Replace the object if it still has ``tag``. Return its new tag, ``None`` if this call did not replace it."""
        target = self.root / check_name(name)
        self.requests.add("put")
        with self._converted_errors(_WRITE_REMEDY), self._unfinished_file(data) as unfinished, self._locked():
            try:
                current = target.read_bytes()
            except _ABSENT:
                return None
            if content_tag(current) != tag:
                return None
            unfinished.replace(target)
            _sync(target.parent)
            return TaggedObject(None, content_tag(data))

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """Pass a range of the object to ``write`` in pieces. Return its length, or ``None`` without an object."""
        source = self.root / check_name(name)
        check_range(start, length)
        self.requests.add("get")
        remaining = length
        with self._converted_errors():
            try:
                file = os.fdopen(open_regular(source), "rb")
            except _ABSENT:
                return None
        with file:
            file.seek(start)
            while piece := self._read_piece(file, remaining):
                write(piece)
                remaining -= len(piece)
        return length - remaining

    def _read_piece(self, file: BinaryIO, remaining: int) -> bytes:
        with self._converted_errors():
            return file.read(min(remaining, PIECE_BYTES))

    def can_copy_from(self, source: ObjectStore) -> bool:
        """Return whether ``source`` is a directory too."""
        return isinstance(source, DirectoryStore)

    def copy_from(self, source: ObjectStore, name: str) -> bool:
        """Copy the object of another directory under the same name. Return whether it exists there."""
        assert isinstance(source, DirectoryStore)
        target = self.root / check_name(name)
        source.requests.add("get")
        with source._converted_errors():
            try:
                file: BufferedReader = os.fdopen(open_regular(source.root / name), "rb")
            except _ABSENT:
                return False
        self.requests.add("put")
        with file, self._converted_errors(_WRITE_REMEDY):
            self._link(file, target)
            self._sync_above(target)
        return True

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        target = self.root / check_name(name)
        self.requests.add("head")
        with self._converted_errors():
            return target.is_file()

    def modified(self, name: str) -> float | None:
        """Return when the object was written, by the clock of the file system."""
        target = self.root / check_name(name)
        self.requests.add("head")
        with self._converted_errors():
            try:
                return target.stat().st_mtime
            except _ABSENT:
                return None

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``, sorted. Other directories are not read."""
        folder, slash, _ = check_prefix(prefix).rpartition("/")
        self.requests.add("list")
        with self._converted_errors():
            return sorted(_names(self.root / folder, folder + slash, prefix))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders directly below ``prefix``, sorted. They may be empty."""
        check_prefix(prefix)
        self.requests.add("list")
        with self._converted_errors():
            try:
                with os.scandir(self.root / prefix) as entries:
                    names = [entry.name for entry in entries if entry.is_dir()]
            except _ABSENT:
                return []
        return sorted(name for name in names if not name.startswith(".") and name != _FSCK_FOLDER)

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist. Also removes directories that are then empty."""
        targets = [self.root / check_name(name) for name in names]
        if not targets:
            return
        self.requests.add("delete")
        with self._converted_errors(_WRITE_REMEDY):
            for target in targets:
                with contextlib.suppress(*_ABSENT):
                    target.unlink()
            for folder in {target.parent for target in targets}:
                self._prune(folder)

    def _link(self, data: bytes | BufferedReader, target: Path) -> bool:
        """Write ``data`` or the rest of a file to a new file and link it to ``target``.

        Return whether the name was free.
        """
        with self._unfinished_file(data) as unfinished:
            for _ in range(_LINK_TRIES):
                # A delete in another process may prune the directory between the two steps.
                with contextlib.suppress(FileNotFoundError):
                    self._make(target.parent)
                    return _link_if_free(unfinished, target)
            raise UnavailableError(
                "Another process kept deleting the directory during a write.",
                remedy="Try again.",
                where=str(target),
                id="RIFFLE-0423",
            )

    @contextlib.contextmanager
    def _unfinished_file(self, data: bytes | BufferedReader) -> Iterator[Path]:
        """Yield a new synced file with these bytes, or with the rest of a file.

        It is removed after the block if it still has its name.
        """
        unfinished = self._make_unfinished_folder() / uuid.uuid4().hex
        try:
            with unfinished.open("xb") as file:
                if self._mode is not None:
                    os.fchmod(file.fileno(), self._mode)
                if isinstance(data, BufferedReader):
                    shutil.copyfileobj(data, file, PIECE_BYTES)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the root during the block. It ends with the process."""
        descriptor = os.open(self.root / _LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, self._mode or 0o666)
        try:
            if self._mode is not None:
                with contextlib.suppress(PermissionError):  # its owner is another user, who has set the mode
                    os.fchmod(descriptor, self._mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_unfinished_folder(self) -> Path:
        """Return the directory of unfinished writes. The first call of a store sweeps it."""
        folder = self.root / _UNFINISHED
        try:
            missing = self._make(folder)
        except FileNotFoundError:  # no process prunes the root and the directories above it
            raise NotADirectoryError(errno.ENOTDIR, "cannot create a directory", str(self.root)) from None
        for created in missing:
            _sync(created.parent)
        if not self._swept:
            self._swept = True
            for leftover in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if leftover.is_file() and leftover.stat().st_mtime < time.time() - _LEFTOVER_SECONDS:
                        leftover.unlink()
        return folder

    def _make(self, folder: Path) -> Sequence[Path]:
        """Create ``folder`` and its missing parents. Return the directories that were missing."""
        missing = list(itertools.takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
        for path in reversed(missing):
            try:
                path.mkdir()
            except FileExistsError:
                if not stat.S_ISDIR(path.stat().st_mode):  # raises FileNotFoundError if a delete has pruned it
                    raise NotADirectoryError(errno.ENOTDIR, "a file has the directory's name", str(path)) from None
            else:
                if self._mode is not None and path.is_relative_to(self.root):
                    path.chmod(self._mode | ((self._mode & 0o444) >> 2))
        return missing

    def _sync_above(self, target: Path) -> None:
        """Sync the directories from the object's own up to the root. Other processes may have just created some."""
        for folder in target.parents:
            with contextlib.suppress(FileNotFoundError):
                _sync(folder)
            if folder == self.root:
                return

    def _prune(self, folder: Path) -> None:
        """Remove ``folder`` and its parents below the root that are empty."""
        with contextlib.suppress(OSError):
            while folder != self.root:
                folder.rmdir()
                folder = folder.parent

    @contextlib.contextmanager
    def _converted_errors(self, remedy: str = _READ_REMEDY) -> Iterator[None]:
        """Convert an ``OSError`` in the block: to ``RefusedError`` with this ``remedy`` if the file system refused the
        call, to ``UnavailableError`` otherwise.
        """
        try:
            yield
        except OSError as error:
            where = f"file://{self.root}"
            if error.errno in _REFUSALS:
                raise RefusedError(
                    f"The file system refused a call: {error}",
                    remedy=remedy,
                    where=where,
                    id="RIFFLE-0424",
                ) from error
            raise UnavailableError(
                f"The file system of the root failed: {error}",
                remedy="Check the disk (space, mount, errors), then run again.",
                where=where,
                id="RIFFLE-0425",
            ) from error


def _link_if_free(unfinished: Path, target: Path) -> bool:
    """Link a file to ``target``. Return ``False`` if the name is taken."""
    try:
        os.link(unfinished, target)
    except FileExistsError:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a directory has the object's name", str(target)) from None
        return False
    return True


def _names(folder: Path, above: str, prefix: str) -> Iterator[str]:
    """Yield the names below ``folder`` that start with ``prefix``. ``above`` is the name of the folder."""
    try:
        with os.scandir(folder) as entries:
            names = {above + entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    except _ABSENT:
        return
    for name, is_folder in names.items():
        if name == _FSCK_FOLDER or not name.startswith(prefix):
            continue
        if is_folder:
            yield from _names(folder / name[len(above) :], name + "/", prefix)
        else:
            yield name


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
