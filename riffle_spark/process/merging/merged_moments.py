"""What merges as moments about a mean: variance, standard deviation, skewness, kurtosis, covariance, correlation and
regression. Knows their formulas for any number of parts at once. Does not know which function needs which.

Each group's parts, those of the rows and what is kept, are merged together: first their common mean, then what each
part contributes about it (Chan, Golub, LeVeque 1979; Pébay 2008). The mean is looked for from one part's own, never
from zero, so that equal numbers have a variance of exactly zero and large ones lose no digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.blocks.folding import filled
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, chosen

__all__ = ["MergedCoMoments", "MergedMoments", "MergedRegression"]

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MergedMoments(MergeFunction):
    """Count, mean, and the sums of the differences' powers from the second up to ``order``, which is at most 4."""

    order: int

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep them."""
        return _doubles(buffers, self.order + 1)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge moments."""
        parts = _Parts.of(rows, old, groups)
        mean, away = parts.mean(parts.columns[1])
        # A part's sum of differences from its own mean, which would be the first moment, is zero.
        own = [parts.count, np.zeros(len(away)), *parts.columns[2:]]
        with np.errstate(all="ignore"):
            powers = [np.ones(len(away))]
            for _ in range(self.order):
                powers.append(powers[-1] * away)
            moments = [parts.total(_shifted(order, own, powers)) for order in range(2, self.order + 1)]
        return parts.merged(mean, *moments)


def _shifted(order: int, own: Sequence[Floats], powers: Sequence[Floats]) -> Floats:
    """Return a moment of parts about a point that is away from their means: the powers are of how far."""
    total = powers[order] * own[0]
    for power in range(order - 1):
        total += comb(order, power) * powers[power] * own[order - power]
    return total


@dataclass(frozen=True, slots=True)
class MergedCoMoments(MergeFunction):
    """Count, the means of x and y, the sum of the differences' products; with ``squares`` also of their squares."""

    squares: bool

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep them."""
        return _doubles(buffers, 6 if self.squares else 4)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge moments of pairs."""
        parts = _Parts.of(rows, old, groups)
        (x_mean, x_away), (y_mean, y_away) = parts.mean(parts.columns[1]), parts.mean(parts.columns[2])
        with np.errstate(all="ignore"):
            products = (x_away * y_away, x_away**2, y_away**2)
            moments = [own + parts.count * more for own, more in zip(parts.columns[3:], products, strict=False)]
        return parts.merged(x_mean, y_mean, *(parts.total(moment) for moment in moments))


@dataclass(frozen=True, slots=True)
class MergedRegression(MergeFunction):
    """RegrSlope and RegrIntercept: the moments of pairs, and beside them those of x."""

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep both."""
        return _doubles(buffers, 7)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge each of the two."""
        pairs = MergedCoMoments(squares=False).fold(rows[:4], old[:4], groups)
        return [*pairs, *MergedMoments(order=2).fold(rows[4:], old[4:], groups)]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is merged: every buffer, of rows or kept, that stands for at least one value."""

    codes: npt.NDArray[np.int64]
    size: int
    columns: Sequence[Floats]

    @classmethod
    def of(cls, rows: Columns, old: Columns, groups: Groups) -> "_Parts":
        columns = [np.concatenate([filled(each, 0.0) for each in pair]) for pair in zip(old, rows, strict=True)]
        stands_for_some = columns[0] > 0
        codes = groups.with_old()[stands_for_some].astype(np.int64)
        return cls(codes, groups.size, [column[stands_for_some].astype(np.float64) for column in columns])

    @property
    def count(self) -> Floats:
        return self.columns[0]

    def total(self, values: Floats) -> Floats:
        """Return the sum of each group's parts."""
        return np.bincount(self.codes, weights=values, minlength=self.size).astype(np.float64)

    def mean(self, means: Floats) -> tuple[Floats, Floats]:
        """Return each group's mean, and how far each part's own is from it."""
        with np.errstate(all="ignore"):
            first = chosen(self.codes, self.size, np.arange(len(self.codes)), latest=False)
            near = np.where(first < 0, 0.0, np.append(means, 0.0)[first])
            moved = self.total(self.count * (means - near[self.codes]))
            mean = near + moved / np.maximum(self.total(self.count), 1)
            return mean, means - mean[self.codes]

    def merged(self, *columns: Floats) -> list[pa.Array]:
        """Return the groups' columns, the count before them."""
        return [pa.array(column) for column in (self.total(self.count), *columns)]


def _doubles(buffers: Sequence[pa.DataType], count: int) -> Sequence[pa.DataType]:
    return buffers if list(buffers) == [pa.float64()] * count else ()
