"""Decide whether sampled values grow: a slope that few outliers do not change, and a bound."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Slope", "slope_of"]

WARM_UP_SHARE = 1 / 3
"""Of the samples, the first of which are left out at least: pools fill, classes load."""
SHARE = 0.02
"""A growth of this share of the level, over all samples that count, is none that anybody would notice."""
SCATTERS = 2.0
"""Nor is one that is less than twice as large as samples usually are off the line."""
AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Slope:
    """How a quantity went: its level, its growth over the samples that count and in an hour, and what is flat."""

    name: str
    level: float
    growth: float
    per_hour: float
    bound: float

    @property
    def is_flat(self) -> bool:
        """Whether it does not grow; what shrinks is flat, too."""
        return self.growth <= self.bound

    def __str__(self) -> str:
        label = "flat" if self.is_flat else "GROWS"
        return (
            f"{self.name:<36} {self.level:>12,.1f}  {self.per_hour:>+12,.2f} an hour  "
            f"{self.growth:>+10,.2f} of at most {self.bound:,.2f}: {label}"
        )


def slope_of(name: str, times: Sequence[float], values: Sequence[float], least: float, first: int = 0) -> Slope:
    """Return how a quantity went; ``least`` is a growth that is always flat, whatever the level, ``first`` the number
    of the sample from which on it is to be.

    The slope is the median of those between any two samples (Theil and Sen): a single high sample, or a tooth of a saw,
    does not move it.
    """
    skipped = max(first, int(len(times) * WARM_UP_SHARE))
    points = list(zip(times[skipped:], values[skipped:], strict=True))
    assert len(points) >= 2, f"{name}: {len(points)} samples are too few"
    slopes = [(v - u) / (t - s) for (s, u), (t, v) in itertools.combinations(points, 2) if t > s]
    slope = statistics.median(slopes)
    level = statistics.median(value for _, value in points)
    start = statistics.median(value - slope * second for second, value in points)
    scatter = statistics.median(abs(value - start - slope * second) for second, value in points)
    growth = slope * (points[-1][0] - points[0][0])
    return Slope(name, level, growth, slope * AN_HOUR, max(least, SHARE * level, SCATTERS * scatter))
