"""Folders and files in places that other users may write to, such as ``/tmp``.

Theory of operation. If another user can guess a name, this user can create a folder, a symbolic link or a FIFO there
first. Opening a FIFO blocks the process. So a folder is made with mode 0700 and opened without following a link. Its
owner and mode are read from the open descriptor. In a folder with the sticky bit, no other user can replace a folder of
this user, and in a folder with mode 0700 no other user can create anything.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o700
_OTHER_USERS = 0o077
_OTHER_USERS_WRITE = 0o022
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class ForeignFolder(Exception):
    """A folder belongs to another user, is a symbolic link, or is not a folder."""


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
    """Remove the rights of other users to a folder.

    Raises ``ForeignFolder`` if another user owns it or if it is not a real folder, ``OSError`` if it does not exist.
    """
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ForeignFolder("is a symbolic link, or not a folder") from error
        if error.errno == errno.EACCES and path.stat().st_uid != os.geteuid():
            raise ForeignFolder(f"belongs to user {path.stat().st_uid}, this process to {os.geteuid()}") from error
        raise
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise ForeignFolder(f"belongs to user {status.st_uid}, this process to {os.geteuid()}")
        if status.st_mode & _OTHER_USERS:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OTHER_USERS)
    finally:
        os.close(descriptor)


def is_private(path: Path) -> bool:
    """Return whether a path is a folder of this user that no other user can write to, and not a symbolic link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHER_USERS_WRITE


def open_regular(path: Path | str) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises ``OSError`` for a FIFO or a device, because they would block.
    """
    descriptor = os.open(path, _FILE)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    raise OSError(errno.EOPNOTSUPP, "not a regular file", str(path))
