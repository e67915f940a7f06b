"""What memory this executor's Python takes, and what it could have besides. Knows what Linux tells of a process, its
container and the machine. Does not know who asks.
"""

import functools
import resource
from pathlib import Path

__all__ = ["memory_use"]

_SYSTEM = Path("/")
_NO_LIMIT = 1 << 60
"""A control group that bounds nothing says about this much, or a word."""


def memory_use(system: Path = _SYSTEM) -> tuple[int, int]:
    """Return the bytes that this process takes, and those that could be had besides: what its container has left, else
    the machine, or its own limit on addresses. Zeros where the system does not tell. Files that can be given up count
    as left.
    """
    try:
        addresses, taken = (int(pages) * resource.getpagesize() for pages in _read(system, "proc/self/statm")[:2])
        left = _after(_read(system, "proc/meminfo"), b"MemAvailable:") * 1024
        for most, usage, stat, idle in _groups(system):
            cached = _after((system / stat).read_bytes().split(), idle)
            left = min(left, most - int((system / usage).read_bytes()) + cached)
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        left = min(left, most - addresses) if most != resource.RLIM_INFINITY else left
    except (OSError, ValueError):
        return 0, 0
    return taken, max(left, 0)


def _read(system: Path, name: str) -> list[bytes]:
    return (system / name).read_bytes().split()


def _after(words: list[bytes], name: bytes) -> int:
    return int(words[words.index(name) + 1])


@functools.cache
def _groups(system: Path) -> tuple[tuple[int, str, str, bytes], ...]:
    """Return the control groups that bound this process: bytes, files of use and statistics, what is given up there."""
    found = []
    for line in (system / "proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        version = ("sys/fs/cgroup", "memory.max", "memory.current", b"inactive_file")
        if kinds:
            version = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file")
        below, limit, usage, idle = version
        for folder in dict.fromkeys((f"{below}{path.rstrip('/')}", below)) if kinds in ("", "memory") else ():
            most = _limit(system / folder / limit)
            if most < _NO_LIMIT:
                found.append((most, f"{folder}/{usage}", f"{folder}/memory.stat", idle))
    return tuple(found)


def _limit(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return _NO_LIMIT
