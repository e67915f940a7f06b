"""A file of LMDB whose map grows as it fills. Knows LMDB's ways to open and to fail. Does not know what is in it."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import lmdb

from riffle_spark.errors import RiffleError, UnavailableError
from riffle_spark.state.copies.disk import DamagedCopy, damaged, disk_refused

__all__ = ["INITIAL_MAP_BYTES", "CopyInUse", "LmdbFile", "trouble"]

INITIAL_MAP_BYTES = 1 << 20
_LOCK_BYTES = 8192
_MAX_MAP_BYTES = 1 << 44
_Result = TypeVar("_Result")
_DISK_SAYS = (
    "No space left", "Input/output", "File too large", "quota exceeded", "Read-only", "Permission denied",
    "Operation not permitted",
)  # fmt: skip
_OPEN_HERE = "already open in this process"


class LmdbFile:
    """An open file in a folder, with databases of these names; ``new`` makes both, or leaves nothing if that fails.

    Raises ``DamagedCopy`` for what is not such a file, and ``LocalDiskError`` where the disk refuses.
    """

    def __init__(self, folder: Path, names: Sequence[bytes], *, new: bool = False) -> None:
        self.folder = folder
        try:
            self._environment = self._open(len(names), new=new)
            self._databases = self._prepared(names, new=new)
        except BaseException:
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            raise

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

    def _prepared(self, names: Sequence[bytes], *, new: bool) -> list[lmdb._Database]:
        try:
            self._growing(self._environment.reader_check)
            self._check_not_truncated()
            return self._growing(lambda: self._opened(names, create=new))
        except BaseException:
            self._environment.close()
            raise

    def _check_not_truncated(self) -> None:
        """Touching a page beyond the end of the file would kill the process, so its length is looked at first."""
        pages = self._environment.info()["last_pgno"] + 1
        if (self.folder / "data.mdb").stat().st_size < pages * self._environment.stat()["psize"]:
            raise damaged("the file is truncated", self.folder)

    def _opened(self, names: Sequence[bytes], *, create: bool) -> list[lmdb._Database]:
        """Open all in one transaction. A reading one would not do: its end takes the handles with it."""
        with self._environment.begin(write=True) as transaction:
            return [self._environment.open_db(name, transaction, create=create) for name in names]

    def close(self) -> None:
        """Close the file; idempotent."""
        self._environment.close()

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
            except (lmdb.Error, OSError) as error:
                raise trouble(self.folder, error) from error
        raise UnavailableError(f"a local copy outgrew {_MAX_MAP_BYTES} bytes", where=str(self.folder))

    def _reserve(self, more_bytes: int) -> None:
        """Make the map large enough at once: to double it is to begin the transaction again."""
        used = self._environment.info()["last_pgno"] * self._environment.stat()["psize"]
        needed = ((used + more_bytes) // INITIAL_MAP_BYTES + 1) * INITIAL_MAP_BYTES
        if needed > self._environment.info()["map_size"]:
            self._environment.set_mapsize(needed)


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
