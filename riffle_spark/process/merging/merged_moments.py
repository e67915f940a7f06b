"""Aggregate functions made of moments about a mean: variance, standard deviation, skewness, kurtosis, covariance,
correlation and regression.

All parts of a group, its rows and its old state, are merged at once: first their common mean, then the moments of each
part about this mean (Chan, Golub, LeVeque 1979; Pébay 2008). The mean is computed relative to one part's own mean, not
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

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MergedMoments(MergeFunction):
    """Count, mean, and the sums of the differences' powers from the second up to ``order`` (at most 4)."""

    order: int

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's types: the count, the mean and ``order`` - 1 moments, all double; empty for other
        buffers.
        """
        return _doubles_or_none(buffers, self.order + 1)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return the count, mean and moments of each group, merged from its old state and its rows' buffers."""
        parts = _Parts.from_buffers(rows, old, groups)
        mean, distance = parts.mean_by_group(parts.columns[1])
        # The first moment, a part's sum of differences from its own mean, is zero.
        part_moments = [parts.count, np.zeros(len(distance)), *parts.columns[2:]]
        with np.errstate(all="ignore"):
            powers = [np.ones(len(distance))]
            for _ in range(self.order):
                powers.append(powers[-1] * distance)
            moments = [
                parts.sum_by_group(_shift_moment(order, part_moments, powers)) for order in range(2, self.order + 1)
            ]
        return parts.make_state(mean, *moments)


def _shift_moment(order: int, part_moments: Sequence[Floats], powers: Sequence[Floats]) -> Floats:
    """Return the moment of each part about another point. ``order`` is the order of the moment.

    ``powers`` holds the powers of the distance to that point.
    """
    total = powers[order] * part_moments[0]
    for power in range(order - 1):
        total += comb(order, power) * powers[power] * part_moments[order - power]
    return total


@dataclass(frozen=True, slots=True)
class MergedCoMoments(MergeFunction):
    """Count, the means of x and y, the sum of the differences' products; with ``squares`` also of their squares."""

    squares: bool

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the buffer's types: four doubles, or six with ``squares``; empty for other buffers."""
        return _doubles_or_none(buffers, 6 if self.squares else 4)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Return the count, means and co-moments of each group, merged from its old state and its rows' buffers."""
        parts = _Parts.from_buffers(rows, old, groups)
        x_mean, x_distance = parts.mean_by_group(parts.columns[1])
        y_mean, y_distance = parts.mean_by_group(parts.columns[2])
        with np.errstate(all="ignore"):
            products = (x_distance * y_distance, x_distance**2, y_distance**2)
            moments = [
                moment + parts.count * product for moment, product in zip(parts.columns[3:], products, strict=False)
            ]
        return parts.make_state(x_mean, y_mean, *(parts.sum_by_group(moment) for moment in moments))


@dataclass(frozen=True, slots=True)
class MergedRegression(MergeFunction):
    """RegrSlope and RegrIntercept: the moments of pairs, followed by the moments of x."""

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the types of the moments of pairs followed by those of x; empty if either is not supported."""
        return _doubles_or_none(buffers, 7)

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Merge the moments of pairs and the moments of x separately, and return the columns of both."""
        pairs = MergedCoMoments(squares=False).fold(rows[:4], old[:4], groups)
        return [*pairs, *MergedMoments(order=2).fold(rows[4:], old[4:], groups)]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The buffers of rows and old state that have at least one value, with the group of each."""

    codes: npt.NDArray[np.int64]
    size: int
    columns: Sequence[Floats]

    @classmethod
    def from_buffers(cls, rows: Columns, old: Columns, groups: Groups) -> "_Parts":
        """Collect the old state and the rows' buffers that have at least one value."""
        columns = [np.concatenate([fill_nulls(part, 0.0) for part in pair]) for pair in zip(old, rows, strict=True)]
        has_values = columns[0] > 0
        codes = groups.codes_with_state()[has_values].astype(np.int64)
        return cls(codes, groups.size, [column[has_values].astype(np.float64) for column in columns])

    @property
    def count(self) -> Floats:
        """The number of values in each part."""
        return self.columns[0]

    def sum_by_group(self, values: Floats) -> Floats:
        """Return the sum of ``values``, one per part, over the parts of each group."""
        return np.bincount(self.codes, weights=values, minlength=self.size).astype(np.float64)

    def mean_by_group(self, means: Floats) -> tuple[Floats, Floats]:
        """Return the mean of each group from the means of its parts, and the distance of each part's mean from it."""
        with np.errstate(all="ignore"):
            first = pick_places(self.codes, self.size, np.arange(len(self.codes)), latest=False)
            near = np.where(first < 0, 0.0, np.append(means, 0.0)[first])
            moved = self.sum_by_group(self.count * (means - near[self.codes]))
            mean = near + moved / np.maximum(self.sum_by_group(self.count), 1)
            return mean, means - mean[self.codes]

    def make_state(self, *columns: Floats) -> list[pa.Array]:
        """Return the state columns of the groups: the count, followed by ``columns``."""
        return [pa.array(column) for column in (self.sum_by_group(self.count), *columns)]


def _doubles_or_none(buffers: Sequence[pa.DataType], count: int) -> Sequence[pa.DataType]:
    """Return the buffers' types if they are ``count`` doubles, else an empty tuple (not supported)."""
    return buffers if list(buffers) == [pa.float64()] * count else ()
