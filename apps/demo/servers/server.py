"""The interface of all servers: start, wait until ready, stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Server"]

Self = TypeVar("Self", bound="Server")


class Server(ABC):
    """A context manager over ``start``, ``wait_until_ready`` and ``stop``. They may also be called individually."""

    @abstractmethod
    def start(self) -> None:
        """Start without waiting, so that several servers can start in parallel."""

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Wait until the server is ready, up to a limit. Raises ``UnavailableError`` with the end of its log."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and all its processes. Does nothing if it has not started."""

    def __enter__(self: Self) -> Self:
        try:
            self.start()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
