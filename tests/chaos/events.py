"""The events of a chaos run, generated from the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BUCKETS", "CHUNK", "WINDOW_SECONDS", "Events", "Plan"]

CHUNK = 500
"""The number of events that are drawn and sent together."""
BUCKETS = 20
WINDOW_SECONDS = 10
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order, with their numbers, users, amounts and times in milliseconds."""

    numbers: Integers
    users: Integers
    amounts: Integers
    times: Integers


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the events: seed, rate, users, partitions and the time of the first event."""

    seed: int
    rate: int
    users: int
    partitions: int
    start_ms: int

    def chunk(self, index: int) -> Events:
        """Return the events of one chunk. A few users have many of the events."""
        chance = np.random.default_rng([self.seed, index])
        numbers = np.arange(index * CHUNK, (index + 1) * CHUNK, dtype=np.int64)
        users = (self.users * chance.random(CHUNK) ** 2).astype(np.int64)
        times = self.start_ms + numbers * 1000 // self.rate
        return Events(numbers, users, chance.integers(1, 101, CHUNK), times)

    def windows_of(self, events: Events) -> Integers:
        """Return the index of each event's window in the ledger. A window is ten seconds of one bucket of users."""
        first = self.start_ms // 1000 // WINDOW_SECONDS
        return (events.times // 1000 // WINDOW_SECONDS - first) * BUCKETS + events.users % BUCKETS

    @property
    def first_window_seconds(self) -> int:
        """Return the start of the first window of the ledger."""
        return self.start_ms // 1000 // WINDOW_SECONDS * WINDOW_SECONDS
