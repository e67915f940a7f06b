"""Arrow types as leaves: columns of fixed width, of bytes or of lists. Knows Arrow's types. Does not know byte layouts.

A struct is a leaf of no width, which only tells null from present, before the leaves of its fields. A map is a list of
its entries, an extension its storage. ``split`` and ``joined`` go one way and the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Mask, Offsets, bitmap, fixed_width, is_text_or_bytes, valid_mask
from riffle_spark.errors import ConfigError

__all__ = ["element_type", "is_list", "joined", "leaf_types", "leaf_width", "list_column", "list_parts", "split"]

PRESENCE: Final = pa.null()
"""The leaf type of a struct itself; the leaf's nulls are the struct's."""


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the leaves of a type; ``ConfigError`` if it cannot be stored."""
    named = pa.types
    if named.is_struct(kind):
        return [PRESENCE] + [leaf for field in kind for leaf in leaf_types(field.type)]
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_types(kind.storage_type)
    if not _is_leaf(kind):
        raise ConfigError(f"state cannot hold a column of type {kind}", remedy="declare a plain type and cast to it")
    return [kind]


def _is_leaf(kind: pa.DataType) -> bool:
    """Tell what can be stored from unions, views of lists, runs and dictionaries."""
    if is_list(kind) or is_text_or_bytes(kind) or pa.types.is_null(kind):
        return True
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def is_list(leaf: pa.DataType) -> bool:
    """Tell whether a leaf's values are lists of elements."""
    named = pa.types
    return bool(
        named.is_list(leaf) or named.is_large_list(leaf) or named.is_fixed_size_list(leaf) or named.is_map(leaf)
    )


def leaf_width(leaf: pa.DataType) -> int | None:
    """Return the bytes of each value of a leaf, ``None`` if they differ."""
    if pa.types.is_null(leaf):
        return 0
    return None if is_list(leaf) or is_text_or_bytes(leaf) else fixed_width(leaf)


def element_type(leaf: pa.DataType) -> pa.DataType:
    """Return the type of a list's elements; a map's are structs of key and value."""
    if pa.types.is_map(leaf):
        return pa.struct([leaf.key_field, leaf.item_field])
    return leaf.value_type


def split(array: pa.Array) -> list[pa.Array]:
    """Return the leaves of an array. Below a null struct everything is null."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [array] + [leaf for field in array.flatten() for leaf in split(field)]
    if isinstance(kind, pa.BaseExtensionType):
        return split(array.storage)
    return [array]


def joined(kind: pa.DataType, leaves: Iterator[tuple[pa.Array, Mask | None]]) -> pa.Array:
    """Take the leaves of one column, each with its mask of what is not null, and return the column."""
    if pa.types.is_struct(kind):
        presence, valid = next(leaves)
        fields = [joined(field.type, leaves) for field in kind]
        return pa.Array.from_buffers(kind, len(presence), [bitmap(valid)], children=fields)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, joined(kind.storage_type, leaves))
    return next(leaves)[0]


def list_parts(array: pa.Array) -> tuple[pa.Array, Offsets, Offsets]:
    """Return what stands below the lists, and where each begins and ends in it; a null list ends where it begins.

    Arrow's kernels for this (``flatten``, casts) crash or miss some element types, so nothing of them is used.
    """
    count = len(array)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        edges = np.arange(count + 1, dtype=np.int64) * size
        elements = array.values.slice(array.offset * size, count * size)
    else:
        edges = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        elements = array.values.slice(edges[0], edges[-1] - edges[0])
        edges = edges - edges[0]
    valid = valid_mask(array)
    return elements, edges[:-1], edges[1:] if valid is None else np.where(valid, edges[1:], edges[:-1])


def list_column(leaf: pa.DataType, elements: pa.Array, positions: Offsets, valid: Mask | None) -> pa.Array:
    """Return lists of the elements between the n + 1 positions. Lists of fixed size have elements for nulls too."""
    if pa.types.is_fixed_size_list(leaf):
        return pa.Array.from_buffers(leaf, len(positions) - 1, [bitmap(valid)], children=[elements])
    if pa.types.is_map(leaf) and (elements.null_count or elements.field(0).null_count):
        raise pa.ArrowInvalid("a map has a null key")
    width = np.int64 if pa.types.is_large_list(leaf) else np.int32
    if positions[-1] > np.iinfo(width).max:
        raise pa.ArrowInvalid(f"more elements than {leaf} can hold")
    buffers = [bitmap(valid), pa.py_buffer(positions.astype(width))]
    return pa.Array.from_buffers(leaf, len(positions) - 1, buffers, children=[elements])
