"""Columns of every type that state can hold, with rare values.

Such values are invalid text, NULL structs of NOT NULL fields, columns without a type, extremes, and numbers beyond the
limits of their type.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types

__all__ = ["VARIANTS", "Example", "drawn_example", "raw_values"]

ROWS = 6
VARIANT = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
"""The Arrow type of Spark's variant."""
VARIANTS = ("usual", "null", "not_null", "void", "invalid_text", "extreme", "beyond")
_INVALID = (b"caf\xe9", b"\xff", b"\x80\x00", b"a\xed\xa0\x80", b"\xc0\xaf", b"\x00\xe9", b"\xf4\x90\x80\x80")
_VALID = (b"", b"a", b"\x00", "é".encode(), "\U0001f600".encode(), b"x" * 300)
_LEAVES: Sequence[Callable[[random.Random], pa.DataType]] = (
    lambda _: pa.bool_(),
    lambda r: r.choice([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]),
    lambda r: r.choice([pa.float16(), pa.float32(), pa.float64()]),
    lambda r: pa.decimal128(r.randint(1, 38), r.randint(-2, 8)),
    lambda r: pa.decimal256(r.randint(1, 76), r.randint(0, 8)),
    lambda r: r.choice([pa.string(), pa.string(), pa.string(), pa.large_string()]),
    lambda r: r.choice([pa.binary(), pa.large_binary(), pa.binary(5)]),
    lambda r: r.choice([pa.date32(), pa.date64()]),
    lambda r: pa.timestamp(r.choice(["s", "ms", "us", "ns"]), r.choice([None, "UTC", "Europe/Berlin"])),
    lambda r: r.choice([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    lambda r: pa.duration(r.choice(["s", "ms", "us", "ns"])),
)


class Example(NamedTuple):
    """A column: its variant, its field and its values."""

    variant: str
    field: pa.Field
    column: pa.Array


def drawn_example(chance: random.Random, name: str, *, nested: bool = True) -> Example:
    """Return a column of ``ROWS`` values of a random type. If ``nested`` is not set, keys can have that type."""
    variant = (
        chance.choice(VARIANTS)
        if nested
        else chance.choice([candidate for candidate in VARIANTS if candidate != "void"])
    )
    kind = _drawn_type(chance, variant, 3 if nested else 0)
    column = _drawn(chance, kind, ROWS, variant, may_be_null=variant != "not_null")
    return Example(variant, pa.field(name, kind, nullable=variant != "not_null"), column)


def _drawn_type(chance: random.Random, variant: str, depth: int) -> pa.DataType:
    form = chance.choice(["leaf", "leaf", "struct", "list", "map", "other"]) if depth else "leaf"
    if form == "leaf" and variant == "void":
        return pa.null()
    if form == "leaf":
        return pa.string() if variant == "invalid_text" else chance.choice(_LEAVES)(chance)

    def field(name: str, *, key: bool = False) -> pa.Field:
        kind = _drawn_type(chance, "usual" if key and variant == "void" else variant, depth - 1)
        return pa.field(name, kind, nullable=not key and (types.is_null(kind) or chance.random() < 0.4))

    if form == "struct":
        return pa.struct([field(f"f{index}") for index in range(chance.randint(0, 3))])
    if form == "list":
        return chance.choice([pa.list_, pa.large_list])(field("element"))
    if form == "map":
        return pa.map_(field("key", key=True), field("value"))
    element = field("element")
    pairs = pa.list_(element) if types.is_fixed_size_list(element.type) else pa.list_(element, 2)
    return chance.choice([VARIANT, pairs, pa.list_(VARIANT)])


def _drawn(chance: random.Random, kind: pa.DataType, count: int, variant: str, *, may_be_null: bool) -> pa.Array:
    often = 0.8 if variant == "null" else 0.3
    nulls = np.array([may_be_null and chance.random() < often for _ in range(count)], np.bool_)
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()) if nulls.any() else None
    if types.is_null(kind):
        return pa.nulls(count)
    if types.is_struct(kind):
        # As in Spark's Arrow columns, all fields of a NULL struct are NULL, also those that are NOT NULL.
        fields = [_drawn(chance, field_.type, count, variant, may_be_null=field_.nullable) for field_ in kind]
        hidden = [_with_nulls(field, nulls) for field in fields]
        return pa.Array.from_buffers(kind, count, [valid], children=hidden)
    if types.is_fixed_size_list(kind):
        values = _drawn(chance, kind.value_type, 2 * count, variant, may_be_null=kind.value_field.nullable)
        return pa.Array.from_buffers(kind, count, [valid], children=[values])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        ends = np.cumsum([0, *(0 if null else chance.randint(0, 3) for null in nulls)])
        offsets = pa.py_buffer(ends.astype(np.int64 if types.is_large_list(kind) else np.int32).tobytes())
        return pa.Array.from_buffers(
            kind, count, [valid, offsets], children=[_elements(chance, kind, int(ends[-1]), variant)]
        )
    return _leaf(chance, kind, valid, count, variant)


def _elements(chance: random.Random, kind: pa.DataType, count: int, variant: str) -> pa.Array:
    """Return the elements of lists, or the entries of maps, in which a key may repeat."""
    if not types.is_map(kind):
        return _drawn(chance, kind.value_type, count, variant, may_be_null=kind.value_field.nullable)
    keys = _drawn(chance, kind.key_type, count, variant, may_be_null=False)
    items = _drawn(chance, kind.item_type, count, variant, may_be_null=kind.item_field.nullable)
    return pa.Array.from_buffers(pa.struct([kind.key_field, kind.item_field]), count, [None], children=[keys, items])


def _with_nulls(array: pa.Array, nulls: np.ndarray) -> pa.Array:
    return array.take(pa.array(np.arange(len(array)), mask=nulls)) if nulls.any() else array


def _leaf(chance: random.Random, kind: pa.DataType, valid: pa.Buffer | None, count: int, variant: str) -> pa.Array:
    if types.is_boolean(kind):
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(chance.randbytes(count // 8 + 1))])
    if not types.is_fixed_size_binary(kind) and not types.is_primitive(kind) and not types.is_decimal(kind):
        texts = _INVALID + _VALID if variant == "invalid_text" or types.is_binary(kind) else _VALID
        values = [chance.choice(texts) for _ in range(count)]
        wide = types.is_large_string(kind) or types.is_large_binary(kind)
        ends = np.cumsum([0, *map(len, values)]).astype(np.int64 if wide else np.int32)
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(values))])
    width = kind.bit_width // 8
    data = b"".join(_number(chance, kind, width, variant) for _ in range(count))
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(data)])


def _number(chance: random.Random, kind: pa.DataType, width: int, variant: str) -> bytes:
    """Return the bytes of one value of a fixed width: a small number, an extreme one, or random bits."""
    if types.is_fixed_size_binary(kind):
        return chance.randbytes(width)
    top = 1 << (8 * width - 1)
    if variant == "beyond":
        return chance.choice(
            [chance.randbytes(width), (top - 1).to_bytes(width, "little"), top.to_bytes(width, "little")]
        )
    if types.is_floating(kind):
        number = chance.choice([0.0, -0.0, float("nan"), float("inf"), 1.5, -2.0])
        return np.array(number, np.dtype(f"f{width}")).tobytes()
    limit = 10**kind.precision - 1 if types.is_decimal(kind) else top - 1
    if types.is_time(kind) or types.is_date64(kind):
        return (0).to_bytes(width, "little")
    number = chance.choice([limit, -limit, 0]) if variant == "extreme" else chance.choice([0, 1, 7])
    return number.to_bytes(width, "little", signed=True)


def raw_values(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return the bytes of each value in Arrow. Lists and structs become lists of such values, and NULL becomes
    ``None``.

    Offsets are left out, so a text has the same bytes with 32-bit and with 64-bit offsets.
    """
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    is_valid = array.is_valid().to_pylist()
    if types.is_struct(kind):
        fields = [raw_values(array.field(index)) for index in range(len(kind))]
        return [
            tuple(field[index] for field in fields) if is_present else None for index, is_present in enumerate(is_valid)
        ]
    if types.is_map(kind):
        return _cut(list(zip(raw_values(array.keys), raw_values(array.items), strict=True)), _offsets(array), is_valid)
    if types.is_list(kind) or types.is_large_list(kind):
        return _cut(raw_values(array.values), _offsets(array), is_valid)
    if types.is_fixed_size_list(kind):
        ends = [kind.list_size * (array.offset + index) for index in range(len(array) + 1)]
        return _cut(raw_values(array.values), ends, is_valid)
    return array.to_pylist() if kind in (pa.null(), pa.bool_()) else _leaf_bytes(array, is_valid)


def _leaf_bytes(array: pa.Array, is_valid: Sequence[bool]) -> list[object]:
    kind = array.type
    data = array.buffers()[-1]
    plain = bytes(data) if data is not None else b""
    if types.is_fixed_size_binary(kind) or types.is_primitive(kind) or types.is_decimal(kind):
        width = kind.bit_width // 8
        ends = [width * (array.offset + index) for index in range(len(array) + 1)]
    else:
        ends = _offsets(array)
    return [plain[ends[index] : ends[index + 1]] if is_present else None for index, is_present in enumerate(is_valid)]


def _offsets(array: pa.Array) -> list[int]:
    kind = array.type
    wide = types.is_large_list(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    width = np.dtype(np.int64 if wide else np.int32)
    if not len(array):
        return [0]
    ends_read = np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * width.itemsize)
    offsets: list[int] = ends_read.tolist()
    return offsets


def _cut(values: Sequence[object], ends: Sequence[int], is_valid: Sequence[bool]) -> list[object]:
    return [
        list(values[ends[index] : ends[index + 1]]) if is_present else None for index, is_present in enumerate(is_valid)
    ]
