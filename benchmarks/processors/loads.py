"""The cases by name: a processor and its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from benchmarks.processors import feeds
from benchmarks.processors.classes import CountingInPandas, CountPerKey, Expiring, ListPerKey, Mapping
from benchmarks.processors.queries import Load

__all__ = ["APPENDED", "LOADS", "MAP_SIZE"]

APPENDED = 10
FILL_ELEMENTS = 190
MAP_SIZE = 100
ROWS = "key long, amount long"

Sizes = dict[str, Any]


def _counting(sizes: Sizes) -> tuple[Load, Iterator[pa.Table]]:
    return Load(CountPerKey(), ROWS), feeds.drawn(sizes["keys"], sizes["rows"], sizes["batches"])


def _counting_in_pandas(sizes: Sizes) -> tuple[Load, Iterator[pa.Table]]:
    load = Load(CountingInPandas(), ROWS, form="pandas")
    return load, feeds.drawn(sizes["keys"], sizes["rows"], sizes["batches"])


def _appending(sizes: Sizes) -> tuple[Load, Iterator[pa.Table]]:
    """Append to short lists, fill them up to ``length`` elements (0: no filling), and append to the long lists."""
    times = [APPENDED] * sizes["batches"]
    remaining = sizes["length"] - APPENDED * sizes["batches"]
    if remaining > 0:
        times += [*[FILL_ELEMENTS] * (remaining // FILL_ELEMENTS), remaining % FILL_ELEMENTS, *times]
    return Load(ListPerKey(), f"{ROWS}, times long"), feeds.once_each(sizes["keys"], times)


def _mapping(sizes: Sizes) -> tuple[Load, Iterator[pa.Table]]:
    times = [MAP_SIZE, *[0] * sizes["batches"]]
    return Load(Mapping(), f"{ROWS}, times long"), feeds.once_each(sizes["keys"], times)


def _expiring(sizes: Sizes) -> tuple[Load, Iterator[pa.Table]]:
    schema = "key long, at timestamp, due_ms long"
    load = Load(Expiring(), schema, time_mode="EventTime", watermark=("at", "0 seconds"))
    return load, feeds.expiring(sizes["keys"], sizes["rows"], sizes["batches"])


def _counting_many(sizes: Sizes) -> tuple[Load, Iterator[pa.Table]]:
    touched = feeds.drawn(sizes["keys"], sizes["rows"], sizes["batches"])
    return Load(CountPerKey(), ROWS), chain(feeds.filled(sizes["keys"]), touched)


LOADS: dict[str, Callable[[Sizes], tuple[Load, Iterator[pa.Table]]]] = {
    "counting": _counting,
    "counting_in_pandas": _counting_in_pandas,
    "appending": _appending,
    "mapping": _mapping,
    "expiring": _expiring,
    "counting_many": _counting_many,
}
