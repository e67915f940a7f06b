"""Print a line every few seconds while nothing else is printed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["Waiting"]

SILENT_SECONDS = 4.0


class Waiting:
    """Prints ``describe()`` and the waiting time after ``seconds`` without output.

    Call ``note_output`` after each output.
    """

    def __init__(
        self, say: Callable[[str], object], describe: Callable[[], str], seconds: float = SILENT_SECONDS
    ) -> None:
        self._say = say
        self._what = describe
        self._seconds = seconds
        self._began = self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waiting", daemon=True)

    def note_output(self) -> None:
        """Restart the waiting time."""
        self._last = time.monotonic()

    def _run(self) -> None:
        while not self._ended.wait(max(0.0, self._last + self._seconds - time.monotonic())):
            current = time.monotonic()
            if current - self._last >= self._seconds:
                self._say(f"  {current - self._began:.0f} s: {self._what()}")
                self._last = current

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
