"""One daemon thread for upkeep, and the real clock. Knows threads and time, so that the protocol need not."""

from __future__ import annotations

import threading
import time
from collections import deque
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
        self._work: deque[Callable[[], object]] = deque()
        self._results: deque[object] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Take one piece of work; the thread starts with the first. Once stopped, none is taken."""
        with self._changed:
            if self._stopped.is_set():
                return
            self._work.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="riffle-upkeep", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def collect(self) -> Sequence[object]:
        """Return the results that have come since the last call; failures as exceptions."""
        with self._changed:
            found = list(self._results)
            self._results.clear()
        return found

    def busy(self) -> bool:
        """Tell whether submitted work has not finished yet."""
        with self._changed:
            return self._running or bool(self._work)

    def rest(self, seconds: float) -> None:
        """Wait in the middle of work, or not any longer once it is stopped."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Drop the work that waits and end the thread after the piece that runs. Idempotent; ``ended`` waits for it."""
        with self._changed:
            self._stopped.set()
            self._work.clear()
            self._changed.notify_all()

    def ended(self, seconds: float) -> bool:
        """Wait, after ``stop``, for the piece that runs; tell whether it ended in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def stopped(self) -> bool:
        """Tell whether no more work is taken."""
        return self._stopped.is_set()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - upkeep never fails a batch: the driver looks at it
                result = error
            with self._changed:
                self._results.append(result)
                self._running = False
                self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next piece of work; return ``None`` once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._stopped.is_set())
            if self._stopped.is_set():
                return None
            self._running = True
            return self._work.popleft()
