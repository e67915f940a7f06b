"""The local disk below a member's folder, and the file names used in that folder."""

import errno
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError, LocalDiskError
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address

STORED: Final = ".stored"
"""The suffix of files with a fetched block of a delta or merged delta. ``paths.BLOCK`` follows it."""
MERGED: Final = ".merged"
"""The suffix of files with fetched parts of a merged delta."""
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "glusterfs", "ceph", "fuse.s3fs", "fuse.sshfs"}
)
_MOUNTS = Path("/proc/mounts")
_REFUSALS = frozenset(
    {
        errno.ENOSPC,
        errno.EROFS,
        errno.EDQUOT,
        errno.EIO,
        errno.EFBIG,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
    }
)
"""The disk is full, read-only, over its quota or broken, or this user may not write to it."""
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
"""An escaped character in a mount point, such as a blank."""
_MEMBER = re.compile(r"m[0-9a-f]{12}\Z")
_SEALED = re.compile(r"(-?[0-9]+)-([0-9]+-[0-9a-f]+)(?:\.block)?\Z")
_FETCHED = re.compile(r"(-?[0-9]+)-([0-9]+-[0-9a-f]+)\.[0-9a-f]+(?:\.block|\.merged|\.stored\.block)?\Z")
_INCOMING = re.compile(r"([0-9]{4,})\.([0-9]+-[0-9]+-[0-9a-f]+)\Z")


def default_local_dir(environment: Mapping[str, str]) -> str:
    """Return the folder for Spark's local files on this executor, or the system's temporary folder.

    ``environment`` is the executor's own, because Spark gives its Python workers a folder that is deleted with the
    executor.
    """
    for variable in ("SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS"):
        if environment.get(variable):
            return environment[variable].split(",")[0]
    return tempfile.gettempdir()


def is_disk_refusal(error: OSError) -> bool:
    """Return whether an error of a local file means that its disk refuses to work."""
    return error.errno in _REFUSALS


def disk_refused_error(problem: str, where: Path) -> LocalDiskError:
    """Return the error for a local disk that refuses to work at ``where``."""
    return LocalDiskError(
        f"The local disk failed. {problem}",
        remedy="Free space there, or set `local_dir` (spark.riffle.local_dir) to a folder that Spark may write to. "
        "No state is lost, because the copies are rebuilt from the root.",
        where=str(where),
        id="RIFFLE-0384",
    )


class DiskUse(NamedTuple):
    """The share of a file system that is used, 0 to 1, and its bytes, used or free.

    Blocks that are reserved for root count as used.
    """

    used_share: float
    size_bytes: int


def read_disk_use(path: Path) -> DiskUse:
    """Return how full the file system of ``path`` is. Raises ``OSError`` if the path does not exist."""
    status = os.statvfs(path)
    used = status.f_blocks - status.f_bfree
    usable = used + status.f_bavail
    return DiskUse(used / usable if usable else 0.0, usable * status.f_frsize)


def refuse_network(base: Path) -> None:
    """Raise ``ConfigError`` for a network file system, because mapped files and locks need a local disk."""
    file_system = _find_file_system(base.resolve())
    if file_system in _NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"Local copies need a local disk, but {base} is on a network file system ({file_system}).",
            remedy="Set `local_dir` (spark.riffle.local_dir) to a folder on a local disk.",
            where="local_dir",
            id="RIFFLE-0385",
        )


def _find_file_system(path: Path) -> str:
    """Return the type of the file system that holds ``path``, such as ``nfs4``, or an empty text if it is unknown."""
    try:
        mounts = [line.split(b" ")[1:3] for line in _MOUNTS.read_bytes().splitlines()]
    except OSError:
        return ""
    innermost = ""
    longest = -1
    for escaped_point, file_system in mounts:
        point = os.fsdecode(_ESCAPED.sub(_unescape, escaped_point))
        if path.is_relative_to(point) and len(point) >= longest:  # the last mount at a mount point hides earlier ones
            longest = len(point)
            innermost = os.fsdecode(file_system)
    return innermost


def _unescape(escape: re.Match[bytes]) -> bytes:
    """Return the character of an octal escape in the list of mounts."""
    return bytes([int(escape[1], 8)])


class DamagedCopy(CorruptStateError):
    """A local copy cannot be read. Nothing is lost: ``where`` names its file, and it is rebuilt from the store."""


def damaged_copy_error(problem: object, where: Path | str) -> DamagedCopy:
    """Return the error for a local copy that cannot be read. ``where`` is its file."""
    # Cause: The disk or another process altered the file after it was written.
    return DamagedCopy(
        f"A local copy is damaged: {problem}",
        remedy="Do nothing. The copy is rebuilt from the store.",
        where=str(where),
        id="RIFFLE-0510",
    )


class SealedFile(NamedTuple):
    """A local file with bytes of one attempt's delta, or of a merged delta."""

    version: int
    attempt: str
    path: str


class IncomingFile(NamedTuple):
    """A partly fetched snapshot."""

    address: Address
    snapshot_id: str
    path: Path


def is_block(file: str) -> bool:
    """Return whether the name of a local file is that of a block file."""
    return file.endswith(paths.BLOCK)


def is_member_name(name: str) -> bool:
    """Return whether the name of a folder is a member's."""
    return _MEMBER.match(name) is not None


def list_sealed_files(folder: Path) -> list[SealedFile]:
    """Return the files in ``folder`` with deltas that this member wrote itself, newest first."""
    return _list_delta_files(folder, _SEALED)


def list_fetched_files(folder: Path) -> list[SealedFile]:
    """Return the files in ``folder`` with parts of deltas that other members wrote, or with merged blocks, newest
    first.
    """
    return _list_delta_files(folder, _FETCHED)


def _list_delta_files(folder: Path, names: re.Pattern[str]) -> list[SealedFile]:
    """Return the files in ``folder`` whose names match ``names`` (version and attempt), newest first."""
    files: list[SealedFile] = []
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as found:
        for file in found:  # each batch lists hundreds of files, and this reads no file's metadata from the disk
            match = names.match(file.name)
            if match and file.is_file():
                files.append(SealedFile(int(match[1]), match[2], file.path))
    return sorted(files, key=lambda file: (-file.version, file.attempt))


def list_incoming_files(folder: Path) -> list[IncomingFile]:
    """Return the partly fetched snapshots below ``folder``."""
    matches = ((path, _INCOMING.match(path.name)) for path in folder.glob("*/*"))
    return [
        IncomingFile((path.parent.name, int(match[1])), match[2], path)
        for path, match in matches
        if match and path.is_file()
    ]
