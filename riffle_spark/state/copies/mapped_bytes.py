"""The limit on this process's address space (``spark.executor.pyspark.memory``) and the share for mapped copies."""

import contextlib
import ctypes
import os
import resource
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_SHARE: Final = 0.5
"""The share of the free address space for mapped copies. The rows of a batch need the rest."""
_THREAD_BYTES: Final = 16 << 20
"""The addresses for one thread. Its stack reserves 8 MiB with the usual limit on stacks."""
_ARENA_BYTES: Final = 128 << 20
"""The addresses that glibc reserves for a moment when the first thread creates the second arena."""
_ARENA_MAX_OPTION: Final = -8
"""``M_ARENA_MAX`` of glibc's ``mallopt``."""
_ARENAS: Final = 2


class NoRoomForCopies(MemoryError):
    """The copies that a slot needs at once do not fit into the process's address space."""


def address_limit() -> int | None:
    """Return the limit on this process's address space in bytes, or ``None`` without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def reserve_few_addresses() -> None:
    """Make allocators reserve few addresses if this process's addresses are limited. Settings in the environment take
    precedence.

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
    """Return how many bytes of copies may be mapped, or ``None`` without a limit. ``mapped`` bytes are mapped now."""
    free_bytes = _free_addresses()
    return None if free_bytes is None else int((free_bytes + mapped) * _SHARE)


def threads_within_limit(count: int) -> int:
    """Return how many of ``count`` threads fit into a share of the free address space.

    With 0 the caller does the work in its own thread.
    """
    free_bytes = _free_addresses()
    if free_bytes is None:
        return count
    return max(0, min(count, (int(free_bytes * _SHARE) - _ARENA_BYTES) // _THREAD_BYTES))


def _free_addresses() -> int | None:
    """Return how many bytes of addresses this process may still reserve, or ``None`` without a limit."""
    limit = address_limit()
    if limit is None:
        return None
    try:
        return limit - int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return limit // 2
