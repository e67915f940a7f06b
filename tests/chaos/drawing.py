"""Draw the faults from a seed: each kind occurs once before any kind is repeated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Drawn", "draw", "fewer_than"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault to inject: its kind, the pause before it, and the seed of its random numbers."""

    kind: str
    pause_seconds: float
    seed: int


def draw(seed: int, lane: str, kinds: Sequence[str], pauses: tuple[float, float]) -> Iterator[Drawn]:
    """Yield the endless faults of a lane, with the kinds in another order in each round."""
    chance = random.Random(f"{seed} {lane}")
    while kinds:
        for kind in chance.sample(sorted(kinds), len(kinds)):
            yield Drawn(kind, chance.uniform(*pauses), chance.randrange(1 << 32))


def fewer_than(least: int, kinds: Sequence[str], happened: Mapping[str, int]) -> dict[str, int]:
    """Return the kinds that happened less often than required, each with its count."""
    counts = Counter(happened)
    return {kind: counts[kind] for kind in sorted(kinds) if counts[kind] < least}
