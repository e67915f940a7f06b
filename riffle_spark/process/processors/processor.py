"""The interface of user processors and of row forms, and the input of a slot by key."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.processors.session import Session

Key: TypeAlias = tuple[object, ...]


class Processor(Protocol):
    """A user's processor, bound to state cells. Rows and results are in the form of a ``Form``: rows or pandas."""

    def begin(self) -> None:
        """Start the processor for a slot, before its first key."""
        ...

    def set_session(self, session: Session) -> None:
        """Bind the state variables to a session."""
        ...

    def initial(self, key: Key, state: object) -> None:
        """Pass an initial state of a key to the processor."""
        ...

    def rows(self, key: Key, rows: Iterator[object]) -> Iterable[object]:
        """Pass a key's rows to the processor, and return its output."""
        ...

    def set_watermark(self, watermark_ms: int | None) -> None:
        """Set the watermark of the following calls: of rows, and then of each pass of timers."""
        ...

    def expired(self, key: Key, due_ms: int) -> Iterable[object]:
        """Pass a due timer of a key to the processor, and return its output."""
        ...

    def end(self) -> None:
        """Finish the processor for a slot, after its last key."""
        ...


class Form(Protocol):
    """How a processor gets rows and gives output: as rows, or as pandas frames."""

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """Return each row of a key table in the form that the processor gets."""
        ...

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield for each key an iterator over its rows. ``positions`` has the first row of each key and the end."""
        ...

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield for each key an iterator over its initial states.

        ``positions`` has the first row of each key and the end.
        """
        ...

    def collect(self, output: Iterable[object]) -> None:
        """Add the output of one call of the processor, reading it to its end."""
        ...

    def output(self) -> pa.Table:
        """Return the output collected since the last call, in order."""
        ...


@dataclass(frozen=True, slots=True)
class InputByKey:
    """A slot's input: each key once, with the keys of a key-group together, and the rows sorted by key.

    ``positions`` holds the first row of each key, and the number of rows. ``states`` and ``state_positions`` hold
    initial states in the same way.
    """

    keys: pa.Table
    rows: pa.Table
    positions: Sequence[int]
    states: pa.Table | None = None
    state_positions: Sequence[int] = ()

    @classmethod
    def of(cls, keys: pa.Table, rows: pa.Table, codes: npt.NDArray[np.integer]) -> "InputByKey":
        """Return rows sorted by key.

        ``codes`` has the index of each row's key in ``keys``. Rows of a key keep their order.
        """
        sorted_rows, positions = _sort_by_key(rows, codes, keys.num_rows)
        return cls(keys, sorted_rows, positions)

    def with_states(self, states: pa.Table, codes: npt.NDArray[np.integer]) -> "InputByKey":
        """Return the input with initial states. ``codes`` has the index of each state's key."""
        sorted_states, positions = _sort_by_key(states, codes, self.keys.num_rows)
        return InputByKey(self.keys, self.rows, self.positions, sorted_states, positions)


def _sort_by_key(rows: pa.Table, codes: npt.NDArray[np.integer], key_count: int) -> tuple[pa.Table, list[int]]:
    """Return the rows sorted by the index of their key, and the first row of each key followed by the number of
    rows.
    """
    ends = np.cumsum(np.bincount(codes, minlength=key_count))
    if bool((codes[1:] >= codes[:-1]).all()):
        return rows, [0, *ends.tolist()]
    return rows.take(pa.array(np.argsort(codes, kind="stable"))), [0, *ends.tolist()]


def split_into_windows(positions: Sequence[int], rows_max: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of keys (start, end) that have at most ``rows_max`` rows together.

    A key with more is a range of its own. ``positions`` has the first row of each key and the end.
    """
    first = 0
    key_count = len(positions) - 1
    while first < key_count:
        end = max(bisect_right(positions, positions[first] + rows_max) - 1, first + 1)
        yield first, end
        first = end
