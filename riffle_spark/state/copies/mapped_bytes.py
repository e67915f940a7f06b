"""The limit on this process's address space (``spark.executor.pyspark.memory``), and the share of it for copies."""

import contextlib
import ctypes
import os
import resource
from pathlib import Path
from typing import Final

__all__ = ["NoRoomForCopies", "address_limit", "mapping_budget", "reserve_no_addresses", "threads_within_limit"]

_STATM: Final = Path("/proc/self/statm")
_SHARE: Final = 0.5
"""Mapped copies get this share of the address space that is left: the rows of a batch need the rest."""
_THREAD_BYTES: Final = 16 << 20
"""A thread's stack reserves 8 MiB of addresses, unless the shell's limit on stacks is another."""
_ARENA_BYTES: Final = 128 << 20
"""glibc reserves as much for a moment when the first thread makes the second arena, and keeps half of it."""
_ARENA_MAX_OPTION: Final = -8
"""``M_ARENA_MAX`` of glibc's ``mallopt``."""
_ARENAS: Final = 2


class NoRoomForCopies(MemoryError):
    """The copies that a slot needs at once do not fit into the process's address space."""


def address_limit() -> int | None:
    """Return the limit on this process's address space in bytes, ``None`` without one."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def reserve_no_addresses() -> None:
    """Have allocators reserve few addresses if addresses are limited. Settings in the environment take precedence.

    Arrow's own allocator reserves 1 GiB with its first allocation, so Arrow uses the system's. The allocator of glibc
    reserves 64 MiB for each new thread, so threads share arenas. Call this before pyarrow is imported.
    """
    if address_limit() is None:
        return
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such option
            ctypes.CDLL(None).mallopt(_ARENA_MAX_OPTION, _ARENAS)


def mapping_budget(mapped: int) -> int | None:
    """Return how many bytes of copies may be mapped in all, ``None`` without a limit. ``mapped`` bytes are now."""
    left = _addresses_left()
    return None if left is None else int((left + mapped) * _SHARE)


def threads_within_limit(wanted: int) -> int:
    """Return how many of the wanted threads to start: their stacks and their arena get a share of the address space
    that is left.

    With 0 the caller does the work in its own thread.
    """
    left = _addresses_left()
    if left is None:
        return wanted
    return max(0, min(wanted, (int(left * _SHARE) - _ARENA_BYTES) // _THREAD_BYTES))


def _addresses_left() -> int | None:
    """Return how many bytes of addresses this process may still take, ``None`` without a limit."""
    most = address_limit()
    if most is None:
        return None
    try:
        return most - int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return most // 2
