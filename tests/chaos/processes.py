"""Find executors, drivers, Python workers and holders of locks among the processes of a run, and signal them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from apps.demo.servers.guard import descendants

__all__ = ["busiest", "drivers", "executors", "holders", "python_workers", "send"]

_TICKS_AFTER_NAME = 11
LOOK_SECONDS = 0.1


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether the process existed."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def executors(pids: Iterable[int]) -> list[int]:
    """Return the processes that are Spark executors."""
    return [pid for pid in pids if "--executor-id" in _arguments(pid)]


def drivers(pids: Iterable[int], script: str) -> tuple[list[int], list[int]]:
    """Return the Java processes and the Python processes of a driver's script."""
    running = [pid for pid in pids if any(argument.endswith(script) for argument in _arguments(pid))]
    python = [pid for pid in running if Path(_arguments(pid)[0]).name.startswith("python")]
    return [pid for pid in running if Path(_arguments(pid)[0]).name == "java"], python


def python_workers(executor: int) -> list[int]:
    """Return the Python workers of an executor, without the daemon that forks them."""
    daemons = [pid for pid in descendants(executor) if "pyspark.daemon" in _arguments(pid)]
    return [pid for pid in daemons if _parent(pid) in daemons]


def busiest(pids: Iterable[int]) -> int | None:
    """Return the process that uses most CPU during a short time, or ``None`` if all are idle."""
    ticks_before = {pid: _ticks(pid) for pid in pids}
    time.sleep(LOOK_SECONDS)
    used = {pid: _ticks(pid) - ticks for pid, ticks in ticks_before.items()}
    busiest = max(used, key=lambda pid: used[pid], default=None)
    return busiest if busiest is not None and used[busiest] > 0 else None


def holders(locks: Iterable[Path]) -> list[int]:
    """Return the processes that hold an exclusive lock on one of these files."""
    nodes = set()
    for path in locks:
        with suppress(OSError):
            nodes.add(path.stat().st_ino)
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    exclusive_locks = (words for words in lines if words[1] == "FLOCK" and words[3] == "WRITE")
    return [int(words[4]) for words in exclusive_locks if int(words[5].rsplit(":", 1)[1]) in nodes]


def _arguments(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def _fields(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _parent(pid: int) -> int:
    return int((_fields(pid) or ["", "-1"])[1])


def _ticks(pid: int) -> int:
    fields = _fields(pid)
    return sum(int(field) for field in fields[_TICKS_AFTER_NAME : _TICKS_AFTER_NAME + 2]) if fields else 0
