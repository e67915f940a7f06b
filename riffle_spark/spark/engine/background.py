"""One daemon thread for upkeep, the gate before a batch, an alarm, a pulse, the real clock and random ids. Knows
threads, time and chance, so that the protocol need not.
"""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.ports import Lock

__all__ = ["Alarm", "BackgroundThread", "Gate", "Pulse", "Stopped", "SystemClock", "random_id"]

_logger = logging.getLogger("riffle_spark")
_GATE_LOOK_SECONDS = 0.2
_AGAIN_MS = 1_000
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_WAIT_SECONDS = 600.0
"""An alarm looks at the clock now and then, which may be set."""


def _report(what: str, error: BaseException) -> None:
    """Warn, with the traceback, of an error that would have ended a thread silently, such as ``SystemExit``."""
    _logger.warning("[RIFFLE-0273] %s ended with %r and is tried again later", what, error, exc_info=error)


def random_id() -> str:
    """Return a new random id, hexadecimal."""
    return uuid.uuid4().hex


class SystemClock:
    """Implements ``protocol.ports.Clock``."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.perf_counter()


class Alarm:
    """Calls a function, from a thread of its own, once it is a certain time."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._stopped = False

    def set(self, until_ms: int) -> None:
        """Ring at that time, and not at the time that it was set to before."""
        seconds = min((until_ms - self._clock.wall_ms()) / 1000, _LONGEST_WAIT_SECONDS)
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if not self._stopped:
                self._timer = threading.Timer(max(seconds, 0.0), self._awake, [until_ms])
                self._timer.daemon = True
                self._timer.start()

    def stop(self) -> None:
        """Ring no more. Idempotent."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()

    def _awake(self, until_ms: int) -> None:
        if self._clock.wall_ms() < until_ms:
            self.set(until_ms)
            return
        try:
            self._ring()
        except BaseException as error:  # noqa: BLE001 - the timer's thread would end silently
            _report("the alarm for keys that are due", error)
            self.set(self._clock.wall_ms() + _AGAIN_MS)


class Pulse:
    """Calls a function from a daemon thread, each time ``seconds`` after it has returned, until it returns ``False`` or
    the pulse is stopped. If the function raises, a warning is logged and the pause doubles, up to a minute.
    """

    def __init__(self, beat: Callable[[], bool], seconds: float) -> None:
        self._beat = beat
        self._seconds = seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Beat from now on, also where it was over before; not once it is stopped. Idempotent."""
        with self._lock:
            if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="riffle-pulse", daemon=True)
            self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Beat no more; wait for the beat under way and tell whether it ended in time. Idempotent."""
        self._stopped.set()
        return self.ended(seconds)

    def ended(self, seconds: float) -> bool:
        """Wait for the end of the thread; tell whether it came in time."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        pause = self._seconds
        while not self._stopped.wait(pause):
            try:
                if not self._beat():
                    return
                pause = self._seconds
            except BaseException as error:  # noqa: BLE001 - the thread would end silently
                _report("a look between batches", error)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class BackgroundThread:
    """Implements ``protocol.ports.Background``: work runs one piece after the other, beside the batches.

    No error of a piece ends the thread, not even ``SystemExit`` or ``KeyboardInterrupt``. The driver gets the error as
    the piece's result, warns, and tries again later.
    """

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

    def lock(self) -> Lock:
        """Return a new lock."""
        return threading.Lock()

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

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - upkeep never fails a batch: the driver looks at it
                result = error
                if not isinstance(error, Exception):
                    _report("a piece of upkeep", error)
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


class Stopped(Exception):
    """The query was asked to stop while it was paused."""


class Gate:
    """Lets one batch through at a time, and none while it is closed. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._inside = False

    @property
    def closed(self) -> bool:
        """Whether no batch gets through."""
        return self._closed

    def close(self) -> None:
        """Let no further batch through. Idempotent."""
        with self._changed:
            self._closed = True

    def open(self) -> None:
        """Let batches through. Idempotent."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    @contextmanager
    def batch(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Hold the gate for a batch, once it is open and free. Raises ``Stopped`` if the query is stopped before."""
        with self._changed:
            while self._closed or self._inside:
                if is_stopping():
                    raise Stopped
                self._changed.wait(_GATE_LOOK_SECONDS)
            self._inside = True
        try:
            yield
        finally:
            with self._changed:
                self._inside = False
                self._changed.notify_all()

    @contextmanager
    def quiet(self, seconds: float) -> Iterator[None]:
        """Hold the closed gate while no batch is under way.

        Raises ``UnavailableError`` if the batch that is under way does not end within ``seconds``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._inside, seconds):
                raise UnavailableError(
                    f"the batch under way did not end within {seconds:g} s",
                    remedy="ask again once it has ended",
                    id="RIFFLE-0274",
                )
            yield
