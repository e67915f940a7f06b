"""Combine the rows of a key before the shuffle, so that a hot key does not send each of its rows to one slot.

Theory of operation. Spark groups the rows of each input partition by key, as its own partial aggregation does. A slot
then gets one row per key and partition, with one column per ``CombinedColumn`` and a column with the number of rows. A
function is combined only if its result does not depend on the order of rows, so combining changes no result.

A partial sum of int64 may exceed int64 although the final sum fits. So the upper and the lower 32 bits of the values
are summed as two columns. ``decode_rows`` adds them up again. A row whose sum does not fit becomes several rows.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import BlockComputation

ROWS: Final = "__riffle_rows"
"""The column with the number of input rows that a combined row stands for."""
CombinedFunction: TypeAlias = Literal["count", "add", "sum", "min", "max"]
"""``count`` counts rows, or values that are not null. ``add`` sums integers whose sum fits int64, ``sum`` any int64."""
_BITS = 32
_LOW_BITS = (1 << _BITS) - 1
_MAX = (1 << 63) - 1
_MIN = -(1 << 63)


class CombinedColumn(NamedTuple):
    """A column of combined rows: a function of input column ``source``, or of the rows if ``source`` is ``None``."""

    name: str
    function: CombinedFunction
    source: str | None
    type: pa.DataType


class Combined(NamedTuple):
    """How rows are combined, and the computation for combined rows. Its state and its output are the same."""

    columns: tuple[CombinedColumn, ...]
    compute: BlockComputation


@runtime_checkable
class CanCombine(BlockComputation, Protocol):
    """A computation that may accept combined rows."""

    def combine(self, key: Collection[str], rows: pa.Schema) -> Combined | None:
        """Return how rows of this schema are combined by ``key``, or ``None`` if they cannot be."""
        ...


def can_compare(type: pa.DataType) -> bool:
    """Return whether ``min`` and ``max`` of a type can be combined: integers, dates and timestamps."""
    return bool(pa.types.is_signed_integer(type) or pa.types.is_date32(type) or pa.types.is_timestamp(type))


def decoded_schema(key: pa.Schema, columns: Sequence[CombinedColumn]) -> pa.Schema:
    """Return the schema of ``decode_rows``: the key, the combined columns and ``ROWS``."""
    combined = [pa.field(column.name, column.type) for column in columns]
    return pa.schema([*key, *combined, pa.field(ROWS, pa.int64())])


def encoded_names(names: Sequence[str], sums: Collection[str]) -> list[str]:
    """Return the names of the columns in the shuffle for the decoded columns ``names``; ``sums`` have two each."""
    return [part for name in names for part in (_parts(name) if name in sums else (name,))]


def _parts(name: str) -> tuple[str, str]:
    """Return the names of the columns with the upper and the lower bits of a sum."""
    return f"__riffle_high {name}", f"__riffle_low {name}"


def decode_rows(rows: pa.Table, combined: Sequence[str], sums: Collection[str]) -> pa.Table:
    """Return combined rows with one int64 column for each of ``sums``. ``combined`` names all combined columns.

    A sum that does not fit is spread over further rows of its key. These rows have nulls in all other combined columns,
    and 0 in ``ROWS``.
    """
    spread = dict[str, tuple[list[int], list[int]]]()
    for name in sums:
        high, low = _parts(name)
        values, spread[name] = _add_parts(one_array(rows.column(high)), one_array(rows.column(low)))
        rows = rows.set_column(rows.column_names.index(high), name, values).drop_columns([low])
    further = list[pa.Table]()
    for name, (places, values) in spread.items():
        if places:
            table = rows.take(pa.array(places))
            for column in combined:
                empty = pa.array(values, pa.int64()) if column == name else pa.nulls(len(places), table[column].type)
                table = table.set_column(table.column_names.index(column), column, empty)
            none = pa.repeat(pa.scalar(0, pa.int64()), len(places))
            further.append(table.set_column(table.column_names.index(ROWS), ROWS, none))
    return pa.concat_tables([rows, *further]) if further else rows


def _add_parts(high: pa.Array, low: pa.Array) -> tuple[pa.Array, tuple[list[int], list[int]]]:
    """Return the sums of the upper and the lower bits of each row, null if they do not fit int64.

    The second result has the indices of such rows, each as often as needed, and values that add up to its sum.
    """
    bits = pa.scalar(_BITS, pa.int64())
    upper = pc.add(high, pc.shift_right(low, bits))
    lower = pc.bit_wise_and(low, pa.scalar(_LOW_BITS, pa.int64()))
    sums = pc.bit_wise_or(pc.shift_left(upper, bits), lower)
    fits = pc.fill_null(pc.equal(pc.shift_right(sums, bits), upper), True)
    places = list[int]()
    values = list[int]()
    for place in np.flatnonzero(~fits.to_numpy(zero_copy_only=False)).tolist():
        rest = (upper[place].as_py() << _BITS) + lower[place].as_py()
        while rest:
            value = max(_MIN, min(_MAX, rest))
            rest -= value
            places.append(place)
            values.append(value)
    return (pc.if_else(fits, sums, pa.scalar(None, pa.int64())) if places else sums), (places, values)
