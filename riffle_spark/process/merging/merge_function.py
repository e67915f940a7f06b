"""The seam to Spark's aggregate functions: how buffers of many groups merge into what is kept of these groups. Knows
Arrow shapes. Does not know any function, nor where state lies.

A *buffer* is what one of Spark's aggregate functions keeps while it reads rows: one or more columns. A row's *one-row
buffer* is the function's update expression over its initial values. One-row buffers and those that stand for many rows
are merged alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from riffle_spark.process.blocks.block import BoolArray, IndexArray

__all__ = ["Columns", "Groups", "MergeFunction", "are_valid", "chosen"]

Columns: TypeAlias = Sequence[pa.Array]


@dataclass(frozen=True, slots=True)
class Groups:
    """To which group each row belongs.

    ``codes`` holds per row the number of its group, from 0 to ``size`` - 1, the rows being in the declared order if
    there is one. A group may have no row. ``told`` says in an error message which group a number stands for.
    """

    codes: IndexArray
    size: int
    told: Callable[[int], str] = "group {}".format

    def with_old(self) -> IndexArray:
        """Return the codes of what is kept of each group, and then those of the rows."""
        return np.concatenate([np.arange(self.size, dtype=np.int64), self.codes])

    def present(self, values: pa.Array) -> tuple[IndexArray, pa.Array]:
        """Return the codes and the values of the rows that are not null."""
        return (self.codes, values) if values.null_count == 0 else (self.codes[are_valid(values)], values.drop_null())


class MergeFunction(Protocol):
    """How the buffers of one aggregate function merge. A plain picklable object without state of its own."""

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the types of the columns that are kept for buffers of these types; none if these do not fit."""
        ...

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge the rows' buffers into what is kept, one row a group.

        A row of ``old`` that is null in all columns is a group of which nothing is known yet. Folding no rows therefore
        gives what a group without rows has: Spark's initial values, or what is known already.
        """
        ...

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Merge what is kept of several groups into that of one each, as if it had been one from the beginning;
        ``groups`` tells which one each row of ``kept`` becomes part of.

        Where a row's buffers are what is kept, this is folding.
        """
        known = np.logical_or.reduce([are_valid(column) for column in kept])
        rows = [column.filter(pa.array(known)) for column in kept]
        nothing = [pa.nulls(groups.size, column.type) for column in kept]
        return self.fold(rows, nothing, Groups(groups.codes[known], groups.size, groups.told))

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return what is to be evaluated: the buffers for Spark's own expression, or the one column of the result."""
        return list(state)


def are_valid(array: pa.Array) -> BoolArray:
    """Tell which values are not null, in an array of one's own."""
    return np.array(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def chosen(codes: IndexArray, size: int, wanted: IndexArray, latest: bool) -> IndexArray:
    """Return for each group the first or the latest of the wanted places, which ascend; -1 where it has none."""
    places = np.full(size, -1, dtype=np.int64)
    if len(wanted) == len(codes):
        places[codes if latest else codes[::-1]] = wanted if latest else wanted[::-1]
        return places
    ordered = wanted if latest else wanted[::-1]
    places[codes[ordered]] = ordered
    return places
