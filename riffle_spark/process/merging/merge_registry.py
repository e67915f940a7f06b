"""Spark's aggregate functions by the class names in plans, and how their buffers merge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast, get_args

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging import (
    merged_lists,
    merged_moments,
    merged_picks,
    merged_sketches,
    merged_sums,
    shared_sketches,
)
from riffle_spark.process.merging.merge_function import MergeFunction
from riffle_spark.process.merging.user_aggregate import MergedByUser, UserAggregate

_LIST_MAX = 10_000
"""Values that a collecting function may keep per key."""


def _overflow_mode(options: Mapping[str, str]) -> merged_sums.Overflow:
    """Return the overflow mode in a function's options: ``LEGACY`` by default, ``ANSI`` or ``TRY``."""
    mode = options.get("evalMode", "LEGACY")
    assert mode in get_args(merged_sums.Overflow), f"evalMode is {mode}"
    return cast(merged_sums.Overflow, mode)


def _make_quantiles(options: Mapping[str, str]) -> MergeFunction:
    """Return the merge function for the option ``percentages``: a number, or a list of numbers in brackets."""
    text = options.get("percentages", "0.5")
    numbers = tuple(float(number) for number in text.strip("[]").split(", ") if number)
    percentages = numbers if text.startswith("[") else numbers[0]
    return merged_sketches.MergedQuantiles(int(options.get("accuracy", 10_000)), percentages)


_MERGES: Mapping[str, Callable[[Mapping[str, str]], MergeFunction]] = {
    "Count": lambda _: merged_sums.MergedCount(),
    "Sum": lambda options: merged_sums.MergedSum(_overflow_mode(options)),
    "Average": lambda options: merged_sums.MergedAverage(_overflow_mode(options)),
    "Product": lambda _: merged_sums.MergedProduct(),
    "BitAndAgg": lambda _: merged_sums.MergedBits("and"),
    "BitOrAgg": lambda _: merged_sums.MergedBits("or"),
    "BitXorAgg": lambda _: merged_sums.MergedBits("xor"),
    "Max": lambda _: merged_picks.MergedExtreme(greatest=True),
    "Min": lambda _: merged_picks.MergedExtreme(greatest=False),
    "MaxBy": lambda _: merged_picks.MergedExtremeBy(greatest=True),
    "MinBy": lambda _: merged_picks.MergedExtremeBy(greatest=False),
    "First": lambda _: merged_picks.MergedPick(latest=False),
    "Last": lambda _: merged_picks.MergedPick(latest=True),
    "StddevPop": lambda _: merged_moments.MergedMoments(order=2),
    "StddevSamp": lambda _: merged_moments.MergedMoments(order=2),
    "VariancePop": lambda _: merged_moments.MergedMoments(order=2),
    "VarianceSamp": lambda _: merged_moments.MergedMoments(order=2),
    "RegrReplacement": lambda _: merged_moments.MergedMoments(order=2),
    "Skewness": lambda _: merged_moments.MergedMoments(order=3),
    "Kurtosis": lambda _: merged_moments.MergedMoments(order=4),
    "CovPopulation": lambda _: merged_moments.MergedCoMoments(squares=False),
    "CovSample": lambda _: merged_moments.MergedCoMoments(squares=False),
    "RegrSXY": lambda _: merged_moments.MergedCoMoments(squares=False),
    "Corr": lambda _: merged_moments.MergedCoMoments(squares=True),
    "RegrR2": lambda _: merged_moments.MergedCoMoments(squares=True),
    "RegrSlope": lambda _: merged_moments.MergedRegression(),
    "RegrIntercept": lambda _: merged_moments.MergedRegression(),
    "HyperLogLogPlusPlus": lambda options: merged_sketches.MergedDistinct(float(options.get("relativeSD", 0.05))),
    "HllSketchAgg": lambda options: shared_sketches.HashSketch(int(options.get("lgConfigK", 12))),
    "HllUnionAgg": lambda options: shared_sketches.SketchUnion(options.get("allowDifferentLgConfigK") == "True"),
    "ApproximatePercentile": _make_quantiles,
    "CollectList": lambda _: merged_lists.MergedList(_LIST_MAX),
    "CollectSet": lambda _: merged_lists.MergedSet(_LIST_MAX),
    "ListAgg": lambda options: merged_lists.MergedText(_LIST_MAX, options.get("delimiter", "")),
}

COLLECTED = frozenset({"ApproximatePercentile", "CollectList", "CollectSet", "HllSketchAgg", "HllUnionAgg", "ListAgg"})
"""Functions whose rows carry the value (HllSketchAgg: the words of its hash), and whose result is ``finish``."""

HASHED = frozenset({"HyperLogLogPlusPlus"})
"""Functions whose rows carry the value's hash, and whose ``finish`` returns Spark's buffer as one struct."""


def make_merge_function(
    name: str,
    buffers: Sequence[pa.DataType],
    options: Iterable[tuple[str, str]] = (),
    user_function: object | None = None,
) -> MergeFunction:
    """Return the merge function for Spark's aggregate class ``name`` with these types of buffers.

    ``options`` are described in ``FunctionSpec``. ``user_function`` is the ``UserAggregate`` if a user wrote the
    function. Raises ``ConfigError`` if the function or the types are not supported.
    """
    if user_function is not None:
        assert isinstance(user_function, UserAggregate)
        merge: MergeFunction = MergedByUser(user_function)
    elif name in _MERGES:
        merge = _MERGES[name](dict(options))
    else:
        raise ConfigError(
            f"Spark's aggregate function {name} is not supported in stateful queries.",
            remedy=f"Use another function, or user_aggregate. Supported: {', '.join(_MERGES)}.",
            id="RIFFLE-0179",
        )
    if not merge.state_types(buffers):
        raise ConfigError(
            f"Spark's aggregate function {name} is not supported with buffers of {', '.join(map(str, buffers))}.",
            remedy="Cast its input to another type.",
            id="RIFFLE-0180",
        )
    return merge
