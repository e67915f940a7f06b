"""The input, the computation and the expected result of the elasticity benchmark.

Every row has a key and an amount. The first rows have every key once, so that the state has its full size. Later rows
have random keys. The state of a key is its count, its sum and an incompressible vector. Every change computes the
vector again from the key and the count. So the next change detects a stale or foreign copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["OUTPUT", "STATE", "Feed", "Size", "last_call_time", "make_function", "vectors"]

Integers = npt.NDArray[np.int64]
SEED = 20_250_101
STATE = pa.schema([("count", pa.int64()), ("total", pa.int64()), ("vector", pa.binary())])
OUTPUT = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("total", pa.int64())])
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a case: keys, bytes of vector per key, rows of a steady batch, and rows of a filling batch."""

    keys: int
    vector_bytes: int
    rows: int
    fill_rows: int

    @property
    def state_bytes(self) -> int:
        """The bytes of all keys and values of the state, without the overhead of a format."""
        return self.keys * (8 + 16 + self.vector_bytes)


def vectors(keys: Integers, counts: Integers, size: int) -> npt.NDArray[np.uint64]:
    """Return one row of ``size`` bytes per key. Equal keys with equal counts have equal rows."""
    words = np.random.default_rng(SEED).integers(0, 1 << 63, size // 8, dtype=np.uint64)
    seeds = (keys.astype(np.uint64) * _ODD + counts.astype(np.uint64)) * _MIX
    seeds ^= seeds >> np.uint64(29)
    mixed: npt.NDArray[np.uint64] = words[None, :] ^ (seeds * _ODD)[:, None]
    return mixed


class _Context(Protocol):
    """The used part of the function's context."""

    version: int


def make_function(
    size: int, marks: Path | None = None
) -> Callable[[pa.Table, pa.Table, _Context], tuple[pa.Table, pa.Table]]:
    """Return the stateful function. It gets the rows and the state of a key-group, and returns totals and new state.

    It raises an error if a vector does not fit its key and count. It writes the time of each call to the folder
    ``marks``, if that is set.
    """

    def advance(rows: pa.Table, state: pa.Table, context: _Context) -> tuple[pa.Table, pa.Table]:
        if marks is not None:
            with (marks / str(os.getpid())).open("a") as file:
                file.write(f"{context.version} {time.time()}\n")
        keys, places = np.unique(rows["key"].to_numpy(), return_inverse=True)
        counts = np.bincount(places, minlength=len(keys)).astype(np.int64)
        totals = np.zeros(len(keys), np.int64)
        np.add.at(totals, places, rows["amount"].to_numpy())
        if state.num_rows:
            stored_keys = state["key"].to_numpy()
            stored_counts = state["count"].to_numpy()
            _check(stored_keys, stored_counts, state["vector"])
            positions = np.searchsorted(keys, stored_keys)
            counts[positions] += stored_counts
            totals[positions] += state["total"].to_numpy()
        output = pa.table([keys, counts, totals], schema=OUTPUT)
        return output, output.append_column("vector", _binary(vectors(keys, counts, size)))

    return advance


def last_call_time(marks: Path, version: int) -> float:
    """Return the time of the function's last call in a batch, over all slots, in seconds of the wall clock."""
    lines = (line.split() for file in marks.iterdir() for line in file.read_text().splitlines())
    return max(float(second) for number, second in lines if int(number) == version)


def _binary(rows: npt.NDArray[np.uint64]) -> pa.Array:
    count = len(rows)
    width = rows.shape[1] * 8
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


def _check(keys: Integers, counts: Integers, actual: pa.ChunkedArray) -> None:
    """Raise ``ValueError`` if the first word of a vector does not fit its key and count."""
    array = actual.combine_chunks()
    data = np.frombuffer(array.buffers()[2], np.uint8)
    starts = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array)]
    first = data[starts[:, None] + np.arange(8)].view(np.uint64)[:, 0]
    wrong = np.flatnonzero(first != vectors(keys, counts, 8)[:, 0])
    if len(wrong):
        raise ValueError(f"{len(wrong)} of {len(keys)} vectors are not of their key and count")


class Feed:
    """A folder of Parquet files, one per micro-batch, and the ledger of all their rows."""

    def __init__(self, folder: Path, size: Size) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.size = size
        self.counts = np.zeros(size.keys, np.int64)
        self.sums = np.zeros(size.keys, np.int64)
        self.batches = 0
        self._random = np.random.default_rng(SEED)

    def fill(self) -> Iterator[int]:
        """Add batches that together have every key once. Yield the number of each batch."""
        order = self._random.permutation(self.size.keys)
        for start in range(0, self.size.keys, self.size.fill_rows):
            yield self.add(order[start : start + self.size.fill_rows])

    def steady(self, rows: int | None = None) -> int:
        """Add one batch of rows with keys drawn uniformly, and return its number."""
        return self.add(self._random.integers(0, self.size.keys, self.size.rows if rows is None else rows))

    def add(self, keys: Integers) -> int:
        """Add one batch with a row for each of these keys, and return its number."""
        number = self.batches
        amounts = self._random.integers(1, 101, len(keys))
        hidden = self.folder / f".{number:06d}.parquet"
        pq.write_table(pa.table({"key": keys, "amount": amounts}), hidden, compression="NONE")
        # The file source reads older files first, and compares ages in milliseconds.
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(self.folder / f"{number:06d}.parquet")
        np.add.at(self.counts, keys, 1)
        np.add.at(self.sums, keys, amounts)
        self.batches += 1
        return number
