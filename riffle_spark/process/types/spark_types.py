"""What Spark's types are in Arrow, as PySpark has it. Knows names of types. Does not know how a schema is written."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["INTERVAL", "SIMPLE", "TEXT", "decimal_of", "list_of", "map_of"]

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SIMPLE: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": _TIMESTAMP,
    "timestamp_ltz": _TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
    "void": pa.null(),
}
"""Types of one word."""
TEXT: Final = pa.string()
"""A string, also one of bounded length."""
INTERVAL: Final = pa.duration("us")
"""An interval of days to seconds."""
_DEFAULT_DECIMAL: Final = (10, 0)
_PRECISION_MAX: Final = 38


def decimal_of(*digits: int) -> pa.DataType:
    """Return the decimal of this precision and scale, which have defaults; ``ValueError`` if there is none."""
    precision, scale = (*digits, *_DEFAULT_DECIMAL[len(digits) :])[:2]
    if len(digits) > len(_DEFAULT_DECIMAL) or not 0 < precision <= _PRECISION_MAX or scale > precision:
        raise ValueError(f"a decimal cannot be of {', '.join(map(str, digits))} digits")
    return pa.decimal128(precision, scale)


def list_of(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of arrays of such elements."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of maps of such keys and values."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable))
