"""Provide the clock, random ids and threads: the upkeep thread, an alarm, a pulse, and the gate before a batch."""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.ports import Lock

_logger = logging.getLogger("riffle_spark")
_GATE_LOOK_SECONDS = 0.2
_AGAIN_MS = 1_000
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_WAIT_SECONDS = 600.0
"""An alarm rechecks the clock at this interval, because someone may set the clock."""


def _warn(work: str, error: BaseException) -> None:
    """Log an error of background ``work`` with its traceback. Otherwise the thread would end silently."""
    # Cause: A background thread raised an error. Batches continue.
    _logger.warning(
        "[RIFFLE-0273] %s failed with %r and is retried later.\n"
        "  What to do: Do nothing. If it fails again and again, remove the cause in the traceback.",
        work,
        error,
        exc_info=error,
    )


def random_id() -> str:
    """Return a new random id, hexadecimal."""
    return uuid.uuid4().hex


class SystemClock:
    """Implements ``protocol.ports.Clock``."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.perf_counter()


class Alarm:
    """Calls ``ring`` on a separate thread at a certain time."""

    def __init__(self, ring: Callable[[], object]) -> None:
        """Create an alarm that is not set. ``ring`` is the function to call."""
        self._ring = ring
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._stopped = False

    def set(self, until_ms: int) -> None:
        """Set the time of the call (milliseconds since the epoch). It replaces an earlier time."""
        seconds = min((until_ms - self._clock.wall_ms()) / 1000, _LONGEST_WAIT_SECONDS)
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if not self._stopped:
                self._timer = threading.Timer(max(seconds, 0.0), self._wake, [until_ms])
                self._timer.daemon = True
                self._timer.start()

    def stop(self) -> None:
        """Cancel the call, and accept no new one. May be called more than once."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()

    def _wake(self, until_ms: int) -> None:
        """Call the function if it is due, else set the timer again. Retry after an error."""
        if self._clock.wall_ms() < until_ms:
            self.set(until_ms)
            return
        try:
            self._ring()
        except BaseException as error:  # noqa: BLE001 - the timer's thread would end silently
            _warn("The alarm for due keys", error)
            self.set(self._clock.wall_ms() + _AGAIN_MS)


class Pulse:
    """Calls ``beat`` on a daemon thread until it returns ``False`` or the pulse is stopped.

    It pauses for ``seconds`` between calls. If the function raises, it logs a warning and doubles the pause, up to a
    minute.
    """

    def __init__(self, beat: Callable[[], bool], seconds: float) -> None:
        """Create a pulse that is not started."""
        self._beat = beat
        self._seconds = seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the calls, or start them again after ``beat`` returned ``False``. After ``stop`` do nothing.

        May be called more than once.
        """
        with self._lock:
            if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="riffle-pulse", daemon=True)
            self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Make no more calls. Wait for the current call and return whether it ended in time. Idempotent."""
        self._stopped.set()
        return self.ended(seconds)

    def ended(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end of the thread, and return whether it ended."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        """Call ``beat`` until it returns ``False`` or the pulse is stopped."""
        pause = self._seconds
        while not self._stopped.wait(pause):
            try:
                if not self._beat():
                    return
                pause = self._seconds
            except BaseException as error:  # noqa: BLE001 - the thread would end silently
                _warn("Work between batches", error)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class BackgroundThread:
    """Implements ``protocol.ports.Background``: runs pieces of work one by one on a daemon thread.

    No error of a piece ends the thread, not even ``SystemExit`` or ``KeyboardInterrupt``. The driver gets the error as
    the result of the piece, logs it, and retries later.
    """

    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._results: deque[object] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Add a piece of work. The first piece starts the thread. After ``stop`` it is dropped."""
        with self._changed:
            if self._stopped.is_set():
                return
            self._work.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="riffle-upkeep", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def collect(self) -> Sequence[object]:
        """Return the results since the last call. A failed piece has its exception as result."""
        with self._changed:
            results = list(self._results)
            self._results.clear()
        return results

    def is_busy(self) -> bool:
        """Return whether submitted work is unfinished."""
        with self._changed:
            return self._running or bool(self._work)

    def rest(self, seconds: float) -> None:
        """Sleep inside a piece of work. Return at once after ``stop``."""
        self._stopped.wait(seconds)

    def lock(self) -> Lock:
        """Return a new lock."""
        return threading.Lock()

    def stop(self) -> None:
        """Drop waiting work, and end the thread after the current piece of work. Idempotent. Use ``ended`` to wait."""
        with self._changed:
            self._stopped.set()
            self._work.clear()
            self._changed.notify_all()

    def ended(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end of the current piece; return whether it ended. Call it after ``stop``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def _run(self) -> None:
        """Run the pieces of work one by one until ``stop``."""
        while (work := self._next()) is not None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the driver handles it; upkeep never fails a batch
                result = error
                if not isinstance(error, Exception):
                    _warn("A piece of upkeep", error)
            with self._changed:
                self._results.append(result)
                self._running = False
                self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next piece of work. Return ``None`` after ``stop``."""
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._stopped.is_set())
            if self._stopped.is_set():
                return None
            self._running = True
            return self._work.popleft()


class Stopped(Exception):
    """The query was stopped while it was paused."""


class Gate:
    """Admits one batch at a time, and no batch while it is closed. Any thread may call its methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed_since_ms: int | None = None
        self._inside = False
        self._waiting = 0

    @property
    def closed(self) -> bool:
        """Return whether the gate admits no batch."""
        return self._closed_since_ms is not None

    @property
    def closed_since_ms(self) -> int | None:
        """The time at which the gate was closed, in milliseconds since the epoch; ``None`` if it is open."""
        return self._closed_since_ms

    @property
    def has_waiting_batch(self) -> bool:
        """Whether a batch waits for the gate to open."""
        return self._waiting > 0

    def close(self) -> None:
        """Admit no further batch. May be called more than once."""
        with self._changed:
            if self._closed_since_ms is None:
                self._closed_since_ms = SystemClock().wall_ms()

    def open(self) -> None:
        """Admit batches again. May be called more than once."""
        with self._changed:
            self._closed_since_ms = None
            self._changed.notify_all()

    @contextmanager
    def batch(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Wait until the gate is open and no other batch holds it, and hold it during the block.

        Raise ``Stopped`` if ``is_stopping`` returns true while it waits.
        """
        with self._changed:
            self._waiting += 1
            try:
                while self.closed or self._inside:
                    if is_stopping():
                        raise Stopped
                    self._changed.wait(_GATE_LOOK_SECONDS)
            finally:
                self._waiting -= 1
            self._inside = True
        try:
            yield
        finally:
            with self._changed:
                self._inside = False
                self._changed.notify_all()

    @contextmanager
    def quiet(self, seconds: float) -> Iterator[None]:
        """Wait until no batch runs, and hold the closed gate during the block.

        Raise ``UnavailableError`` if the current batch does not end within ``seconds``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._inside, seconds):
                # Cause: The call needs the pause between two batches, and the current batch is slow or its sink waits.
                raise UnavailableError(
                    f"The current batch did not end within {seconds:g} s.",
                    remedy="Retry after the batch.",
                    id="RIFFLE-0274",
                )
            yield
