"""Keys that hold structs, arrays and maps, as bytes: what a map's key may be. Knows the order of nested values. Does
not know where keys lie.

It goes on from ``keycodec``, whose bytes keys without nesting keep. A struct is a tag (0 null, 1 not) and its fields
one after the other; an array a tag, a 1 before each element, and a 0; a map the array of its entries, as structs, in
the order of their keys. So the bytes of two keys compare as the keys do (nulls first, structs field by field, of two
arrays that begin alike the shorter first), equal maps are equal however they were made, and no key is the beginning of
another one.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Column, Mask, Offsets, binary_column, byte_slices, positions_of, with_long_offsets
from riffle_spark.keygroups import check_key_type
from riffle_spark.state.formats.key_codec import KeyBytes, decode_keys, encode_keys

__all__ = ["check_map_key_type", "decode_nested_keys", "encode_nested_keys"]

_NO, _YES, _NOTHING = (pa.scalar(data, pa.large_binary()) for data in (b"\x00", b"\x01", b""))
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)


def check_map_key_type(name: str, kind: pa.DataType) -> None:
    """Raise ``ConfigError`` unless a map's key can be of the type: what a grouping key can be, and structs, arrays
    and maps of it.
    """
    if pa.types.is_struct(kind):
        for field in kind:
            check_map_key_type(f"{name}.{field.name}", field.type)
    elif _is_array(kind):
        check_map_key_type(f"{name}.element", _element(kind))
    else:
        check_key_type(name, kind)


def encode_nested_keys(columns: Sequence[Column]) -> pa.LargeBinaryArray:
    """Return the bytes of every row's key, as a large binary array without nulls."""
    if not any(_is_nested(column.type) for column in columns):
        return encode_keys(columns)
    return _joined([_encoded(with_long_offsets(column)) for column in columns])


def _is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) or _is_array(kind)


def _is_array(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in _LISTS)


def _element(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type


def _joined(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, _NOTHING)


def _encoded(array: pa.Array) -> pa.Array:
    if not _is_nested(array.type):
        return encode_keys([array])
    valid = array.is_valid()
    if _is_array(array.type):
        present = _joined([_YES, _elements(array), _NO])
    else:
        present = _joined([pc.if_else(valid, _YES, _NO), *map(_encoded, array.flatten())])
    return pc.if_else(valid, present, _NO) if array.null_count else present


def _elements(array: pa.Array) -> pa.Array:
    """Return the elements of each array, each after its mark: theirs are neighbours, so it takes no copy."""
    is_map = pa.types.is_map(array.type)
    lists = array.cast(pa.list_(_element(array.type))) if is_map else array
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    flat = _in_order(lists.flatten(), lengths) if is_map else lists.flatten()
    data, offsets = byte_slices(_joined([_YES, _encoded(flat)]))
    return binary_column(data, offsets[positions_of(lengths)])


def _in_order(entries: pa.StructArray, lengths: Offsets) -> pa.StructArray:
    """Return the entries of maps of these lengths, those of each map by their keys."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    table = pa.table({"owner": owner, "key": _encoded(entries.flatten()[0])})
    return entries.take(pc.sort_indices(table, [("owner", "ascending"), ("key", "ascending")]))


def decode_nested_keys(encoded: Column | Sequence[bytes], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns, of these types, that the keys were made from.

    Raises ``CorruptStateError`` for other bytes.
    """
    if not any(map(_is_nested, types)):
        return decode_keys(encoded, types)
    array = with_long_offsets(
        encoded if isinstance(encoded, pa.Array | pa.ChunkedArray) else pa.array(encoded, pa.large_binary())
    )
    data, offsets = byte_slices(array)
    read, at, columns = KeyBytes(data), offsets[:-1], []
    for kind in types:
        column, at = _decoded(read, at, offsets[1:], kind)
        columns.append(column)
    read.check_at_end(at, offsets[1:])
    return columns


def _decoded(read: KeyBytes, starts: Offsets, ends: Offsets, kind: pa.DataType) -> tuple[pa.Array, Offsets]:
    """Return the values of one type that begin at ``starts``, and where each ends."""
    if not _is_nested(kind):
        return read.column(starts, ends, kind)
    valid, after = read.tags(starts, ends), starts + 1
    decode = _decoded_arrays if _is_array(kind) else _decoded_structs
    present, after[valid] = decode(read, after[valid], ends[valid], kind)
    return _spread(present, valid), after


def _spread(present: pa.Array, valid: Mask) -> pa.Array:
    """Return the values at their places, and null at the others."""
    if bool(valid.all()):
        return present
    return present.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _decoded_structs(read: KeyBytes, at: Offsets, ends: Offsets, kind: pa.DataType) -> tuple[pa.Array, Offsets]:
    fields = []
    for field in kind:
        column, at = _decoded(read, at, ends, field.type)
        fields.append(column)
    if not fields:
        return pa.array([{}] * len(at), kind), at
    return pa.StructArray.from_arrays(fields, fields=list(kind)), at


def _decoded_arrays(read: KeyBytes, at: Offsets, ends: Offsets, kind: pa.DataType) -> tuple[pa.Array, Offsets]:
    """Decode the first elements of all arrays, then their second ones, until the longest has come to its end."""
    at, going = at.copy(), np.arange(len(at))
    element = _element(kind)
    rounds: list[pa.Array] = [pa.array([], element)]
    owners: list[Offsets] = [going[:0]]
    while len(going):
        has_more = read.tags(at[going], ends[going])
        at[going] += 1
        going = going[has_more]
        column, at[going] = _decoded(read, at[going], ends[going], element)
        rounds.append(column)
        owners.append(going)
    owner = np.concatenate(owners)
    elements = pa.concat_arrays(rounds).take(pa.array(np.argsort(owner, kind="stable")))
    offsets = positions_of(np.bincount(owner, minlength=len(at)))
    where = pa.py_buffer(offsets.astype(np.int64 if pa.types.is_large_list(kind) else np.int32))
    return pa.Array.from_buffers(kind, len(at), [None, where], children=[elements]), at
