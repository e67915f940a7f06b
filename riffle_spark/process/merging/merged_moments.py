"""Aggregate functions made of moments about a mean: variance, standard deviation, skewness, kurtosis, covariance,
correlation and regression.

All parts of a group, its rows and its old state, are merged at once: first their common mean, then what each part
contributes about it (Chan, Golub, LeVeque 1979; Pébay 2008). The mean is computed relative to one part's own mean, not
to zero. So equal numbers have a variance of exactly zero, and large numbers lose no digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.blocks.folding import fill_nulls
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, pick_places

__all__ = ["MergedCoMoments", "MergedMoments", "MergedRegression"]

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MergedMoments(MergeFunction):
    """Count, mean, and the sums of the differences' powers from the second up to ``order`` (at most 4)."""

    order: int

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the buffer."""
        return _doubles(buffers, self.order + 1)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge moments."""
        parts = _Parts.of(rows, old, groups)
        mean, distance = parts.mean(parts.columns[1])
        # The first moment, a part's sum of differences from its own mean, is zero.
        part_moments = [parts.count, np.zeros(len(distance)), *parts.columns[2:]]
        with np.errstate(all="ignore"):
            powers = [np.ones(len(distance))]
            for _ in range(self.order):
                powers.append(powers[-1] * distance)
            moments = [parts.total(_shift_moment(order, part_moments, powers)) for order in range(2, self.order + 1)]
        return parts.merged(mean, *moments)


def _shift_moment(order: int, part_moments: Sequence[Floats], powers: Sequence[Floats]) -> Floats:
    """Return a moment of parts about another point. ``powers`` holds the powers of the distance to that point."""
    total = powers[order] * part_moments[0]
    for power in range(order - 1):
        total += comb(order, power) * powers[power] * part_moments[order - power]
    return total


@dataclass(frozen=True, slots=True)
class MergedCoMoments(MergeFunction):
    """Count, the means of x and y, the sum of the differences' products; with ``squares`` also of their squares."""

    squares: bool

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the buffer."""
        return _doubles(buffers, 6 if self.squares else 4)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge moments of pairs."""
        parts = _Parts.of(rows, old, groups)
        x_mean, x_distance = parts.mean(parts.columns[1])
        y_mean, y_distance = parts.mean(parts.columns[2])
        with np.errstate(all="ignore"):
            products = (x_distance * y_distance, x_distance**2, y_distance**2)
            moments = [
                moment + parts.count * product for moment, product in zip(parts.columns[3:], products, strict=False)
            ]
        return parts.merged(x_mean, y_mean, *(parts.total(moment) for moment in moments))


@dataclass(frozen=True, slots=True)
class MergedRegression(MergeFunction):
    """RegrSlope and RegrIntercept: the moments of pairs, followed by the moments of x."""

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the columns of both."""
        return _doubles(buffers, 7)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge the moments of pairs, then the moments of x."""
        pairs = MergedCoMoments(squares=False).fold(rows[:4], old[:4], groups)
        return [*pairs, *MergedMoments(order=2).fold(rows[4:], old[4:], groups)]


@dataclass(frozen=True, slots=True)
class _Parts:
    """All buffers with at least one value, of rows and of old state, with their groups."""

    codes: npt.NDArray[np.int64]
    size: int
    columns: Sequence[Floats]

    @classmethod
    def of(cls, rows: Columns, old: Columns, groups: Groups) -> "_Parts":
        columns = [np.concatenate([fill_nulls(part, 0.0) for part in pair]) for pair in zip(old, rows, strict=True)]
        has_values = columns[0] > 0
        codes = groups.codes_with_state()[has_values].astype(np.int64)
        return cls(codes, groups.size, [column[has_values].astype(np.float64) for column in columns])

    @property
    def count(self) -> Floats:
        return self.columns[0]

    def total(self, values: Floats) -> Floats:
        """Return the sum over each group's parts."""
        return np.bincount(self.codes, weights=values, minlength=self.size).astype(np.float64)

    def mean(self, means: Floats) -> tuple[Floats, Floats]:
        """Return each group's mean, and the distance of each part's mean from it."""
        with np.errstate(all="ignore"):
            first = pick_places(self.codes, self.size, np.arange(len(self.codes)), latest=False)
            near = np.where(first < 0, 0.0, np.append(means, 0.0)[first])
            moved = self.total(self.count * (means - near[self.codes]))
            mean = near + moved / np.maximum(self.total(self.count), 1)
            return mean, means - mean[self.codes]

    def merged(self, *columns: Floats) -> list[pa.Array]:
        """Return the groups' columns, preceded by the count."""
        return [pa.array(column) for column in (self.total(self.count), *columns)]


def _doubles(buffers: Sequence[pa.DataType], count: int) -> Sequence[pa.DataType]:
    return buffers if list(buffers) == [pa.float64()] * count else ()
