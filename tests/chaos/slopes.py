"""Decide whether a sampled quantity grows, with a slope that is robust to outliers, and a bound."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Slope", "slope_of"]

WARM_UP_SHARE = 1 / 3
"""The share of the first samples that is ignored, because pools fill and classes load."""
SHARE = 0.02
"""A growth below this share of the level counts as flat."""
SCATTERS = 2.0
"""A growth below this multiple of the usual distance of samples from the line counts as flat."""
AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Slope:
    """The trend of a quantity: its level, its growth over the samples and per hour, and the bound of a flat one."""

    name: str
    level: float
    growth: float
    per_hour: float
    bound: float

    @property
    def is_flat(self) -> bool:
        """Whether the quantity does not grow."""
        return self.growth <= self.bound

    def __str__(self) -> str:
        label = "flat" if self.is_flat else "GROWS"
        return (
            f"{self.name:<36} {self.level:>12,.1f}  {self.per_hour:>+12,.2f} an hour  "
            f"{self.growth:>+10,.2f} of at most {self.bound:,.2f}: {label}"
        )


def slope_of(name: str, times: Sequence[float], values: Sequence[float], least: float, first: int = 0) -> Slope:
    """Return the trend of a quantity from the sample with the number ``first`` on.

    ``least`` is a growth that always counts as flat. The slope is the median of the slopes between any two samples
    (Theil and Sen), so single high samples and sawtooth shapes do not change it.
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
