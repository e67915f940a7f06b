"""Rows of some columns as bytes: heads and bodies, and Arrow types as columns of fixed width, of bytes or of lists.
Knows the byte layout. Does not know schemas or who asked.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import columns as arrow
from riffle_spark.errors import ConfigError, CorruptStateError

__all__ = [
    "RowLayout",
    "element_type",
    "is_list",
    "joined",
    "leaf_types",
    "leaf_width",
    "list_column",
    "list_parts",
    "split",
    "unreadable",
]

BODY_BYTES_MAX = 2**32 - 1
LENGTH_BYTES = 4
_LENGTH = np.dtype("<u4")
PRESENCE = pa.null()
"""The leaf type of a struct itself; the leaf's nulls are the struct's."""


class RowLayout:
    """Where each leaf of rows of these types stands. ``fixed_bytes`` is the length of all rows, if they have one."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = list(types)
        self._leaves = [leaf for kind in types for leaf in leaf_types(kind)]
        self._elements = [RowLayout([element_type(leaf)]) if is_list(leaf) else None for leaf in self._leaves]
        self._widths = [leaf_width(leaf) for leaf in self._leaves]
        self._head = _head_of(self._widths)
        self.fixed_bytes = None if None in self._widths else self._head.itemsize

    def encode(self, columns: Iterable[pa.Array], count: int) -> pa.Array:
        """Return ``count`` rows as a large binary array."""
        arrays = [leaf for column in columns for leaf in split(column)]
        head = np.zeros(count, dtype=self._head)
        if any(array.null_count for array in arrays):
            nulls = np.stack([array.is_null().to_numpy(zero_copy_only=False) for array in arrays], axis=1)
            head["nulls"] = np.packbits(nulls, axis=1, bitorder="little")
        bodies = []
        for at, (array, width) in enumerate(zip(arrays, self._widths, strict=True)):
            if width is None:
                bodies.append(_bodies_of(array, self._elements[at]))
                head[f"leaf{at}"] = _lengths_of(bodies[-1])
            elif width:
                head[f"leaf{at}"] = _values_of(array)
        heads = arrow.binary_column(head, np.arange(count + 1, dtype=np.int64) * head.itemsize)
        return pc.binary_join_element_wise(heads, *bodies, pa.scalar(b"", pa.large_binary())) if bodies else heads

    def decode(self, data: arrow.Bytes, offsets: arrow.Offsets) -> list[pa.Array]:
        """Return the columns of the rows between the offsets."""
        size, starts, ends = self._head.itemsize, offsets[:-1], offsets[1:]
        if bool((starts + size > ends).any()):
            raise unreadable("a row is shorter than its head")
        packed = data[offsets[0] : offsets[-1]] if self.fixed_bytes is not None else _cut(data, starts, starts + size)
        if self.fixed_bytes is not None and bool((ends - starts != size).any()):
            raise unreadable("a row is longer than its columns")
        if not size:
            return []
        leaves = self._decode_leaves(data, packed.view(self._head), starts + size, ends)
        return [joined(kind, leaves) for kind in self._types]

    def _decode_leaves(
        self, data: arrow.Bytes, head: npt.NDArray[np.void], starts: arrow.Offsets, ends: arrow.Offsets
    ) -> Iterator[tuple[pa.Array, arrow.Mask | None]]:
        lengths = [head[f"leaf{at}"].astype(np.int64) for at, width in enumerate(self._widths) if width is None]
        if lengths and bool((starts + np.sum(lengths, axis=0) != ends).any()):
            raise unreadable("the bodies of a row do not fill it")
        masks = self._masks(head)
        for at, (leaf, width, valid) in enumerate(zip(self._leaves, self._widths, masks, strict=True)):
            if width is None:
                after = starts + lengths.pop(0)
                yield _read_bodies(arrow.pick_slices(data, starts, after), leaf, self._elements[at], valid), valid
                starts = after
            elif width:
                yield _read_values(head[f"leaf{at}"], leaf, valid), valid
            else:
                yield _read_nothing(leaf, len(head), valid), valid

    def _masks(self, head: npt.NDArray[np.void]) -> list[arrow.Mask | None]:
        """Return which values of each leaf are not null."""
        nulls: npt.NDArray[np.uint8] = head["nulls"]
        if not bool(nulls.any()):
            return [None] * len(self._leaves)
        bits = np.unpackbits(nulls, axis=1, bitorder="little").view(np.bool_)
        if bool(bits[:, len(self._leaves) :].any()):
            raise unreadable("a row has more nulls than columns")
        return [~bits[:, at] for at in range(len(self._leaves))]


def unreadable(problem: str) -> CorruptStateError:
    """Return the error for bytes that are not rows of the expected types."""
    return CorruptStateError(
        f"stored values cannot be read: {problem}", remedy="restore the key-group from its snapshot and deltas"
    )


def _head_of(widths: Sequence[int | None]) -> np.dtype[np.void]:
    fields: list[tuple[str, object]] = [("nulls", (np.uint8, ((len(widths) + 7) // 8,)))] if widths else []
    for at, width in enumerate(widths):
        if width is None:
            fields.append((f"leaf{at}", _LENGTH))
        elif width:
            fields.append((f"leaf{at}", f"<u{width}" if width in (1, 2, 4, 8) else f"V{width}"))
    return np.dtype(fields)


def _cut(data: arrow.Bytes, starts: arrow.Offsets, ends: arrow.Offsets) -> arrow.Bytes:
    """Return the slices as one piece."""
    cut, offsets = arrow.byte_slices(arrow.pick_slices(data, starts, ends))
    return cut[: offsets[-1]]


def _values_of(array: pa.Array) -> npt.NDArray[np.generic]:
    values, valid = arrow.fixed_values(array), arrow.valid_mask(array)
    if valid is not None:
        values = values.copy()
        values[~valid] = np.zeros(1, dtype=values.dtype)
    return values


def _read_nothing(leaf: pa.DataType, count: int, valid: arrow.Mask | None) -> pa.Array:
    """Return values of no width: nulls, structs (their presence) or fixed-size binary of size 0."""
    if pa.types.is_null(leaf):
        return pa.nulls(count)
    return pa.Array.from_buffers(leaf, count, [arrow.bitmap(valid), pa.py_buffer(b"")])


def _read_values(values: npt.NDArray[np.generic], leaf: pa.DataType, valid: arrow.Mask | None) -> pa.Array:
    if pa.types.is_boolean(leaf) and bool((values.view(np.uint8) > 1).any()):
        raise unreadable("a boolean is neither 0 nor 1")
    return arrow.fixed_column(leaf, values, valid)


def _lengths_of(bodies: pa.Array) -> arrow.Offsets:
    lengths: arrow.Offsets = np.diff(arrow.byte_slices(bodies)[1])
    if int(lengths.max(initial=0)) > BODY_BYTES_MAX:
        raise ConfigError("a value above 4 GB cannot be stored", remedy="split it over several keys")
    return lengths


def _bodies_of(array: pa.Array, element: RowLayout | None) -> pa.Array:
    """Return the body of every text or list. Table and elements of a list are slices of what all lists hold."""
    if element is None:
        bodies = arrow.with_long_offsets(array)
        return bodies.fill_null(b"") if bodies.null_count else bodies
    elements, starts, ends = list_parts(array)
    rows = element.encode([elements], len(elements))
    data, edges = arrow.byte_slices(rows)
    counts = (ends - starts).astype(_LENGTH)
    parts = [arrow.binary_column(counts, np.arange(len(counts) + 1, dtype=np.int64) * LENGTH_BYTES)]
    if element.fixed_bytes is None:
        table = _lengths_of(rows).astype(_LENGTH).view(np.uint8)
        parts.append(_slices(table, starts * LENGTH_BYTES, ends * LENGTH_BYTES))
    parts.append(_slices(data, edges[starts], edges[ends]))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _slices(data: arrow.Bytes, starts: arrow.Offsets, ends: arrow.Offsets) -> pa.Array:
    """Return the slices, without a copy if none is left out."""
    if bool((starts[1:] == ends[:-1]).all()):
        return arrow.binary_column(data, np.append(starts, ends[-1:] if len(ends) else 0))
    return arrow.pick_slices(data, starts, ends)


def _read_bodies(bodies: pa.Array, leaf: pa.DataType, element: RowLayout | None, valid: arrow.Mask | None) -> pa.Array:
    if element is None:
        buffers = [arrow.bitmap(valid), *bodies.buffers()[1:]]
        return pa.Array.from_buffers(pa.large_binary(), len(bodies), buffers).cast(leaf)
    data, edges, positions = _read_elements(bodies, element)
    if pa.types.is_fixed_size_list(leaf):
        data, edges = _with_elements_of_nulls(arrow.binary_column(data, edges), positions, leaf, element, valid)
    return list_column(leaf, element.decode(data, edges)[0], positions, valid)


def _read_elements(bodies: pa.Array, element: RowLayout) -> tuple[arrow.Bytes, arrow.Offsets, arrow.Offsets]:
    """Return the elements of all lists as rows, and where lists begin and end among them."""
    data, offsets = arrow.byte_slices(bodies)
    starts, ends = offsets[:-1] + LENGTH_BYTES, offsets[1:]
    if bool((starts > ends).any()):
        raise unreadable("a list has no count")
    counts = _cut(data, offsets[:-1], starts).view(_LENGTH).astype(np.int64)
    positions = arrow.positions_of(counts)
    if element.fixed_bytes is not None:
        if bool((ends - starts != counts * element.fixed_bytes).any()):
            raise unreadable("the elements of a list do not fill it")
        edges = np.arange(positions[-1] + 1) * element.fixed_bytes
    else:
        table_ends = starts + counts * LENGTH_BYTES
        if bool((table_ends > ends).any()):
            raise unreadable("a list is shorter than its table")
        edges = arrow.positions_of(_cut(data, starts, table_ends).view(_LENGTH))
        if bool((np.diff(edges[positions]) != ends - table_ends).any()):
            raise unreadable("the elements of a list do not fill it")
        starts = table_ends
    return _cut(data, starts, ends), edges, positions


def _with_elements_of_nulls(
    rows: pa.Array, positions: arrow.Offsets, leaf: pa.DataType, element: RowLayout, valid: arrow.Mask | None
) -> tuple[arrow.Bytes, arrow.Offsets]:
    """Give null lists of fixed size the elements that Arrow wants below them."""
    present = np.ones(len(positions) - 1, dtype=np.bool_) if valid is None else valid
    if bool((np.diff(positions) != present * leaf.list_size).any()):
        raise unreadable(f"a list is not of {leaf.list_size} elements")
    filler = element.encode([pa.nulls(1, leaf.value_type)], 1)
    taken = np.where(present[:, None], positions[:-1, None] + np.arange(leaf.list_size), len(rows))
    return arrow.byte_slices(pa.concat_arrays([rows, filler]).take(pa.array(taken.reshape(-1))))


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
    if is_list(kind) or arrow.is_text_or_bytes(kind) or pa.types.is_null(kind):
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
    return None if is_list(leaf) or arrow.is_text_or_bytes(leaf) else arrow.fixed_width(leaf)


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


def joined(kind: pa.DataType, leaves: Iterator[tuple[pa.Array, arrow.Mask | None]]) -> pa.Array:
    """Take the leaves of one column, each with its mask of what is not null, and return the column."""
    if pa.types.is_struct(kind):
        presence, valid = next(leaves)
        fields = [joined(field.type, leaves) for field in kind]
        return pa.Array.from_buffers(kind, len(presence), [arrow.bitmap(valid)], children=fields)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, joined(kind.storage_type, leaves))
    return next(leaves)[0]


def list_parts(array: pa.Array) -> tuple[pa.Array, arrow.Offsets, arrow.Offsets]:
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
    valid = arrow.valid_mask(array)
    return elements, edges[:-1], edges[1:] if valid is None else np.where(valid, edges[1:], edges[:-1])


def list_column(leaf: pa.DataType, elements: pa.Array, positions: arrow.Offsets, valid: arrow.Mask | None) -> pa.Array:
    """Return lists of the elements between the n + 1 positions. Lists of fixed size have elements for nulls too."""
    if pa.types.is_fixed_size_list(leaf):
        return pa.Array.from_buffers(leaf, len(positions) - 1, [arrow.bitmap(valid)], children=[elements])
    if pa.types.is_map(leaf) and (elements.null_count or elements.field(0).null_count):
        raise pa.ArrowInvalid("a map has a null key")
    width = np.int64 if pa.types.is_large_list(leaf) else np.int32
    if positions[-1] > np.iinfo(width).max:
        raise pa.ArrowInvalid(f"more elements than {leaf} can hold")
    buffers = [arrow.bitmap(valid), pa.py_buffer(positions.astype(width))]
    return pa.Array.from_buffers(leaf, len(positions) - 1, buffers, children=[elements])
