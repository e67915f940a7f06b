"""Folders and files in places that other users may write to, such as ``/tmp``.

Theory of operation. Another user can create a folder of a known name first, can put a symbolic link there, or a FIFO,
which blocks whoever opens it. So a folder is made with mode 0700. Then it is opened without following a link, and its
owner and mode are read from what was opened. A folder that belongs to this user in a sticky place cannot be replaced
afterwards, and nobody else can create anything in a folder with mode 0700.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

__all__ = ["PRIVATE", "ForeignFolder", "is_private", "make_private", "narrow", "open_regular"]

PRIVATE: Final = 0o700
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class ForeignFolder(Exception):
    """A folder belongs to another user, or is a symbolic link or no folder."""


def make_private(path: Path) -> None:
    """Make a folder with mode 0700, and its missing parents too. Raises ``OSError``."""
    try:
        path.mkdir(PRIVATE)
    except FileNotFoundError:
        make_private(path.parent)
        make_private(path)
    except FileExistsError:
        if not path.is_dir() and not path.is_symlink():
            raise


def narrow(path: Path) -> None:
    """Take the rights of other users away from a folder.

    Raises ``ForeignFolder`` for one that another user owns or that is a symbolic link, ``OSError`` if there is none.
    """
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ForeignFolder("is a symbolic link or no folder") from error
        if error.errno == errno.EACCES and path.stat().st_uid != os.geteuid():
            raise ForeignFolder(f"belongs to user {path.stat().st_uid}, this process to {os.geteuid()}") from error
        raise
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise ForeignFolder(f"belongs to user {found.st_uid}, this process to {os.geteuid()}")
        if found.st_mode & _OTHERS:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    finally:
        os.close(descriptor)


def is_private(path: Path) -> bool:
    """Tell whether a path is a folder of this user, not a symbolic link, that nobody else can write to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def open_regular(path: Path | str) -> int:
    """Return a descriptor of a regular file, for reading. A FIFO or a device does not block: it raises ``OSError``."""
    descriptor = os.open(path, _FILE)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    raise OSError(errno.EOPNOTSUPP, "not a regular file", str(path))
