"""One daemon thread for upkeep, and the real clock. Knows threads and time, so that the protocol need not."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

__all__ = ["SystemClock", "Worker"]


class SystemClock:
    """Implements ``protocol.ports.Clock``."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.perf_counter()


class Worker:
    """Implements ``protocol.ports.Background``: work runs one piece after the other, beside the batches."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Take one piece of work; the thread starts with the first."""
        with self._lock:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="riffle-upkeep", daemon=True)
                self._thread.start()
        self._work.put(work)

    def collect(self) -> Sequence[object]:
        """Return the results that have come since the last call; failures as exceptions."""
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def busy(self) -> bool:
        """Tell whether submitted work has not finished yet."""
        with self._lock:
            return self._pending > 0

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                self._results.put(work())
            except Exception as error:  # noqa: BLE001 - upkeep never fails a batch: the driver looks at it
                self._results.put(error)
            finally:
                with self._lock:
                    self._pending -= 1
