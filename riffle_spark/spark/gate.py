"""The gate before a batch: open, or closed while the query is paused. Knows threads. Does not know what a batch is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from riffle_spark.errors import UnavailableError

__all__ = ["Gate", "Stopped"]

_LOOK_SECONDS = 0.2


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
        """Hold the gate for a batch, once it is open. Raises ``Stopped`` if the query is stopped before that."""
        with self._changed:
            while self._closed:
                if is_stopping():
                    raise Stopped
                self._changed.wait(_LOOK_SECONDS)
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
                    f"the batch under way did not end within {seconds:g} s", remedy="ask again once it has ended"
                )
            yield
