"""One slot's input, by key. Knows the numbers of keys and where their rows are. Does not know key-groups or forms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Grouped", "windows"]


@dataclass(frozen=True, slots=True)
class Grouped:
    """A slot's input: each key once, those of a key-group together; rows sorted by key, and where each key's begin.

    ``positions`` has one more element than there are keys. ``states`` are initial states in the same way.
    """

    keys: pa.Table
    rows: pa.Table
    positions: Sequence[int]
    states: pa.Table | None = None
    state_positions: Sequence[int] = ()

    @classmethod
    def of(cls, keys: pa.Table, rows: pa.Table, codes: npt.NDArray[np.integer]) -> Grouped:
        """Sort rows by the numbers of their keys; rows of a key keep their order."""
        taken, positions = _by_key(rows, codes, keys.num_rows)
        return cls(keys, taken, positions)

    def with_states(self, states: pa.Table, codes: npt.NDArray[np.integer]) -> Grouped:
        """Return the same with initial states, given with the numbers of their keys."""
        taken, positions = _by_key(states, codes, self.keys.num_rows)
        return Grouped(self.keys, self.rows, self.positions, taken, positions)


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
