"""The input of the blocks: one Parquet file per batch and stream, written before the measurement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "COHORTS",
    "DEDUP_DELAY_S",
    "JOIN_STEP_S",
    "STEP_S",
    "Batch",
    "closing",
    "drawn",
    "joined",
    "once",
    "totals",
    "visits",
    "windowed",
    "write",
]

SEED = 20_260_101
START_US = 1_767_225_600_000_000
SECOND_US = 1_000_000
STEP_S = 10
"""Seconds of event time between two batches, which is also the length of a window."""
LAG_S = 50
"""The age of a batch's oldest rows in seconds. It determines the number of open windows."""
COHORTS = 10
ACTIVE = 6
"""In each batch a tenth of the keys starts a session. Its keys have rows in six batches, and none in the next four."""
DEDUP_DELAY_S = 120
DEDUP_STEP_S = 30
JOIN_STEP_S = 120
FILL_ROWS = 500_000
ASIDE_ROWS = 1_000
DAY_S = 86_400

Batch = Mapping[str, pa.Table]
"""The rows of a batch by stream."""
Integers = npt.NDArray[np.int64]


def write(folder: Path, batches: Iterable[Batch]) -> int:
    """Write each batch's tables as the next files in the folders of their streams. Return the number of batches."""
    number = -1
    for number, batch in enumerate(batches):
        for stream, table in batch.items():
            path = folder / stream / f"{number:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path, compression="NONE")
            os.utime(path, (1_700_000_000 + number,) * 2)
    return number + 1


def _rows(at_us: Integers, **columns: Integers) -> Batch:
    times = pa.array(START_US + at_us, pa.timestamp("us", "UTC"))
    return {"rows": pa.table({"at": times, **columns})}


def _between(random: np.random.Generator, start_s: float, end_s: float, rows: int) -> Integers:
    return random.integers(int(start_s * SECOND_US), int(end_s * SECOND_US), rows)


def drawn(keys: int, rows: int, batches: int) -> Iterator[Batch]:
    """Yield rows without an event time: uniform ``key``, ``amount``."""
    random = np.random.default_rng(SEED)
    for _ in range(batches):
        yield {"rows": pa.table({"key": random.integers(0, keys, rows), "amount": random.integers(1, 101, rows)})}


def windowed(keys: int, rows: int, batches: int) -> Iterator[Batch]:
    """Yield rows (``at``, ``key``, ``amount``) in six windows per batch. Each watermark closes the oldest."""
    random = np.random.default_rng(SEED + 1)
    for number in range(batches):
        times = _between(random, number * STEP_S - LAG_S, (number + 1) * STEP_S, rows)
        # Each batch has a row at its newest time, so each batch closes one window.
        times[0] = (number + 1) * STEP_S * SECOND_US - 1
        yield _rows(times, key=random.integers(0, keys, rows), amount=random.integers(1, 101, rows))


def totals(keys: int, batches: int) -> Iterator[Batch]:
    """Yield the results of closing one window of all keys, one row per key: ``at``, ``key``, ``amount``."""
    random = np.random.default_rng(SEED + 2)
    for number in range(batches):
        times = np.full(keys, (number + 1) * STEP_S * SECOND_US - 1)
        yield _rows(times, key=random.permutation(keys), amount=random.integers(1, 101, keys))


def visits(keys: int, rows: int, batches: int) -> Iterator[Batch]:
    """Yield rows (``at``, ``key``) of the keys with an active session. Other keys wait for the end of theirs."""
    random = np.random.default_rng(SEED + 3)
    for number in range(batches):
        cohort = random.integers(0, ACTIVE, rows)
        key = random.integers(0, keys // COHORTS, rows) * COHORTS + (number - cohort) % COHORTS
        yield _rows(_between(random, number * STEP_S, (number + 1) * STEP_S, rows), key=key)


def once(rows: int, batches: int) -> Iterator[Batch]:
    """Yield rows (``at``, ``key``). Nine of ten keys are new, the others are from this and the previous batch."""
    random = np.random.default_rng(SEED + 4)
    for number in range(batches):
        fresh = number * rows + np.arange(rows)
        repeated = random.integers(max(0, (number - 1) * rows), (number + 1) * rows, rows)
        key = np.where(random.random(rows) < 0.9, fresh, repeated)
        yield _rows(_between(random, number * DEDUP_STEP_S, (number + 1) * DEDUP_STEP_S, rows), key=key)


def joined(rows: int, batches: int) -> Iterator[Batch]:
    """Yield two streams of rows (``at``, ``key``, ``amount``). Half of the rows have a partner in the other stream."""
    random = np.random.default_rng(SEED + 5)
    for number in range(batches):
        ids = number * rows + np.arange(rows)
        yield {
            side: _rows(
                _between(random, number * JOIN_STEP_S, (number + 1) * JOIN_STEP_S, rows),
                key=random.permutation(np.where(ids % 2 == 0, ids, -ids) if side == "others" else ids),
                amount=random.integers(1, 101, rows),
            )["rows"]
            for side in ("rows", "others")
        }


def closing(keys: int, slices: int) -> Iterator[Batch]:
    """Yield rows (``at``, ``key``, ``amount``): first batches that open a window per key, then small batches.

    One percent of the windows is due in every third of the small batches, and none in the others.

    The watermark is a day behind. Windows that are never due are within this day. The rows of a small batch are a day
    later and have windows of their own. They advance the watermark, which closes windows in the next batch.
    """
    due = max(1, keys // 100)
    for number, named in enumerate(np.array_split(np.random.default_rng(SEED + 6).permutation(keys), _parts(keys))):
        rank = np.arange(len(named)) + number * FILL_ROWS
        times = np.where(rank < due * slices, rank // due * STEP_S, DAY_S // 2) * SECOND_US
        yield _rows(times, key=named, amount=np.ones(len(named), np.int64))
    for number in range(3 * slices + 2):
        at_s = DAY_S + (number // 3 + 1) * STEP_S
        aside = np.arange(ASIDE_ROWS) + keys
        yield _rows(np.full(ASIDE_ROWS, at_s * SECOND_US), key=aside, amount=np.ones(ASIDE_ROWS, np.int64))


def _parts(keys: int) -> int:
    return -(-keys // FILL_ROWS)
