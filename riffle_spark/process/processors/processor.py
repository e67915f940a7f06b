"""The seam to a user's processor and to the shape of rows, and one slot's input by key. Knows which calls there are,
not their order.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.processors.session import Session

__all__ = ["Form", "InputByKey", "Key", "Processor", "windows"]

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


@dataclass(frozen=True, slots=True)
class InputByKey:
    """A slot's input: each key once, those of a key-group together; rows sorted by key, and where each key's begin.

    ``positions`` has one more element than there are keys. ``states`` are initial states in the same way.
    """

    keys: pa.Table
    rows: pa.Table
    positions: Sequence[int]
    states: pa.Table | None = None
    state_positions: Sequence[int] = ()

    @classmethod
    def of(cls, keys: pa.Table, rows: pa.Table, codes: npt.NDArray[np.integer]) -> "InputByKey":
        """Sort rows by the numbers of their keys; rows of a key keep their order."""
        taken, positions = _by_key(rows, codes, keys.num_rows)
        return cls(keys, taken, positions)

    def with_states(self, states: pa.Table, codes: npt.NDArray[np.integer]) -> "InputByKey":
        """Return the same with initial states, given with the numbers of their keys."""
        taken, positions = _by_key(states, codes, self.keys.num_rows)
        return InputByKey(self.keys, self.rows, self.positions, taken, positions)


def _by_key(rows: pa.Table, codes: npt.NDArray[np.integer], keys: int) -> tuple[pa.Table, list[int]]:
    ends = np.cumsum(np.bincount(codes, minlength=keys))
    if bool((codes[1:] >= codes[:-1]).all()):
        return rows, [0, *ends.tolist()]
    return rows.take(pa.array(np.argsort(codes, kind="stable"))), [0, *ends.tolist()]


def windows(positions: Sequence[int], rows_max: int) -> Iterator[tuple[int, int]]:
    """Cut keys into runs, from one key to before another, of at most so many rows; a key with more stands alone."""
    first, last = 0, len(positions) - 1
    while first < last:
        end = max(bisect_right(positions, positions[first] + rows_max) - 1, first + 1)
        yield first, end
        first = end
