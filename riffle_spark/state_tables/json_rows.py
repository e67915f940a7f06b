"""Rows of state as values of JSON."""

import base64
from collections.abc import Mapping
from datetime import date, datetime, time
from math import isfinite

import pyarrow as pa

from riffle_spark.state.formats.arrow_values import readable_rows
from riffle_spark.state_tables.requested_keys import BASE64

__all__ = ["to_json_rows", "to_json_value"]


def to_json_rows(table: pa.Table) -> list[dict[str, object]]:
    """Return the rows as dictionaries of JSON's types.

    Bytes are ``{"base64": "..."}``. Dates, times, intervals and decimals are text, as are floats that JSON lacks. A map
    is a list of its entries, which are lists of key and value. Text that is not UTF-8 has U+FFFD in place of such
    bytes.
    """
    return [{name: to_json_value(value) for name, value in row.items()} for row in readable_rows(table)]


def to_json_value(value: object) -> object:
    """Return a value of JSON, as ``to_json_rows`` does."""
    if isinstance(value, bytes):
        return {BASE64: base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    is_of_json = value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
    return value if is_of_json else str(value)
