"""What every engine of this benchmark is given to do, and what a group of its processes is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Group", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Count and sum of every key: rows from a generator, or from a topic; results to nobody, or to a topic.

    ``payload`` is how many bytes of noise a key's state has beside them. An engine that checkpoints or commits now and
    then does it each ``each_ms``; one of batches has at most ``batch_rows`` a batch and begins one each ``trigger_ms``.
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
    def told(self) -> dict[str, object]:
        """Return it as a program is told it: what is not said is left out."""
        return {name: str(value) if name == "folder" else value for name, value in asdict(self).items() if value}


class Group(ABC):
    """An engine's processes at work on two members or more, of which some die and others come."""

    @abstractmethod
    def start(self, members: int) -> None:
        """Begin to start."""

    @abstractmethod
    def rows(self) -> int:
        """How many rows have been added up so far."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether what has been added up is safe, standbys included."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to one member, as when its machine dies."""

    @abstractmethod
    def add(self) -> None:
        """Start one more member."""

    @abstractmethod
    def stop(self) -> None:
        """End all of it."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``UnavailableError`` with the end of a log if something of it has ended by itself."""
