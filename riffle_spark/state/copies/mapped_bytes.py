"""The limit on this process's addresses (``spark.executor.pyspark.memory``), and what mapped copies may take of it."""

import resource
from pathlib import Path
from typing import Final

__all__ = ["NoRoomForCopies", "address_limit", "mapping_budget"]

_STATM: Final = Path("/proc/self/statm")
_SHARE: Final = 0.5
"""Mapped copies get this share of the addresses that are left: the rows of a batch need the rest."""


class NoRoomForCopies(MemoryError):
    """The copies that a slot needs at once do not fit into the process's addresses."""


def address_limit() -> int | None:
    """Return the most bytes of addresses that this process may take, ``None`` without a limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def mapping_budget(mapped: int) -> int | None:
    """Return how many bytes may be mapped, of which so many are already; ``None`` without a limit."""
    most = address_limit()
    if most is None:
        return None
    try:
        taken = int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return int(most * _SHARE / 2)
    return int((most - taken + mapped) * _SHARE)
