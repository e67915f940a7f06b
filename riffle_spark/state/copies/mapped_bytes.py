"""The limit on this process's address space (``spark.executor.pyspark.memory``), and the share of it for copies."""

import os
import resource
from pathlib import Path
from typing import Final

__all__ = ["NoRoomForCopies", "address_limit", "mapping_budget", "reserve_no_addresses"]

_STATM: Final = Path("/proc/self/statm")
_SHARE: Final = 0.5
"""Mapped copies get this share of the address space that is left: the rows of a batch need the rest."""


class NoRoomForCopies(MemoryError):
    """The copies that a slot needs at once do not fit into the process's address space."""


def address_limit() -> int | None:
    """Return the limit on this process's address space in bytes, ``None`` without one."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def reserve_no_addresses() -> None:
    """Have Arrow allocate from the system if addresses are limited and the environment says nothing else.

    Its own allocator reserves 1 GiB of addresses with its first allocation. Call this before pyarrow is imported.
    """
    if address_limit() is not None:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def mapping_budget(mapped: int) -> int | None:
    """Return how many bytes of copies may be mapped in all, ``None`` without a limit. ``mapped`` bytes are now."""
    most = address_limit()
    if most is None:
        return None
    try:
        taken = int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return int(most * _SHARE / 2)
    return int((most - taken + mapped) * _SHARE)
