"""Read the CPU time of a driver and of all processes below it, by kind of process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["KINDS", "cpu_ms_by_kind", "jvm_cpu_ms_by_thread", "jvm_of", "tree_of"]

KINDS = ("driver", "jvm", "forks", "workers")
"""Python's driver, Spark's JVM, processes that the JVM forked and that have ended, and Python workers."""
_MS_PER_TICK = 1000 / os.sysconf("SC_CLK_TCK")
_OWN = slice(11, 13)
_CHILDREN = slice(13, 15)
"""utime and stime, cutime and cstime in ``/proc/PID/stat``, counted from behind the program's name."""


def tree_of(pid: int) -> list[int]:
    """Return a process and its live descendants, parents first."""
    tree = [pid]
    for parent in tree:
        try:
            lists = [path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children")]
        except OSError:  # the process has ended
            continue
        tree += [int(child) for text in lists for child in text.split()]
    return tree


def jvm_of(pid: int) -> int | None:
    """Return the process of Spark's JVM below a driver, ``None`` if there is none."""
    return next((each for each in tree_of(pid) if _name(each) == "java"), None)


def cpu_ms_by_kind(pid: int) -> dict[str, float]:
    """Return the CPU milliseconds of the driver ``pid`` and of the processes below it since their start, by kind."""
    used = dict.fromkeys(KINDS, 0.0)
    jvm = jvm_of(pid)
    for each in tree_of(pid):
        own, children = _times(f"/proc/{each}/stat")
        if each == jvm:
            used["jvm"] += own
            used["forks"] += children
        else:
            used["driver" if each == pid else "workers"] += own + (0 if each == pid else children)
    return used


def jvm_cpu_ms_by_thread(pid: int) -> dict[str, float]:
    """Return the CPU milliseconds of the JVM below a driver by the first word of the names of its threads."""
    used: dict[str, float] = {}
    for task in Path(f"/proc/{jvm_of(pid)}/task").glob("*"):
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # the thread has ended
            continue
        own, _ = _times(str(task / "stat"))
        used[name] = used.get(name, 0.0) + own
    return used


def _name(pid: int) -> str:
    """Return the name of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _times(stat: str) -> tuple[float, float]:
    """Return the CPU milliseconds of a process or thread, and of its reaped children. Both are 0 if it has ended."""
    try:
        fields = Path(stat).read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    own = sum(map(int, fields[_OWN]))
    return own * _MS_PER_TICK, sum(map(int, fields[_CHILDREN])) * _MS_PER_TICK
