"""What merges by collecting values: CollectList, which is array_agg too, CollectSet, ListAgg. Knows how many one group
may hold. Does not know Spark's buffers of them, which hold bytes: a row's buffer is the value itself here, null where
there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction
from riffle_spark.process.merging.merged_picks import is_ordered, ranks

__all__ = ["MergedList", "MergedSet", "MergedText", "lists_of", "owned"]


@dataclass(frozen=True, slots=True)
class MergedList(MergeFunction):
    """A list of the values that are not null, in the order of the rows; at most ``most`` a group."""

    most: int

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the list."""
        return [pa.list_(buffers[0])] if len(buffers) == 1 else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Append the values."""
        owners, values = _collected(rows[0], old[0], groups)
        return [lists_of(owners, values, groups, self.most)]

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Append the lists."""
        return self.fold(*_as_values(kept[0], groups))


@dataclass(frozen=True, slots=True)
class MergedSet(MergeFunction):
    """A list of the values that are not null, each once, in the order of their first rows; at most ``most`` a group."""

    most: int

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the list of values, which have to have an order, since that tells which are alike."""
        return [pa.list_(buffers[0])] if len(buffers) == 1 and is_ordered(buffers[0]) else ()

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Append the values that are not there yet."""
        owners, values = _collected(rows[0], old[0], groups)
        rank = ranks(values)
        order = np.lexsort((rank, owners))
        is_new = np.ones(len(order), dtype=np.bool_)
        is_new[1:] = (np.diff(owners[order]) != 0) | (np.diff(rank[order]) != 0)
        firsts = np.sort(order[is_new])
        return [lists_of(owners[firsts], values.take(pa.array(firsts)), groups, self.most)]

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Append the values that are in no list before."""
        return self.fold(*_as_values(kept[0], groups))


@dataclass(frozen=True, slots=True)
class MergedText(MergedList):
    """ListAgg without an order of its own: a list of texts or bytes, joined when it is evaluated; null if empty."""

    delimiter: str | bytes

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the list."""
        fits = len(buffers) == 1 and (pa.types.is_string(buffers[0]) or pa.types.is_binary(buffers[0]))
        return [pa.list_(buffers[0])] if fits else ()

    def finish(self, state: Columns) -> list[pa.Array]:
        """Join them."""
        lists = state[0]
        joined = pc.binary_join(lists, pa.scalar(self.delimiter, lists.type.value_type))
        return [pc.if_else(pc.equal(pc.list_value_length(lists), 0), pa.scalar(None, joined.type), joined)]


def _as_values(lists: pa.Array, groups: Groups) -> tuple[Columns, Columns, Groups]:
    """Return the values of lists as rows of the groups that the lists belong to, of which nothing is known else."""
    owners, values = owned(lists)
    nothing = pa.nulls(groups.size, lists.type)
    return [values], [nothing], Groups(groups.codes[owners], groups.size, groups.told)


def _collected(rows: pa.Array, old: pa.Array, groups: Groups) -> tuple[IndexArray, pa.Array]:
    """Return all values with the number of the group that each belongs to, those that are kept first."""
    owners, kept = owned(old)
    codes, values = groups.present(rows)
    return np.concatenate([owners, codes]), pa.concat_arrays([kept, values])


def owned(lists: pa.Array) -> tuple[IndexArray, pa.Array]:
    """Return the values of all lists, with the number of the list that each is in; a null holds none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return np.repeat(np.arange(len(lists), dtype=np.int64), lengths), lists.flatten()


def lists_of(owners: IndexArray, values: pa.Array, groups: Groups, most: int) -> pa.Array:
    """Return each group's values as a list, in the order in which they are given."""
    lengths = np.bincount(owners, minlength=groups.size)
    _refuse(lengths, groups, most)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    assert offsets[-1] < 2**31
    sorted_values = values.take(pa.array(np.argsort(owners, kind="stable")))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), sorted_values)


def _refuse(lengths: IndexArray, groups: Groups, most: int) -> None:
    if not len(lengths) or lengths.max() <= most:
        return
    raise UserFunctionError(
        f"{lengths.max()} values are collected for one key, more than {most}",
        remedy="A list is read and written whole with its key. Collect fewer values, for example those of a window, or "
        "allow more.",
        where=groups.told(int(np.argmax(lengths))),
        id="RIFFLE-0181",
    )
