"""The interface of aggregate functions: how the buffers of many groups merge.

Theory of operation. Functions are vectorised: each call has the rows of all groups of a batch, as columns, and the
number of the group per row. For ``avg(x)`` of the rows (a, 1.0), (b, 5.0), (a, 3.0), where group 0 is a and group 1 b:

============ ====================================== ========================== ===================================
step         input                                  result                     called
============ ====================================== ========================== ===================================
Spark        the rows                               sum [1, 5, 3],             in the query's plan
                                                    count [1, 1, 1]
``fold``     these, codes [0, 1, 0], no old state   sum [4, 5], count [2, 1]   per batch
``merge``    states, codes                          one state per group        when groups are joined (sessions)
``finish``   the state                              the columns to evaluate    per emitted group
============ ====================================== ========================== ===================================

A state is stored between batches, so functions return new columns and keep nothing. Group numbers hold for one call
only.

A *buffer* holds the intermediate state of a Spark aggregate function in one or more columns. A row's *one-row
buffer* is the function's update expression over its initial values. One-row buffers and buffers of many rows merge in
the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from riffle_spark.process.blocks.block import BoolArray, IndexArray

Columns: TypeAlias = Sequence[pa.Array]


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each row.

    ``codes`` holds the group's number per row, from 0 to ``size`` - 1. Rows are in the declared order, if any.
    A group may have no row. ``group_text`` names a group in error messages.
    """

    codes: IndexArray
    size: int
    group_text: Callable[[int], str] = "group {}".format

    def codes_with_state(self) -> IndexArray:
        """Return the group of each row of the old state (0, 1, ...), followed by the group of each input row."""
        return np.concatenate([np.arange(self.size, dtype=np.int64), self.codes])

    def drop_nulls(self, values: pa.Array) -> tuple[IndexArray, pa.Array]:
        """Return the group and the value of each row whose value is not null."""
        return (self.codes, values) if values.null_count == 0 else (self.codes[are_valid(values)], values.drop_null())


class MergeFunction(Protocol):
    """How the buffers of an aggregate function merge. Implementations are picklable and have no state of their own."""

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the types of the state columns, given the types of the buffer columns of a row; empty if these are not
        supported.
        """
        ...

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge the rows' buffers into the old state, which has one row per group.

        A group whose row of ``old`` is null in all columns has no state. Folding no rows returns the old state, or
        Spark's initial values for such groups.
        """
        ...

    def merge(self, states: Columns, groups: Groups) -> list[pa.Array]:
        """Merge states into a single state per group of ``groups``.

        The default folds states as if they were rows. Functions whose state differs from a row's buffer override it.
        """
        has_state = np.logical_or.reduce([are_valid(column) for column in states])
        rows = [column.filter(pa.array(has_state)) for column in states]
        nulls = [pa.nulls(groups.size, column.type) for column in states]
        return self.fold(rows, nulls, Groups(groups.codes[has_state], groups.size, groups.group_text))

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the columns from which Spark computes the result: the buffers for Spark's own expression, or a single
        column with the result.
        """
        return list(state)


def are_valid(array: pa.Array) -> BoolArray:
    """Return a new mask of the values that are not null."""
    return np.array(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def pick_places(codes: IndexArray, size: int, places: IndexArray, latest: bool) -> IndexArray:
    """Return for each group its first (or with ``latest`` its last) place.

    ``places`` are ascending indices into ``codes``, which has the group of each row. -1 for groups without a place.
    """
    picked = np.full(size, -1, dtype=np.int64)
    if len(places) == len(codes):
        picked[codes if latest else codes[::-1]] = places if latest else places[::-1]
        return picked
    ordered = places if latest else places[::-1]
    picked[codes[ordered]] = ordered
    return picked
