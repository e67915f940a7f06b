"""Measure the CPU time of processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["BatchCpu", "own_cpu_s", "tree_cpu_s"]

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
OWN_TIMES = slice(11, 13)
"""utime and stime in ``/proc/PID/stat``, as indexes of the fields after the program's name."""
CHILDREN_TIMES = slice(11, 15)
"""utime, stime, cutime and cstime in the same file."""


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process and its descendants have used, also those that ended and were reaped."""
    ticks = 0
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            fields = _fields(current)
            children = [path.read_text().split() for path in Path(f"/proc/{current}/task").glob("*/children")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[CHILDREN_TIMES]))
        waiting += [int(child) for several in children for child in several]
    return ticks / TICKS_PER_SECOND


def own_cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds of these processes without their children. A process that has ended counts nothing."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, _fields(pid)[OWN_TIMES]))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ticks / TICKS_PER_SECOND


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class BatchCpu:
    """The CPU time per batch of this process and its descendants (JVM, Python workers), and of a separate server.

    The first ``warm_up`` batches do not count. ``server_pids`` are the processes of the server.
    """

    def __init__(
        self,
        warm_up: int,
        server_pids: Sequence[int] = (),
        read: Callable[[Sequence[int]], tuple[float, float]] | None = None,
    ) -> None:
        self._warm_up = warm_up
        self._pids = server_pids
        self._read = read or (lambda pids: (tree_cpu_s(os.getpid()), own_cpu_s(pids)))
        self._first: tuple[int, float, float] | None = None
        self._last: tuple[int, float, float] | None = None

    def record_batches(self, batches: int, *, is_last: bool = False) -> None:
        """Record the number of completed batches. Only the first call after the warm-up and the last call measure."""
        if batches >= self._warm_up and (self._first is None or is_last):
            sample = (batches, *self._read(self._pids))
            self._first = self._first or sample
            self._last = sample

    def figures(self) -> dict[str, float]:
        """Return ``cpu_ms`` and ``server_cpu_ms`` per batch, or an empty dictionary if no batch was measured."""
        if self._first is None or self._last is None or self._last[0] == self._first[0]:
            return {}
        batches = self._last[0] - self._first[0]
        names = ("cpu_ms", "server_cpu_ms")
        return {
            name: 1000 * (end - start) / batches
            for name, start, end in zip(names, self._first[1:], self._last[1:], strict=True)
        }
