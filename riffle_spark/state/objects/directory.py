"""Objects as files below one directory (``file://``).

Theory of operation. An object appears whole or not at all: its bytes are written under a name of their own in
``.unfinished``, synced, and hard-linked to the object's name. A link fails if the name is taken, which makes the put
conditional; it and the directories above it are synced before the put returns. Names with a leading dot are never
objects, so what a crash left in ``.unfinished`` is not listed; the next process to write removes it after a day.
If a mode is set, a file gets it before its name. A directory gets it too, and all users who may read may enter it.
"""

import contextlib
import errno
import itertools
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from riffle_spark.errors import RefusedError, UnavailableError
from riffle_spark.private_folders import open_regular
from riffle_spark.state.objects.store import PIECE_BYTES, RequestCounts, check_name, check_prefix, check_range

__all__ = ["DirectoryStore"]

_UNFINISHED = ".unfinished"
_LEFTOVER_SECONDS = 24 * 3600
_LINK_TRIES = 16
_FSCKS = "lost+found"
"""What a mounted disk has at its top, for its owner's eyes alone; no object of ours is named so."""
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_USERS_TO_FIX = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})
_USERS_TO_FIX |= {errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENAMETOOLONG}
_WRITES = "set `root` to a directory that this user may write, on a file system with hard links"
_READS = "set `root` to a directory that this user may read, or give the user the right to it"


class DirectoryStore:
    """A store below ``root``, which the first put makes. Put-if-absent holds between processes.

    ``mode`` is the mode of files; if it is ``None``, the umask decides.
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
        """See ``ObjectStore.put_if_absent``."""
        target = self.root / check_name(name)
        self.requests.add("put")
        with self._explained(_WRITES):
            written = not target.is_file() and self._link(data, target)
            self._sync_above(target)  # also where another's link is found: it may not be durable yet
            return written

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``."""
        source = self.root / check_name(name)
        check_range(start, length)
        self.requests.add("get")
        with self._explained():
            try:
                with os.fdopen(open_regular(source), "rb") as file:
                    size = os.fstat(file.fileno()).st_size  # Python makes room for as much as is asked for
                    file.seek(start)
                    return file.read(-1 if length is None else min(length, size))
            except _ABSENT:
                return None

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``."""
        source = self.root / check_name(name)
        check_range(start, length)
        self.requests.add("get")
        left = length
        with self._explained():
            try:
                file = os.fdopen(open_regular(source), "rb")
            except _ABSENT:
                return None
        with file:
            file.seek(start)
            while piece := self._piece(file, left):
                write(piece)
                left -= len(piece)
        return length - left

    def _piece(self, file: BinaryIO, left: int) -> bytes:
        with self._explained():
            return file.read(min(left, PIECE_BYTES))

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``."""
        target = self.root / check_name(name)
        self.requests.add("head")
        with self._explained():
            return target.is_file()

    def list(self, prefix: str) -> list[str]:
        """See ``ObjectStore.list``. Reads no directory that holds no name with that prefix."""
        folder, slash, _ = check_prefix(prefix).rpartition("/")
        self.requests.add("list")
        with self._explained():
            return sorted(_names(self.root / folder, folder + slash, prefix))

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``. Directories that are empty then go too."""
        targets = [self.root / check_name(name) for name in names]
        if not targets:
            return
        self.requests.add("delete")
        with self._explained(_WRITES):
            for target in targets:
                with contextlib.suppress(*_ABSENT):
                    target.unlink()
            for folder in {target.parent for target in targets}:
                self._prune(folder)

    def _link(self, data: bytes, target: Path) -> bool:
        """Write ``data`` aside and link it to ``target``; return whether the name was free."""
        aside = self._made_unfinished() / uuid.uuid4().hex
        try:
            with aside.open("xb") as file:
                if self._mode is not None:
                    os.fchmod(file.fileno(), self._mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            for _ in range(_LINK_TRIES):
                # Between two steps a delete elsewhere may prune the directory that the first has found or made.
                with contextlib.suppress(FileNotFoundError):
                    self._make(target.parent)
                    return _linked(aside, target)
            raise UnavailableError(
                "the directory kept vanishing under a write", remedy="try again", where=str(target), id="RIFFLE-0423"
            )
        finally:
            aside.unlink(missing_ok=True)

    def _made_unfinished(self) -> Path:
        """Return the directory of unfinished writes; it is swept once a store object."""
        folder = self.root / _UNFINISHED
        try:
            missing = self._make(folder)
        except FileNotFoundError:  # of the root and what is above it: nothing prunes those
            raise NotADirectoryError(errno.ENOTDIR, "no directory can be made there", str(self.root)) from None
        for made in missing:
            _sync(made.parent)
        if not self._swept:
            self._swept = True
            for leftover in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if leftover.is_file() and leftover.stat().st_mtime < time.time() - _LEFTOVER_SECONDS:
                        leftover.unlink()
        return folder

    def _make(self, folder: Path) -> Sequence[Path]:
        """Make ``folder`` and what is missing above it; return what was missing."""
        missing = list(itertools.takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
        for path in reversed(missing):
            try:
                path.mkdir()
            except FileExistsError:
                if not stat.S_ISDIR(path.stat().st_mode):  # raises FileNotFoundError where a delete has pruned it since
                    raise NotADirectoryError(errno.ENOTDIR, "a file has the directory's name", str(path)) from None
            else:
                if self._mode is not None and path.is_relative_to(self.root):
                    path.chmod(self._mode | ((self._mode & 0o444) >> 2))
        return missing

    def _sync_above(self, target: Path) -> None:
        """Sync the directories from the object's own up to the root: another's mkdir may be as young as our link."""
        for folder in target.parents:
            with contextlib.suppress(FileNotFoundError):
                _sync(folder)
            if folder == self.root:
                return

    def _prune(self, folder: Path) -> None:
        """Remove ``folder`` and those above it, up to the root, as long as they are empty."""
        with contextlib.suppress(OSError):
            while folder != self.root:
                folder.rmdir()
                folder = folder.parent

    @contextlib.contextmanager
    def _explained(self, remedy: str = _READS) -> Iterator[None]:
        """Turn the file system's errors into riffle's."""
        try:
            yield
        except OSError as error:
            problem = f"the state root refused a call: {error}"
            if error.errno in _USERS_TO_FIX:
                raise RefusedError(problem, remedy=remedy, where=f"file://{self.root}", id="RIFFLE-0424") from error
            remedy = "check the disk (space, mount, errors), then run again"
            raise UnavailableError(problem, remedy=remedy, where=f"file://{self.root}", id="RIFFLE-0425") from error


def _linked(aside: Path, target: Path) -> bool:
    """Give the file its second name; return whether that name was free."""
    try:
        os.link(aside, target)
    except FileExistsError:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a directory has the object's name", str(target)) from None
        return False
    return True


def _names(folder: Path, above: str, prefix: str) -> Iterator[str]:
    """Yield the names below ``folder``, itself named ``above``, that begin with ``prefix``."""
    try:
        with os.scandir(folder) as entries:
            ours = (entry for entry in entries if not entry.name.startswith("."))
            found = [(above + entry.name, entry.is_dir()) for entry in ours if above + entry.name != _FSCKS]
    except _ABSENT:
        return
    for name, is_folder in found:
        if not name.startswith(prefix):
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
