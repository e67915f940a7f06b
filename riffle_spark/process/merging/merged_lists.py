"""Aggregate functions that collect values: CollectList (also array_agg), CollectSet and ListAgg.

Spark's buffers of these functions hold bytes. Here a row's buffer is the value itself, or null.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction
from riffle_spark.process.merging.merged_picks import is_ordered, rank_values


@dataclass(frozen=True, slots=True)
class MergedList(MergeFunction):
    """A list of the values that are not null, in the order of the rows."""

    max_length: int

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's list type."""
        return [pa.list_(buffers[0])] if len(buffers) == 1 else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Append the rows' values to the old list of each group.

        Raises ``UserFunctionError`` if a list gets too long.
        """
        owners, values = _concat_values(rows[0], old[0], groups)
        return [build_lists(owners, values, groups, self.max_length)]

    def merge(self, states: Columns, groups: Groups) -> list[pa.Array]:
        """Fold the elements of the lists of each group. Raises ``UserFunctionError`` if a list gets too long."""
        return self.fold(*_lists_as_rows(states[0], groups))


@dataclass(frozen=True, slots=True)
class MergedSet(MergedList):
    """A list of the distinct values that are not null, in the order of their first rows."""

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's list type; empty if its values have no order, because equal values are found by
        sorting.
        """
        return [pa.list_(buffers[0])] if len(buffers) == 1 and is_ordered(buffers[0]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Append the values that the old list of the group does not have.

        Raises ``UserFunctionError`` if a list gets too long.
        """
        owners, values = _concat_values(rows[0], old[0], groups)
        rank = rank_values(values)
        order = np.lexsort((rank, owners))
        is_new = np.ones(len(order), dtype=np.bool_)
        is_new[1:] = (np.diff(owners[order]) != 0) | (np.diff(rank[order]) != 0)
        firsts = np.sort(order[is_new])
        return [build_lists(owners[firsts], values.take(pa.array(firsts)), groups, self.max_length)]


@dataclass(frozen=True, slots=True)
class MergedText(MergedList):
    """ListAgg without WITHIN GROUP: a list of strings or binary values, joined in the result; null if it is empty."""

    delimiter: str

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the list type for buffers of strings or binary values; empty for others."""
        fits = len(buffers) == 1 and (pa.types.is_string(buffers[0]) or pa.types.is_binary(buffers[0]))
        return [pa.list_(buffers[0])] if fits else ()

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return the values of each list joined by the delimiter; null for an empty list."""
        lists = state[0]
        joined = pc.binary_join(lists, pa.scalar(self.delimiter, lists.type.value_type))
        return [pc.if_else(pc.equal(pc.list_value_length(lists), 0), pa.scalar(None, joined.type), joined)]


def _lists_as_rows(lists: pa.Array, groups: Groups) -> tuple[Columns, Columns, Groups]:
    """Return the arguments with which ``fold`` merges lists: their elements as rows, empty old state, and the group of
    each element.
    """
    owners, values = flatten_lists(lists)
    nulls = pa.nulls(groups.size, lists.type)
    return [values], [nulls], Groups(groups.codes[owners], groups.size, groups.group_text)


def _concat_values(rows: pa.Array, old: pa.Array, groups: Groups) -> tuple[IndexArray, pa.Array]:
    """Return the group and the value of all elements of the old lists, followed by those of the rows that are
    not null.
    """
    owners, stored = flatten_lists(old)
    codes, values = groups.drop_nulls(rows)
    return np.concatenate([owners, codes]), pa.concat_arrays([stored, values])


def flatten_lists(lists: pa.Array) -> tuple[IndexArray, pa.Array]:
    """Return the values of all lists, with the index of the list of each value. Null lists have no values."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return np.repeat(np.arange(len(lists), dtype=np.int64), lengths), lists.flatten()


def build_lists(owners: IndexArray, values: pa.Array, groups: Groups, max_length: int) -> pa.Array:
    """Return each group's values as a list, in their order. Raises ``UserFunctionError`` if a list is too long."""
    lengths = np.bincount(owners, minlength=groups.size)
    _check_lengths(lengths, groups, max_length)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    assert offsets[-1] < 2**31
    sorted_values = values.take(pa.array(np.argsort(owners, kind="stable")))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), sorted_values)


def _check_lengths(lengths: IndexArray, groups: Groups, max_length: int) -> None:
    """Raise ``UserFunctionError`` if the list of a group is longer than ``max_length``."""
    longest = lengths.max(initial=0)
    if longest <= max_length:
        return
    # Cause: collect_list, collect_set and similar functions keep all values of a key in its state.
    raise UserFunctionError(
        f"The list of one key has {longest} values, but the limit is {max_length}.",
        remedy="Collect fewer values, for example per window. A list is read and written as a whole with its key.",
        where=groups.group_text(int(np.argmax(lengths))),
        id="RIFFLE-0181",
    )
