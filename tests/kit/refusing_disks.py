"""Disks that really refuse: a member's folder gets a small file system of its own, which is filled or made read-only.

Where a process may not mount, the folder's ``owner`` file becomes a link to one that the system has an I/O error for,
at every use. ``RefusingDisk.how`` says which it is.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

__all__ = ["RefusingDisk", "Way", "on_a_disk_of_its_own", "unmount_below"]

Way = Literal["full", "read-only"]
_NAME = "riffle-test"
_SIZE = "24m"
_BLOCK = bytes(4096)
_UNREADABLE = "/proc/self/mem"
"""A regular file whose first bytes are no memory of anybody's: reading them is an I/O error, to root too."""


class RefusingDisk:
    """A folder that can be made to refuse what is written to it, and to take it again. ``how`` tells the means,
    ``mounted`` whether it has a file system of its own.
    """

    def __init__(self, folder: Path, way: Way, *, mounted: bool) -> None:
        self.folder = folder
        self.how = f"a tmpfs that is {way}" if mounted else "an owner file that cannot be read (EIO)"
        self.mounted = mounted
        self._way = way

    def refuse(self) -> None:
        """Refuse every write from now on."""
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
        """Take writes again."""
        if not self.mounted:
            (self.folder / "owner").unlink()
            (self.folder / "away").rename(self.folder / "owner")
        elif self._way == "full":
            (self.folder / "ballast").unlink()
        else:
            _run("mount", "-o", "remount,rw", str(self.folder))


@contextmanager
def on_a_disk_of_its_own(folder: Path, way: Way = "full") -> Iterator[RefusingDisk]:
    """Give a folder, with what is in it, a file system of its own for the length of the block, if that is allowed."""
    hidden = folder.with_name(f".{folder.name}.kept")
    shutil.copytree(folder, hidden, symlinks=True)
    mounted = _is_mounted(folder)
    disk = RefusingDisk(folder, way, mounted=mounted)
    print(f"{folder} is made to refuse by {disk.how}")
    try:
        if mounted:
            shutil.copytree(hidden, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(hidden)
        yield disk
    finally:
        unmount_below(folder)


def unmount_below(folder: Path) -> None:
    """Take away the file systems of a folder and below it, those of a process that was killed, too."""
    for line in Path("/proc/mounts").read_text().splitlines():
        name, point = line.split()[:2]
        if name == _NAME and Path(point).is_relative_to(folder.resolve()):
            _run("umount", "-l", point)


def _is_mounted(folder: Path) -> bool:
    """Mount a small file system, and tell whether that was allowed."""
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", _NAME, str(folder))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
