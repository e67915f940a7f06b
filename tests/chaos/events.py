"""The events of a chaos run, generated from the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BUCKETS", "CHUNK", "WINDOW_SECONDS", "Events", "Plan"]

CHUNK = 500
"""How many events are drawn, and sent, at once."""
BUCKETS = 20
WINDOW_SECONDS = 10
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order: their numbers, users, amounts and times, the last in milliseconds."""

    numbers: Integers
    users: Integers
    amounts: Integers
    times: Integers


@dataclass(frozen=True, slots=True)
class Plan:
    """The rate of events, the number of users, and the first time."""

    seed: int
    rate: int
    users: int
    partitions: int
    start_ms: int

    def chunk(self, index: int) -> Events:
        """Return the events of one chunk; few users have many of them."""
        chance = np.random.default_rng([self.seed, index])
        numbers = np.arange(index * CHUNK, (index + 1) * CHUNK, dtype=np.int64)
        users = (self.users * chance.random(CHUNK) ** 2).astype(np.int64)
        times = self.start_ms + numbers * 1000 // self.rate
        return Events(numbers, users, chance.integers(1, 101, CHUNK), times)

    def windows_of(self, events: Events) -> Integers:
        """Return each event's place in the ledger of windows: ten seconds and a bucket of users."""
        first = self.start_ms // 1000 // WINDOW_SECONDS
        return (events.times // 1000 // WINDOW_SECONDS - first) * BUCKETS + events.users % BUCKETS

    @property
    def first_window_seconds(self) -> int:
        """When the first window of the ledger begins."""
        return self.start_ms // 1000 // WINDOW_SECONDS * WINDOW_SECONDS
