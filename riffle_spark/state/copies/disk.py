"""The disk that local copies lie on, and which files in a member's folder are ours. Knows Spark's own choice, file
systems and names. Does not know what is in a file.
"""

import errno
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError, LocalDiskError
from riffle_spark.state.log.manifest import Address

__all__ = [
    "DamagedCopy",
    "IncomingFile",
    "SealedFile",
    "damaged",
    "default_local_dir",
    "disk_refused",
    "fetched_files",
    "incoming_files",
    "is_member",
    "is_refusal",
    "refuse_network",
    "sealed_files",
    "use_of",
    "used_share",
]

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "glusterfs", "ceph", "fuse.s3fs", "fuse.sshfs"}
)
_MOUNTS = Path("/proc/mounts")
_REFUSALS = frozenset(
    {
        errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EACCES, errno.EPERM, errno.ENOTDIR,
    }
)  # fmt: skip
"""Full, read-only, over a quota, broken, or not to be written to."""
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
"""Blanks and the like in a mount's path."""
_MEMBER = re.compile(r"m[0-9a-f]{12}\Z")
_SEALED = re.compile(r"([0-9]+)-([0-9]+-[0-9a-f]+)\Z")
_FETCHED = re.compile(r"([0-9]+)-([0-9]+-[0-9a-f]+)\.[0-9a-f]+\Z")
_INCOMING = re.compile(r"([0-9]{4,})\.([0-9]+-[0-9]+-[0-9a-f]+)\Z")


def default_local_dir(environment: Mapping[str, str]) -> str:
    """Return where Spark keeps local files on this executor, or the system's temporary folder.

    ``environment`` is the executor's own: for its Python workers Spark names a folder that goes with the executor.
    """
    for variable in ("SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS"):
        if environment.get(variable):
            return environment[variable].split(",")[0]
    return tempfile.gettempdir()


def is_refusal(error: OSError) -> bool:
    """Tell whether an error means that a disk refuses, where a local file was read or written."""
    return error.errno in _REFUSALS


def disk_refused(problem: str, where: Path) -> LocalDiskError:
    """Return the error of a local disk that refuses."""
    return LocalDiskError(
        problem,
        remedy="free space there, or set `local_dir` (spark.riffle.local_dir) to a folder that Spark may write to; "
        "nothing is lost, copies are rebuilt",
        where=str(where),
        id="RIFFLE-0384",
    )


def used_share(path: Path) -> float:
    """Return how full the file system of ``path`` is, 0 to 1, as this user sees it: what is kept back counts as used.

    Raises ``OSError`` if there is no such path.
    """
    return use_of(path)[0]


def use_of(path: Path) -> tuple[float, int]:
    """Return how full the file system of ``path`` is, as ``used_share`` does, and its bytes, used or free.

    Raises ``OSError`` if there is no such path.
    """
    found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    usable = used + found.f_bavail
    return (used / usable if usable else 0.0), usable * found.f_frsize


def refuse_network(base: Path) -> None:
    """Raise ``ConfigError`` if ``base`` lies on a network file system: mapped files and locks need a local disk."""
    kind = _file_system(base.resolve())
    if kind in _NETWORK:
        raise ConfigError(
            f"{base} lies on a network file system ({kind}); local copies need a local disk",
            remedy="set `local_dir` (spark.riffle.local_dir) to a folder on a local disk",
            where="local_dir",
            id="RIFFLE-0385",
        )


def _file_system(path: Path) -> str:
    try:
        mounts = [line.split(b" ")[1:3] for line in _MOUNTS.read_bytes().splitlines()]
    except OSError:
        return ""
    named = [(os.fsdecode(_ESCAPED.sub(_byte, point)), os.fsdecode(kind)) for point, kind in mounts]
    held = [(len(point), at, kind) for at, (point, kind) in enumerate(named) if path.is_relative_to(point)]
    return max(held)[2] if held else ""  # of several at one place the last one lies on top


def _byte(escaped: re.Match[bytes]) -> bytes:
    return bytes([int(escaped[1], 8)])


class DamagedCopy(CorruptStateError):
    """A local copy cannot be read. Nothing is lost: ``where`` is its place, and it is rebuilt from the store."""


def damaged(problem: object, where: Path | str) -> DamagedCopy:
    """Return the error of a copy that cannot be read."""
    return DamagedCopy(
        f"a local copy is damaged: {problem}",
        remedy="nothing: it is rebuilt from the store",
        where=str(where),
        id="RIFFLE-0510",
    )


class SealedFile(NamedTuple):
    """The bytes of one attempt's delta, kept beside the copies."""

    version: int
    attempt: str
    path: Path


class IncomingFile(NamedTuple):
    """A snapshot that has come so far."""

    address: Address
    snapshot_id: str
    path: Path


def is_member(name: str) -> bool:
    """Tell whether a folder's name is a member's."""
    return _MEMBER.match(name) is not None


def sealed_files(folder: Path) -> list[SealedFile]:
    """Return the sealed deltas in ``folder``, the newest first."""
    return _files_of_deltas(folder, _SEALED)


def fetched_files(folder: Path) -> list[SealedFile]:
    """Return the files in ``folder`` with parts of deltas that others sealed, the newest first."""
    return _files_of_deltas(folder, _FETCHED)


def _files_of_deltas(folder: Path, names: re.Pattern[str]) -> list[SealedFile]:
    named = ((path, names.match(path.name)) for path in folder.glob("*"))
    found = [SealedFile(int(said[1]), said[2], path) for path, said in named if said and path.is_file()]
    return sorted(found, key=lambda file: (-file.version, file.attempt))


def incoming_files(folder: Path) -> list[IncomingFile]:
    """Return the half-fetched snapshots below ``folder``, by store."""
    named = ((path, _INCOMING.match(path.name)) for path in folder.glob("*/*"))
    return [
        IncomingFile((path.parent.name, int(said[1])), said[2], path) for path, said in named if said and path.is_file()
    ]
