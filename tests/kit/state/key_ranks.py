"""What keys compare as, told in plain Python: the order that stored keys promise."""

from __future__ import annotations

import math

import pyarrow as pa

__all__ = ["ranks", "types_of"]


def ranks(columns: list[pa.Array]) -> list[tuple[tuple[object, ...], ...]]:
    """Return what each whole key compares as."""
    return list(zip(*([rank(value) for value in column.to_pylist()] for column in columns), strict=True))


def rank(value: object) -> tuple[object, ...]:
    """Return what one value compares as: nulls first, texts by their bytes, numbers by value with NaN last, structs by
    their fields, the shorter of two arrays first, maps as the arrays of their entries by key.
    """
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, tuple(map(rank, value.values())))
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return (1, tuple(sorted((rank(key), rank(item)) for key, item in value)))
    if isinstance(value, list):
        return (1, tuple(map(rank, value)))
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


def types_of(columns: list[pa.Array]) -> list[pa.DataType]:
    """Return the types of columns."""
    return [column.type for column in columns]
