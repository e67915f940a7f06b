"""The input of the processors: Parquet files, one per micro-batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["FILL_ROWS", "TIMER_STEP_MS", "drawn", "expiring", "filled", "once_each", "write"]

SEED = 20_250_101
FILL_ROWS = 500_000
TIMER_STEP_MS = 1_000
FIRST_DUE_MS = 1_000_000
NEVER_MS = 1 << 50
ASIDE_ROWS = 1_000

Integers = npt.NDArray[np.int64]


def write(folder: Path, tables: Iterable[pa.Table]) -> int:
    """Write each table as the next file, in the order of the file source. Return the number of files."""
    folder.mkdir(parents=True)
    number = -1
    for number, table in enumerate(tables):
        path = folder / f"{number:06d}.parquet"
        pq.write_table(table, path, compression="NONE")
        os.utime(path, (1_700_000_000 + number,) * 2)
    return number + 1


def drawn(keys: int, rows: int, batches: int) -> Iterator[pa.Table]:
    """Yield batches of rows (``key``, ``amount``) with uniformly drawn keys."""
    random = np.random.default_rng(SEED)
    for _ in range(batches):
        yield pa.table({"key": random.integers(0, keys, rows), "amount": random.integers(1, 101, rows)})


def filled(keys: int) -> Iterator[pa.Table]:
    """Yield batches of rows (``key``, ``amount``) that together have every key once, in random order."""
    order = np.random.default_rng(SEED + 1).permutation(keys)
    for start in range(0, keys, FILL_ROWS):
        named = order[start : start + FILL_ROWS]
        yield pa.table({"key": named, "amount": np.ones(len(named), np.int64)})


def once_each(keys: int, times: Iterable[int]) -> Iterator[pa.Table]:
    """Yield a batch for each of ``times``, with one row per key: ``key``, ``amount`` from 0 to 99, ``times``."""
    random = np.random.default_rng(SEED + 2)
    for time in times:
        amounts = random.integers(0, 100, keys)
        yield pa.table({"key": random.permutation(keys), "amount": amounts, "times": np.full(keys, time)})


def expiring(keys: int, due: int, slices: int) -> Iterator[pa.Table]:
    """Yield batches of rows (``key``, ``at``, ``due_ms``) that set a timer for each key, then ``slices + 1`` small
    batches.

    ``at`` is the event time, and ``due_ms`` the time of the timer (0: none). In each small batch but the first, ``due``
    timers are due.

    The rows of a batch set the watermark of the next batch. All other timers are never due.
    """
    for number, named in enumerate(_cut(np.random.default_rng(SEED + 3).permutation(keys), FILL_ROWS)):
        rank = np.arange(len(named)) + number * FILL_ROWS
        times = FIRST_DUE_MS + rank // due * TIMER_STEP_MS
        # The event time is after the watermark that the previous batch set, so these rows are not late.
        yield _timed(named, at_ms=number + 1, due_ms=np.where(rank < due * slices, times, NEVER_MS))
    no_timers = np.zeros(ASIDE_ROWS, np.int64)
    for number in range(slices + 1):
        at_ms = FIRST_DUE_MS + number * TIMER_STEP_MS + TIMER_STEP_MS // 2
        yield _timed(np.arange(ASIDE_ROWS) + keys, at_ms=at_ms, due_ms=no_timers)


def _cut(values: Integers, size: int) -> Iterator[Integers]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _timed(keys: Integers, at_ms: int, due_ms: Integers) -> pa.Table:
    timestamps = (
        pa.array(np.full(len(keys), at_ms), pa.int64()).cast(pa.timestamp("ms")).cast(pa.timestamp("us", tz="UTC"))
    )
    return pa.table({"key": keys, "at": timestamps, "due_ms": due_ms})
