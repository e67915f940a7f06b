"""Tables of wide rows to what a local copy stores and back. Knows stored keys, due times and kinds of variables. Does
not know the fields of a variable, nor files.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Mask, Offsets, byte_slices, pick_slices
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.formats.row_layout import unreadable
from riffle_spark.state.schemas import variable_keys
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variable_kinds import DUE, VARIABLE, RowsOf

__all__ = ["NAMES", "dues_and_values", "encoded_rows", "names_of", "wide_table"]

NAMES = pa.dictionary(pa.int8(), pa.string())
"""The type of the column that names each row's variable."""

Numbers = npt.NDArray[np.uint8]


class _Piece(NamedTuple):
    """The rows of one variable: their places, whole stored keys, values, and which are of no element of it."""

    at: Offsets
    keys: pa.Array
    values: pa.Array
    of_none: Mask


def encoded_rows(groups: pa.Array, table: pa.Table, kinds: Sequence[RowsOf], *, indexed: bool) -> CopyRows:
    """Return wide rows as a copy takes them; ``groups`` are their encoded keys.

    Raises ``CorruptStateError`` for rows of a variable that is not among the ``kinds``.
    """
    if not table.num_rows:
        return CopyRows([], [], indexed=indexed)
    pieces = _pieces(groups, table, kinds, indexed=indexed)
    order = np.argsort(np.concatenate([piece.at for piece in pieces]))
    whole, encoded = _in_order([piece.keys for piece in pieces], order), _in_order([p.values for p in pieces], order)
    stored = variable_keys.stored_keys(whole, np.diff(byte_slices(groups)[1]))
    deleted = _deleted(table)
    values: list[bytes | None] = encoded.to_pylist()
    for index in np.flatnonzero(deleted).tolist():
        values[index] = None
    clearing = deleted & np.concatenate([piece.of_none for piece in pieces])[order]
    keys = stored.to_pylist()
    longs = None if stored is whole else _longs(keys, whole)
    cleared = tuple(np.flatnonzero(clearing).tolist())
    return CopyRows(keys, values, longs, stored.nbytes + encoded.nbytes, cleared, indexed)


def _pieces(groups: pa.Array, table: pa.Table, kinds: Sequence[RowsOf], *, indexed: bool) -> list[_Piece]:
    numbers = _numbers(table.column(VARIABLE), kinds)
    pieces = []
    for kind in kinds:
        at = np.flatnonzero(numbers == kind.number)
        if not len(at):
            continue
        rows, own = table.select([DUE, *kind.reads]), groups
        if len(at) < len(numbers):
            rows, own = rows.take(pa.array(at)), own.take(pa.array(at))
        pieces.append(_piece(kind, at, own, rows, indexed=indexed))
    return pieces


def _piece(kind: RowsOf, at: Offsets, groups: pa.Array, rows: pa.Table, *, indexed: bool) -> _Piece:
    elements, values = kind.elements(rows), kind.values(rows)
    if indexed:
        dues = rows.column(DUE).fill_null(variable_keys.NO_DUE).to_numpy()
        prefix = variable_keys.due_bytes(dues, np.ones(len(dues), dtype=np.bool_))
        values = pc.binary_join_element_wise(prefix, values, pa.scalar(b"", pa.large_binary()))
    of_none = np.diff(byte_slices(elements)[1]) == 0
    return _Piece(at, variable_keys.whole_keys(groups, kind.number, elements), values, of_none & kind.has_elements)


def _numbers(names: pa.ChunkedArray, kinds: Sequence[RowsOf]) -> Numbers:
    """Return the number of each row's variable. Every chunk may have names of its own."""
    numbers = {kind.name: kind.number for kind in kinds}
    pieces = [np.zeros(0, dtype=np.uint8)]
    for chunk in names.chunks:
        of_chunk = np.array([numbers.get(name, 0) for name in chunk.dictionary.to_pylist()] + [0], dtype=np.uint8)
        pieces.append(of_chunk[chunk.indices.fill_null(-1).to_numpy()])
    found = np.concatenate(pieces)
    if not bool(found.all()):
        raise unreadable("a row is of a variable that is not declared")
    return found


def _deleted(table: pa.Table) -> Mask:
    if DELETED not in table.column_names:
        return np.zeros(table.num_rows, dtype=np.bool_)
    deleted: Mask = table.column(DELETED).to_numpy()
    return deleted


def _in_order(arrays: Sequence[pa.Array], order: Offsets) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays).take(pa.array(order))


def _longs(keys: Sequence[bytes], whole: pa.Array) -> list[bytes | None]:
    return [long if long != short else None for short, long in zip(keys, whole.to_pylist(), strict=True)]


def wide_table(
    pairs: Sequence[tuple[bytes, bytes]], longs: Mapping[bytes, bytes], kinds: Sequence[RowsOf], schema: pa.Schema,
    *, indexed: bool,
) -> pa.Table:  # fmt: skip
    """Return pairs of a local copy as a table of ``schema``. Raises ``CorruptStateError`` for what is no such pair."""
    whole = pa.array([longs.get(k, k) for k, _ in pairs] if longs else [k for k, _ in pairs], pa.large_binary())
    key = schema.names[: schema.get_field_index(VARIABLE)]
    stored = variable_keys.parsed(whole, [schema.field(name).type for name in key])
    dues, values = dues_and_values(pa.array([value for _, value in pairs], pa.large_binary()), indexed=indexed)
    columns = dict(zip(key, stored.columns, strict=True))
    columns[VARIABLE] = names_of(stored.numbers, kinds)
    columns[DUE] = pa.array(dues, mask=dues == variable_keys.NO_DUE)
    for kind in kinds:
        at = np.flatnonzero(stored.numbers == kind.number)
        if len(at):
            found = kind.columns(stored.elements.take(pa.array(at)), values.take(pa.array(at)))
            for name, column in found.items():
                spread = _spread(column, at, len(pairs))
                columns[name] = pc.coalesce(columns[name], spread) if name in columns else spread
    absent = [field for field in schema if field.name not in columns]
    columns |= {field.name: pa.nulls(len(pairs), field.type) for field in absent}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def names_of(numbers: Numbers, kinds: Sequence[RowsOf]) -> pa.Array:
    """Return the names of variables as a column of type ``NAMES``. Raises ``CorruptStateError`` for other numbers."""
    of_number = np.full(256, -1, dtype=np.int8)
    of_number[[kind.number for kind in kinds]] = np.arange(len(kinds))
    indexes = of_number[numbers]
    if bool((indexes < 0).any()):
        raise unreadable("a stored key is of a variable that is not declared")
    return pa.DictionaryArray.from_arrays(pa.array(indexes), pa.array([kind.name for kind in kinds], pa.string()))


def dues_and_values(stored: pa.Array, *, indexed: bool) -> tuple[variable_keys.Dues, pa.Array]:
    """Return the due times (``NO_DUE`` for none) and the rows' bytes of stored values."""
    if not indexed:
        return np.full(len(stored), variable_keys.NO_DUE), stored
    data, offsets = byte_slices(stored)
    return variable_keys.dues_of(stored), pick_slices(data, offsets[:-1] + variable_keys.WORD_BYTES, offsets[1:])


def _spread(column: pa.Array, at: Offsets, count: int) -> pa.Array:
    """Return ``count`` rows with those of the column at their places and nulls elsewhere."""
    if len(column) == count:
        return column
    index, absent = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.bool_)
    index[at], absent[at] = np.arange(len(at)), False
    return column.take(pa.array(index, mask=absent))
