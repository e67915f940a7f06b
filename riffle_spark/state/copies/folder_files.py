"""Names of files in a member's folder. Knows which are ours. Does not know what is in them.

Others leave things in folders on disk: desktops, editors, fsck, people. What is not named as ours name it, or is no
file where we make files, is passed over and stays.
"""

import re
from pathlib import Path
from typing import NamedTuple

from riffle_spark.state.log.manifest import Address

__all__ = ["IncomingFile", "SealedFile", "incoming_files", "is_member", "sealed_files"]

_MEMBER = re.compile(r"m[0-9a-f]{12}\Z")
_SEALED = re.compile(r"([0-9]+)-([0-9]+-[0-9a-f]+)\Z")
_INCOMING = re.compile(r"([0-9]{4,})\.([0-9]+-[0-9]+-[0-9a-f]+)\Z")


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
    named = ((path, _SEALED.match(path.name)) for path in folder.glob("*"))
    found = [SealedFile(int(said[1]), said[2], path) for path, said in named if said and path.is_file()]
    return sorted(found, key=lambda file: (-file.version, file.attempt))


def incoming_files(folder: Path) -> list[IncomingFile]:
    """Return the half-fetched snapshots below ``folder``, by store."""
    named = ((path, _INCOMING.match(path.name)) for path in folder.glob("*/*"))
    return [
        IncomingFile((path.parent.name, int(said[1])), said[2], path) for path, said in named if said and path.is_file()
    ]
