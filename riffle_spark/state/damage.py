"""What an error of a local copy's file means. Knows LMDB's words. Does not know what a copy holds."""

from __future__ import annotations

from pathlib import Path

import lmdb

from riffle_spark.errors import CorruptStateError, RiffleError
from riffle_spark.state.localdisk import disk_refused

__all__ = ["CopyInUse", "DamagedCopy", "damaged", "trouble"]

_DISK_SAYS = (
    "No space left", "Input/output", "File too large", "quota exceeded", "Read-only", "Permission denied",
    "Operation not permitted",
)  # fmt: skip
_OPEN_HERE = "already open in this process"


class DamagedCopy(CorruptStateError):
    """A local copy cannot be read. Nothing is lost: ``where`` is its folder, and it is rebuilt from the store."""


class CopyInUse(DamagedCopy):
    """This process has the copy open already, which LMDB forbids: as good as none to whoever needs one, but whole."""


def trouble(folder: Path, error: Exception) -> RiffleError:
    """Return what an error of the file means: a disk that refuses, else damage, as a copy can always be rebuilt."""
    if _OPEN_HERE in str(error):
        return CopyInUse(str(error), remedy="close it first", where=str(folder))
    if not isinstance(error, lmdb.DiskError) and not any(phrase in str(error) for phrase in _DISK_SAYS):
        return damaged(folder, error)
    return disk_refused(f"the local disk refused a write: {error}", folder)


def damaged(folder: Path, error: Exception) -> DamagedCopy:
    """Return the error of a copy that cannot be read."""
    return DamagedCopy(
        f"a local copy is damaged: {error}", remedy="nothing: it is rebuilt from the store", where=str(folder)
    )
