"""Draw rows of a few groups, and merge their buffers in every way that a running query can.

A query merges all rows at once, batch after batch, or the states of single batches together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction

__all__ = ["SIZE", "DrawnRows", "merged_ways", "rows_of_groups"]

T = TypeVar("T")
SIZE = 4
"""The number of groups. The last group never has a row."""


@dataclass(frozen=True)
class DrawnRows(Generic[T]):
    """Rows with the numbers of their groups. The batches end at the positions ``ends``, and some batches are empty."""

    codes: list[int]
    values: list[T]
    ends: list[int]

    def of(self, group: int) -> list[T]:
        """Return the values of a group in their order."""
        return [value for code, value in zip(self.codes, self.values, strict=True) if code == group]


@st.composite
def rows_of_groups(draw: st.DrawFn, values: st.SearchStrategy[T]) -> DrawnRows[T]:
    """Draw rows and the ends of their batches."""
    drawn = draw(st.lists(st.tuples(st.integers(0, SIZE - 2), values), max_size=12))
    ends = sorted(draw(st.lists(st.integers(0, len(drawn)), max_size=3)))
    return DrawnRows([code for code, _ in drawn], [value for _, value in drawn], [*ends, len(drawn)])


def merged_ways(
    merge: MergeFunction, types: Sequence[pa.DataType], rows: DrawnRows[T], buffer: Callable[[T], tuple[Any, ...]]
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the results per group for each way of merging. ``buffer`` returns the buffer of a row with a value."""
    row_buffers = [buffer(value) for value in rows.values]
    columns = [pa.array([row[i] for row in row_buffers], type) for i, type in enumerate(types)]
    codes, state = np.array(rows.codes, dtype=np.int64), merge.state_types(types)
    nothing: Columns = [pa.nulls(SIZE, type) for type in state]
    state_columns, partial = nothing, [nothing]
    for start, end in zip([0, *rows.ends], rows.ends, strict=False):
        batch, groups = [column.slice(start, end - start) for column in columns], Groups(codes[start:end], SIZE)
        state_columns = merge.fold(batch, state_columns, groups)
        partial.append(merge.fold(batch, nothing, groups))
    ways = [state_columns, merge.fold(columns, nothing, Groups(codes, SIZE))]
    states = [pa.concat_arrays(parts) for parts in zip(*partial, strict=True)]
    of_groups = Groups(np.tile(np.arange(SIZE), len(partial)), SIZE)
    ways.append(merge.merge(states, of_groups))
    if list(state) == list(types):
        ways.append(merge.fold(states, nothing, of_groups))
    ways.append(merge.fold([column.slice(0, 0) for column in columns], state_columns, Groups(codes[:0], SIZE)))
    for way in ways:
        assert [column.type for column in way] == list(state)
        finished = [column.to_pylist() for column in merge.finish(way)]
        yield list(zip(*finished, strict=True))
