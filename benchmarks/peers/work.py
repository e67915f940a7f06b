"""The work of every engine in this benchmark, and the interface of a group of its processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Group", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Count and sum of every key. Rows are from a generator or a topic, and results are discarded or sent to a topic.

    ``payload`` is the number of additional random bytes in a key's state. ``each_ms`` is the interval of checkpoints or
    commits. Engines with batches start one every ``trigger_ms``, with at most ``batch_rows`` rows.
    """

    name: str
    folder: Path
    keys: int
    bootstrap: str = ""
    topic: str = ""
    out: str = ""
    payload: int = 0
    each_ms: int = 2000
    trigger_ms: int = 0
    batch_rows: int = 100_000
    guarantee: str = ""
    standbys: int = 0
    partitions: int = 4

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of a program for this work, without empty fields."""
        return {name: str(value) if name == "folder" else value for name, value in asdict(self).items() if value}


class Group(ABC):
    """The processes of an engine with two or more members. Members may be killed and added."""

    @abstractmethod
    def start(self, members: int) -> None:
        """Start this number of members. It may return before they are ready."""

    @abstractmethod
    def rows(self) -> int:
        """Return the number of processed rows so far."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether all processed rows are durable, and all standbys have caught up."""

    @abstractmethod
    def kill(self) -> None:
        """Kill one member with SIGKILL, as if its machine died."""

    @abstractmethod
    def add(self) -> None:
        """Start one more member."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``UnavailableError``, with the end of a log, if a process has ended unexpectedly."""
