"""The interface of all servers: start, wait until ready, stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Server"]

Self = TypeVar("Self", bound="Server")


class Server(ABC):
    """A context manager over ``start``, ``wait_until_ready`` and ``stop``, which may also be called one by one."""

    @abstractmethod
    def start(self) -> None:
        """Begin to start, so that several servers can start beside each other."""

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Wait, bounded, until it serves; raise UnavailableError with the end of its log if it does not."""

    @abstractmethod
    def stop(self) -> None:
        """End it and all it started; harmless when it has not started."""

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
