"""A member's folder on local disk. Knows who may use it and where copies lie in it. Does not know what copies hold.

    <local_dir>/<root id>/<member>/owner                     whose folder it is: "<application>/<executor>"
                                  /copies/<store>/<0042>     a link to the current copy, <0042>.<unique>
                                  /sealed/<version>-<attempt> the deltas this member sealed, as bytes

Theory of operation. A folder outlives its executor. A new executor takes one whose owner is not alive, by writing its
own id under an exclusive, non-blocking lock; every use holds a shared lock and finds its own id first. So a folder is
never used by two executors, and a late task of a dead executor stops at the door. Claims on one host are taken one at
a time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from riffle_spark.errors import ConfigError, OutOfDate, UnavailableError

__all__ = ["Folder", "claim", "default_local_dir"]

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "glusterfs", "ceph", "fuse.s3fs", "fuse.sshfs"}
)
_SEALED_FILES_MAX = 256
_SEALED_BYTES_MAX = 256 << 20
_MOUNTS = Path("/proc/mounts")


def default_local_dir() -> str:
    """Return where Spark keeps local files on this executor, or the system's temporary folder."""
    for variable in ("SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS"):
        if os.environ.get(variable):
            return os.environ[variable].split(",")[0]
    return tempfile.gettempdir()


class Folder:
    """One member's folder. ``member`` is its name, and the member's."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.member = path.name
        self._owner = owner
        self.sealed = path / "sealed"

    @contextmanager
    def used(self) -> Iterator[None]:
        """Hold the folder for its owner.

        Raises ``OutOfDate`` if another executor has taken it over, or if it is gone: the next attempt claims anew.
        """
        with self._on_disk():
            file = (self.path / "owner").open("r")
        with file:
            with self._on_disk():
                fcntl.flock(file, fcntl.LOCK_SH)
                owner = file.read()
            if owner != self._owner:
                raise OutOfDate("this executor's folder was taken over by another one", where=str(self.path))
            yield

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Tell what the disk refuses in words of ours: the folder is gone, or it cannot be used."""
        try:
            yield
        except OSError as error:
            if not (self.path / "owner").exists():
                raise OutOfDate("this executor's folder is gone from its disk", where=str(self.path)) from error
            raise _unusable(f"a local copy cannot be kept: {error}", self.path) from error

    def is_of_owner(self) -> bool:
        """Tell whether the folder is still there and its owner's."""
        try:
            return (self.path / "owner").read_text() == self._owner
        except OSError:
            return False

    def link(self, store: str, key_group: int) -> Path:
        """Return the path of the link to the current copy of a key-group."""
        return self.path / "copies" / store / f"{key_group:04d}"

    def current(self, store: str, key_group: int) -> Path | None:
        """Return the folder of the current copy of a key-group, if there is one."""
        link = self.link(store, key_group)
        try:
            return link.parent / os.readlink(link)  # noqa: PTH115 - a third of the time of Path.readlink
        except OSError:
            return None

    def fresh(self, store: str, key_group: int) -> Path:
        """Return a new path, never used before, for a copy of a key-group."""
        link = self.link(store, key_group)
        with self._on_disk():
            (self.path / "copies").mkdir(exist_ok=True)
            link.parent.mkdir(exist_ok=True)
        return link.with_name(f"{link.name}.{uuid.uuid4().hex}")

    def switch(self, store: str, key_group: int, filled: Path) -> None:
        """Make ``filled`` the current copy, in one atomic step, and remove the one before."""
        link = self.link(store, key_group)
        passing = link.with_name(f"{link.name}.{uuid.uuid4().hex}.link")
        with self._on_disk():
            before = link.resolve() if link.is_symlink() else None
            passing.symlink_to(filled.name)
            passing.replace(link)
        if before is not None and before != filled:
            shutil.rmtree(before, ignore_errors=True)

    def discard(self, store: str, filled: Path) -> None:
        """Remove a copy that was begun and not finished; one that was switched in stays."""
        with self._on_disk():
            current = {path.resolve() for path in self.link(store, 0).parent.iterdir() if path.is_symlink()}
        if filled.resolve() not in current:
            shutil.rmtree(filled, ignore_errors=True)

    def drop(self, store: str, key_group: int) -> None:
        """Remove the current copy of a key-group, if there is one."""
        link = self.link(store, key_group)
        if link.is_symlink():
            with self._on_disk():
                before = link.resolve()
                link.unlink(missing_ok=True)
            shutil.rmtree(before, ignore_errors=True)

    def keep_sealed(self, version: int, attempt: str, data: bytes) -> bool:
        """Keep the bytes of a sealed delta; return whether the disk took them (a failure harms nothing)."""
        try:
            self.sealed.mkdir(exist_ok=True)
            path = self.sealed / f"{version}-{attempt}"
            path.with_suffix(".part").write_bytes(data)
            path.with_suffix(".part").replace(path)
        except OSError:
            return False
        return True

    def sealed_file(self, version: int, attempt: str) -> Path:
        """Return where the sealed delta of an attempt lies, if it was kept."""
        return self.sealed / f"{version}-{attempt}"

    def forget_sealed(self) -> None:
        """Remove the oldest sealed deltas beyond a number and a size; they are in the store."""
        with suppress(OSError), os.scandir(self.sealed) as found:
            kept = sorted(found, key=lambda entry: int(entry.name.split("-", 1)[0]), reverse=True)
            size = 0
            for number, entry in enumerate(kept):
                size += entry.stat().st_size
                if number >= _SEALED_FILES_MAX or size > _SEALED_BYTES_MAX:
                    Path(entry.path).unlink(missing_ok=True)


def claim(base: Path, owner: str, live: Collection[str]) -> Folder:
    """Return the folder of ``owner`` below ``base``: its own, else a free one, else a new one.

    ``live`` are the owners the driver sees alive; a folder of any other is free. Raises ``ConfigError`` on a network
    file system.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        _refuse_network(base)
        return _claimed(base, owner, live)
    except OSError as error:
        raise _unusable(f"no folder for local copies can be made: {error}", base) from error


def _unusable(problem: str, where: Path) -> UnavailableError:
    return UnavailableError(
        problem,
        remedy="free space there, or set `local_dir` (spark.riffle.local_dir) to a folder that Spark may write to",
        where=str(where),
    )


def _claimed(base: Path, owner: str, live: Collection[str]) -> Folder:
    with (base / ".claims").open("a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        folders = sorted(path.parent for path in base.glob("*/owner"))
        for path in folders:
            if (path / "owner").read_text() == owner:
                return Folder(path, owner)
        for path in folders:
            if _take(path / "owner", owner, live):
                return Folder(path, owner)
        path = base / f"m{uuid.uuid4().hex[:12]}"
        path.mkdir()
        (path / "owner").write_text(owner)
        return Folder(path, owner)


def _take(file_path: Path, owner: str, live: Collection[str]) -> bool:
    with file_path.open("r+") as file:
        if file.read() in live:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.seek(0)
        if file.read() in live:
            return False
        file.seek(0)
        file.truncate()
        file.write(owner)
        file.flush()
        return True


def _refuse_network(base: Path) -> None:
    kind = _file_system(base.resolve())
    if kind in _NETWORK:
        raise ConfigError(
            f"{base} lies on a network file system ({kind}); local copies need a local disk",
            remedy="set `local_dir` (spark.riffle.local_dir) to a folder on a local disk",
            where="local_dir",
        )


def _file_system(path: Path) -> str:
    try:
        mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return ""
    held = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(held)[1] if held else ""
