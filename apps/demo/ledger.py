"""Compare the events that were produced per key with the events that were counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["MINUTES", "Difference", "Events", "Ledger", "compare", "make_events", "minutes_of", "times_of"]

Integers = npt.NDArray[np.int64]
SEED = 20_250_101
MINUTES = 10
"""The number of minutes over which the events are spread."""
_OPEN = 2
"""The number of these minutes that stay open in a query with a watermark delay of one minute."""
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order: the key number and the amount of each event."""

    keys: Integers
    amounts: Integers


@dataclass(frozen=True, slots=True)
class Ledger:
    """The number of events and the sum of their amounts, by key number."""

    counts: Integers
    sums: Integers

    @staticmethod
    def of(events: Events, keys: int) -> Ledger:
        """Count and sum events over ``keys`` keys."""
        sums = np.zeros(keys, np.int64)
        np.add.at(sums, events.keys, events.amounts)
        return Ledger(np.bincount(events.keys, minlength=keys).astype(np.int64), sums)

    @staticmethod
    def read(path: Path) -> Ledger:
        """Return the ledger in a file that ``write`` has written."""
        with np.load(path, allow_pickle=False) as file:
            return Ledger(file["counts"], file["sums"])

    def write(self, path: Path) -> None:
        """Write the ledger to one file, atomically."""
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, counts=self.counts, sums=self.sums)
        partial.rename(path)


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between counts and the ledger: lost and doubled events, keys with a wrong count or sum."""

    lost: int
    doubled: int
    wrong_keys: int


def make_events(events: int, keys: int) -> Events:
    """Return events with uniform keys and amounts of 1 to 100. Equal arguments give equal events."""
    random = np.random.default_rng(SEED)
    return Events(random.integers(0, keys, events), random.integers(1, 101, events))


def times_of(events: int) -> Integers:
    """Return the time of each event, in milliseconds after the first."""
    return np.arange(events, dtype=np.int64) * (MINUTES * _MINUTE_MS) // events


def minutes_of(events: Events, partitions: int) -> Ledger:
    """Count and sum the events of the first partition by minute, without open minutes."""
    own_rows = slice(None, None, partitions)
    minutes = times_of(len(events.keys))[own_rows] // _MINUTE_MS
    expected_ledger = Ledger.of(Events(minutes, events.amounts[own_rows]), MINUTES)
    return Ledger(expected_ledger.counts[:-_OPEN], expected_ledger.sums[:-_OPEN])


def compare(ledger: Ledger, actual: Ledger) -> Difference:
    """Return the differences of the counts and sums of all keys."""
    missing = ledger.counts - actual.counts
    wrong = (missing != 0) | (ledger.sums != actual.sums)
    return Difference(int(missing.clip(min=0).sum()), int((-missing).clip(min=0).sum()), int(wrong.sum()))
