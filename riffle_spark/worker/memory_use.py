"""The memory that this executor's Python worker uses and could still get, from Linux's ``/proc`` and control groups."""

import functools
import resource
from pathlib import Path

_SYSTEM = Path("/")
_NO_LIMIT = 1 << 60
"""A control group of version 1 without a limit has about this limit. Version 2 has a word instead of a number."""


def memory_use(system: Path = _SYSTEM) -> tuple[int, int]:
    """Return the bytes that this process uses, and the bytes that are left to it.

    The machine, the container and the limit on the process's address space bound the second number. It includes file
    pages that can be reclaimed. Both are 0 if the system does not provide them.
    """
    try:
        addresses, used = (int(pages) * resource.getpagesize() for pages in _words(system, "proc/self/statm")[:2])
        available = _number_after(_words(system, "proc/meminfo"), b"MemAvailable:") * 1024
        for limit, usage_file, statistics_file, reclaimable in _control_groups(system):
            cached = _number_after(_words(system, statistics_file), reclaimable)
            available = min(available, limit - int((system / usage_file).read_bytes()) + cached)
        address_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        available = min(available, address_limit - addresses) if address_limit != resource.RLIM_INFINITY else available
    except (OSError, ValueError):
        return 0, 0
    return used, max(available, 0)


def _words(system: Path, name: str) -> list[bytes]:
    return (system / name).read_bytes().split()


def _number_after(words: list[bytes], name: bytes) -> int:
    """Return the number that follows ``name`` among the words of a file. Raises ``ValueError`` if it is missing."""
    return int(words[words.index(name) + 1])


@functools.cache
def _control_groups(system: Path) -> tuple[tuple[int, str, str, bytes], ...]:
    """Return each control group that limits this process.

    Each has the limit, the usage file, the statistics file, and the name of reclaimable bytes in this file.
    """
    groups = []
    for line in (system / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        if controllers:  # version 1
            mount, limit_name, usage_name = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            reclaimable = b"total_inactive_file"
        else:
            mount, limit_name, usage_name = "sys/fs/cgroup", "memory.max", "memory.current"
            reclaimable = b"inactive_file"
        for folder in dict.fromkeys((f"{mount}{path.rstrip('/')}", mount)):
            limit = _limit(system / folder / limit_name)
            if limit < _NO_LIMIT:
                groups.append((limit, f"{folder}/{usage_name}", f"{folder}/memory.stat", reclaimable))
    return tuple(groups)


def _limit(file: Path) -> int:
    """Return the limit in a control group's file, a large number if it has none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return _NO_LIMIT
