"""Aggregates that keep one of the values: min, max, first, last. Knows which one Spark keeps. Does not know schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import types

from riffle_spark.process import folding
from riffle_spark.process.accumulators import Accumulator, Groups
from riffle_spark.process.compute import BoolArray, IndexArray

__all__ = ["First", "Last", "Max", "Min"]


@dataclass(frozen=True, slots=True)
class _Extreme(Accumulator):
    """The value that goes before all others in one order; nulls do not count."""

    supported = "numbers, decimal, string, binary, boolean, dates, times, timestamps, day-time intervals"
    order: ClassVar[str]

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type} if _is_plain(type) or _is_sortable(type) else {}

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Keep the old value or take a new one."""
        codes, present = groups.present(values)
        if not _is_plain(values.type):
            return [folding.sort_extreme(old[0], codes, present, self.order)]
        choose = folding.smallest if self.order == "ascending" else folding.largest
        return [choose(old[0], codes, present)]


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The least value; NaN only where there is nothing else."""

    function = "min_"
    order = "ascending"


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value; NaN is above every number."""

    function = "max_"
    order = "descending"


@dataclass(frozen=True, slots=True)
class First(Accumulator):
    """The first value ever seen, null if that one is; with ``ignore_nulls`` the first that is not null."""

    ignore_nulls: bool = False

    function = "first"
    supported = "any type"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type}

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Keep the old value where there is one."""
        codes, seen = groups.present(values) if self.ignore_nulls else (groups.codes, values)
        settled = old[0].is_valid().to_numpy(zero_copy_only=False) if self.ignore_nulls else groups.found
        return [_choose(old[0], seen, folding.first_rows(codes, len(old[0])), settled)]


@dataclass(frozen=True, slots=True)
class Last(Accumulator):
    """The last value seen, null if that one is; with ``ignore_nulls`` the last that is not null."""

    ignore_nulls: bool = False

    function = "last"
    supported = "any type"

    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Keep the value."""
        return {"": type}

    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Take the new value where there is one."""
        codes, seen = groups.present(values) if self.ignore_nulls else (groups.codes, values)
        rows = folding.last_rows(codes, len(old[0]))
        return [_choose(old[0], seen, rows, rows < 0)]


def _choose(old: pa.Array, values: pa.Array, rows: IndexArray, keep_old: BoolArray) -> pa.Array:
    """Take, per key, the old value or the value of its row; null where it has neither."""
    new = values.take(pa.array(rows, mask=rows < 0))
    places = np.arange(len(old)) + np.where(keep_old, 0, len(old))
    return pa.concat_arrays([old, new]).take(pa.array(places))


def _is_plain(type: pa.DataType) -> bool:
    """Tell whether values can be compared as NumPy's: signed integers, floats, dates and times."""
    return bool(
        types.is_signed_integer(type) or types.is_float32(type) or types.is_float64(type) or types.is_temporal(type)
    ) and not types.is_interval(type)


def _is_sortable(type: pa.DataType) -> bool:
    text = types.is_string(type) or types.is_large_string(type)
    octets = types.is_binary(type) or types.is_large_binary(type)
    return bool(text or octets or types.is_decimal128(type) or types.is_boolean(type))
