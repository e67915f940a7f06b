"""A file of LMDB whose map grows as it fills. Knows LMDB's ways to open and to fail, and what a file was when our last
transaction on it ended. Does not know what is in it.

Theory of operation. An embedded file has no checksum of its own: a key that was flipped is a key that is not there, and
a page that was zeroed may kill its reader. But whoever writes to a file, truncates it or puts another in its place
changes its inode, its size or the time of its last change, which nobody can set. So the last of ours who wrote notes
these beside the file, and whoever is about to read or write compares. What was changed by nobody of ours is damaged,
and so is what one of ours was writing when it died.

A writer holds a lock from before its transaction until it has noted, so that nobody takes its changes for damage. Who
opens the file holds it too, shared, and so waits for a writer; but not for ever for one that hangs or was stopped: then
the copy is as good as damaged, and made anew elsewhere.

Whoever has a file open says so beside the note, and takes it back when the last closes it. A file that two processes
one after the other died over is damaged too: what a disk gave back altered may kill each of its readers.

The times of changes are as fine as the kernel's, some milliseconds before Linux 6.13: what is done to a file within
these after a transaction of ours is seen by the checksums alone that values carry.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, TypeVar, overload

import lmdb

from riffle_spark.errors import RiffleError, UnavailableError
from riffle_spark.state.copies.disk import DamagedCopy, damaged, disk_refused
from riffle_spark.state.copies.value_sums import DamagedValue

__all__ = ["INITIAL_MAP_BYTES", "CopyInUse", "FileStamp", "LmdbFile", "trouble"]

INITIAL_MAP_BYTES = 1 << 20
_LOCK_BYTES = 8192
_MAX_MAP_BYTES = 1 << 44
_Result = TypeVar("_Result")
_DISK_SAYS = (
    "No space left", "Input/output", "File too large", "quota exceeded", "Read-only", "Permission denied",
    "Operation not permitted",
)  # fmt: skip
_OPEN_HERE = "already open in this process"
_NOTE = struct.Struct("<QQqq")
_DEATHS_MAX = 2
_LOOKS = 30_000
_LOOK_SECONDS = 0.001


class FileStamp:
    """The stamp of one file, kept in another one. What is wrong with either is raised as ``OSError``."""

    def __init__(self, file: Path, kept: Path) -> None:
        self._file = file
        self._kept = kept
        self._known = b""

    def note(self) -> None:
        """Take the file as it is for whole: for one that was just made."""
        self._kept.write_bytes(self._of_file())

    def check(self) -> None:
        """Raise ``OSError`` if the file is not as the last of ours left it.

        One that was found whole and removed since is whole for who has it open: another copy took its place.
        """
        try:
            now = self._of_file()
            if now != self._known and self._kept.read_bytes()[: _NOTE.size] == now:
                self._known = now
            elif now != self._known:
                os.close(self.held())
        except FileNotFoundError:
            if not self._known:
                raise

    def opened(self, kept: int) -> int:
        """Say that the file, which is held, is open until the descriptor that is returned is ``closed``."""
        descriptor = os.open(self._file, os.O_RDONLY)
        try:
            if _is_alone(descriptor):
                self._count(kept)
            self._lock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _count(self, kept: int) -> None:
        deaths = int.from_bytes(os.pread(kept, 1, _NOTE.size), "big")
        if deaths >= _DEATHS_MAX:
            raise OSError("processes died over it, one after the other")
        os.pwrite(kept, bytes([deaths + 1]), _NOTE.size)

    def closed(self, descriptor: int) -> None:
        """Take back what ``opened`` said, unless somebody else has the file open."""
        if _is_alone(descriptor):
            with suppress(OSError):
                kept = os.open(self._kept, os.O_WRONLY)
                os.pwrite(kept, b"\0", _NOTE.size)
                os.close(kept)
        os.close(descriptor)

    def held(self, *, to_change: bool = False) -> int:
        """Hold the file against changes by others, by a descriptor to be closed. Raises as ``check``."""
        kept = os.open(self._kept, os.O_RDWR)
        try:
            self._lock(kept, fcntl.LOCK_EX if to_change else fcntl.LOCK_SH)
            self._known = self._compared(kept)
        except BaseException:
            os.close(kept)
            raise
        return kept

    def noted(self, kept: int) -> None:
        """Note what the holder has changed."""
        self._known = self._of_file()
        os.pwrite(kept, self._known, 0)

    def _lock(self, kept: int, how: int) -> None:
        for _ in range(_LOOKS):
            try:
                fcntl.flock(kept, how | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_SECONDS)
            else:
                return
        raise TimeoutError(f"another process has been writing to it for {_LOOKS * _LOOK_SECONDS:g} s: does it hang?")

    def _compared(self, kept: int) -> bytes:
        now = self._of_file()
        if os.pread(kept, _NOTE.size, 0) != now:
            raise OSError("the file was changed by somebody else, or by a process that died over it")
        return now

    def _of_file(self) -> bytes:
        found = os.stat(self._file)  # noqa: PTH116 - twice a transaction
        return _NOTE.pack(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _is_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileGate:
    """LMDB's own, of which transactions begin only while the file is as one of ours left it, in this process or
    another. Raises ``DamagedCopy`` where it is not.
    """

    def __init__(self, opened: lmdb.Environment, folder: Path, stamp: FileStamp) -> None:
        self._opened = opened
        self._folder = folder
        self._stamp = stamp
        self.info = opened.info
        self.stat = opened.stat
        self.set_mapsize = opened.set_mapsize
        self.close = opened.close

    @overload
    def begin(self, *, db: lmdb._Database | None = None) -> lmdb.Transaction[bytes]: ...
    @overload
    def begin(
        self, *, db: lmdb._Database | None = None, write: Literal[True]
    ) -> AbstractContextManager[lmdb.Transaction[bytes]]: ...
    def begin(
        self, *, db: lmdb._Database | None = None, write: bool = False
    ) -> lmdb.Transaction[bytes] | AbstractContextManager[lmdb.Transaction[bytes]]:
        """Return a transaction; one that writes is committed, and its changes are noted, where the block ends."""
        if write:
            return self._writing(db)
        try:
            self._stamp.check()
        except OSError as error:
            raise trouble(self._folder, error) from error
        return self._opened.begin(db=db)

    @contextmanager
    def _writing(self, db: lmdb._Database | None) -> Iterator[lmdb.Transaction[bytes]]:
        kept = self._held()
        try:
            with self._opened.begin(db=db, write=True) as transaction:
                yield transaction
        finally:
            if kept is not None:
                with suppress(FileNotFoundError):
                    self._stamp.noted(kept)
                os.close(kept)

    def _held(self) -> int | None:
        """Hold the file for changes; ``None`` if it was removed since it was opened, so that nobody else reads them."""
        try:
            return self._stamp.held(to_change=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise trouble(self._folder, error) from error


class LmdbFile:
    """An open file in a folder, with databases of these names; ``new`` makes both, or leaves nothing if that fails.

    Raises ``DamagedCopy`` for what is not such a file, or was changed by nobody of ours, and ``LocalDiskError`` where
    the disk refuses.
    """

    def __init__(self, folder: Path, names: Sequence[bytes], *, new: bool = False) -> None:
        self.folder = folder
        self._stamp = FileStamp(folder / "data.mdb", folder / "stamp")
        self._descriptor: int | None = None
        try:
            with nullcontext() if new else self._held():
                opened = self._open(len(names), new=new)
                self._environment = FileGate(opened, folder, self._stamp)
                self._databases = self._prepared(opened, names, new=new)
            if new:
                self._growing(self._stamp.note)
        except BaseException:
            self._leave()
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the file against changes while it is opened, and say that it is open."""
        with ExitStack() as held:
            try:
                kept = self._stamp.held()
                held.callback(os.close, kept)
                self._descriptor = self._stamp.opened(kept)
            except OSError as error:
                raise trouble(self.folder, error) from error
            yield

    def _leave(self) -> None:
        if self._descriptor is not None:
            self._stamp.closed(self._descriptor)
            self._descriptor = None

    def _open(self, databases: int, *, new: bool) -> lmdb.Environment:
        try:
            if new:
                self.folder.mkdir(parents=True)
                _allocate(self.folder / "lock.mdb")
            data = self.folder / "data.mdb"
            map_bytes = max(INITIAL_MAP_BYTES, 2 * data.stat().st_size if data.exists() else 0)
            return lmdb.open(
                str(self.folder), map_size=map_bytes, max_dbs=databases, sync=False, metasync=False, readahead=False,
                max_readers=512, create=new,
            )  # fmt: skip
        except (lmdb.Error, OSError) as error:
            raise trouble(self.folder, error) from error

    def _prepared(self, opened: lmdb.Environment, names: Sequence[bytes], *, new: bool) -> list[lmdb._Database]:
        try:
            self._growing(opened.reader_check)
            self._check_not_truncated()
            return self._growing(lambda: _databases(opened, names, create=new))
        except BaseException:
            opened.close()
            raise

    def _check_not_truncated(self) -> None:
        """Touching a page beyond the end of the file would kill the process, so its length is looked at first."""
        pages = self._environment.info()["last_pgno"] + 1
        if (self.folder / "data.mdb").stat().st_size < pages * self._environment.stat()["psize"]:
            raise damaged("the file is truncated", self.folder)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._environment.close()
        self._leave()

    def _growing(self, work: Callable[[], _Result]) -> _Result:
        """Run ``work``; where another process grew the map take its size, where the map is full double it, and redo."""
        for _ in range(64):
            try:
                return work()
            except lmdb.MapResizedError:
                self._environment.set_mapsize(0)
            except lmdb.MapFullError:
                size = 2 * self._environment.info()["map_size"]
                if size > _MAX_MAP_BYTES:
                    break
                self._environment.set_mapsize(size)
            except (lmdb.Error, OSError, DamagedValue) as error:
                raise trouble(self.folder, error) from error
        raise UnavailableError(f"a local copy outgrew {_MAX_MAP_BYTES} bytes", where=str(self.folder))

    def _reserve(self, more_bytes: int) -> None:
        """Make the map large enough at once: to double it is to begin the transaction again."""
        used = self._environment.info()["last_pgno"] * self._environment.stat()["psize"]
        needed = ((used + more_bytes) // INITIAL_MAP_BYTES + 1) * INITIAL_MAP_BYTES
        if needed > self._environment.info()["map_size"]:
            self._environment.set_mapsize(needed)


def _databases(opened: lmdb.Environment, names: Sequence[bytes], *, create: bool) -> list[lmdb._Database]:
    """Open all in one transaction. A reading one would not do: its end takes the handles with it."""
    with opened.begin(write=True) as transaction:
        return [opened.open_db(name, transaction, create=create) for name in names]


def _allocate(lock: Path) -> None:
    """Take room on the disk for what LMDB writes to the mapped lock file: a write there that finds the disk full would
    kill the process.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    finally:
        os.close(descriptor)


class CopyInUse(DamagedCopy):
    """This process has the copy open already, which LMDB forbids: as good as none to whoever needs one, but whole."""


def trouble(folder: Path, error: Exception) -> RiffleError:
    """Return what an error of the file means: a disk that refuses, else damage, as a copy can always be rebuilt."""
    if _OPEN_HERE in str(error):
        return CopyInUse(str(error), remedy="close it first", where=str(folder))
    if not isinstance(error, lmdb.DiskError) and not any(phrase in str(error) for phrase in _DISK_SAYS):
        return damaged(error, folder)
    return disk_refused(f"the local disk refused a write: {error}", folder)
