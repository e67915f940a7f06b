"""Disks that really fail: a member's folder gets a small file system, which is then filled or made read-only.

If a process may not mount a file system, the folder's ``owner`` file becomes a link to a file whose every read is an
I/O error. ``FailingDisk.how`` names the method.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

__all__ = ["FailingDisk", "Way", "own_disk", "unmount_below"]

Way = Literal["full", "read-only"]
_NAME = "riffle-test"
_SIZE = "24m"
_BLOCK = bytes(4096)
_UNREADABLE = "/proc/self/mem"
"""A regular file whose first bytes are unmapped memory. Reading them is an I/O error, for root too."""


class FailingDisk:
    """A folder whose disk can be made to fail and to recover.

    ``how`` describes the method. ``mounted`` is set if the folder has its own file system.
    """

    def __init__(self, folder: Path, way: Way, *, mounted: bool) -> None:
        self.folder = folder
        self.how = f"a tmpfs that is {way}" if mounted else "an owner file that cannot be read (EIO)"
        self.mounted = mounted
        self._way = way

    def fail(self) -> None:
        """Make every write to the folder fail from now on."""
        if not self.mounted:
            (self.folder / "owner").rename(self.folder / "away")
            (self.folder / "owner").symlink_to(_UNREADABLE)
        elif self._way == "full":
            with suppress(OSError), (self.folder / "ballast").open("ab", buffering=0) as file:
                while True:
                    file.write(_BLOCK)
        else:
            _run("mount", "-o", "remount,ro", str(self.folder))

    def recover(self) -> None:
        """Make writes to the folder succeed again."""
        if not self.mounted:
            (self.folder / "owner").unlink()
            (self.folder / "away").rename(self.folder / "owner")
        elif self._way == "full":
            (self.folder / "ballast").unlink()
        else:
            _run("mount", "-o", "remount,rw", str(self.folder))


@contextmanager
def own_disk(folder: Path, way: Way = "full") -> Iterator[FailingDisk]:
    """Give a folder its own file system for the length of the block, if the process may mount one.

    The files of the folder are kept.
    """
    hidden = folder.with_name(f".{folder.name}.kept")
    shutil.copytree(folder, hidden, symlinks=True)
    mounted = _is_mounted(folder)
    disk = FailingDisk(folder, way, mounted=mounted)
    print(f"{folder} is made to fail: {disk.how}")
    try:
        if mounted:
            shutil.copytree(hidden, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(hidden)
        yield disk
    finally:
        unmount_below(folder)


def unmount_below(folder: Path) -> None:
    """Unmount the file systems of a folder and below it, also those of a process that was killed."""
    for line in Path("/proc/mounts").read_text().splitlines():
        name, point = line.split()[:2]
        if name == _NAME and Path(point).is_relative_to(folder.resolve()):
            _run("umount", "-l", point)


def _is_mounted(folder: Path) -> bool:
    """Mount a small file system on a folder, and return whether that was allowed."""
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", _NAME, str(folder))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
