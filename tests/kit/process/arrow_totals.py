"""A running total as a function on Arrow, and the tables to try it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from riffle_spark.process.blocks.arrow_function import arrow_function
from tests.kit.process.process_calls import Keyed

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
STATE = pa.schema([("total", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("total", pa.int64())])
NOTHING = OUTPUT.empty_table()


def running_total(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Add each key's rows to its total, all keys at once."""
    parts = pa.concat_tables([state, rows.rename_columns(["k", "total"])])
    totals = parts.group_by("k", use_threads=False).aggregate([("total", "sum")]).rename_columns(["k", "total"])
    return totals, totals


def batch(**totals: int) -> pa.Table:
    """Make input rows: a key and its value each."""
    return pa.table({"k": list(totals), "v": list(totals.values())}, schema=ROWS)


def stored(**totals: int) -> pa.Table:
    """Make stored rows: a key and its total each."""
    return pa.table({"k": list(totals), "total": list(totals.values())}, schema=OUTPUT)


def keyed_by(function: Callable[..., Any]) -> Keyed:
    """Keep the state of a function on Arrow."""
    return Keyed(arrow_function(function, state=STATE, output=OUTPUT), ROWS)


def returning(returned: object) -> Keyed:
    """Keep the state of a function that always returns the same."""
    return keyed_by(lambda _rows, _state: returned)
