"""Measure the memory of a process and its descendants."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

__all__ = ["PeakMemory", "pss_kb"]

PERIOD_SECONDS = 0.5


class PeakMemory:
    """Samples the proportional set sizes of a process and its descendants, which together count a shared page once.

    ``peak_mb`` is the largest sum seen at one time. Pages of mapped files count while they are resident.
    """

    def __init__(self, pid: int, period_seconds: float = PERIOD_SECONDS) -> None:
        self.peak_mb = 0.0
        self._pid = pid
        self._period_seconds = period_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        # Its package imports clients of Kafka and S3, which would count as memory of a side without servers.
        from apps.demo.servers.guard import descendants

        while not self._over.wait(self._period_seconds):
            kb = sum(_pss_of(pid) for pid in (self._pid, *descendants(self._pid)))
            self.peak_mb = max(self.peak_mb, kb / 1024)


def _pss_of(pid: int) -> int:
    try:
        return pss_kb(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:  # the process has ended
        return 0


def pss_kb(rollup: str) -> int:
    """Return the proportional set size in the text of ``smaps_rollup``; 0 if the text has none."""
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
