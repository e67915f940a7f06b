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
"""Seconds of event time from batch to batch: the length of a window."""
LAG_S = 50
"""How far back the rows of a batch reach: so many windows are open."""
COHORTS = 10
ACTIVE = 6
"""Sessions: a tenth of the keys begins with each batch, is there for six, and is quiet for four."""
DEDUP_DELAY_S = 120
DEDUP_STEP_S = 30
JOIN_STEP_S = 120
FILL_ROWS = 500_000
ASIDE_ROWS = 1_000
DAY_S = 86_400

Batch = Mapping[str, pa.Table]
"""By stream."""
Integers = npt.NDArray[np.int64]


def write(folder: Path, batches: Iterable[Batch]) -> int:
    """Write each batch's tables as the next files of their streams' folders; return how many batches there are."""
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
    """Yield rows without time: ``key`` uniform, ``amount``."""
    random = np.random.default_rng(SEED)
    for _ in range(batches):
        yield {"rows": pa.table({"key": random.integers(0, keys, rows), "amount": random.integers(1, 101, rows)})}


def windowed(keys: int, rows: int, batches: int) -> Iterator[Batch]:
    """Yield rows that fall into six windows each batch, of which its watermark closes the oldest: ``at``, ``key``,
    ``amount``.
    """
    random = np.random.default_rng(SEED + 1)
    for number in range(batches):
        times = _between(random, number * STEP_S - LAG_S, (number + 1) * STEP_S, rows)
        # The newest moment is there in each batch, so that each closes one window.
        times[0] = (number + 1) * STEP_S * SECOND_US - 1
        yield _rows(times, key=random.integers(0, keys, rows), amount=random.integers(1, 101, rows))


def totals(keys: int, batches: int) -> Iterator[Batch]:
    """Yield what closing one window of all keys answers, a row a key: ``at``, ``key``, ``amount``."""
    random = np.random.default_rng(SEED + 2)
    for number in range(batches):
        times = np.full(keys, (number + 1) * STEP_S * SECOND_US - 1)
        yield _rows(times, key=random.permutation(keys), amount=random.integers(1, 101, keys))


def visits(keys: int, rows: int, batches: int) -> Iterator[Batch]:
    """Yield rows of those keys whose session goes on; the others are quiet until theirs has ended: ``at``, ``key``."""
    random = np.random.default_rng(SEED + 3)
    for number in range(batches):
        cohort = random.integers(0, ACTIVE, rows)
        key = random.integers(0, keys // COHORTS, rows) * COHORTS + (number - cohort) % COHORTS
        yield _rows(_between(random, number * STEP_S, (number + 1) * STEP_S, rows), key=key)


def once(rows: int, batches: int) -> Iterator[Batch]:
    """Yield ids of which nine in ten are new, the others from the batches before: ``at``, ``key``."""
    random = np.random.default_rng(SEED + 4)
    for number in range(batches):
        fresh = number * rows + np.arange(rows)
        repeated = random.integers(max(0, (number - 1) * rows), (number + 1) * rows, rows)
        key = np.where(random.random(rows) < 0.9, fresh, repeated)
        yield _rows(_between(random, number * DEDUP_STEP_S, (number + 1) * DEDUP_STEP_S, rows), key=key)


def joined(rows: int, batches: int) -> Iterator[Batch]:
    """Yield two streams of so many rows, half of which have a partner in the other one: ``at``, ``key``, ``amount``."""
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
    """Yield batches that open a window for each key, then small ones: a hundredth of the windows is due in every
    third of those, in the others none: ``at``, ``key``, ``amount``.

    The watermark is a day behind. What is never due lies within that day; a small batch is a day later, and its
    rows, in windows of their own, move the watermark, which closes in the batch after.
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
