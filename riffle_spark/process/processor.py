"""The seam to a user's processor and to the shape of rows. Knows which calls there are, not their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from riffle_spark.process.session import Session

__all__ = ["Form", "Key", "Processor"]

Key: TypeAlias = tuple[object, ...]


class Processor(Protocol):
    """What a user computes, bound to cells. What its calls return is in the words of a ``Form``."""

    def begin(self) -> None:
        """Begin, once a slot, before all else."""
        ...

    def enter(self, session: Session) -> None:
        """Let the state variables be those of a session."""
        ...

    def initial(self, key: Key, state: object) -> None:
        """Take one initial state of a key."""
        ...

    def rows(self, key: Key, rows: Iterator[object]) -> Iterable[object]:
        """Take a key's rows and return what comes out."""
        ...

    def as_of(self, watermark_ms: int | None) -> None:
        """Let what follows be as of this watermark: rows, and then each pass of timers."""
        ...

    def expired(self, key: Key, due_ms: int) -> Iterable[object]:
        """Take a timer that is due and return what comes out."""
        ...

    def end(self) -> None:
        """End, once a slot, after all else."""
        ...


class Form(Protocol):
    """The shape in which a processor takes rows and gives output."""

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """Return each key as a processor gets it."""
        ...

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield for each key an iterator over its rows: those between two positions."""
        ...

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield for each key an iterator over its initial states."""
        ...

    def take(self, output: Iterable[object]) -> None:
        """Take what one call returned, to its end."""
        ...

    def output(self) -> pa.Table:
        """Return all that was taken, in order, and forget it."""
        ...
